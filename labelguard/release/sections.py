"""What is told of a project in sections: words, facts, a table, a chart; no HTML and no picture.

A mechanism says what is its own of a release by a function from the card to sections, which the
`report` attribute of its options names. The card for people and the report are made from the same
sections, and neither knows a mechanism by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, Literal, TypeAlias

from labelguard import plugins
from labelguard.errors import LabelguardError

Cell: TypeAlias = str | int | float | None
"""Text, a number, or nothing."""

_UNTOLD = (LabelguardError, ImportError, AttributeError, LookupError, TypeError, ValueError)
"""What a mechanism raises that is missing, broken, or of a version that cannot read a card."""


@dataclass(frozen=True)
class Table:
    """Rows of cells under the names of columns; the first cell of a row is its name."""

    caption: str
    """what it holds"""
    columns: tuple[str, ...]
    """the names of its columns"""
    rows: tuple[tuple[Cell, ...], ...]
    """a cell for each column"""
    newest_first: bool = False
    """whether the oldest rows are last, which paper leaves out where they are many"""


@dataclass(frozen=True)
class Series:
    """Values over the places of a chart, with the ranges around them if there are any."""

    name: str
    """what it shows"""
    values: tuple[float | None, ...]
    """one for each place; null where there is none"""
    low: tuple[float, ...] = ()
    """the lower ends of ranges"""
    high: tuple[float, ...] = ()
    """and the upper ones"""


@dataclass(frozen=True)
class Mark:
    """A line across a chart, with a word on what it means."""

    axis: Literal["x", "y"]
    """the axis on which it stands"""
    at: float
    """where; bars stand at 0, 1, 2, …"""
    text: str
    """what it means"""


@dataclass(frozen=True)
class Chart:
    """A figure: bars over names, lines over numbers, or points beside names, one below the other.

    Its numbers are a table, too.
    """

    title: str
    """what it shows"""
    message: str
    """what is to be seen in it, in a sentence, for who does not see it"""
    kind: Literal["bars", "lines", "points"]
    """how it is drawn"""
    x: tuple[str, ...] | tuple[float, ...]
    """names of bars or points, or places along lines"""
    x_label: str
    """what stands along it"""
    y_label: str
    """what is measured"""
    series: tuple[Series, ...]
    """what is drawn, four at most"""
    marks: tuple[Mark, ...] = ()
    """lines across it"""
    percent: bool = False
    """whether values are shares, shown as percentages"""

    def table(self) -> Table:
        """Its numbers; a range follows the value that it is around."""
        names, columns = [self.x_label], [list[Cell](self.x)]
        for one in self.series:
            names.append(one.name)
            columns.append([self._number(value) for value in one.values])
            if one.low:
                names.append(f"{one.name}, range")
                ends = zip(one.low, one.high, strict=True)
                columns.append([f"{self._number(a)} to {self._number(b)}" for a, b in ends])
        rows = tuple(zip(*columns, strict=True))
        return Table(f"{self.title}: the numbers", tuple(names), rows)

    def _number(self, value: float | None) -> Cell:
        return f"{value:.1%}" if self.percent and value is not None else value


@dataclass(frozen=True)
class Section:
    """A part of a report; whatever it lacks is left out."""

    id: str
    """a short name: letters and dashes"""
    title: str
    """what it is about"""
    text: tuple[str, ...] = ()
    """paragraphs of plain text"""
    table: Table | None = None
    """rows that belong to it"""
    chart: Chart | None = None
    """a figure"""
    facts: tuple[tuple[str, str], ...] = ()
    """names and values"""
    points: tuple[str, ...] = ()
    """a list of sentences"""
    lines: tuple[str, ...] = ()
    """commands to type, or lines to keep"""
    alert: str = ""
    """what nobody may overlook"""


def of_card(card: Mapping[str, Any]) -> tuple[Section, ...]:
    """What the mechanism of a card says of itself; one section says so if it cannot be asked.

    It cannot where the mechanism is not installed, or is of a version that cannot read the card.
    """
    name = str(card["mechanism"])
    try:
        options = plugins.find(plugins.MECHANISMS, name)
        if options is None:
            raise LabelguardError("it is not installed")
        function = getattr(options.load(), "report", None)
        if function is None:
            return ()
        made: Iterable[Section] = EntryPoint(name, function, plugins.MECHANISMS).load()(card)
        return tuple(made)
    except _UNTOLD as error:
        kind = "" if isinstance(error, LabelguardError) else f"{type(error).__name__}: "
        why = f"What mechanism {name} says of its release cannot be told: {kind}{error}"
        return (Section(f"mechanism-{name}", f"Mechanism {name}", (why,)),)


def facts_of(card: Mapping[str, Any]) -> dict[str, str]:
    """What the mechanism of a card counts, by name."""
    return {name: value for section in of_card(card) for name, value in section.facts}


def triple(values: Mapping[str, float], style: str) -> str:
    """Minimum, median and maximum in one style; – without values."""
    if not values:
        return "–"
    shown = " / ".join(format(values[name], style) for name in ("min", "median", "max"))
    return f"{shown}  (min / median / max)"
