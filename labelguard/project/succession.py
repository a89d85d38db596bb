"""The policy that may follow one whose allowance is used up: as commands, with its price."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

from labelguard.budget import events, pricing
from labelguard.budget.label_values import public_column_options
from labelguard.budget.policy import Policy
from labelguard.ledger.ledger import Ledger
from labelguard.text import format_budget

__all__ = ["offer"]


def offer(ledger: Ledger, policy: Policy, event: str, most: int) -> str:
    """Return the commands that pay for as much again as `policy`, and what the project then costs.

    Where the ceiling leaves less, the new policy takes what is left; where it leaves nothing, it is
    to be raised first. `most` uses of an `event` are wanted of one unit.
    """
    ceiling, life = ledger.policies.ceiling(), ledger.policies.history()
    reached = pricing.total(life)
    epsilon = min(policy.epsilon, _left(ceiling.epsilon, reached.epsilon))
    delta = min(policy.delta, _left(ceiling.delta, reached.delta))
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
    total = pricing.total([*life, policy])
    commands = [
        shlex.join(["labelguard", "policy", "new", name, *_options(policy)]),
        f"labelguard policy activate {name}",
    ]
    if not fits:
        raised = (max(total.epsilon, ceiling.epsilon), max(total.delta, ceiling.delta))
        commands.insert(0, f"labelguard project ceiling --raise {','.join(map(_written, raised))}")
    alone = events.STATISTIC_RELEASES.name == event and policy.allowance(event).allowed == 1
    share = " (with statistic:releases=12 twelve releases would share that ε)" * alone
    return (
        f"{', then '.join(commands)}; with it the project costs {format_budget(vars(total))} over "
        f"its life, of a ceiling of {ceiling}{share}"
    )


def _left(ceiling: float, reached: float) -> float:
    """Return what a ceiling leaves, in numbers as they are written: 1e-4 less 9e-5 is 1e-5."""
    return float(Fraction(repr(ceiling)) - Fraction(repr(reached)))


def _written(number: float) -> str:
    return repr(float(number)).removesuffix(".0")


def _options(policy: Policy) -> Iterator[str]:
    """Yield a policy as options of `policy new`."""
    yield from ("--epsilon", _written(policy.epsilon), "--delta", _written(policy.delta))
    for one in policy.allowances:
        yield from ("--allow", events.format_allowance(one))
    if len({one.share for one in policy.allowances}) > 1:
        shares = (f"{one.event}={_written(one.share)}" for one in policy.allowances)
        yield from ("--shares", ",".join(shares))
    for option, value, usual in (
        ("--ties", policy.ties, events.default_ties(policy.events)),
        ("--label-values", policy.label_values, ""),
        ("--skips", policy.skips, "public"),
        ("--unit", policy.unit, "labeler"),
        ("--held-out", _written(policy.held_out), "0"),
    ):
        if value != usual:
            yield from (option, value)
    for option in ("tie_status_public", "assignment_reactive", "accept_unproven"):
        if getattr(policy, option):
            yield f"--{option.replace('_', '-')}"
    yield from public_column_options(policy.public_columns)
