"""A leaderboard as a page, Markdown, JSON or a picture, in the form of a report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from labelguard import clock
from labelguard._version import __version__
from labelguard.analysis.leaderboard import COLUMNS, MEAN, Board, Leaderboard, rows
from labelguard.errors import LabelguardError
from labelguard.release.sections import Chart, Mark, Section, Series, Table
from labelguard.report import charts
from labelguard.report.render import FORMS, Report
from labelguard.storage.files import check_file, write_atomically
from labelguard.text import pluralize

__all__ = ["told", "write"]

_PICTURES = ("png", "svg")


def write(found: Leaderboard, release: str, output: Path) -> None:
    """Write a leaderboard to a file, which is replaced; its name says what it is.

    Raises `LabelguardError` if it cannot be written, for a name that says nothing that is known,
    or if a picture is asked of several boards.
    """
    kind = output.suffix.removeprefix(".").lower()
    if kind not in (*FORMS, *_PICTURES):
        names = ", .".join((*FORMS, *_PICTURES))
        raise LabelguardError(f"expected -o with a name that ends in .{names}; found {output.name}")
    check_file(output, "board.html")
    if kind in FORMS:
        made = FORMS[kind](told(found, release)).encode()
    elif len(found.boards) == 1:
        made = charts.drawn(chart(found.boards[0]), kind)
    else:
        raise LabelguardError(
            f"a picture shows one board, and there are {len(found.boards)}; name one with "
            "--stratum, or write a page"
        )
    write_atomically(output, made)


def told(found: Leaderboard, release: str) -> Report:
    """The leaderboard of a release in sections."""
    sources = sum(len(board.standings) for board in found.boards)
    counts = (("sources", f"{sources:,}"), ("boards", f"{len(found.boards):,}"))
    summary = (("release", release), *counts, ("intervals", f"{found.level:.0%}"))
    title, sections = f"Leaderboard of release {release}", tuple(_sections(found))
    return Report(title, clock.now(), __version__, True, summary, sections)


def _sections(found: Leaderboard) -> Iterator[Section]:
    for number, board in enumerate(found.boards, 1):
        yield Section(
            f"board-{number}",
            f"Leaderboard: {board.title}",
            (board.words,),
            Table(f"Standings, {board.title}", COLUMNS, tuple(rows(board))),
            chart(board),
        )
    if found.alone:
        yield Section(
            "alone", "Compared with no other", ("These sources met no other:",), points=found.alone
        )
    yield Section("reading", "How to read it", points=tuple(map(_sentence, found.notes)))


def chart(board: Board) -> Chart:
    """Scores with their intervals, by rank, then by name."""
    standings = board.standings
    ends = ("score", "low", "high")
    columns = ([round(getattr(one, name), 1) for one in standings] for name in ends)
    return Chart(
        f"Scores, {board.title}",
        f"{pluralize(len(standings), 'source')}, by rank, then by name. {board.words}",
        "points",
        tuple(one.source for one in standings),
        "source",
        "points of Elo, with 95% intervals",
        (Series("score", *map(tuple, columns)),),
        (Mark("x", MEAN, ""),),
    )


def _sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:]}."
