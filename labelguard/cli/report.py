"""The command that writes what people look at: `report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli import completion
from labelguard.cli.options import HELP, file_option, project_option
from labelguard.cli.terminal import echo, near, prints, verdict_code

if TYPE_CHECKING:
    from labelguard.report.page import Format, Reported


def _print(value: Reported) -> None:
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
@project_option
@prints(_print, code=verdict_code)
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
