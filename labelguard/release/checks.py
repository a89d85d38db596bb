"""Check an input, and a plan of it, before it is charged; note what is to know of what passes.

Decided from public columns, the ledger and the request alone, before anything is charged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from labelguard.budget import events
from labelguard.budget.event_kind import EventKind
from labelguard.budget.label_values import Ties
from labelguard.budget.policy import Policy
from labelguard.budget.pricing import Total
from labelguard.budget.request import PolicyRequest
from labelguard.errors import BudgetExceeded, InvalidLabels, NobodyOfPart, PolicyError
from labelguard.inputs.staged import Staged
from labelguard.keys.prf import Split
from labelguard.ledger import sources
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.records import Admission, UnitGroups
from labelguard.project import policy_facts
from labelguard.project.linking import refuse_doubles
from labelguard.release.protocol import Mechanism
from labelguard.release.selection import PlannedRows
from labelguard.text import format_budget, pluralize


def check_source(ledger: Ledger, source: str, staged: Staged) -> Admission:
    """Return the admission of a staged input.

    Raise `PolicyError` for another source or other columns than before, `InvalidLabels` for two ids
    that may be one person.
    """
    sources.check(ledger.people.sources(), source, staged.columns)
    identities, known = staged.identities, ledger.people.identities()
    groups = UnitGroups(*ledger.people.members())
    refuse_doubles(identities, ledger.people.known(), groups, ledger.people.distinct())
    return Admission(source, staged.columns, identities.without(known))


def check_staged(
    staged: Staged, mechanism: Mechanism[Any] | None, ties: Ties, terms: Mapping[str, Any]
) -> None:
    """Raise `PolicyError` for choices of the best of several, where they cannot be released.

    Where no `mechanism` was named yet, one is taken that releases them. The pairs of a choice
    without the chosen response are ties in it, whatever became of ties: which these are tells the
    choice. Raise `InvalidLabels` if `terms` code labels of a format that has codes of its own.
    """
    if staged.choices and mechanism and not mechanism.choices:
        raise PolicyError(
            f"choices of the best of several responses are no pairs, which {mechanism.name} "
            "releases; they go with --mechanism statistic or rr"
        )
    if staged.choices and ties == "drop":
        raise PolicyError("--ties drop goes with pairs and rankings; a choice has no ties")
    if staged.own_values and "label_values" in terms:
        raise InvalidLabels(
            f"format {', '.join(sorted(staged.own_values))} has label values of its own; "
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
        raise NobodyOfPart(_nobody_message(plan, policy, part))
    short = int(plan.short.sum())
    if plan.new and _reveals_one(people, policy) and not accept_delta:
        raise PolicyError(
            f"{_large_delta(people, policy)}: that much δ allows giving one of them away; choose a "
            "smaller one, or accept it: --accept-delta"
        )
    if not plan.rows and not short and not resumed:
        raise PolicyError(
            f"no label fits: all {plan.over_bound:,} are beyond the bound of their "
            f"{policy.unit} (a ranking is kept or dropped whole): raise --max-labels-per-labeler, "
            "or allow more uses or larger blocks (labelguard policy new)"
        )
    use = events.kind(event)
    if short and not drop:
        most = int((plan.charged + plan.short).max())
        offer = policy_facts.describe_next_policy(ledger, policy, event, most)
        raise BudgetExceeded(
            f"{_describe_shortage(plan, policy.unit, use.shortage_noun)}; leave such labels out "
            f"with --exhausted drop, or pay for more: {offer}",
            requested=short + plan.new,
            left=plan.new,
        )
    return list(_notes(plan, policy, part, people, use))


def check_price(request: PolicyRequest, total: Total) -> list[str]:
    """Return notes on the price asked and the `total` that the project costs over its life.

    Raise `PolicyError` if that is more than what was asked for.
    """
    request.check_price(total.epsilon, total.delta)
    price = {"epsilon": total.epsilon, "delta": total.delta}
    limits = {name: getattr(request, name) for name in price if getattr(request, name) is not None}
    if limits.items() <= price.items():
        return []
    return [
        f"asked: {format_budget(price | limits)}; the project gives {format_budget(price)} in all, "
        "fixed with its policies; another price needs another policy: labelguard policy new"
    ]


def _nobody_message(plan: PlannedRows, policy: Policy, part: Split) -> str:
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


def _notes(
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
    beyond = plan.over_bound if use.keeps_values or policy.unit == "item" else 0
    if beyond > 0:
        yield f"{pluralize(beyond, 'label')} beyond the bound of their {policy.unit} left out"
    if _reveals_one(people, policy):
        yield _large_delta(people, policy)


def _reveals_one(people: int, policy: Policy) -> bool:
    """Return True if δ is so large that a mechanism may publish all labels of one unit in n."""
    return policy.delta >= 1 / max(people, 1)


def _large_delta(people: int, policy: Policy) -> str:
    """Return what is wrong with a δ that is not below one over the number of units."""
    return (
        f"delta {policy.delta:g} is not below 1/{people}, one over the number of "
        f"{policy.unit}s that are charged"
    )


def _describe_shortage(plan: PlannedRows, unit: str, noun: str) -> str:
    """Return the message on units that lack allowance, and how much of it."""
    lacking, everybody = pluralize(int(plan.short.sum()), noun), pluralize(len(plan.units), unit)
    return (
        f"{np.count_nonzero(plan.short):,} of {everybody} lack allowance for {lacking} (labelguard "
        "budget show); nothing was charged or released"
    )
