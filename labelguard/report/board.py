"""A leaderboard as a page, Markdown, JSON or a picture, in the form of a report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from labelguard import clock
from labelguard._version import __version__
from labelguard.errors import LabelguardError
from labelguard.release.leaderboard import COLUMNS, MEAN, Board, Leaderboard, rows
from labelguard.release.sections import Chart, Mark, Section, Series, Table
from labelguard.report import charts
from labelguard.report.render import Report, html, json_text, markdown
from labelguard.storage.files import check_file, write_atomically
from labelguard.terms import counted

__all__ = ["told", "write"]

_KINDS = ("html", "md", "json", "png", "svg")


def write(found: Leaderboard, release: str, output: Path) -> None:
    """Write a leaderboard to a file, which is replaced; its name says what it is.

    Raises `LabelguardError` if it cannot be written, for a name that says nothing that is known,
    or if a picture is asked of several boards.
    """
    kind = output.suffix.removeprefix(".").lower()
    if kind not in _KINDS:
        raise LabelguardError(
            f"expected -o with a name that ends in .{', .'.join(_KINDS)}; found {output.name}"
        )
    check_file(output, "board.html")
    write_atomically(output, _rendered(found, release, kind))


def _rendered(found: Leaderboard, release: str, kind: str) -> bytes:
    if kind in ("png", "svg"):
        if len(found.boards) != 1:
            raise LabelguardError(
                f"a picture shows one board, and there are {len(found.boards)}; name one with "
                "--stratum, or write a page"
            )
        picture = chart(found.boards[0])
        return charts.png(picture) if kind == "png" else charts.svg(picture).encode()
    render = {"md": markdown, "json": json_text, "html": html}[kind]
    return render(told(found, release)).encode()


def told(found: Leaderboard, release: str) -> Report:
    """The leaderboard of a release in sections."""
    sources = sum(len(board.standings) for board in found.boards)
    summary = (
        ("release", release),
        ("sources", f"{sources:,}"),
        ("boards", f"{len(found.boards):,}"),
        ("intervals", f"{found.level:.0%}"),
    )
    sections = tuple(_sections(found))
    return Report(
        f"Leaderboard of release {release}", clock.now(), __version__, True, summary, sections
    )


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
    return Chart(
        f"Scores, {board.title}",
        f"{counted(len(standings), 'source')}, by rank, then by name. {board.words}",
        "points",
        tuple(one.source for one in standings),
        "source",
        "points of Elo, with 95% intervals",
        (
            Series(
                "score",
                tuple(round(one.score, 1) for one in standings),
                tuple(round(one.low, 1) for one in standings),
                tuple(round(one.high, 1) for one in standings),
            ),
        ),
        (Mark("x", MEAN, ""),),
    )


def _sentence(note: str) -> str:
    return f"{note[:1].upper()}{note[1:]}."
