"""The facts of a report: a project and its hook as they were at one moment, collected once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Self

from labelguard import clock
from labelguard.answers.inbox import Inbox
from labelguard.answers.store import WorkerState, read_hook_refusal_reasons
from labelguard.errors import PolicyError
from labelguard.ledger.journal import Anchor
from labelguard.ledger.policies import PolicyRecord
from labelguard.ledger.records import ReleaseRecord
from labelguard.project import attempts
from labelguard.project.opening import OpenProject, Where
from labelguard.project.verification import Verification, verify_records
from labelguard.report import overview
from labelguard.report.overview import Budget
from labelguard.text import pluralize

_CARD = "card.json"
# ε beyond which numbers say nothing to people.
_LARGE = 30.0


@dataclass(frozen=True)
class ReportFacts:
    """A project as it was at one moment; no label is read.

    `chosen` is the release that the report is about, and `failing` what fails since the last
    release that succeeded (see `project.attempts`).
    """

    opened: OpenProject
    at: str
    budget: Budget
    policies: tuple[PolicyRecord, ...]
    releases: tuple[ReleaseRecord, ...]
    chosen: ReleaseRecord | None
    failing: str | None

    @classmethod
    def collect(cls, release_id: str | None, where: Where) -> ReportFacts:
        """Collect the facts. Raises `LedgerError` for a release that was not committed,
        `PolicyError` for a project of whole records.
        """
        opened = OpenProject.open(where)
        if any(one.adjacency != "replace_labels" for one in opened.ledger.policies.history()):
            raise PolicyError(
                "a report is of released labels, and this project protects whole records: the card "
                "of each alignment says what holds (labelguard release show)"
            )
        releases = tuple(opened.ledger.releases.all())
        return cls(
            opened,
            clock.now(),
            overview.read_budget(opened.project),
            tuple(opened.ledger.policies.all()),
            releases,
            opened.ledger.releases.find_committed(release_id) if release_id else None,
            attempts.read_attempts(opened.project).failure_text,
        )

    @property
    def policy_in_force(self) -> PolicyRecord | None:
        """The policy in force."""
        return next((record for record in self.policies if record.state == "active"), None)

    @property
    def policy_in_force_or_newest(self) -> PolicyRecord | None:
        """The policy in force, else the newest one."""
        return self.policy_in_force or (self.policies[-1] if self.policies else None)

    @property
    def committed_releases(self) -> tuple[ReleaseRecord, ...]:
        """Releases that are complete, oldest first."""
        return tuple(record for record in self.releases if record.state == "committed")

    @property
    def unit(self) -> str:
        """The unit that is protected as a whole; labelers where no policy says it yet."""
        record = self.policy_in_force_or_newest
        return record.policy.unit if record else "labeler"

    def read_card(self, record: ReleaseRecord) -> Mapping[str, Any] | None:
        """Return the card of a committed release; None unless it is the one that was committed."""
        try:
            data = (self.opened.project.releases / record.id / _CARD).read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data).hexdigest() != record.files.get(_CARD):
            return None
        card: Mapping[str, Any] = json.loads(data)
        return card

    def read_cards_per_mechanism(self) -> Iterable[Mapping[str, Any]]:
        """Of the release that is chosen, else of the newest one by each mechanism."""
        mechanisms: set[str] = set()
        for record in reversed((self.chosen,) if self.chosen else self.committed_releases):
            if (name := record.settings["mechanism"]) not in mechanisms and (
                card := self.read_card(record)
            ):
                mechanisms.add(name)
                yield card


def verify_project(facts: ReportFacts, anchor: Anchor | None) -> Verification:
    """Verify journal, charges and the files of all releases, and the anchor in the journal."""
    verification = verify_records(facts.opened, anchor)
    home = f"{facts.opened.project.state.parent}/"  # where it lies is nobody's business elsewhere
    return replace(verification, fault=verification.fault and verification.fault.replace(home, ""))


def format_odds_factor(epsilon: float) -> str:
    """e^ε in three digits, rounded up."""
    if epsilon > _LARGE:
        return f"e^{epsilon:g}"
    factor = math.exp(epsilon)
    step = 10.0 ** (math.floor(math.log10(factor)) - 2)
    return f"{math.ceil(factor / step) * step:,.{max(0, 2 - math.floor(math.log10(factor)))}f}"


def format_best_guess_accuracy(epsilon: float, delta: float) -> str:
    """Return how often the best guess between two equally likely inputs is right at most, rounded
    up.

    (e^ε + δ) / (e^ε + 1): the sum of both kinds of error is at least 2 (1 − δ) / (e^ε + 1).
    """
    if epsilon > _LARGE:
        return "all but 100%"
    wrong = (1 - delta) / (1 + math.exp(epsilon))
    digits = max(1, math.ceil(-math.log10(wrong)) - 1)
    return f"{math.ceil((1 - wrong) * 100 * 10**digits) / 10**digits:.{digits}f}%"


# Days without a reconciliation after which something needs doing.
_DAYS = 2


@dataclass(frozen=True)
class HookState:
    """Counts of what waits and of dead letters, and what the worker did.

    `overdue` says of each connector without a reconciliation for two days since when.
    """

    waiting: int
    letters: int
    worker: WorkerState
    overdue: dict[str, str]
    # why a hook takes nothing of deliveries, by connector of which nothing ever came
    ignored: dict[str, str]

    @classmethod
    def read(cls, opened: OpenProject) -> Self | None:
        """Read it; None for a project without a hook. Raises `LabelguardError` if it cannot."""
        home = opened.project
        inbox = Inbox.open_if_exists(home.state, home.ledger_url, opened.keys)
        worker = WorkerState.read(home.state)
        if inbox is None:
            return None
        with contextlib.closing(inbox):
            waiting, letters = inbox.count_waiting(), inbox.count_dead_letters()
            heard = {one.connector for one in opened.answers.list_segments()} | {
                *inbox.list_connectors()
            }
        reasons = read_hook_refusal_reasons(home.state).items()
        ignored = {name: why for name, why in reasons if name in {*home.connectors} - heard}
        last = {name: one["since"] for name, one in worker.unreconciled.items()} | worker.reconciled
        today = clock.parse_time(clock.now()).date()
        overdue = {
            name: f"none succeeded since {at}"
            for name, at in sorted(last.items())
            if name in home.connectors and (today - date.fromisoformat(at)).days >= _DAYS
        }
        return cls(waiting, letters, worker, overdue, ignored)

    def describe_troubles(self) -> Iterator[str]:
        """Yield what needs doing, as sentences that hold no text of a tool."""
        for name, why in self.overdue.items():
            yield (
                f"Reconciliation of {name}: {why}; `labelguard connect reconcile {name}` says why."
            )
        if self.letters:
            waits = "waits" if self.letters == 1 else "wait"
            letters = pluralize(self.letters, "dead letter")
            yield f"{letters} {waits}: `labelguard hook dead-letters` shows the causes."
