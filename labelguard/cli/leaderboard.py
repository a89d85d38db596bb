"""The command that ranks sources by a released head: `leaderboard`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from labelguard.cli import completion
from labelguard.cli.options import HELP, file_option, project_option
from labelguard.cli.terminal import echo, json_asked, near, print_table, prints

if TYPE_CHECKING:
    from labelguard.release.leaderboard import Leaderboard


def _print(value: Leaderboard) -> None:
    from labelguard.release.leaderboard import COLUMNS, rows

    for board in value.boards:
        if len(value.boards) > 1:
            echo(f"{board.title}:")
        echo(f"{board.words}\n")
        print_table(COLUMNS, rows(board), right=set(COLUMNS) - {"source"})
        echo()
    if value.alone:
        echo(f"Compared with no other: {', '.join(value.alone)}\n")
    for note in value.notes:
        echo(f"- {note}")


@click.command(context_settings=HELP, short_help="Rank systems by a released head; costs nothing.")
@click.argument("release", metavar="RELEASE", shell_complete=completion.copies)
@click.option("--stratum", metavar="NAME", help="Only this stratum, of features with by=.")
@file_option("board.html", help="Also write it to FILE: .html, .md, .json, .png or .svg.")
@project_option
@prints(_print)
def leaderboard(
    release: str, stratum: str | None, output: Path | None, project: Path | None
) -> Leaderboard:
    """Rank the systems that wrote the responses, by the head of RELEASE.

    RELEASE is an id, or a directory with a copy of a release, by --mechanism statistic with
    --features source:COLUMN. Scores are in points of Elo, with intervals and ranks. It reads the
    release alone, and charges nothing.

    \b
    Example:
      labelguard leaderboard r0001
      labelguard leaderboard r0001 -o board.html
    """
    from labelguard.release.leaderboard import leaderboard as ranked
    from labelguard.report import overview
    from labelguard.report.board import write

    path = Path(release) if Path(release).is_dir() else overview.release_path(release, project)
    found = ranked(path, stratum)
    if output is not None:
        write(found, path.name, output)
        echo(f"Leaderboard: {near(str(output))}", err=json_asked())
    return found
