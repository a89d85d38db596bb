"""What a report is made from: a project as it is, looked at once. No label is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from labelguard import clock
from labelguard.errors import LedgerError
from labelguard.ledger.policies import PolicyRecord
from labelguard.ledger.records import ReleaseRecord
from labelguard.project import attempts
from labelguard.project.opening import OpenProject, Where
from labelguard.report import overview
from labelguard.report.overview import Budget

CARD = "card.json"


@dataclass(frozen=True)
class Seen:
    """A project as it was at one moment; `chosen` is the release that the report is about."""

    opened: OpenProject
    at: str
    budget: Budget
    policies: tuple[PolicyRecord, ...]
    releases: tuple[ReleaseRecord, ...]
    chosen: ReleaseRecord | None
    failing: str | None
    """what fails since the last release that succeeded (see `project.attempts`)"""

    @classmethod
    def of(cls, release_id: str | None, where: Where) -> Seen:
        """Look at a project. Raises `LedgerError` for a release that it has not committed."""
        opened = OpenProject.open(where)
        releases = tuple(opened.ledger.releases())
        return cls(
            opened,
            clock.now(),
            overview.budget(opened.project),
            tuple(opened.ledger.policies()),
            releases,
            _named(releases, release_id) if release_id else None,
            attempts.read(opened.project).failing,
        )

    @property
    def policy(self) -> PolicyRecord | None:
        """The policy in force."""
        return next((record for record in self.policies if record.state == "active"), None)

    @property
    def committed(self) -> tuple[ReleaseRecord, ...]:
        """Releases that are complete, oldest first."""
        return tuple(record for record in self.releases if record.state == "committed")

    @property
    def unit(self) -> str:
        """What is protected as a whole; labelers where no policy says it yet."""
        policy = self.policy or next(iter(reversed(self.policies)), None)
        return policy.policy.unit if policy else "labeler"

    def card(self, record: ReleaseRecord) -> Mapping[str, Any] | None:
        """The card of a committed release; None unless it is the one that was committed."""
        try:
            data = (self.opened.project.releases / record.id / CARD).read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data).hexdigest() != record.files.get(CARD):
            return None
        found: Mapping[str, Any] = json.loads(data)
        return found

    def newest_cards(self) -> Iterable[Mapping[str, Any]]:
        """Of the release that is chosen, else of the newest one by each mechanism."""
        seen: set[str] = set()
        for record in reversed((self.chosen,) if self.chosen else self.committed):
            if (name := record.settings["mechanism"]) not in seen and (card := self.card(record)):
                seen.add(name)
                yield card


def _named(releases: Iterable[ReleaseRecord], release_id: str) -> ReleaseRecord:
    """The committed release of that id, which may be shortened."""
    found = [one for one in releases if one.id.startswith(release_id)]
    if not found and not any(one.state == "committed" for one in releases):
        raise LedgerError(f"{release_id} names no release: none was committed yet")
    done = [one for one in found if one.state == "committed"]
    if len(done) != 1:
        state = f" (it is {found[0].state})" if len(found) == 1 else ""
        raise LedgerError(
            f"{release_id} names {len(done)} committed releases{state}; "
            "see: labelguard release list"
        )
    return done[0]
