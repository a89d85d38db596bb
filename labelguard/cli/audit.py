"""The commands `labelguard audit rr` and `labelguard audit statistic`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from labelguard.cli.options import HELP
from labelguard.cli.terminal import echo, print_facts, print_table, prints, progress

if TYPE_CHECKING:
    from labelguard.audit.result import AuditResult

__all__ = ["audit"]

epsilon_option = click.option("--epsilon", type=float, required=True, help="ε of a labeler.")
delta_option = click.option("--delta", type=float, required=True, help="δ of a labeler.")
seed_option = click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Decides the synthetic labels, never noise or coins.",
)


def _sizes(*, labels: int, runs: int, pipeline_runs: int) -> Callable[[Any], Any]:
    """The options that say how large an audit is, with these defaults."""

    def decorate(command: Any) -> Any:
        for name, default, about in (
            ("--pipeline-runs", pipeline_runs, "Whole releases to make and compare; 0: none."),
            ("--runs", runs, "How often each world is run; more give a tighter bound."),
            ("--labels", labels, "Labels of the canary."),
        ):
            command = click.option(name, type=int, default=default, show_default=True, help=about)(
                command
            )
        return command

    return decorate


@click.group(
    context_settings=HELP,
    short_help="Attack a mechanism by synthetic canaries; reads nobody's labels.",
)
def audit() -> None:
    """Attack a mechanism by synthetic canaries: a lower bound on ε, compared with the claim.

    Reads no input and no project. Ends with exit code 1 if the claim is violated; a mechanism that
    keeps its claim is found to violate it by at most one audit in a million.
    """


def _result(result: AuditResult) -> None:
    by = f", by {', '.join(result.violated)}" if result.violated else ""
    print_facts(
        [
            ("mechanism", result.mechanism),
            ("claim", f"ε = {result.claim_epsilon:g}, δ = {result.delta:g} for each labeler"),
            (
                "lower bound",
                f"ε ≥ {result.lower_bound:.4f}, wrong in at most one of a million audits",
            ),
            ("verdict", result.verdict + by),
        ]
    )
    echo()
    rows = ((check.name, f"{check.lower_bound:.4f}", check.detail) for check in result.checks)
    print_table(("check", "bound", "seen"), rows, right=["bound"])


def _code(result: AuditResult) -> int:
    return 0 if result.holds else 1


@audit.command("rr", short_help="Randomized response: flips, composition, reuse of coins.")
@epsilon_option
@delta_option
@_sizes(labels=8, runs=100_000, pipeline_runs=1)
@seed_option
@prints(_result, code=_code)
def audit_rr(**options: Any) -> AuditResult:
    """Audit randomized response at the price of ε and δ.

    \b
    Example:
      labelguard audit rr --epsilon 3 --delta 1e-5
    """
    from labelguard.audit.randomized_response import audit_randomized_response

    with progress() as report:
        return audit_randomized_response(**options, progress=report)


@audit.command("statistic", short_help="The statistic: sensitivity and noise.")
@epsilon_option
@delta_option
@_sizes(labels=20, runs=20_000, pipeline_runs=3)
@seed_option
@prints(_result, code=_code)
def audit_statistic(**options: Any) -> AuditResult:
    """Audit one statistic release at the price of ε and δ, with Gaussian and with ball noise.

    \b
    Example:
      labelguard audit statistic --epsilon 3 --delta 1e-5
    """
    from labelguard.audit.statistic import audit_statistic as run

    with progress() as report:
        return run(**options, progress=report)
