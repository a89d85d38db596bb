"""Which policy would last a year at the present rate, what its noise is, and how to make it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from itertools import count

from labelguard.errors import PolicyError
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.policies import PolicyRecord
from labelguard.policy import events, lifetime, pricing
from labelguard.policy.policy import Policy
from labelguard.policy.pricing import EventPrice
from labelguard.project import policies

YEAR = 52
"""Weeks that a policy should last."""
_NAME = "year"


@dataclass(frozen=True)
class Lasting:
    """The policy that would last a year: one allowance of it."""

    allowed: int
    """uses in 52 weeks that do for 90 of 100 labelers"""
    allowed_for_all: int
    """uses that do for every labeler"""
    epsilon: float
    """ε of the policy, that of the policy in force"""
    delta: float
    """its δ"""
    price: EventPrice
    """the noise of it, where `allowed` are"""
    price_for_all: EventPrice
    """the same where `allowed_for_all` are"""
    total_epsilon: float
    """ε of the project's life, were it activated today"""
    ceiling_epsilon: float
    """the project's ceiling of it"""
    total_delta: float
    """δ of the project's life then"""
    ceiling_delta: float
    """the project's ceiling of it"""
    under_ceiling: bool
    """whether that, with its δ, stays below the project's ceiling"""
    command: str
    """makes the policy, for 90 of 100 labelers, with all its allowances"""


def lasting(
    ledger: Ledger, active: PolicyRecord, needs: Mapping[str, tuple[int, int]]
) -> tuple[dict[str, Lasting], tuple[str, ...]]:
    """The policy that pays for what is needed, by kind of event, and why there is none if so.

    `needs` says for each kind of event that is charged how many uses in a year do for 90 of 100
    labelers, and for all. Terms are those of the policy in force, and so is what is not charged.
    """
    try:
        usual, every = (
            _with(active.policy, {event: need[which] for event, need in needs.items()})
            for which in (0, 1)
        )
        priced, priced_for_all = _events(usual), _events(every)
    except PolicyError as error:
        return {}, (f"no policy would last a year at ε = {active.policy.epsilon:g}: {error}",)
    last = active.chapter(ledger.point_of_use(active))
    before = [last if one.name == last.name else one for one in policies.life(ledger)]
    total = lifetime.added([lifetime.total(before), lifetime.Total(usual.epsilon, usual.delta)])
    ceiling = ledger.ceiling()
    try:
        ceiling.check(total)
        under = True
    except PolicyError:
        under = False
    taken = {record.name for record in ledger.policies()}
    name = next(one for one in _names() if one not in taken)
    return {
        event: Lasting(
            *needs[event],
            usual.epsilon,
            usual.delta,
            priced[event],
            priced_for_all[event],
            total.epsilon,
            ceiling.epsilon,
            total.delta,
            ceiling.delta,
            under,
            command(name, usual),
        )
        for event in needs
    }, ()


def command(name: str, policy: Policy) -> str:
    """The command that makes a policy on these terms, as a person would type it."""
    words = ["labelguard", "policy", "new", name]
    words += ["--epsilon", _plain(policy.epsilon), "--delta", _plain(policy.delta)]
    for one in policy.allowances:
        words += ["--allow", events.write(one)]
    if any(one.share != 1 for one in policy.allowances):
        shares = [f"{one.event}={_plain(one.share)}" for one in policy.allowances]
        words += ["--shares", ",".join(shares)]
    # Every other term has an option of its own name.
    for field in fields(Policy):
        name, value = field.name, getattr(policy, field.name)
        usual = events.default_ties(policy.events) if name == "ties" else field.default
        if name not in ("epsilon", "delta", "allowances") and value != usual:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)


def _with(policy: Policy, allowed: Mapping[str, int]) -> Policy:
    """The same terms with other numbers of uses; of several releases all noise is Gaussian."""
    numbers = [allowed.get(one.event, one.allowed) for one in policy.allowances]
    allowances = tuple(
        replace(one, allowed=number, ball=one.ball if number == 1 else None)
        for one, number in zip(policy.allowances, numbers, strict=True)
    )
    fewest = min(one.allowed or 1 for one in allowances)
    points = min(policy.closing_points, fewest)
    return replace(policy, allowances=allowances, closing_points=points)


def _events(policy: Policy) -> dict[str, EventPrice]:
    """What each allowance of a policy buys, by kind of event."""
    return {one.event: one for one in pricing.detailed(policy, *pricing.quote(policy)).events}


def _plain(number: float) -> str:
    """A number with all its digits, and no more."""
    return repr(float(number)).removesuffix(".0").replace("e-0", "e-")


def _names() -> Iterator[str]:
    return (_NAME if number == 1 else f"{_NAME}-{number}" for number in count(1))
