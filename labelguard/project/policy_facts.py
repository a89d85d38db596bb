"""Results of the `policy` commands; a project's ceiling, what its policies cost together, and the
policy that may follow.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from labelguard.budget import events, pricing
from labelguard.budget.label_values import format_public_column_options
from labelguard.budget.policy import AnyUnit, Policy
from labelguard.budget.pricing import Quote, Total, decimal_sum
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.policies import Ceiling, PolicyRecord, check_is_higher
from labelguard.project.opening import OpenProject, Where
from labelguard.text import format_budget, format_number

__all__ = ["Activation", "Closed", "PolicyDetails", "PolicyLine"]


@dataclass(frozen=True)
class Closed:
    """A policy that is closed, or would be, and what it costs then."""

    # its name
    name: str
    # its ε, used or not; 0 of a draft, which is removed
    epsilon: float
    # its δ; 0 of a draft
    delta: float


@dataclass(frozen=True)
class Activation:
    """The effect of putting a policy into force."""

    # the policy's name
    activates: str
    # its ε
    epsilon: float
    # its δ
    delta: float
    # what it protects as a whole
    unit: AnyUnit
    # the policy that was in force before; null if none was, or it is in force already
    closes: Closed | None
    # what all policies cost then
    total: Total
    # what they may cost
    ceiling: Ceiling


@dataclass(frozen=True)
class PolicyState:
    """A policy's name, its state and its age."""

    # its name
    name: str
    # draft, active or closed
    state: str
    # when it was made, UTC
    created_at: str


@dataclass(frozen=True)
class PolicyLine(PolicyState):
    """A policy in a few words."""

    # ε of a labeler, all events together
    epsilon: float
    # δ of a labeler, all events together
    delta: float
    # what is protected as a whole
    unit: AnyUnit
    # share of units whose labels evaluate and never train
    held_out: float
    # how many of each kind of event it allows
    allowances: Mapping[str, int]
    # ε that it costs, used or not; null for a draft
    costs: float | None
    # what putting a draft into force would mean; null for others, or if it could not follow
    activation: Activation | None


@dataclass(frozen=True, kw_only=True)
class PolicyDetails(Policy, PolicyState):
    """A policy: what labelers may lose by which events, its state, and what it costs."""

    # its price
    quote: Quote
    # what putting a draft into force would mean; null for others, or if it could not follow
    activation: Activation | None = None

    def __repr__(self) -> str:
        return f"PolicyDetails({self.name!r}, {self.state}; {self.in_words()})"


@dataclass(frozen=True)
class PolicyOverview:
    """All policies of a project."""

    # the one in force, else the only draft; null if there is neither
    policy: PolicyDetails | None
    # the others, oldest first
    others: list[PolicyLine]


@dataclass(frozen=True)
class CeilingUse:
    """A ceiling, and how far policies have come below it."""

    # what all policies together may cost
    ceiling: Ceiling
    # what they cost so far
    reached: Total
    # what further ones may cost
    left: Total
    # what it is to be raised to, before that is agreed; null otherwise
    raised: Ceiling | None


def show_ceiling(project: Where = None, raised: Ceiling | None = None) -> CeilingUse:
    """Return the ceiling, what the policies so far reach of it, and what is left.

    `raised` is what somebody wants to raise it to; `PolicyError` if that is not above it.
    """
    ledger = OpenProject.open(project).ledger
    ceiling = ledger.policies.ceiling()
    if raised:
        check_is_higher(ceiling, raised)
    return _measure_ceiling_use(ledger, ceiling, raised)


def raise_ceiling(ceiling: Ceiling, project: Where = None) -> CeilingUse:
    """Raise the ceiling, for good; returns what `show_ceiling` shows afterwards.

    What was promised by the lower one holds no more once policies pass it. Raises `PolicyError` if
    the ceiling would be lowered, or stay.
    """
    with OpenProject.hold_for_job(project) as opened:
        ledger = opened.ledger
        ledger.policies.raise_ceiling(ledger.begin_job(), ceiling)
        return _measure_ceiling_use(ledger, ceiling, None)


def _measure_ceiling_use(ledger: Ledger, ceiling: Ceiling, raised: Ceiling | None) -> CeilingUse:
    reached = pricing.sum_budgets(ledger.policies.history())
    left = Total(
        max(ceiling.epsilon - reached.epsilon, 0.0), max(ceiling.delta - reached.delta, 0.0)
    )
    return CeilingUse(ceiling, reached, left, raised)


