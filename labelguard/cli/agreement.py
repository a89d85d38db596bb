"""The command that estimates agreement from released labels: `agreement`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli import completion
from labelguard.cli.terminal import echo, print_bullets, print_table, prints

if TYPE_CHECKING:
    from labelguard.mechanisms.agreement import Estimate
    from labelguard.report.agreement import Agreement


def _row(one: Estimate) -> tuple[object, ...]:
    interval = f"{one.low:.3f} – {one.high:.3f}"
    return f"{one.agreement:.3f}", interval, one.comparisons, one.items


def _agreement(value: Agreement) -> None:
    found = {"labelers": value.between, "gold items": value.gold}
    rows = [(name, *_row(one)) for name, one in found.items() if one is not None]
    if rows:
        names = ("agreement with", "estimate", "95 % interval", "comparisons", "items")
        print_table(names, rows, right=names[1:])
    print_bullets(value.notes)
    if value.plan:
        echo(f"\nFor a plan: labelguard plan FILE {value.plan}")


@click.command(short_help="How labelers agree, from released labels.")
@click.argument("release", metavar="RELEASE", shell_complete=completion.copies)
@click.option(
    "--gold",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Public answers, Parquet or JSON lines: prompt, chosen, rejected.",
)
@prints(_agreement, project=True)
def agreement(release: str, gold: Path | None, project: Path | None) -> Agreement:
    """How often labels of RELEASE (its id, or a directory with a copy of it) agree.

    With one another where an item has several, and with gold items. Estimated from released labels,
    whose flips are known; nothing is charged. The interval is of the flips' noise.

    \b
    Example:
      labelguard agreement r0001
    """
    from labelguard.report import agreement as report
    from labelguard.report import overview

    path = Path(release) if Path(release).is_dir() else overview.release_path(release, project)
    return report.agreement(path, gold)
