"""Sections of a report: words, facts, a table, a chart; no HTML and no picture.

A mechanism says what is its own of a release by a function from the card to sections, which the
`report` attribute of its options names. The card for people and the report are made from the same
sections, and neither knows a mechanism by name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from labelguard import extras
from labelguard.errors import LabelguardError

if TYPE_CHECKING:
    import jinja2

# Text, a number, or nothing.
Cell: TypeAlias = str | int | float | None

# What a mechanism raises that is missing, broken, or of a version that cannot read a card.
_UNREADABLE = (LabelguardError, ImportError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class Table:
    """Rows of cells under the names of columns; the first cell of a row is its name."""

    # what it holds
    caption: str
    # the names of its columns
    columns: tuple[str, ...]
    # a cell for each column
    rows: tuple[tuple[Cell, ...], ...]
    # whether the oldest rows are last, which paper leaves out where they are many
    newest_first: bool = False


@dataclass(frozen=True)
class Series:
    """Values over the places of a chart, with the ranges around them if there are any."""

    # what it shows
    name: str
    # one for each place; null where there is none
    values: tuple[float | None, ...]
    # the lower ends of ranges
    low: tuple[float, ...] = ()
    # and the upper ones
    high: tuple[float, ...] = ()


@dataclass(frozen=True)
class Mark:
    """A line across a chart, with a word on what it means."""

    # the axis on which it stands
    axis: Literal["x", "y"]
    # where; bars stand at 0, 1, 2, …
    at: float
    # what it means
    text: str


@dataclass(frozen=True)
class Chart:
    """A figure: bars over names, or lines over numbers.

    Its numbers are a table, too.
    """

    # what it shows
    title: str
    # what is to be seen in it, in a sentence, for who does not see it
    message: str
    # how it is drawn
    kind: Literal["bars", "lines"]
    # names of bars, or places along lines
    x: tuple[str, ...] | tuple[float, ...]
    # what stands along it
    x_label: str
    # what is measured
    y_label: str
    # what is drawn, four at most
    series: tuple[Series, ...]
    # lines across it
    marks: tuple[Mark, ...] = ()
    # whether values are shares, shown as percentages
    percent: bool = False

    def table(self) -> Table:
        """Return its numbers; a range follows the value that it is around."""
        names, columns = [self.x_label], [list[Cell](self.x)]
        for series in self.series:
            names.append(series.name)
            columns.append([self._format_number(value) for value in series.values])
            if series.low:
                names.append(f"{series.name}, range")
                ends = zip(series.low, series.high, strict=True)
                columns.append(
                    [f"{self._format_number(a)} to {self._format_number(b)}" for a, b in ends]
                )
        rows = tuple(zip(*columns, strict=True))
        return Table(f"{self.title}: the numbers", tuple(names), rows)

    def _format_number(self, value: float | None) -> Cell:
        return f"{value:.1%}" if self.percent and value is not None else value


@dataclass(frozen=True)
class Section:
    """A part of a report; whatever it lacks is left out."""

    # a short name: letters and dashes
    id: str
    # what it is about
    title: str
    # paragraphs of plain text
    text: tuple[str, ...] = ()
    # rows that belong to it
    table: Table | None = None
    # a figure
    chart: Chart | None = None
    # names and values
    facts: tuple[tuple[str, str], ...] = ()
    # a list of sentences
    points: tuple[str, ...] = ()
    # commands to type, or lines to keep
    lines: tuple[str, ...] = ()
    # what nobody may overlook
    alert: str = ""


# What titles, alerts, facts, tables, lines and points begin with in a template of sections.
_SIGNS = ("# ", "! ", ": ", "= ", "> ", "- ")
_ENTRIES = re.compile(r"\n\s*\n|\n(?=[#!:=>-] )")


def fill_section(
    template: jinja2.Template,
    block: str,
    name: str | None = None,
    *,
    table: Iterable[Sequence[Cell]] = (),
    newest_first: bool = False,
    chart: Chart | None = None,
    **facts: Any,
) -> Section:
    """Return a section in the words of a template's block, which are filled with `facts`.

    An entry begins after an empty line, or with one of `_SIGNS` at the beginning of a line. The
    words have the caption and the columns of its table, which it has if `table` has rows.

    Raises `KeyError` for a fact that is missing.
    """
    from jinja2 import UndefinedError

    try:
        text = "".join(template.blocks[block](template.new_context(facts)))
    except UndefinedError as error:
        raise KeyError(str(error)) from None
    parts: dict[str, list[str]] = defaultdict(list)
    for entry in _ENTRIES.split(text.strip()):
        mark, words = (entry[0], entry[2:]) if entry[:2] in _SIGNS else ("", entry)
        parts[mark].append(re.sub(r"\s*\n\s*", " ", words.rstrip()))
    cells = tuple(map(tuple, table))
    caption, *columns = parts["="][0].rsplit(" | ", len(cells[0])) if cells else [""]
    return Section(
        name or block.replace("_", "-"),
        parts["#"][0],
        tuple(parts[""]),
        Table(caption, tuple(columns), cells, newest_first) if cells else None,
        chart,
        tuple((name, value) for name, _, value in (fact.partition(" | ") for fact in parts[":"])),
        tuple(parts["-"]),
        tuple(parts[">"]),
        " ".join(parts["!"]),
    )


def load_card_sections(card: Mapping[str, Any]) -> tuple[Section, ...]:
    """Return the sections of the mechanism of a card; one section says so if there are none.

    There are none where the mechanism is not installed, or is of a version that cannot read it.
    """
    name = str(card["mechanism"])
    try:
        options = extras.find_entry_point(extras.MECHANISMS, name)
        if options is None:
            raise LabelguardError("it is not installed")
        function = getattr(options.load(), "report", None)
        if function is None:
            return ()
        sections: Iterable[Section] = EntryPoint(name, function, extras.MECHANISMS).load()(card)
        return tuple(sections)
    except _UNREADABLE as error:
        kind = "" if isinstance(error, LabelguardError) else f"{type(error).__name__}: "
        why = f"The sections of mechanism {name} cannot be shown: {kind}{error}"
        return (Section(f"mechanism-{name}", f"Mechanism {name}", (why,)),)


def format_min_median_max(values: Mapping[str, float], style: str) -> str:
    """Return minimum, median and maximum in one style; – without values."""
    if not values:
        return "–"
    shown = " / ".join(format(values[name], style) for name in ("min", "median", "max"))
    return f"{shown}  (min / median / max)"
