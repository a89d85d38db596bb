"""What the budget will look like: a forecast from who was charged how much, and when.

It reads counts of the ledger only, which follow from who labelled what and when; no label has a
part in it. The rule is plain, and `RULE` says it: everybody goes on as they did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard import clock
from labelguard.errors import LabelguardError
from labelguard.ledger.activity import Activity, activity
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.policies import PolicyRecord
from labelguard.policy import events
from labelguard.project.opening import OpenProject, Where
from labelguard.report.lasting import YEAR, Lasting, lasting
from labelguard.terms import counted

__all__ = ["EventOutlook", "Kept", "Outlook", "WeekAhead", "kept", "outlook"]

SILENT = 8
"""Weeks without a charge, before the newest one, after which somebody counts as having left."""
FARTHEST = 10 * YEAR
"""Weeks ahead beyond which no exhaustion is told."""
RULE = (
    "everybody goes on at their own pace: what they used, under all policies, a week since the "
    "week of their first charge, that week included",
    f"who was last charged over {SILENT} weeks before the newest charge, or was retired or erased, "
    "has left, and is in no number; nobody joins",
)
_FEW_WEEKS = 4
_ITEMS = (
    "the policy in force protects contents, each of which is labelled when it comes and does not "
    "go on: they have no pace, and nothing is forecast"
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class WeekAhead:
    """The budget at the end of one week."""

    week: int
    """weeks from now; 0 is today"""
    used: float
    """share of all that labelers are allowed that is used by then"""
    exhausted: int
    """labelers with nothing left"""


@dataclass(frozen=True)
class EventOutlook:
    """What one allowance of the policy in force will look like."""

    event: str
    """the kind of event: rr or statistic"""
    labelers: int
    """units that were charged and have not left, of whom all other numbers are"""
    left: int
    """units that have left"""
    per_week: float
    """uses a labeler and week: the median"""
    weeks: tuple[WeekAhead, ...]
    """today and the weeks ahead"""
    first_exhausted: int | None
    """weeks until the first labeler has nothing left; 0: one has already; null: not in ten years"""
    half_exhausted: int | None
    """the same of half of them"""
    lasting: Lasting | None
    """the policy that would last a year; null before 4 weeks were observed, or if nothing pays"""


@dataclass(frozen=True)
class Outlook:
    """The budget in the weeks ahead, at the present rate."""

    at: str
    """when this was told, UTC"""
    policy: str | None
    """the policy in force; null if none is"""
    weeks_observed: float
    """weeks since the first charge"""
    events: tuple[EventOutlook, ...]
    """its allowances, one by one; none where contents are protected, which have no pace"""
    notes: tuple[str, ...]
    """the rule of the projection, and what it cannot know here"""


@dataclass(frozen=True)
class Kept:
    """What was forecast for today, and what is."""

    at: str
    """when it was forecast, UTC"""
    weeks: float
    """how many weeks ago that was"""
    event: str
    """the kind of event: rr or statistic"""
    labelers_then: int
    """units that it was about"""
    labelers: int
    """units there are now"""
    used_forecast: float
    """share of all that is allowed that would be used, it said"""
    used: float
    """the share that is used"""
    exhausted_forecast: float
    """labelers with nothing left, it said; between two weeks, in proportion"""
    exhausted: int
    """labelers with nothing left"""


def outlook(project: Where = None, weeks: int = 12) -> Outlook:
    """What the budget will look like in each of the next `weeks` weeks, and how long it lasts.

    From public counts alone (see `RULE`). Raises `LabelguardError` unless weeks is 1 to 520.
    """
    if not 1 <= weeks <= FARTHEST:
        raise LabelguardError(f"weeks must be at least 1 and at most {FARTHEST}, found {weeks}")
    ledger = OpenProject.open(project).ledger
    active, starts = ledger.policy(), {one.number: one.created_at for one in ledger.releases()}
    at = max(clock.now(), *starts.values()) if starts else clock.now()  # a clock that was set back
    if active is None:
        return Outlook(at, None, 0.0, (), ("no policy is in force, so nothing can be charged",))
    paces = {event: _pace(ledger, active, event, starts, at) for event in active.policy.events}
    days = [weeks_between(starts[pace.began], at) for pace in paces.values() if pace.began]
    observed = max(days, default=0.0)
    if active.policy.unit == "item":
        return Outlook(at, active.name, round(observed, 2), (), (_ITEMS,))
    needs = {event: pace.needs() for event, pace in paces.items() if len(pace.units)}
    enough = observed >= _FEW_WEEKS - 1  # the week of the first charge is one of them
    lasts, why = lasting(ledger, active, needs) if needs and enough else ({}, ())
    return Outlook(
        at,
        active.name,
        round(observed, 2),
        tuple(pace.ahead(event, weeks, lasts.get(event)) for event, pace in paces.items()),
        (*_notes(paces, observed), *why),
    )


def kept(earlier: Iterable[Mapping[str, Any]], now: Outlook) -> list[Kept]:
    """Forecast against fact: what outlooks said of today when they were told, oldest first.

    `earlier` are outlooks as mappings (`dataclasses.asdict`, or read back from JSON). Those of
    another policy, of less than a week ago, or that do not reach today are left out. Who joined or
    left since then is in the fact and not in the forecast.
    """
    found = []
    for told in earlier:
        weeks = weeks_between(told["at"], now.at)
        if told["policy"] != now.policy or weeks < 1:
            continue
        said = {one["event"]: one for one in told["events"]}
        for fact in now.events:
            before = said.get(fact.event)
            if before is None or not before["labelers"] or before["weeks"][-1]["week"] < weeks:
                continue
            ahead = [one["week"] for one in before["weeks"]]
            used, exhausted = (
                float(np.interp(weeks, ahead, [one[name] for one in before["weeks"]]))
                for name in ("used", "exhausted")
            )
            found.append(
                Kept(
                    told["at"],
                    round(weeks, 2),
                    fact.event,
                    before["labelers"],
                    fact.labelers,
                    used,
                    fact.weeks[0].used,
                    exhausted,
                    fact.weeks[0].exhausted,
                )
            )
    return sorted(found, key=lambda one: (one.at, one.event))


def weeks_between(start: str, end: str) -> float:
    """Weeks from one time to another, as the ledger tells times; never below 0."""
    return max(0.0, (clock.read(end) - clock.read(start)) / timedelta(weeks=1))


@dataclass(frozen=True, eq=False)
class _Pace:
    """Units that have not left, those with the same numbers together: (n,) each."""

    units: NDArray[np.int64]
    capacity: NDArray[np.int64]
    used: NDArray[np.int64]
    rate: Floats
    """uses a week"""
    left: int
    """units that have left"""
    pending: int
    """units whose capacity is not known before they are charged again; in no number either"""
    began: int | None
    """number of the first release that charged somebody"""
    releases: int
    """how many did"""

    def needs(self) -> tuple[int, int]:
        """Uses in a year that do for 90 of 100 units, and for all; at least 1."""
        year = np.maximum(np.ceil(self.rate * YEAR - 1e-9), 1).astype(np.int64)
        return int(_quantile(year, self.units, 0.9)), int(year.max())

    def ahead(self, event: str, weeks: int, lasts: Lasting | None) -> EventOutlook:
        """What becomes of them."""
        with np.errstate(divide="ignore", invalid="ignore"):
            until = np.where(
                self.capacity == self.used, 0.0, (self.capacity - self.used) / self.rate
            )
        until = np.ceil(until - 1e-9)
        return EventOutlook(
            event,
            labelers=int(self.units.sum()),
            left=self.left,
            per_week=float(_quantile(self.rate, self.units, 0.5)) if len(self.units) else 0.0,
            weeks=tuple(self._week(week, until) for week in range(weeks + 1)),
            first_exhausted=_told(until.min()) if len(until) else None,
            half_exhausted=_told(_quantile(until, self.units, 0.5)) if len(until) else None,
            lasting=lasts,
        )

    def _week(self, week: int, until: Floats) -> WeekAhead:
        used = np.minimum(self.capacity, self.used + self.rate * week)
        allowed = float(self.capacity @ self.units)
        share = float(used @ self.units) / allowed if allowed else 0.0
        return WeekAhead(week, round(share, 6), int(self.units[until <= week].sum()))


def _pace(
    ledger: Ledger, active: PolicyRecord, event: str, starts: Mapping[int, str], at: str
) -> _Pace:
    """How fast units use what they are allowed, from what they were charged so far."""
    with ledger.snapshot() as connection:
        found = activity(connection, active, event)
    allowed = active.policy.allowance(event).allowed
    capacity = np.where(found.capacity < 0, allowed or -1, found.capacity)
    newest = max((starts[number] for number in found.last.tolist()), default=at)
    quiet = _since(found.last, starts, newest) > SILENT
    spent = found.used == capacity
    gone = found.departed | (quiet & ~spent)
    # Who has nothing left went on until then: their silence since says nothing of their pace.
    weeks = np.where(
        spent,
        _since(found.first, starts, at) - _since(found.last, starts, at),
        _since(found.first, starts, at),
    )
    rate = found.total / (np.floor(np.maximum(weeks, 0) + 1e-9) + 1)
    here = ~gone & (capacity >= 0)
    return _Pace(
        *(found.units[here], capacity[here], found.used[here], rate[here]),
        left=int(found.units[gone].sum()),
        pending=int(found.units[~gone & (capacity < 0)].sum()),
        began=int(found.first.min()) if len(found.first) else None,
        releases=_charging(found),
    )


def _charging(found: Activity) -> int:
    """How many releases charged somebody first or last: 1 is 1, and more are several."""
    return len(np.union1d(found.first, found.last))


def _since(releases: NDArray[np.int64], starts: Mapping[int, str], at: str) -> Floats:
    """Weeks from each release to a time, (n,)."""
    distinct, where = np.unique(releases, return_inverse=True)
    return np.array([weeks_between(starts[number], at) for number in distinct.tolist()])[where]


def _quantile(values: NDArray[Any], count: NDArray[np.int64], share: float) -> Any:
    """The smallest value that at least this share of `count` does not exceed."""
    order = np.argsort(values)
    reached = np.cumsum(count[order])
    return values[order][np.searchsorted(reached, share * reached[-1])]


def _told(week: float) -> int | None:
    return int(week) if week <= FARTHEST else None


def _notes(paces: Mapping[str, _Pace], weeks: float) -> tuple[str, ...]:
    """The rule, and what makes it weak here."""
    if all(pace.began is None for pace in paces.values()):
        return ("nothing was charged yet, so there is no rate to go by",)
    found = [*RULE]
    if all(pace.releases <= 1 for pace in paces.values()):
        found.append("there is one release so far: its labels count as those of one week")
    elif weeks < 1:
        found.append("all releases are of one week: their labels count as those of one week")
    elif weeks < _FEW_WEEKS:
        found.append(f"it rests on {weeks:.1f} weeks only")
    if weeks < _FEW_WEEKS - 1:
        found.append(
            f"which policy would last a year is told once {_FEW_WEEKS} weeks were observed, that "
            "of the first charge included"
        )
    for event, pace in paces.items():
        if pace.pending:
            found.append(
                f"{counted(pace.pending, 'unit')} were not charged under this policy yet: how many "
                f"{events.kind(event).noun}s they are allowed depends on what they bring"
            )
    return tuple(found)
