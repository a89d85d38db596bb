"""The demonstration: what releases of simulated labels are worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli.options import HELP
from labelguard.cli.terminal import echo, near, print_table, prints, progress
from labelguard.terms import budget_of

if TYPE_CHECKING:
    from labelguard.report.demonstration import Demonstration

_HEADINGS = ("mechanism", "labels", "label error", "accuracy")


def _print(found: Demonstration) -> None:
    from labelguard.report.demonstration import name

    echo(
        f"{found.labels:,} labels of {found.labelers:,} simulated labelers, each protected at "
        f"{budget_of(vars(found))}; heads learn from {found.features}.\n"
    )
    rows = (
        (name(one), one.released, f"{one.label_error:.2f}", f"{one.accuracy:.2f}")
        for one in found.outcomes
    )
    print_table(_HEADINGS, rows, right=_HEADINGS[1:])
    echo(
        "\nlabel error: share of released labels that differ from what the labeler said\n"
        f"accuracy: share of {found.fresh_labels:,} labels of other labelers that a model trained "
        "on it gets right"
    )
    echo("On people's labels nobody may measure this: labelguard plan forecasts it.")
    echo(f"\nLabels and releases: {near(found.directory)}")
    echo(f"Picture: {near(found.picture)}")
    echo("Next, on a file of your own: " + found.next[0])
    for command in found.next[1:]:
        echo(" " * 29 + command)


@click.command(
    context_settings=HELP, short_help="What privacy costs, on simulated labels; nothing to prepare."
)
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@prints(_print)
def demo(directory: Path | None) -> Demonstration:
    """Simulate labelers in DIRECTORY, release their labels in three ways at ε = 3, compare these.

    Each release has a project of its own; on people's labels that would be three budgets. It is
    compared with the true labels, which are known because they are simulated. DIRECTORY is
    labelguard-demo unless named.

    \b
    Example:
      labelguard demo
    """
    from labelguard.report.demonstration import demonstrate

    with progress() as report:
        return demonstrate(directory or Path("labelguard-demo"), progress=report)
