"""What a release will fix, cost and be like, said before anything is charged.

All of it follows from public columns, the ledger and the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from labelguard.budget.event_kind import Price, Sampling
from labelguard.budget.events import RANDOMIZED_LABELS
from labelguard.budget.policy import Policy, Unit
from labelguard.ledger.records import LabelerTable
from labelguard.planner import advice
from labelguard.planner.outcomes import Forecast, Interval
from labelguard.release import card
from labelguard.release.mechanisms import AUTO
from labelguard.release.protocol import Job
from labelguard.release.resolve import Terms
from labelguard.release.selection import PlannedRows
from labelguard.text import format_budget, pluralize

TOO_MUCH = 0.4
"""Expected label error above which a release says that there may be better."""


@dataclass(frozen=True)
class Preview:
    """What a release will be, if it is made."""

    first: bool
    """whether it fixes the project's policy"""
    request: str
    """keyed digest of the input's public columns and of what is asked: the same for this very
    request alone"""
    reused: str | None
    """the release that this very request made before: then nothing is drawn or charged"""
    epsilon: float
    """ε of each unit, over everything that the policy pays for"""
    delta: float
    """its δ"""
    usual: Sequence[str]
    """which of epsilon and delta nobody asked for"""
    unit: Unit
    """what is protected as a whole"""
    units: int
    """how many there are in this release"""
    mechanism: str
    """how labels are released"""
    features: str | None
    """what a head learns from; null for mechanisms without one"""
    public_columns: Sequence[str]
    """columns that features may read, declared to be made without answers"""
    formats: Sequence[str]
    """as what the input was read"""
    event: str
    """the kind of event that is charged"""
    allowed: int | None
    """how many of them the policy allows each unit; null: its own number of labels, rounded up"""
    ball: int | None
    """the fewest components that the policy's ball noise is for; null: it has none"""
    choices: int
    """the fewest responses that the policy's randomized labels choose among"""
    sampling: Sampling | None
    """how each training run samples, fixed with the policy; null: it is none"""
    labels: int
    """labels in the release"""
    new_labels: int
    """those that no release had before"""
    left_out: int
    """labels beyond what is allowed to their unit"""
    charged: int
    """uses that are charged: of each new label, or of each unit with any"""
    left: Mapping[str, float]
    """uses left to a unit afterwards: min, median, max; empty if there is no unit"""
    label_error: float | None
    """share of new labels expected to differ from what the labeler said, of choices that of their
    pairs; null: not forecast"""
    disagreement: float
    """how often two labelers are taken to differ"""
    accuracy: Interval | None
    """share of a new labeler's answers that a head learns to predict; null: not forecast"""
    discouraged: str | None
    """why `plan` recommends no such release, of a project's first; null: it does, or was not asked
    """
    notes: Sequence[str]
    """what else to know"""

    def __repr__(self) -> str:
        labels = f"{self.new_labels:,} new of {pluralize(self.labels, 'label')}"
        units = f"{self.units:,} {self.unit}s"
        return f"Preview({self.mechanism}; {format_budget(self)}; {labels}; {units})"


@dataclass(frozen=True)
class Plan:
    """A release that may be made: `--dry-run` prints its preview, `privatize` charges its rows."""

    rows: PlannedRows
    prices: Mapping[int, Price]
    """what a use costs a unit that has k of them in all, by k"""
    preview: Preview


def previewed(
    terms: Terms,
    job: Job,
    key: str,
    plan: PlannedRows,
    prices: Mapping[int, Price],
    known: LabelerTable,
    notes: Sequence[str],
) -> Preview:
    """What a plan will be under its terms; `key` is the request's idempotency key, `known` are the
    labelers charged before.
    """
    mechanism, policy = terms.mechanism, terms.policy
    assert mechanism is not None
    usual = [name for name in ("epsilon", "delta") if getattr(terms.asked, name) is None]
    forecast = terms.forecast
    error = forecast.label_error.mean if forecast else None
    if mechanism.name == RANDOMIZED_LABELS.name and plan.new:
        error = expected_flips(policy, plan, prices)
    head = terms.request.head(terms.features)
    poor = advice.discouraged(_judged(terms), len(plan.units), policy.unit) if terms.first else None
    left = _left(plan, known)
    return Preview(
        first=terms.first,
        request=key,
        reused=None,
        epsilon=policy.epsilon,
        delta=policy.delta,
        usual=usual if terms.first else [],
        unit=policy.unit,
        units=len(plan.units),
        mechanism=mechanism.name,
        features=mechanism.settings().get("features"),
        public_columns=list(policy.public_columns),
        formats=sorted(job.staged.formats),
        event=terms.event,
        allowed=job.allowance.allowed,
        ball=job.allowance.ball,
        sampling=job.allowance.sampling,
        choices=job.allowance.choices,
        labels=plan.rows,
        new_labels=plan.drawn,
        left_out=plan.over_bound,
        charged=plan.new,
        left=left,
        label_error=error,
        disagreement=1 - head.agreement,
        accuracy=forecast.accuracy if forecast else None,
        discouraged=poor,
        notes=(*notes, *_warnings(error, poor), *_used_up(terms, left)),
    )


def _judged(terms: Terms) -> Forecast | None:
    """Return the forecast by which a first release is worth it or not, if there is one.

    Of a bound that was asked for there is none.
    """
    forecast = terms.forecast
    asked = terms.request.terms.get("max_labels_per_labeler")
    return forecast if asked is None or terms.request.mechanism == AUTO else None


def _used_up(terms: Terms, left: Mapping[str, float]) -> Iterator[str]:
    """Warn that nothing is left for later labels, where nobody said how often they come."""
    if terms.first and not terms.request.says_how_often and left.get("max") == 0:
        yield (
            "the policy pays for this release alone: later labels of the same "
            f"{terms.policy.unit}s need another, which is paid on top (labelguard policy new)"
        )


def _warnings(error: float | None, poor: str | None) -> Iterator[str]:
    """That a release is not recommended, or will be mostly noise, and what may serve better."""
    if poor:
        yield f"{poor}; labelguard plan, with the same input, says what would help"
    if error is not None and error > TOO_MUCH:
        yield (
            f"about {100 * error:.0f} of 100 released labels will differ from what labelers said; "
            "labelguard plan, with the same input, shows what else the same ε gives"
        )


def expected_flips(policy: Policy, plan: PlannedRows, prices: Mapping[int, Price]) -> float:
    """The mean probability that a new label of a plan is flipped; there must be one."""
    bounds, bound = np.unique(plan.capacity, return_inverse=True)
    noise = [RANDOMIZED_LABELS.noise(prices[int(k)]) for k in bounds]
    flips = np.array([one["flip_probability"] for one in noise])[bound]
    return float(np.average(flips, weights=plan.charged))


def _left(plan: PlannedRows, known: LabelerTable) -> dict[str, float]:
    """Uses left to the units of a plan once it is charged: minimum, median, maximum."""
    _, used = known.of(plan.units)
    return card.spread(plan.capacity - used - plan.charged)
