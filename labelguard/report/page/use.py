"""What of the promise is used: over labelers, by those near their cap, and what was left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.policy import events
from labelguard.policy.event_kind import EventKind
from labelguard.release.sections import Chart, Mark, Section, Series, Table
from labelguard.report.page.project import Seen
from labelguard.terms import DEFAULT_AGREEMENT, counted

_SIZE = (
    "Noise is added to every sum that leaves the labels. The noise multiplier says how large it "
    "is, as a multiple of the most that one of those who are protected can change the sum by; so "
    "does the scale of ball noise, in any number of components from the given one on."
)
Counts: TypeAlias = NDArray[np.int64]
"""Rows of (capacity, used, how many units), or one of these columns."""
NEAR = 80
"""Percent of an allowance from which on a labeler is near its end."""
_NAMED = 25
_BINS = (*(f"{low} to {low + 10}%" for low in range(0, 90, 10)), "90% and more", "all")


def sections(seen: Seen) -> Iterator[Section]:
    """For each allowance of the policy in force, how far it is used, and who is near its end."""
    policy = seen.policy
    if policy is None:
        return
    usage = seen.opened.ledger.usage()
    for event in policy.policy.events:
        yield _used(seen, events.kind(event), np.array(usage.get(event, []), np.int64))


def _used(seen: Seen, kind: EventKind, rows: Counts) -> Section:
    identity, title = f"used-{kind.name}", f"What is used: {kind.noun}s"
    if not len(rows):
        return Section(identity, title, (f"No {seen.unit} was charged yet.",))
    capacity, used, count = rows.T
    who, allowed, spent = int(count.sum()), int(capacity @ count), int(used @ count)
    near = int(count[used * 100 >= NEAR * capacity].sum())
    over = int(count[used >= capacity].sum())
    share = spent / allowed
    return Section(
        identity,
        title,
        (
            f"{counted(who, seen.unit)} together used {spent:,} of the {allowed:,} {kind.noun}s "
            f"that the policy in force allows them ({share:.0%}). {_at_the_end(seen, near, over)}",
            *_listed(near),
        ),
        _near(seen, kind) if near else None,
        _histogram(seen, kind, capacity, used, count, near / who),
        (
            (f"{seen.unit}s", f"{who:,}"),
            ("allowed", f"{allowed:,}"),
            ("used", f"{spent:,} ({share:.1%})"),
            ("left", f"{allowed - spent:,}"),
            (f"at {NEAR}% or more", f"{near:,}"),
            ("with nothing left", f"{over:,}"),
            *_pace(seen, kind),
        ),
    )


def _pace(seen: Seen, kind: EventKind) -> Iterator[tuple[str, str]]:
    """How long the allowance lasts the median unit, where that is known."""
    usage = next(one for one in seen.budget.allowances if one.event == kind.name)
    if usage.weeks_left is not None:
        left = counted(usage.left_per_labeler["median"], kind.noun)
        weeks = counted(usage.weeks_left, "week")
        yield f"the median {seen.unit} has", f"{left} left, {weeks} at the present rate"


def _at_the_end(seen: Seen, near: int, over: int) -> str:
    if not near:
        return f"No {seen.unit} has used {NEAR}% of their allowance."
    words = f"{counted(near, seen.unit)} used {NEAR}% of their allowance or more"
    if not over:
        return f"{words}, none of them all of it."
    return f"{words}, {over:,} of them all of it: no new label of theirs is released."


def _listed(near: int) -> tuple[str, ...]:
    """Who is named, and where the others are."""
    if not near:
        return ()
    more = near - _NAMED
    rest = f" {more:,} more are in the ledger: labelguard budget export." if more > 0 else ""
    return (
        f"Those at {NEAR}% or more are named by pseudonym; only the project's keys tell who that "
        f"is.{rest}",
    )


def _near(seen: Seen, kind: EventKind) -> Table:
    found = seen.opened.ledger.near(kind.name, NEAR, _NAMED)
    return Table(
        f"Pseudonyms at {NEAR}% or more ({kind.noun}s)",
        ("pseudonym", "used", "allowed", "left"),
        tuple((name, spent, most, most - spent) for name, most, spent in found),
    )


def _histogram(
    seen: Seen,
    kind: EventKind,
    capacity: Counts,
    used: Counts,
    count: Counts,
    near: float,
) -> Chart:
    """How many units used which share, in steps of 10%; those with nothing left are apart."""
    step = np.minimum(used * 10 // capacity, 10)
    found = np.bincount(step, count, len(_BINS)).astype(int).tolist()
    first = NEAR // 10
    return Chart(
        f"{kind.noun.capitalize()}s used, of the allowance of each {seen.unit}",
        f"{near:.0%} of {seen.unit}s used {NEAR}% of their allowance or more; {_fullest(found)}.",
        "bars",
        _BINS,
        "share of the allowance that is used",
        f"{seen.unit}s",
        (
            Series(f"below {NEAR}%", (*found[:first], *(None,) * (len(_BINS) - first))),
            Series(f"{NEAR}% and more", (*(None,) * first, *found[first:])),
        ),
        (Mark("x", NEAR / 10 - 0.5, f"{NEAR}%"),),
    )


def _fullest(found: list[int]) -> str:
    most = max(found)
    where = _BINS[found.index(most)]
    at = "have used all of it" if where == _BINS[-1] else f"are at {where}"
    return f"{'most' if 2 * most > sum(found) else 'the largest group'} {at}"


def noise(seen: Seen) -> Iterator[Section]:
    """What every use gets as noise under the policy in force, and what label error that means."""
    policy = seen.policy
    if policy is None:
        return
    usage = seen.opened.ledger.usage()
    for event in policy.policy.events:
        prices = policy.prices.get(event, {})
        rows = np.array(usage.get(event, []), np.int64).reshape(-1, 3)
        if prices:
            noises = {k: events.kind(event).noise(prices[k]) for k in sorted(prices)}
            yield _noise(seen, events.kind(event), noises, rows)


def _noise(
    seen: Seen,
    kind: EventKind,
    noises: dict[int, dict[str, Any]],
    rows: Counts,
) -> Section:
    units = {k: int(rows[rows[:, 0] == k, 2].sum()) for k in noises}
    names = tuple(next(iter(noises.values())))
    table = Table(
        f"Noise of {kind.noun}s",
        (f"{kind.noun}s allowed", f"{seen.unit}s", *(name.replace("_", " ") for name in names)),
        tuple((k, units[k], *map(_number, noise.values())) for k, noise in noises.items()),
    )
    flips = {
        k: noise["flip_probability"]
        for k, noise in noises.items()
        if len(noise) == 1 and "flip_probability" in noise
    }
    if not flips:
        return Section(f"noise-{kind.name}", f"Noise: {kind.noun}s", (_SIZE,), table)
    return Section(
        f"noise-{kind.name}",
        "Flip probabilities and label error",
        (
            _error(seen, flips, rows),
            "Noise is not error of the labelers: it is what protects them,"
            " and whoever trains on a release is told of it, row by row.",
        ),
        table,
        _errors(flips),
    )


def _number(value: float | str) -> str:
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _error(seen: Seen, flips: dict[int, float], rows: Counts) -> str:
    differ = f"Two people differ on {1 - DEFAULT_AGREEMENT:.0%} of strict labels, usually"
    known = np.isin(rows[:, 0], list(flips))
    weight = rows[known, 1] * rows[known, 2]
    if not weight.sum():
        return f"{differ}; no label was released yet."
    mean = np.average([flips[int(k)] for k in rows[known, 0]], weights=weight)
    return (
        f"Of the labels released under this policy, {mean:.0%} are expected to differ from what "
        f"their {seen.unit} said. {differ}."
    )


def _errors(flips: dict[int, float]) -> Chart:
    chosen = dict(list(flips.items())[:8])
    differ = 1 - DEFAULT_AGREEMENT
    low, high = min(chosen.values()), max(chosen.values())
    spread = f"{low:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"
    return Chart(
        "Labels expected to differ",
        f"A released label differs from what was said in {spread} of cases; two people differ "
        f"in {differ:.0%}.",
        "bars",
        ("two people", *(f"said and released, {k:,} allowed" for k in chosen)),
        "difference between",
        "labels that differ",
        (Series("labels that differ", (differ, *chosen.values())),),
        (Mark("y", 0.5, "a coin"),),
        percent=True,
    )
