"""A report as Markdown: nothing that a name says is a mark, a link or HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from labelguard.release.sections import Cell, Section, Table
from labelguard.report.page.numbers import written
from labelguard.terms import shown

if TYPE_CHECKING:
    from labelguard.report.page.document import Report

_MARKS = re.compile(r"([\\`*_\[\]<>|~#&$!@])|(:)(?=//)|(?<=www)(\.)", re.IGNORECASE)
_LINE_START = re.compile(r"^([-+=]|\d+(?=[.)]))")


def rendered(report: Report) -> str:
    """Headings, paragraphs and tables; a chart is its message and its numbers."""
    blocks = [
        f"# {_text(report.title)}",
        f"Made {report.at} by labelguard {report.labelguard}.",
        _rows(("", ""), report.summary),
        *(block for section in report.sections for block in _section(section)),
    ]
    return "\n\n".join(blocks) + "\n"


def _section(section: Section) -> Iterator[str]:
    yield f"## {_text(section.title)}"
    if section.alert:
        yield f"> **{_text(section.alert)}**"
    yield from map(_paragraph, section.text)
    if section.points:
        yield "\n".join(f"- {_paragraph(point)}" for point in section.points)
    if section.lines:
        yield "\n".join(f"    {shown(line)}" for line in section.lines)
    if section.facts:
        yield _rows(("", ""), section.facts)
    if section.chart:
        yield _paragraph(section.chart.message)
        yield from _table(section.chart.table())
    if section.table:
        yield from _table(section.table)


def _table(table: Table) -> Iterator[str]:
    yield f"**{_text(table.caption)}**"
    yield _rows(table.columns, table.rows)


def _rows(columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    texts = [[_text(written(cell)) for cell in line] for line in lines]
    texts[1] = ["---"] * len(columns)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in texts)


def _paragraph(text: str) -> str:
    return _LINE_START.sub(r"\\\1", _text(text)) if not text[:1].isdigit() else _number(text)


def _number(text: str) -> str:
    """A paragraph that begins with a number is no list."""
    return re.sub(r"^(\d+)([.)])(?=\s)", r"\1\\\2", _text(text))


def _text(text: str) -> str:
    return _MARKS.sub(lambda found: f"\\{found[0]}", shown(text))
