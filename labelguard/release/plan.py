"""The plan of a release, and a preview of what it will fix and cost, before anything is charged.

An input, and the plan of it, are checked here too, and notes made on what passes. All of it follows
from public columns, the ledger and the request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from labelguard.budget import events
from labelguard.budget.event_kind import EventKind, Price, Sampling
from labelguard.budget.events import RANDOMIZED_LABELS
from labelguard.budget.label_values import Ties
from labelguard.budget.policy import AnyUnit, Policy
from labelguard.budget.pricing import Total
from labelguard.budget.request import PolicyRequest
from labelguard.errors import BudgetExceeded, InvalidLabels, NobodyOfPart, PolicyError
from labelguard.inputs.shapes import OWN_VALUES
from labelguard.inputs.staged import Staged
from labelguard.inputs.understood import Example, Understood, describe_reading, read_examples
from labelguard.keys.prf import Split
from labelguard.ledger import sources
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.people import Departure
from labelguard.ledger.records import Admission, LabelerTable, ReleaseRecord
from labelguard.mechanisms.randomized_response import LabelBlocks
from labelguard.planner import advice
from labelguard.planner.outcomes import Interval
from labelguard.project import policy_facts
from labelguard.project.linking import refuse_lookalikes
from labelguard.release import card
from labelguard.release.item_keys import find_least_holdout
from labelguard.release.mechanisms import AUTO
from labelguard.release.protocol import ReleaseContext
from labelguard.release.resolve import ResolvedRequest
from labelguard.release.selection import PlannedRows
from labelguard.storage import buckets
from labelguard.text import DEFAULT_AGREEMENT, format_budget, pluralize


def admit_source(ledger: Ledger, source: str, staged: Staged) -> Admission:
    """Return the admission of a staged input.

    Raise `PolicyError` for another source or other columns than before, `InvalidLabels` for two ids
    that may be one person.
    """
    sources.check_columns(ledger.people.sources(), source, staged.columns)
    identities, known = staged.identities, ledger.people.identities()
    links = ledger.people.links()
    refuse_lookalikes(identities, ledger.people.known(), links)
    return Admission(source, staged.columns, identities.without(known))


def check_ties_and_label_codes(staged: Staged, ties: Ties, has_coding: bool) -> None:
    """Raise `PolicyError` where ties of choices would be dropped.

    A choice is a ranking: the chosen response first, all others tied. If their pairs were dropped,
    those that remain would tell the choice. Raise `InvalidLabels` for a coding where a format has
    codes of its own.
    """
    if staged.choices and ties == "drop":
        raise PolicyError(
            "--ties drop goes with pairs and rankings: of a choice the pairs without the chosen "
            "response are ties, and those that are left would tell it"
        )
    own = sorted(staged.formats & OWN_VALUES)
    if own and has_coding:
        raise InvalidLabels(
            f"format {', '.join(own)} has label values of its own; "
            "leave out --label-values, or name another --format"
        )


def check_plan(
    plan: PlannedRows,
    policy: Policy,
    event: str,
    part: Split,
    ledger: Ledger,
    *,
    people: int,
    drop: bool,
    resumed: bool,
    accept_delta: bool,
) -> list[str]:
    """Return notes on a plan that may be charged to a `ledger`; its units are of one `part`.

    `people`: how many units are charged by now, this release included. `drop`: labels of exhausted
    labelers are left out. `accept_delta`: δ may be 1 over `people`, or more. Raise `NobodyOfPart`,
    `InvalidLabels` for contents that changed under their id, `PolicyError` if δ is too large or no
    label fits, `BudgetExceeded` if labelers lack allowance.
    """
    if plan.changed_items:
        raise InvalidLabels(
            f"{pluralize(plan.changed_items, 'label')} given to an item_id that stood for "
            "another content in an earlier release; a changed content needs an id of its own"
        )
    if not len(plan.units) and plan.other_units:
        raise NobodyOfPart(_explain_empty_part(plan, policy, part))
    short = int(plan.short.sum())
    if plan.new_uses and _is_delta_too_large(people, policy) and not accept_delta:
        raise PolicyError(
            f"{_describe_large_delta(people, policy)}: that much δ allows giving one of them away; "
            "choose a smaller one, or accept it: --accept-delta"
        )
    if not plan.rows and not short and not resumed:
        raise PolicyError(
            f"no label fits: all {plan.over_bound:,} are beyond the bound or the allowance of "
            f"their {policy.unit} (a ranking is kept or dropped whole): raise "
            "--max-labels-per-labeler, or allow more uses or larger blocks (labelguard policy new)"
        )
    use = events.find_event_kind(event)
    if short and not drop:
        most = int((plan.charged + plan.short).max())
        offer = policy_facts.suggest_next_policy(ledger, policy, event, most)
        raise BudgetExceeded(
            f"{_describe_shortage(plan, policy.unit, use.shortage_noun)}; leave such labels out "
            f"with --exhausted drop, or pay for more: {offer}",
            requested=short + plan.new_uses,
            left=plan.new_uses,
        )
    return list(_list_plan_notes(plan, policy, part, people, use))


def check_price(request: PolicyRequest, total: Total) -> list[str]:
    """Return notes on the price asked and the `total` that the project costs over its life.

    Raise `PolicyError` if that is more than what was asked for.
    """
    request.check_covers_earlier_policies(total.epsilon, total.delta)
    price = {"epsilon": total.epsilon, "delta": total.delta}
    limits = {name: getattr(request, name) for name in price if getattr(request, name) is not None}
    if limits.items() <= price.items():
        return []
    return [
        f"asked: {format_budget(price | limits)}; the project gives {format_budget(price)} in all, "
        "fixed with its policies; another price needs another policy: labelguard policy new"
    ]


def _explain_empty_part(plan: PlannedRows, policy: Policy, part: Split) -> str:
    """Return the error message for an input that has nobody of this part."""
    everybody = pluralize(plan.other_units, policy.unit)
    drawn = f"a share of {policy.held_out:g}, drawn by a keyed hash"
    if part == "training":
        return (
            f"all of the {everybody} in this input are held out ({drawn}), so there is nothing to "
            "learn from; add labels of others, or evaluate: --mechanism evaluation"
        )
    return (
        f"none of the {everybody} in this input is held out ({drawn}), so there is nothing to "
        "evaluate by; add labels of others"
    )


def _list_plan_notes(
    plan: PlannedRows, policy: Policy, part: Split, people: int, use: EventKind
) -> Iterator[str]:
    """Yield notes on labels that are left out, and on a large δ that was accepted."""
    if plan.other_labels:
        whose = pluralize(plan.other_units, policy.unit)
        why = "held out" if part == "training" else "not held out"
        yield f"{pluralize(plan.other_labels, 'label')} of {whose} left out: {why}"
    short = int(plan.short.sum())
    if short:
        yield f"{pluralize(short, use.shortage_noun)} of exhausted {policy.unit}s left out"
    beyond = {"bound": plan.over_bound - plan.over_allowance, "allowance": plan.over_allowance}
    for limit, count in beyond.items() if use.keeps_values or policy.unit == "item" else ():
        if count:
            yield f"{pluralize(count, 'label')} beyond the {limit} of their {policy.unit} left out"
    if _is_delta_too_large(people, policy):
        yield _describe_large_delta(people, policy)


def _is_delta_too_large(people: int, policy: Policy) -> bool:
    """Return True if δ is so large that a mechanism may publish all labels of one unit in n."""
    return policy.delta >= 1 / max(people, 1)


def _describe_large_delta(people: int, policy: Policy) -> str:
    """Return what is wrong with a δ that is not below one over the number of units."""
    return (
        f"delta {policy.delta:g} is not below 1/{people}, one over the number of "
        f"{policy.unit}s that are charged"
    )


def _describe_shortage(plan: PlannedRows, unit: str, noun: str) -> str:
    """Return the message on units that lack allowance, and how much of it."""
    lacking, everybody = pluralize(int(plan.short.sum()), noun), pluralize(len(plan.units), unit)
    few = plan.short > 0
    verb = "has" if np.count_nonzero(few) == 1 else "have"
    left = f"not enough allowance left for {lacking}"
    if not plan.charged[few].any() and (plan.short[few] == 1).all():
        left = f"no {noun}s left"
    return (
        f"{np.count_nonzero(few):,} of {everybody} {verb} {left} (labelguard budget show); nothing "
        "was charged or released"
    )


# The note on an input, by its public columns, that has no label of any earlier release.
EARLIER_LEFT_OUT = (
    "no label that was released before is in this input: the rows of this release are those of "
    "this input alone; for the rows of all labels so far give all files in one command: what was "
    "released before costs nothing"
)


def describe_leavers(
    earlier: Sequence[ReleaseRecord], departures: Sequence[Departure]
) -> Iterator[str]:
    """Yield a note on who left since the first of the `earlier` releases: a public count."""
    for first in earlier[:1]:
        left = sum((one.retired_at or one.at) >= first.created_at for one in departures)
        if not left:
            return
        yield (
            f"{pluralize(left, 'labeler')} left since release {first.id}: whoever compares it with "
            "this one may tell which of its rows were theirs; what these say is within the promise"
        )


# Expected label error above which a release says that there may be better.
TOO_MUCH = 0.4
_EXAMPLES = 2


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
    # those in the input that are not, for they are held out; of an evaluation those that are not
    other_units: int
    # how labels are released
    mechanism: str
    # what a head learns from; null for mechanisms without one
    features: str | None
    # columns that features may read, declared to be made without answers
    public_columns: Sequence[str]
    # how the input is read: what is which column, what labels mean, what is not read
    understood: Understood
    # a few pairs of it
    examples: Sequence[Example]
    # the kind of event that is charged
    event: str
    # how many of them the policy allows each unit
    allowed: int
    # the fewest components that the policy's ball noise is for; null: it has none
    ball: int | None
    # the least share of items, kept out of training, that keeps one of these out; 0 below 1 in
    # 10,000; null for a mechanism that does not release labels one by one
    least_holdout: float | None
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
    request, first = resolved.policy_request, resolved.makes_first_policy
    usual = [name for name in ("epsilon", "delta") if getattr(request, name) is None]
    error = forecast.label_error.mean if forecast else None
    is_rr = mechanism.name == RANDOMIZED_LABELS.name
    if is_rr and plan.new_uses:
        error = _compute_mean_flip_probability(plan, *prices.values())
    discouraged = _explain_discouragement(resolved, len(plan.units)) if first else None
    used = charged.find_usage(plan.units)[1]
    left = card.compute_min_median_max(plan.capacity - used - plan.charged)
    return Preview(
        first=first,
        request=key,
        reused=None,
        epsilon=policy.epsilon,
        delta=policy.delta,
        usual=usual if first else [],
        unit=policy.unit,
        units=len(plan.units),
        other_units=plan.other_units,
        mechanism=mechanism.name,
        features=mechanism.settings().get("features"),
        public_columns=list(policy.public_columns),
        understood=describe_reading(context.staged),
        examples=list(read_examples(context.staged, _EXAMPLES)),
        event=resolved.event,
        allowed=context.allowance.allowed,
        ball=context.allowance.ball,
        sampling=context.allowance.sampling,
        least_holdout=find_least_holdout(context.staged.texts_directory) if is_rr else None,
        block=context.allowance.block,
        labels=plan.rows,
        new_labels=plan.drawn,
        left_out=plan.over_bound,
        charged=plan.new_uses,
        left=left,
        label_error=error,
        disagreement=1
        - (resolved.request.build_head_options(resolved.features).agreement or DEFAULT_AGREEMENT),
        accuracy=forecast.accuracy if forecast else None,
        discouraged=discouraged,
        notes=(*notes, *_list_warnings(resolved, error, discouraged, left)),
    )


def _explain_discouragement(resolved: ResolvedRequest, units: int) -> str | None:
    """Return why a first release is not recommended, by its forecast; None if it may be.

    Where a bound was asked for there is no such forecast.
    """
    bound = resolved.request.max_labels_per_labeler
    open_bound = bound is None or resolved.request.mechanism == AUTO
    forecast = resolved.forecast if open_bound else None
    return advice.explain_no_recommendation(forecast, units, resolved.policy.unit)


def _list_warnings(
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
    is_alone = resolved.makes_first_policy and not resolved.request.specifies_release_count
    if is_alone and left.get("max") == 0:
        yield (
            "the policy pays for this release alone: later labels of the same "
            f"{resolved.policy.unit}s need another, which is paid on top (labelguard policy new)"
        )


def _compute_mean_flip_probability(plan: PlannedRows, price: Price) -> float:
    """Return the mean probability that a new label of a plan is flipped; there must be one."""
    flips = rows = 0.0
    for bucket in plan.first_unit:
        table = buckets.read_bucket(plan.directory, bucket)
        assert table is not None
        new = buckets.read_column(table, "new").astype(bool)
        number = buckets.read_column(table, "block")[new].astype(np.int64)
        drawn = LabelBlocks.of_rows(number, price["threshold"])
        flips += float(drawn.flip_probabilities().sum())
        rows += len(drawn.of)
    return flips / rows