def collect_policy_card_facts(ledger: Ledger) -> dict[str, Any]:
    """Return the facts of a card about the policies: ceiling, name of that in force, prices, total.

    Labels keep what earlier policies released of them, so ε and δ of a release are those of all
    policies so far; what it newly charges is covered by the one in force.
    """
    active = ledger.policies.active()
    assert active is not None  # a release was charged to it
    records = [record for record in ledger.policies.all() if record.state != "draft"]
    total = asdict(pricing.sum_budgets(record.policy for record in records))
    facts = {
        "policy": active.name,
        "ceiling": asdict(ledger.policies.ceiling()),
        "policies": [_list_policy_prices(record) for record in records],
        "two_units": _price_two_units(records, total),
    }
    if len(records) == 1:
        return facts
    newly_charged = {"epsilon": active.policy.epsilon, "delta": active.policy.delta}
    return facts | total | {"newly_charged": newly_charged}


def _list_policy_prices(record: PolicyRecord) -> dict[str, Any]:
    """Return how many uses a policy pays for, and at which noise: all that its ε follows from."""
    policy = record.policy
    allowances = {
        event: {"allowed": count, **pricing.format_price(price)}
        for event, prices in record.prices.items()
        for count, price in prices.items()
    }
    budget = {"epsilon": policy.epsilon, "delta": policy.delta}
    return {"policy": record.name, **budget, "allowances": allowances}


def _price_two_units(
    records: Sequence[PolicyRecord], total: Mapping[str, float]
) -> dict[str, float] | None:
    """Return ε and δ of two units together over the policies of a project; None where one says
    nothing.

    A policy that was closed counts in full.
    """
    each = [pricing.epsilon_of_two_units(record.policy, record.prices) for record in records]
    values = [epsilon for epsilon in each if epsilon is not None]
    if len(values) < len(each):
        return None
    return {"epsilon": math.fsum(values), "delta": total["delta"]}


def suggest_next_policy(ledger: Ledger, policy: Policy, event: str, most: int) -> str:
    """Return the commands that pay for as much again as `policy`, and what the project then costs.

    Where the ceiling leaves less, the new policy takes what is left; where it leaves nothing, it is
    to be raised first. `most` uses of an `event` are wanted of one unit.
    """
    ceiling, life = ledger.policies.ceiling(), ledger.policies.history()
    reached = pricing.sum_budgets(life)
    epsilon = min(policy.epsilon, decimal_sum((ceiling.epsilon, -reached.epsilon)))
    delta = min(policy.delta, decimal_sum((ceiling.delta, -reached.delta)))
    fits = epsilon > 0 and (delta > 0 or not policy.delta)
    if fits:
        policy = replace(policy, epsilon=epsilon, delta=delta)
    allowances = (
        replace(one, allowed=max(one.allowed or 0, most)) if one.event == event else one
        for one in policy.allowances
    )
    policy = replace(policy, allowances=tuple(allowances))
    names = {record.name for record in ledger.policies.all()}
    name = next(new for n in range(2, len(names) + 3) if (new := f"policy-{n}") not in names)
    total = pricing.sum_budgets([*life, policy])
    commands = [
        shlex.join(["labelguard", "policy", "new", name, *_policy_to_options(policy)]),
        f"labelguard policy activate {name}",
    ]
    if not fits:
        raised = (max(total.epsilon, ceiling.epsilon), max(total.delta, ceiling.delta))
        commands.insert(
            0, f"labelguard project ceiling --raise {','.join(map(format_number, raised))}"
        )
    alone = events.STATISTIC_RELEASES.name == event and policy.allowance(event).allowed == 1
    share = " (with statistic:releases=12 twelve releases would share that ε)" * alone
    return (
        f"{', then '.join(commands)}; with it the project costs {format_budget(vars(total))} over "
        f"its life, of a ceiling of {ceiling}{share}"
    )


def _policy_to_options(policy: Policy) -> Iterator[str]:
    """Yield a policy as options of `policy new`."""
    yield from (
        "--epsilon",
        format_number(policy.epsilon),
        "--delta",
        format_number(policy.delta),
    )
    for one in policy.allowances:
        yield from ("--allow", events.format_allowance(one))
    if len({one.share for one in policy.allowances}) > 1:
        shares = (f"{one.event}={format_number(one.share)}" for one in policy.allowances)
        yield from ("--shares", ",".join(shares))
    for option, value, usual in (
        ("--ties", policy.ties, events.choose_default_ties(policy.events)),
        ("--skips", policy.skips, "public"),
        ("--unit", policy.unit, "labeler"),
        ("--held-out", format_number(policy.held_out), "0"),
        ("--turns", policy.turns, "stop"),
    ):
        if value != usual:
            yield from (option, value)
    for option in ("tie_status_public", "assignment_reactive", "accept_unproven"):
        if getattr(policy, option):
            yield f"--{option.replace('_', '-')}"
    yield from format_public_column_options(policy.public_columns)
