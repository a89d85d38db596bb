"""`budget combine`: what several projects cost people who label in all of them.

Projects know nothing of one another, so a person in two of them loses what both cost: ε adds, δ
adds, and so do the ceilings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from labelguard.errors import PolicyError, ProjectError
from labelguard.ledger import ceilings
from labelguard.ledger.ceilings import Ceiling
from labelguard.policy import lifetime
from labelguard.policy.lifetime import Chapter, Total
from labelguard.policy.policy import Policy
from labelguard.project import policies
from labelguard.project.opening import OpenProject


@dataclass(frozen=True)
class ProjectTotal(Total):
    """What one project costs a labeler."""

    project: str
    """its directory, or the file of its `budget export`"""
    policies: int
    """how many were or are in force"""
    ceiling: Ceiling
    """what they may cost"""


@dataclass(frozen=True)
class Combined(Total):
    """What several projects cost a labeler of all."""

    unit: str | None
    """what all protect as a whole; null before their first policies"""
    ceiling: Total
    """the sums of their ceilings"""
    projects: list[ProjectTotal]
    """each by itself"""


@dataclass(frozen=True)
class _Book:
    """One project: its policies so far, and its ceiling."""

    name: str
    chapters: Sequence[Chapter]
    ceiling: Ceiling
    history: Sequence[str]
    """digests of its journal's entries, oldest first; () before its first release, for projects
    that were made alike in the same second have equal ones until then"""

    @property
    def total(self) -> Total:
        return lifetime.total(self.chapters)

    @property
    def unit(self) -> str | None:
        """What its policies protect; None before the first. All of a project protect the same."""
        return self.chapters[0].policy.unit if self.chapters else None


def combine(sources: Sequence[str | Path]) -> Combined:
    """The totals of projects, named by directory or by a JSON file of `budget export`, and sums.

    Raises `PolicyError` if they protect different units, for which no sum exists, `ProjectError`
    for what is no project, or fewer than two, or one twice, be it as an older copy of itself.
    Copies that went on apart are added up: what they share counts twice, on the safe side.
    """
    paths = [Path(source) for source in sources]
    if len({path.resolve() for path in paths}) < max(len(paths), 2):
        raise ProjectError("name two projects or more, each once")
    books = [_exported(path) if path.is_file() else _project(path) for path in paths]
    for older, newer in permutations(books, 2):
        if older.history and older.history[-1] in newer.history:
            raise ProjectError(
                f"{older.name} is a copy of the project {newer.name}, which holds all of its "
                "history: name the newer one alone"
            )
    known = {book.unit: book.name for book in books if book.unit}
    if len(known) > 1:
        (one, first), (other, second) = list(known.items())[:2]
        raise PolicyError(
            f"{first} protects each {one}, {second} each {other}: there is no sum across units"
        )
    total = lifetime.added([book.total for book in books])
    highest = [Total(book.ceiling.epsilon, book.ceiling.delta) for book in books]
    each = [
        ProjectTotal(b.total.epsilon, b.total.delta, b.name, len(b.chapters), b.ceiling)
        for b in books
    ]
    unit = next(iter(known), None)
    return Combined(total.epsilon, total.delta, unit, lifetime.added(highest), each)


def _project(path: Path) -> _Book:
    ledger = OpenProject.open(path).ledger
    history = _history([(entry.kind, entry.digest) for entry in ledger.journal()])
    return _Book(str(path), policies.life(ledger), ledger.ceiling(), history)


def _history(entries: Sequence[tuple[str, str]]) -> list[str]:
    """Digests of a journal's entries, given as kind and digest, if a release is among them."""
    return [digest for _, digest in entries] if any(k == "committed" for k, _ in entries) else []


def _exported(path: Path) -> _Book:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        chapters = [
            Chapter(
                row["name"],
                Policy.from_json(json.dumps(row["settings"])),
                row["quote"],
                row["point"],
            )
            for row in found["policies"]
            if row["state"] != "draft"
        ]
        raised = [row["body"] for row in found["journal"] if row["kind"] in ceilings.KINDS]
        history = _history([(row["kind"], row["digest"]) for row in found["journal"]])
        return _Book(str(path), chapters, Ceiling.from_journal(raised[-1]), history)
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        raise ProjectError(
            f"{path} is neither a project nor a JSON file of labelguard budget export"
        ) from None
