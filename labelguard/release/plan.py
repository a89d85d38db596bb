"""The plan of a release, and a preview of what it will fix and cost, before anything is charged.

All of it follows from public columns, the ledger and the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from labelguard.budget.event_kind import Price, Sampling
from labelguard.budget.events import RANDOMIZED_LABELS
from labelguard.budget.policy import AnyUnit
from labelguard.ledger.records import LabelerTable
from labelguard.mechanisms.randomized_response import LabelBlocks
from labelguard.planner import advice
from labelguard.planner.outcomes import Interval
from labelguard.release import card
from labelguard.release.mechanisms import AUTO
from labelguard.release.protocol import ReleaseContext
from labelguard.release.resolve import ResolvedRequest
from labelguard.release.selection import PlannedRows
from labelguard.storage import buckets
from labelguard.text import DEFAULT_AGREEMENT, format_budget, pluralize

# Expected label error above which a release says that there may be better.
TOO_MUCH = 0.4
_BLOCK = ("block", "letters")


@dataclass(frozen=True)
class Preview:
    """The facts of a release that will be made."""

    # whether it fixes the project's policy
    first: bool
    # keyed digest of the input's public columns and of what is asked: the same for this very
    # request alone
    request: str
    # the release that this very request made before: then nothing is drawn or charged
    reused: str | None
    # ε of each unit, over everything that the policy pays for
    epsilon: float
    # its δ
    delta: float
    # which of epsilon and delta nobody asked for
    usual: Sequence[str]
    # what is protected as a whole
    unit: AnyUnit
    # how many there are in this release
    units: int
    # how labels are released
    mechanism: str
    # what a head learns from; null for mechanisms without one
    features: str | None
    # columns that features may read, declared to be made without answers
    public_columns: Sequence[str]
    # as what the input was read
    formats: Sequence[str]
    # the kind of event that is charged
    event: str
    # how many of them the policy allows each unit
    allowed: int
    # the fewest components that the policy's ball noise is for; null: it has none
    ball: int | None
    # labels of a unit that one use of randomized response draws together at most
    block: int
    # how each training run samples, fixed with the policy; null: it is none
    sampling: Sampling | None
    # labels in the release
    labels: int
    # those that no release had before
    new_labels: int
    # labels beyond what is allowed to their unit
    left_out: int
    # uses that are charged: of each new label, or of each unit with any
    charged: int
    # uses left to a unit afterwards: min, median, max; empty if there is no unit
    left: Mapping[str, float]
    # share of new labels expected to differ from what the labeler said, of choices that of their
    # pairs; null: not forecast
    label_error: float | None
    # how often two labelers are taken to differ
    disagreement: float
    # share of a new labeler's answers that a head learns to predict; null: not forecast
    accuracy: Interval | None
    # why `plan` recommends no such release, of a project's first; null: it does, or was not asked
    discouraged: str | None
    # what else to know
    notes: Sequence[str]

    def __repr__(self) -> str:
        labels = f"{self.new_labels:,} new of {pluralize(self.labels, 'label')}"
        units = f"{self.units:,} {self.unit}s"
        return f"Preview({self.mechanism}; {format_budget(self)}; {labels}; {units})"


@dataclass(frozen=True)
class Plan:
    """A release that may be made: `--dry-run` prints its preview, `privatize` charges its rows.

    `prices` are what a use costs a unit that has k of them in all, by k. The repr shows neither
    rows nor prices.
    """

    rows: PlannedRows = field(repr=False)
    prices: Mapping[int, Price] = field(repr=False)
    preview: Preview


def preview_release(
    resolved: ResolvedRequest,
    context: ReleaseContext,
    key: str,
    plan: PlannedRows,
    prices: Mapping[int, Price],
    charged: LabelerTable,
    notes: Sequence[str],
) -> Preview:
    """Return the preview of planned rows.

    `key` is the request's idempotency key, `charged` are the labelers that were charged before.
    """
    mechanism, policy, forecast = resolved.mechanism, resolved.policy, resolved.forecast
    assert mechanism is not None
    request, allowance, first = resolved.policy_request, context.allowance, resolved.is_first
    usual = [name for name in ("epsilon", "delta") if getattr(request, name) is None]
    error = forecast.label_error.mean if forecast else None
    if mechanism.name == RANDOMIZED_LABELS.name and plan.new:
        error = _expected_flips(plan, *prices.values())
    discouraged = _discouragement(resolved, len(plan.units)) if first else None
    used = charged.of(plan.units)[1]
    left = card.spread(plan.capacity - used - plan.charged)
    return Preview(
        first=first,
        request=key,
        reused=None,
        epsilon=policy.epsilon,
        delta=policy.delta,
        usual=usual if first else [],
        unit=policy.unit,
        units=len(plan.units),
        mechanism=mechanism.name,
        features=mechanism.settings().get("features"),
        public_columns=list(policy.public_columns),
        formats=sorted(context.staged.formats),
        event=resolved.event,
        allowed=allowance.allowed,
        ball=allowance.ball,
        sampling=allowance.sampling,
        block=allowance.block,
        labels=plan.rows,
        new_labels=plan.drawn,
        left_out=plan.over_bound,
        charged=plan.new,
        left=left,
        label_error=error,
        disagreement=1 - (resolved.request.head(resolved.features).agreement or DEFAULT_AGREEMENT),
        accuracy=forecast.accuracy if forecast else None,
        discouraged=discouraged,
        notes=(*notes, *_warnings(resolved, error, discouraged, left)),
    )


def _discouragement(resolved: ResolvedRequest, units: int) -> str | None:
    """Return why a first release is not recommended, by its forecast; None if it may be.

    Where a bound was asked for there is no such forecast.
    """
    bound = resolved.request.max_labels_per_labeler
    open_bound = bound is None or resolved.request.mechanism == AUTO
    forecast = resolved.forecast if open_bound else None
    return advice.explain_refusal(forecast, units, resolved.policy.unit)


def _warnings(
    resolved: ResolvedRequest,
    error: float | None,
    discouraged: str | None,
    left: Mapping[str, float],
) -> Iterator[str]:
    """Yield warnings: not recommended, mostly noise, or nothing left for later labels."""
    if discouraged:
        yield f"{discouraged}; labelguard plan, with the same input, says what would help"
    if error is not None and error > TOO_MUCH:
        yield (
            f"about {100 * error:.0f} of 100 released labels will differ from what labelers said; "
            "labelguard plan, with the same input, shows what else the same ε gives"
        )
    if resolved.is_first and not resolved.request.says_how_often and left.get("max") == 0:
        yield (
            "the policy pays for this release alone: later labels of the same "
            f"{resolved.policy.unit}s need another, which is paid on top (labelguard policy new)"
        )


def _expected_flips(plan: PlannedRows, price: Price) -> float:
    """Return the mean probability that a new label of a plan is flipped; there must be one."""
    flips = rows = 0.0
    for bucket in plan.first_unit:
        table = buckets.read_bucket(plan.directory, bucket)
        assert table is not None
        new = buckets.column(table, "new").astype(bool)
        number, letters = (buckets.column(table, name)[new].astype(np.int64) for name in _BLOCK)
        drawn = LabelBlocks.of_rows(number, letters, price["threshold"])
        flips += float(drawn.flip_probabilities().sum())
        rows += len(drawn.of)
    return flips / rows
