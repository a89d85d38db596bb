"""What an inspection tells of an input, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from labelguard.ingest.connector import describe_counts
from labelguard.ingest.source_columns import Sources
from labelguard.notebook import Rows, card, several
from labelguard.terms import counted

__all__ = ["Bar", "Example", "Inspection", "Labelers", "Question", "Role"]


@dataclass(frozen=True)
class Role:
    """Which column plays a role."""

    role: str
    """prompt, response_a, labeler_id, …"""
    column: str
    """what the input calls it"""
    read: bool
    """whether it was read here; labels are not"""


@dataclass(frozen=True)
class Bar:
    """Labelers with about as many labels."""

    least: int
    """labels of each, at least"""
    most: int
    """labels of each, at most"""
    labelers: int
    """how many labelers have so many"""


@dataclass(frozen=True)
class Labelers:
    """Who gave labels, and how many each."""

    count: int
    """distinct labelers"""
    least: int
    """labels of the labeler with the fewest"""
    median: float
    """the median of labels per labeler"""
    most: int
    """labels of the labeler with the most"""
    histogram: tuple[Bar, ...]
    """labelers by their numbers of labels, in powers of two"""


@dataclass(frozen=True)
class Question:
    """One question, and what was compared under it."""

    name: str
    """how it is recorded"""
    pairs: int
    """distinct pairs it was asked about"""


@dataclass(frozen=True)
class Example:
    """One pair, the two sides in an order that no label decides; chats as their words."""

    prompt: str
    """what was asked"""
    first: str
    """one response"""
    second: str
    """the other response"""


@dataclass(frozen=True)
class Inspection:
    """What an input is understood as. No label was read."""

    format: str
    """the format that was recognised, or named"""
    about: str
    """what that format looks like"""
    roles: tuple[Role, ...]
    """which columns are read, and which would be"""
    rows: int
    """rows that say who compared what; of exports, answers"""
    bad_rows: int
    """rows that cannot be used"""
    bad_row_reason: str | None
    """why most of them cannot"""
    left_out: Mapping[str, int]
    """answers of a tool that no release counts, by reason: ground truths, drafts"""
    notes: tuple[str, ...]
    """what else to know of how it is read"""
    identical_sides: int
    """rows (of rankings and choices, pairs) left out because both responses are the same"""
    repeated: int
    """rows (pairs likewise) in which a labeler compared a pair once more; the newest counts"""
    answers: str
    """what is counted as a label: `labels` of pairs, whole `rankings`, or `choices`"""
    labels: int
    """what is left: every labeler's distinct labels, rankings or choices"""
    comparisons: int
    """the pairs that they compare; of labels of pairs, one each"""
    pairs: int
    """distinct pairs"""
    labelers: Labelers | None
    """who gave labels; null where the input does not tell"""
    questions: tuple[Question, ...]
    """what was asked, where the input tells it or `--question` does"""
    examples: tuple[Example, ...]
    """a few pairs, in the order of their contents"""
    sources: tuple[Sources, ...]
    """of columns that were declared public, those that tell which system wrote each response"""
    problems: tuple[str, ...]
    """why a release would be refused"""
    next: tuple[str, ...]
    """commands to go on with"""

    def __repr__(self) -> str:
        told = [f"{name}: {value}" for name, value in self._counts()]
        return f"Inspection({self.format!r}, {'; '.join(told)})"

    def _counts(self) -> list[tuple[str, str]]:
        """What there is of everything."""
        compared = f"{self.labels:,} {self.answers} of {counted(self.pairs, 'pair')}"
        people = "not told" if self.labelers is None else f"{self.labelers.count:,}"
        counts = [("holds", compared), ("labelers", people), ("bad rows", f"{self.bad_rows:,}")]
        if self.left_out:
            counts.append(("left out", describe_counts(self.left_out).split(";")[0]))
        return [*counts, ("problems", f"{len(self.problems):,}" if self.problems else "none")]

    def _repr_html_(self) -> str:
        people, facts = self.labelers, [("format", f"{self.format}: {self.about}")]
        facts += [fact for fact in self._counts() if fact[0] != "problems" or not self.problems]
        if people is not None:
            each = f"{people.least:,} to {people.most:,} each, {people.median:,.0f} in the median"
            facts.append(("labels", each))
        facts += several("notes", self.notes) + several("problems", self.problems)
        facts += several(
            "questions", [f"{q.name}: {counted(q.pairs, 'pair')}" for q in self.questions]
        )
        facts += several("next", self.next)
        roles = [(one.role, one.column, "" if one.read else "not read") for one in self.roles]
        pairs = [(one.prompt, one.first, one.second) for one in self.examples]
        tables = [Rows(("role", "column", ""), roles), Rows(("prompt", "first", "second"), pairs)]
        return card("What the input is understood as", facts, tables=filter(_filled, tables))


def _filled(table: Rows) -> bool:
    return bool(table.rows)
