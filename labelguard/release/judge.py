"""Whether a plan may be charged: what is refused, and what the user should know of the rest.

Decided from public columns, the ledger and the request alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from labelguard.errors import BudgetExceeded, InvalidLabels, NobodyOfPart, PolicyError
from labelguard.keys.parts import Part
from labelguard.ledger.ledger import Ledger
from labelguard.policy import events
from labelguard.policy.event_kind import EventKind
from labelguard.policy.lifetime import Total
from labelguard.policy.policy import Policy
from labelguard.policy.request import PolicyRequest
from labelguard.project import succession
from labelguard.release import planning
from labelguard.release.planning import PlannedRows
from labelguard.terms import budget_of, counted


def judge(
    plan: PlannedRows,
    policy: Policy,
    event: str,
    part: Part,
    ledger: Ledger,
    *,
    people: int,
    drop: bool,
    resumed: bool,
    accept_delta: bool,
) -> list[str]:
    """Notes on a plan that may be charged to a `ledger`; its units are of one `part`.

    `people`: how many units are charged by now, this release included. `drop`: labels of exhausted
    labelers are left out. `accept_delta`: δ may be 1 over `people`, or more. Raises `NobodyOfPart`,
    `InvalidLabels` for contents that changed under their id, `PolicyError` if δ is too large or no
    label fits, `BudgetExceeded` if labelers lack allowance.
    """
    if plan.changed_items:
        raise InvalidLabels(
            f"{counted(plan.changed_items, 'label')} given to an item_id that stood for "
            "another content in an earlier release; a changed content needs an id of its own"
        )
    if not len(plan.units) and plan.other_units:
        raise NobodyOfPart(_nobody(plan, policy, part))
    short = int(plan.short.sum())
    if plan.new and _reveals_one(people, policy) and not accept_delta:
        raise PolicyError(
            f"{_large_delta(people, policy)}: that much δ allows giving one of them away; choose a "
            "smaller one, or accept it: --accept-delta"
        )
    if not plan.rows and not short and not resumed:
        raise PolicyError(
            f"no label fits: all {plan.over_bound:,} are beyond the bound of their "
            f"{policy.unit} (a ranking is kept or dropped whole); --max-labels-per-labeler sets it "
            "where a project has no policy yet"
        )
    use = events.kind(event)
    if short and not drop:
        most = int((plan.charged + plan.short).max())
        offer = succession.offer(ledger, policy, event, most)
        raise BudgetExceeded(
            f"{planning.shortage(plan, policy.unit, use.taken)}; leave such labels out with "
            f"--exhausted drop, or pay for more: {offer}",
            asked=short + plan.new,
            left=plan.new,
        )
    return list(_notes(plan, policy, part, people, use))


def price(request: PolicyRequest, total: Total) -> list[str]:
    """Notes on what was asked and what the project gives, where it costs `total` over its life.

    Raises `PolicyError` if that is more than what was asked for.
    """
    request.check_price(total.epsilon, total.delta)
    given = {"epsilon": total.epsilon, "delta": total.delta}
    asked = {name: getattr(request, name) for name in given if getattr(request, name) is not None}
    if asked.items() <= given.items():
        return []
    return [
        f"asked: {budget_of(given | asked)}; the project gives {budget_of(given)} in all, fixed "
        "with its policies; another price needs another policy: labelguard policy new"
    ]


def _nobody(plan: PlannedRows, policy: Policy, part: Part) -> str:
    """That an input has nobody of the part that is asked for."""
    everybody = counted(plan.other_units, policy.unit)
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
    plan: PlannedRows, policy: Policy, part: Part, people: int, use: EventKind
) -> Iterator[str]:
    if plan.other_labels:
        whose = counted(plan.other_units, policy.unit)
        why = "held out" if part == "training" else "not held out"
        yield f"{counted(plan.other_labels, 'label')} of {whose} left out: {why}"
    short = int(plan.short.sum())
    if short:
        yield f"{counted(short, use.taken)} of exhausted {policy.unit}s left out"
    by_label = use.per_label or policy.unit == "item"
    beyond = plan.over_bound - short if by_label else 0
    if beyond > 0:
        yield f"{counted(beyond, 'label')} beyond the bound of their {policy.unit} left out"
    if _reveals_one(people, policy):
        yield _large_delta(people, policy)


def _reveals_one(people: int, policy: Policy) -> bool:
    """Whether δ is so large that a mechanism may publish all labels of one unit in n."""
    return policy.delta >= 1 / max(people, 1)


def _large_delta(people: int, policy: Policy) -> str:
    return (
        f"delta {policy.delta:g} is not below 1/{people}, one over the number of "
        f"{policy.unit}s that are charged"
    )
