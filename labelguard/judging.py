"""Whether a plan may be charged: what is refused, and what the user should know of the rest.

Decided from public columns, the ledger and the request alone.
"""

from __future__ import annotations

from collections.abc import Iterator

from labelguard import planning
from labelguard.card import budget_of, counted
from labelguard.errors import BudgetExceeded, InvalidLabels, PolicyError
from labelguard.lifetime import Total
from labelguard.planning import Plan
from labelguard.policy import Policy, Priced, Request


def judge(
    plan: Plan,
    policy: Policy,
    event: Priced,
    request: Request,
    total: Total,
    *,
    drop: bool,
    resumed: bool,
) -> list[str]:
    """Notes on a plan that may be charged; its units must go by their pseudonyms.

    `drop`: labels of exhausted labelers are left out. `total` is what the project costs. Raises
    `InvalidLabels` for contents that changed under their id, `PolicyError` if new labels were asked
    for at a stricter price, or none fits, `BudgetExceeded` if labelers lack places.
    """
    if plan.changed_items:
        raise InvalidLabels(
            f"{counted(plan.changed_items, 'label')} given to an item_id that stood for "
            "another content in an earlier release; a changed content needs an id of its own"
        )
    short = int(plan.short.sum())
    if plan.new or short:
        request.check_price(total.epsilon, total.delta)
    if not plan.rows and not short and not resumed:
        raise PolicyError(
            f"no label fits: all {plan.over_bound:,} are beyond the bound of their "
            f"{policy.unit} (a ranking is kept or dropped whole); --max-labels-per-labeler sets it "
            "where a project has no policy yet"
        )
    place = "label" if event == "rr" else "statistic release"
    if short and not drop:
        raise BudgetExceeded(
            planning.shortage(plan, policy.unit, place), asked=short + plan.new, left=plan.new
        )
    return list(_notes(plan, policy, request, total, place))


def _notes(plan: Plan, policy: Policy, request: Request, total: Total, place: str) -> Iterator[str]:
    short = int(plan.short.sum())
    if short:
        yield f"{counted(short, place)} of exhausted {policy.unit}s left out"
    told = place == "label" or policy.unit == "item"
    beyond = plan.over_bound - short if told else 0
    if beyond > 0:
        yield f"{counted(beyond, 'label')} beyond the bound of their {policy.unit} left out"
    asked = {"epsilon": request.epsilon, "delta": request.delta}
    given = {"epsilon": total.epsilon, "delta": total.delta}
    if None not in asked.values() and asked != given:
        yield f"asked: {budget_of(asked)}; the project gives {budget_of(given)} in all"
    if policy.delta > 1 / max(len(plan.units), 1):
        yield (
            f"delta {policy.delta:g} is above 1/{len(plan.units)} "
            f"(one over the number of {policy.unit}s): choose a smaller one"
        )
