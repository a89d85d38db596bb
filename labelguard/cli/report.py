"""What people look at: `report` of a project, `demo` of what privacy costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli import completion
from labelguard.cli.options import HELP, file_option
from labelguard.cli.terminal import (
    echo,
    near,
    print_next,
    print_table,
    prints,
    progress,
    verdict_code,
)
from labelguard.text import format_budget

if TYPE_CHECKING:
    from labelguard.report.demonstration import Demonstration
    from labelguard.report.page import Format, Reported


def _report(value: Reported) -> None:
    echo(f"Report: {near(value.path)}")
    if value.fault:
        echo(f"It tells of a fault: {value.fault}")


@click.command(
    context_settings=HELP, short_help="A page for people: what is promised, used, and holds."
)
@click.argument(
    "release_id", required=False, metavar="[RELEASE]", shell_complete=completion.releases
)
@file_option(
    "report.html",
    default=Path("report.html"),
    show_default=True,
    help="File to write, or to replace.",
)
@click.option(
    "--format",
    type=click.Choice(["html", "md", "json"]),
    help="A page, Markdown or JSON; default: by the name of FILE, else a page.",
)
@click.option(
    "--anchor",
    metavar="LINE",
    help="What `budget anchor` or an earlier report printed: the journal must still contain it.",
)
@prints(_report, code=verdict_code, project=True)
def report(
    release_id: str | None,
    output: Path,
    format: Format | None,  # noqa: A002
    anchor: str | None,
    project: Path | None,
) -> Reported:
    """Write a report on the project, or first on one RELEASE of it: one file, to read or to send.

    It says what is promised to whom, what of it is used, what was released and by which noise,
    what happened, and whether hashes and journal hold. No label is read, nothing is charged. Exit
    code 1 if something does not hold; the report is written all the same, and says what.

    \b
    Example:
      labelguard report -o report.html
      labelguard report r0001 -o release.md
    """
    from labelguard.report.page import write

    return write(output, release_id, project, format, anchor)


def _demonstration(found: Demonstration) -> None:
    from labelguard.report.demonstration import describe_outcome

    echo(
        f"{found.labels:,} labels of {found.labelers:,} simulated labelers, each protected at "
        f"{format_budget(vars(found))}; heads learn from {found.features}.\n"
    )
    rows = (
        (describe_outcome(one), one.released, f"{one.label_error:.2f}", f"{one.accuracy:.2f}")
        for one in found.outcomes
    )
    names = ("mechanism", "labels", "label error", "accuracy")
    print_table(names, rows, right=names[1:])
    echo(
        "\nlabel error: share of released labels that differ from what the labeler said\n"
        f"accuracy: share of {found.fresh_labels:,} labels of other labelers that a model trained "
        "on it gets right"
    )
    echo("On people's labels nobody may measure this: labelguard plan forecasts it.")
    echo(f"\nLabels and releases: {near(found.directory)}")
    echo(f"Picture: {near(found.picture)}")
    print_next(found.next, ", on a file of your own")


@click.command(
    context_settings=HELP, short_help="What privacy costs, on simulated labels; nothing to prepare."
)
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@prints(_demonstration)
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
