"""The commands `labelguard audit rr` and `labelguard audit statistic`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from labelguard.cli.options import HELP, json_option

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


@audit.command("rr", short_help="Randomized response: flips, composition, reuse of coins.")
@epsilon_option
@delta_option
@_sizes(labels=8, runs=100_000, pipeline_runs=1)
@seed_option
@json_option
def audit_rr(as_json: bool, **options: Any) -> None:
    """Audit randomized response at the price of ε and δ.

    \b
    Example:
      labelguard audit rr --epsilon 3 --delta 1e-5
    """
    from labelguard.audit.randomized_response import audit_randomized_response
    from labelguard.cli import render

    with render.progress() as progress:
        result = audit_randomized_response(**options, progress=progress)
    _conclude(result, as_json=as_json)


@audit.command("statistic", short_help="The statistic: sensitivity and noise.")
@epsilon_option
@delta_option
@_sizes(labels=20, runs=20_000, pipeline_runs=3)
@seed_option
@json_option
def audit_statistic(as_json: bool, **options: Any) -> None:
    """Audit one statistic release at the price of ε and δ.

    \b
    Example:
      labelguard audit statistic --epsilon 3 --delta 1e-5
    """
    from labelguard.audit.statistic import audit_statistic as run
    from labelguard.cli import render

    with render.progress() as progress:
        result = run(**options, progress=progress)
    _conclude(result, as_json=as_json)


def _conclude(result: AuditResult, *, as_json: bool) -> None:
    """Print the result; exit code 1 if it contradicts the claim."""
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        _print(result)
    if not result.holds:
        sys.exit(1)


def _print(result: AuditResult) -> None:
    verdict: str = result.verdict
    if result.violated:
        verdict += f", by {', '.join(result.violated)}"
    for name, value in (
        ("mechanism", result.mechanism),
        ("claim", f"ε = {result.claim_epsilon:g}, δ = {result.delta:g} for each labeler"),
        ("lower bound", f"ε ≥ {result.lower_bound:.4f}, wrong in at most one of a million audits"),
        ("verdict", verdict),
    ):
        click.echo(click.style(f"{name:<13}", bold=True) + value)
    click.echo()
    click.echo(click.style(f"{'check':<13}{'bound':>8}  seen", bold=True))
    for check in result.checks:
        click.echo(f"{check.name:<13}{check.lower_bound:>8.4f}  {check.detail}")
