"""Attacks on mechanisms: `audit`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from labelguard.cli.options import HELP
from labelguard.cli.terminal import echo, print_facts, print_table, prints, show_progress

if TYPE_CHECKING:
    from labelguard.analysis.audit_bounds import AuditResult


epsilon_option = click.option("--epsilon", type=float, required=True, help="ε of a labeler.")
delta_option = click.option("--delta", type=float, required=True, help="δ of a labeler.")


@click.group(
    context_settings=HELP, short_help="Attack a mechanism with synthetic canaries; reads no labels."
)
def audit() -> None:
    """Attack a mechanism with synthetic canaries: a lower bound on ε, compared with the claim.

    Reads no input and no project. Ends with exit code 1 if the claim is violated; a mechanism that
    keeps its claim is found to violate it by at most one audit in a million.
    """


def _print_audit(result: AuditResult) -> None:
    verdict = f"violated, by {', '.join(result.violated_checks)}"
    if result.holds:
        verdict = f"not refuted: no attack exceeded ε = {result.claim_epsilon:g}; "
        verdict += "this says nothing about the labels of a project"
    print_facts(
        [
            ("mechanism", result.mechanism),
            ("claim", f"ε = {result.claim_epsilon:g}, δ = {result.delta:g} for each labeler"),
            (
                "lower bound",
                f"ε ≥ {result.lower_bound:.4f}, wrong in at most one audit of a million",
            ),
            ("verdict", verdict),
        ]
    )
    echo()
    rows = ((check.name, f"{check.lower_bound:.4f}", check.detail) for check in result.checks)
    print_table(("check", "bound", "seen"), rows, right=["bound"])


def _add_audit_command(name: str, function: str, short_help: str, text: str, *sizes: int) -> None:
    """Add `audit NAME`, which runs a function of `labelguard.analysis.audit`.

    `sizes` are the defaults of --labels, --runs and --pipeline-runs; `text` is the help.
    """

    @epsilon_option
    @delta_option
    @click.option("--labels", default=sizes[0], help="Labels of the canary.")
    @click.option(
        "--runs", default=sizes[1], help="Runs of each world; more runs give a tighter bound."
    )
    @click.option(
        "--pipeline-runs", default=sizes[2], help="Whole releases to make and compare; 0: none."
    )
    @click.option(
        "--seed",
        type=click.IntRange(0),
        default=0,
        help="Seed of the synthetic labels, never of noise or coins.",
    )
    @prints(_print_audit, code=lambda result: 0 if result.holds else 1)
    def run(**options: Any) -> AuditResult:
        from labelguard.analysis import audit as audits

        with show_progress() as report:
            result: AuditResult = getattr(audits, function)(**options, progress=report)
        return result

    example = f"\b\nExample:\n  labelguard audit {name} --epsilon 3 --delta 1e-5"
    audit.command(name, short_help=short_help, help=f"{text}\n\n{example}")(run)


_add_audit_command(
    "rr",
    "audit_randomized_response",
    "Randomized response: blocks of labels, reuse of coins.",
    "Audit randomized response priced at ε and δ.",
    *(8, 100_000, 1),
)
_add_audit_command(
    "statistic",
    "audit_statistic",
    "The statistic: sensitivity and noise.",
    "Audit one statistic release priced at ε and δ, with Gaussian and with ball noise.",
    *(20, 20_000, 3),
)
