"""The demonstrations: what releases of simulated labels are worth, and a year of a project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli.options import HELP
from labelguard.cli.terminal import echo, near, print_table, prints, progress
from labelguard.terms import budget_of

if TYPE_CHECKING:
    from labelguard.jobs.year import Year
    from labelguard.report.demonstration import Demonstration

_HEADINGS = ("mechanism", "labels", "label error", "accuracy")


def _print(found: Demonstration) -> None:
    from labelguard.report.outcome import name

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


def _print_year(found: Year) -> None:
    from labelguard.jobs.curve import sparkline

    weeks = found.weeks
    echo(
        f"{len(weeks)} weeks, {found.labels:,} labels of {found.labelers:,} simulated labelers, "
        f"each protected at {budget_of(vars(found))} over both policies.\n"
    )
    curves = (
        ("at best", [one.best for one in weeks]),
        ("model in use", [one.in_use for one in weeks]),
        ("that of half-time", [one.frozen for one in weeks]),
    )
    shown = sorted({0, len(weeks) // 4, len(weeks) // 2 - 1, 3 * len(weeks) // 4, len(weeks) - 1})
    names = [f"week {week + 1}" for week in shown]
    rows = ((name, *(f"{curve[week]:.2f}" for week in shown)) for name, curve in curves)
    print_table(("accuracy", *names), rows, right=names)
    echo()
    for name, curve in curves:
        echo(f"{name:<18} {sparkline(curve, *_RANGE)}")
    promoted = sum(one.outcome == "promoted" for one in weeks)
    echo(
        "\naccuracy: share of a week's labels that a model gets right, told from the simulated\n"
        "preferences, which turn by 120 degrees in the year. On people's labels nobody may measure "
        f"it.\nModels promoted: {promoted}. Journal, charges and files "
        f"{'hold' if found.holds else 'DO NOT HOLD'}."
    )
    echo(f"\nFor the data protection officer: {near(found.report)}")
    echo(f"Picture: {near(found.picture)}")
    echo(f"Next: {found.next[0]}")
    for command in found.next[1:]:
        echo(f"      {command}")


_RANGE = (0.5, 0.85)


def _printed(found: Demonstration | Year) -> None:
    from labelguard.jobs.year import Year as Lived

    _print_year(found) if isinstance(found, Lived) else _print(found)


@click.command(
    context_settings=HELP, short_help="What privacy costs, on simulated labels; nothing to prepare."
)
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@click.option("--year", is_flag=True, help="A year of weekly retraining, and its report.")
@prints(_printed)
def demo(directory: Path | None, year: bool) -> Demonstration | Year:
    """Simulate labelers in DIRECTORY, release their labels in three ways at ε = 3, compare these.

    Each release has a project of its own; on people's labels that would be three budgets. It is
    compared with the true labels, which are known because they are simulated. DIRECTORY is
    labelguard-demo unless named.

    With --year (in labelguard-year): 52 weeks of one project in a minute or two. Labelers come and
    go and change their minds, each week is one `retrain`, the policy changes once; what is left is
    a project and the report of it.

    \b
    Example:
      labelguard demo
      labelguard demo --year
    """
    with progress() as report:
        if year:
            from labelguard.jobs.year import live

            return live(directory or Path("labelguard-year"), progress=report)
        from labelguard.report.demonstration import demonstrate

        return demonstrate(directory or Path("labelguard-demo"), progress=report)
