"""What of the promise is used: over labelers, by those near their cap, and at which noise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.budget import events
from labelguard.budget.event_kind import EventKind
from labelguard.release.sections import Chart, Mark, Section, Series
from labelguard.report.render import section
from labelguard.report.sections import Seen
from labelguard.text import DEFAULT_AGREEMENT

Counts: TypeAlias = NDArray[np.int64]
"""Rows of (capacity, used, how many units)."""
_NEAR = 80
"""Percent of an allowance from which on a labeler is near its end."""
_NAMED = 25
_BINS = (*(f"{low} to {low + 10}%" for low in range(0, 90, 10)), "90% and more", "all")
_SHOWN = 8  # bars beside that of two people
_DIFFER = 1 - DEFAULT_AGREEMENT


def usage(seen: Seen) -> Mapping[str, Counts]:
    """The use of each allowance of the policy in force."""
    rows, policy = seen.opened.ledger.releases.usage(), seen.policy
    allowed = policy.policy.events if policy else ()
    return {event: np.array(rows.get(event, []), np.int64).reshape(-1, 3) for event in allowed}


def sections(seen: Seen) -> Iterator[Section]:
    """For each allowance of the policy in force, how far it is used, and who is near its end."""
    for event, rows in usage(seen).items():
        kind = events.kind(event)
        capacity, used, count = rows.T
        close = seen.opened.ledger.releases.heavy_users(event, _NEAR, _NAMED)
        near = int(count[used * 100 >= _NEAR * capacity].sum())
        yield section(
            "used",
            f"used-{event}",
            rows=((name, used, most, most - used) for name, most, used in close),
            chart=_histogram(seen, kind, rows, near) if len(rows) else None,
            seen=seen,
            kind=kind,
            who=int(count.sum()),
            allowed=int(capacity @ count),
            spent=int(used @ count),
            near=near,
            over=int(count[used >= capacity].sum()),
            usage=next((one for one in seen.budget.allowances if one.event == event), None),
            NEAR=_NEAR,
            NAMED=_NAMED,
        )


def _histogram(seen: Seen, kind: EventKind, rows: Counts, near: int) -> Chart:
    """How many units used which share, in steps of 10%; those with nothing left are apart."""
    capacity, used, count = rows.T
    step = np.minimum(used * 10 // capacity, 10)
    bars = np.bincount(step, count, len(_BINS)).astype(int).tolist()
    most, first = max(bars), _NEAR // 10
    where = _BINS[bars.index(most)]
    at = "have used all of it" if where == _BINS[-1] else f"are at {where}"
    who = "most" if 2 * most > sum(bars) else "the largest group"
    share = f"{near / count.sum():.0%} of {seen.unit}s"
    return Chart(
        f"{kind.noun.capitalize()}s used, of the allowance of each {seen.unit}",
        f"{share} used {_NEAR}% of their allowance or more; {who} {at}.",
        "bars",
        _BINS,
        "share of the allowance that is used",
        f"{seen.unit}s",
        (
            Series(f"below {_NEAR}%", (*bars[:first], *(None,) * (len(_BINS) - first))),
            Series(f"{_NEAR}% and more", (*(None,) * first, *bars[first:])),
        ),
        (Mark("x", _NEAR / 10 - 0.5, f"{_NEAR}%"),),
    )


def noise(seen: Seen) -> Iterator[Section]:
    """What every use gets as noise under the policy in force, and what label error that means."""
    for event, rows in usage(seen).items():
        kind, prices = events.kind(event), seen.policy.prices.get(event, {}) if seen.policy else {}
        if noises := {k: kind.noise(prices[k]) for k in sorted(prices)}:
            yield _noise(seen, kind, noises, rows)


def _noise(
    seen: Seen, kind: EventKind, noises: Mapping[int, Mapping[str, Any]], rows: Counts
) -> Section:
    units = {k: int(rows[rows[:, 0] == k, 2].sum()) for k in noises}
    names = tuple(next(iter(noises.values())))
    facts: dict[str, Any] = {"seen": seen, "kind": kind, "names": names}
    facts["rows"] = [(k, units[k], *map(_number, noise.values())) for k, noise in noises.items()]
    if names != ("flip_probability",):
        return section("noise", f"noise-{kind.name}", **facts)
    flips = {k: noise["flip_probability"] for k, noise in noises.items()}
    known = np.isin(rows[:, 0], list(flips))
    weight, flipped = rows[known, 1] * rows[known, 2], [flips[int(k)] for k in rows[known, 0]]
    return section(
        "flips",
        f"noise-{kind.name}",
        chart=_errors(flips),
        differ=_DIFFER,
        error=float(np.average(flipped, weights=weight)) if weight.sum() else None,
        **facts,
    )


def _number(value: float | str) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _errors(flips: Mapping[int, float]) -> Chart:
    chosen = dict(list(flips.items())[:_SHOWN])
    shares = dict.fromkeys(f"{flip:.0%}" for flip in sorted(chosen.values()))
    spread = " to ".join([*shares][:: max(len(shares) - 1, 1)])
    return Chart(
        "Labels expected to differ",
        f"A released label differs from what was said in {spread} of cases; two people differ "
        f"in {_DIFFER:.0%}.",
        "bars",
        ("two people", *(f"said and released, {k:,} allowed" for k in chosen)),
        "difference between",
        "labels that differ",
        (Series("labels that differ", (_DIFFER, *chosen.values())),),
        (Mark("y", 0.5, "a coin"),),
        percent=True,
    )
