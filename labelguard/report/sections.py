"""What each section tells of a project: its facts, tables and charts; words are in words.j2."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from labelguard import clock
from labelguard.answers.inbox import Inbox, Progressed
from labelguard.budget.policy import Allowance
from labelguard.errors import LabelguardError, LedgerError
from labelguard.ledger import people as leaving
from labelguard.ledger.journal import Anchor
from labelguard.ledger.policies import PolicyRecord
from labelguard.ledger.records import ReleaseRecord
from labelguard.project import attempts
from labelguard.project.opening import OpenProject, Where
from labelguard.project.verdict import Verdict, verdict
from labelguard.release import card as cards
from labelguard.release.sections import Section
from labelguard.report import overview
from labelguard.report.overview import Budget
from labelguard.report.render import day, section, small
from labelguard.text import DEFAULT_AGREEMENT, pluralize

_CARD = "card.json"
_RELEASES = 60
_FORECASTS = 24
_LEFT = 25
_LARGE = 30.0
"""ε beyond which numbers say nothing to people."""


@dataclass(frozen=True)
class Seen:
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
    def of(cls, release_id: str | None, where: Where) -> Seen:
        """Look at a project. Raises `LedgerError` for a release that it has not committed."""
        opened = OpenProject.open(where)
        releases = tuple(opened.ledger.releases.all())
        return cls(
            opened,
            clock.now(),
            overview.budget(opened.project),
            tuple(opened.ledger.policies.all()),
            releases,
            _named(releases, release_id) if release_id else None,
            attempts.read(opened.project).failing,
        )

    @property
    def policy(self) -> PolicyRecord | None:
        """The policy in force."""
        return next((record for record in self.policies if record.state == "active"), None)

    @property
    def newest_policy(self) -> PolicyRecord | None:
        """The policy in force, else the newest one."""
        return self.policy or (self.policies[-1] if self.policies else None)

    @property
    def committed(self) -> tuple[ReleaseRecord, ...]:
        """Releases that are complete, oldest first."""
        return tuple(record for record in self.releases if record.state == "committed")

    @property
    def unit(self) -> str:
        """What is protected as a whole; labelers where no policy says it yet."""
        return self.newest_policy.policy.unit if self.newest_policy else "labeler"

    def card(self, record: ReleaseRecord) -> Mapping[str, Any] | None:
        """The card of a committed release; None unless it is the one that was committed."""
        try:
            data = (self.opened.project.releases / record.id / _CARD).read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data).hexdigest() != record.files.get(_CARD):
            return None
        card: Mapping[str, Any] = json.loads(data)
        return card

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


def verified(seen: Seen, kept: Anchor | None) -> Verdict:
    """Whether journal, charges and the files of all releases hold, and the journal that anchor."""
    found = verdict(seen.opened, kept)
    home = f"{seen.opened.project.state.parent}/"  # where it lies is nobody's business elsewhere
    return replace(found, fault=found.fault and found.fault.replace(home, ""))


def to_do(seen: Seen, found: Verdict) -> Section:
    """Faults, allowances that are used up, and what was begun and not finished."""
    made = section("to_do", seen=seen, found=found)
    return made if made.points else replace(made, text=("Nothing to do.",))


def this_release(seen: Seen) -> Section | None:
    """The card of the release that the report is about."""
    if seen.chosen is None:
        return None
    card = seen.card(seen.chosen)
    if card is None:
        return section("altered", "release", id=seen.chosen.id)
    privacy = card["privacy"]
    training = _plain(cards.words("training", train_with=card["train_with"]))
    made = section(
        "release", card=card, privacy=privacy, span=cards.span(privacy), training=training
    )
    return replace(made, facts=tuple((name.strip(), value) for name, value in cards.facts(card)))


def guarantee(seen: Seen) -> Section:
    """What the project promises, and how much of its ceiling that takes."""
    cost = seen.budget.lifetime
    reactive = any(record.policy.assignment_reactive for record in seen.policies)
    declared = {name for record in seen.policies for name in record.policy.public_columns}
    conditions = [cards.words("condition")] if reactive else []
    conditions += [cards.words("assumption", columns=sorted(declared))] if declared else []
    return section(
        "guarantee",
        seen=seen,
        promised=any(record.state != "draft" for record in seen.policies),
        conditions=" ".join(map(_plain, conditions)),
        factor=_factor(cost.epsilon),
        right=guessed(cost.epsilon, cost.delta),
    )


def _factor(epsilon: float) -> str:
    """e^ε in three digits, rounded up."""
    if epsilon > _LARGE:
        return f"e^{epsilon:g}"
    factor = math.exp(epsilon)
    step = 10.0 ** (math.floor(math.log10(factor)) - 2)
    return f"{math.ceil(factor / step) * step:,.{max(0, 2 - math.floor(math.log10(factor)))}f}"


def guessed(epsilon: float, delta: float) -> str:
    """How often the best guess between two equally likely inputs is right at most, rounded up.

    (e^ε + δ) / (e^ε + 1): the sum of both kinds of error is at least 2 (1 − δ) / (e^ε + 1).
    """
    if epsilon > _LARGE:
        return "all but 100%"
    wrong = (1 - delta) / (1 + math.exp(epsilon))
    digits = max(1, math.ceil(-math.log10(wrong)) - 1)
    return f"{math.ceil((1 - wrong) * 100 * 10**digits) / 10**digits:.{digits}f}%"


def _plain(markdown: str) -> str:
    """A sentence of a card without its marks."""
    return markdown.replace("**", "").replace("`", "")


def not_protected(seen: Seen) -> Section:
    """What the promise leaves out: as cards say it, and what a project adds."""
    record = seen.newest_policy
    lines = list(cards.not_protected(record.policy) if record else cards.NOT_PROTECTED)
    lines += [line for card in seen.newest_cards() for line in card["not_protected"]]
    return section("not_protected", lines=dict.fromkeys(lines))


def policies(seen: Seen) -> Section:
    """What every policy allows and costs, and the ceiling, of which the journal knows raises."""
    rows = tuple(
        (
            *(record.name, record.state, day(record.created_at), f"{record.policy.epsilon:g}"),
            *(small(record.policy.delta), record.policy.unit),
            ", ".join(map(_allowed, record.policy.allowances)),
            "–" if record.state == "draft" else f"{record.policy.epsilon:g}",
        )
        for record in seen.policies
    )
    raised = (one.at for one in seen.opened.ledger.journal() if one.kind == "ceiling")
    return section(
        "policies",
        seen=seen,
        raised=", ".join(f"{day(at)} UTC" for at in raised),
        rows=rows,
    )


def _allowed(allowance: Allowance) -> str:
    if allowance.allowed is None:
        return f"as many as in the first release, rounded up, {allowance.kind.noun}s"
    return pluralize(allowance.allowed, allowance.kind.noun)


def left_out(seen: Seen) -> Section:
    """Labels that no release holds, because an allowance was used up, or they came twice."""
    newest = next((one for one in reversed(seen.committed) if one.part == "training"), None)
    bounded = sum(bool(one.settings.get("dropped_by_bound")) for one in seen.committed)
    return section("left_out", seen=seen, newest=newest, bounded=bounded)


def who_is_who(seen: Seen) -> Section | None:
    """What was said of single labelers, by pseudonym, never by id; None where nothing was."""
    ledger = seen.opened.ledger
    with ledger.snapshot() as connection:
        gone = leaving.read_departures(connection)
    members, distinct = len(ledger.people.members()[0]), len(ledger.people.distinct()[0])
    if not (gone or members or distinct):
        return None
    kinds = [one.kind for one in gone]
    return section(
        "people",
        rows=((one.pseudonym, one.kind, day(one.at)) for one in gone[: -_LEFT - 1 : -1]),
        retired=kinds.count("retired"),
        erased=kinds.count("erased"),
        members=members,
        distinct=distinct,
    )


def planned(seen: Seen) -> Section | None:
    """What the planner expected of releases, where it was asked and its answer was kept."""
    forecasts = [one for one in seen.committed if "forecast" in one.settings]
    poor = [one for one in seen.committed if "discouraged" in one.settings]
    if not forecasts and not poor:
        return None
    return section(
        "planned",
        rows=map(_forecast, reversed(forecasts[-_FORECASTS:])),
        forecasts=forecasts,
        poor=poor,
        differ=1 - DEFAULT_AGREEMENT,
    )


def _forecast(record: ReleaseRecord) -> tuple[str, ...]:
    accuracy, error = (record.settings["forecast"][name] for name in ("accuracy", "label_error"))
    numbers = f"{accuracy['mean']:.3f}", f"{accuracy['low']:.3f} to {accuracy['high']:.3f}"
    return record.id, record.settings["mechanism"], *numbers, f"{error['mean']:.3f}"


def releases(seen: Seen) -> Section:
    """Every release, whatever became of it."""
    names = {record.id: record.name for record in seen.policies}
    rows = tuple(
        (
            *(one.id, day(one.created_at), one.settings["mechanism"]),
            *(names.get(one.policy_id, ""), one.state, one.settings.get("labelers")),
            *(one.rows, one.charged, one.settings.get("dropped_by_bound")),
        )
        for one in reversed(seen.releases[-_RELEASES:])
    )
    return section(
        "releases",
        rows=rows,
        newest_first=True,
        seen=seen,
        gone=sum(one.state == "abandoned" for one in seen.releases),
        older=len(seen.releases) - len(rows),
    )


def hook(seen: Seen) -> Section | None:
    """How the hook stands, in counts; None for a project without one."""
    home = seen.opened.project
    try:
        inbox = Inbox.find(home.state, home.ledger_url, seen.opened.keys)
        progressed = Progressed.read(home.state)
        if inbox is None:
            return None
        try:
            waiting, letters = inbox.waiting(), len(inbox.letters())
        finally:
            inbox.close()
    except LabelguardError as error:
        return section("hook_unread", "hook", error=str(error))
    rows = [(name, "reconciled", at) for name, at in sorted(progressed.reconciled.items())]
    rows += [(name, "published", one) for name, one in sorted(progressed.pushed.items())]
    rows += [
        (name, "released", f"{one}, {progressed.days.get(name, '')}".rstrip(", "))
        for name, one in sorted(progressed.releases.items())
    ]
    return section("hook", rows=rows, waiting=waiting, letters=letters)


def verification(seen: Seen, found: Verdict, kept: Anchor | None) -> Section:
    """What was verified, and the line to keep elsewhere."""
    anchor = str(Anchor(*seen.opened.ledger.head()))
    return section("verification", seen=seen, found=found, kept=kept, anchor=anchor)
