"""Prices of uses under a policy, and the quote of a policy, which is made and stored with it.

Policies follow one another, and `sum_budgets` is what all of them cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, TypeAlias

from labelguard._version import __version__
from labelguard.budget import events
from labelguard.budget.event_kind import Price
from labelguard.budget.policy import Policy
from labelguard.errors import PolicyError
from labelguard.text import Budgeted

if TYPE_CHECKING:
    from labelguard.accounting.components import Component

# For each kind of event, the price of a use by k (see `compute_prices`).
Prices: TypeAlias = Mapping[str, Mapping[int, Price]]


@dataclass(frozen=True)
class EventPrice:
    """The noise that one allowance of a policy buys, and its price by itself."""

    # the kind of event, as `Allowance` has it
    event: str
    # how many it allows
    allowed: int
    # ε of all of them, were there no other allowance
    epsilon_alone: float
    # of a label that is randomized by itself; of several together it is larger
    flip_probability: float | None = None
    # of a statistic or a training run: gaussian or ball
    noise: str | None = None
    # of Gaussian noise: its standard deviation over the sensitivity, or over the clip norm of a
    # training run
    noise_multiplier: float | None = None
    # of ball noise, over the sensitivity: its density falls by e over that distance
    scale: float | None = None
    # of ball noise: the fewest components that its scale is made for
    components: int | None = None
    # of a training run: q
    sampling_probability: float | None = None
    # of a training run: T
    steps: int | None = None
    # of stages on whole records: noised sums of one cohort
    updates: int | None = None

    def in_words(self) -> str:
        """Return its noise, for people."""
        if self.steps is not None:
            return (
                f"Gaussian σ = {self.noise_multiplier:.4f} × clip norm, {self.steps:,} steps, "
                f"q = {self.sampling_probability:g}"
            ) + (f", {self.updates} updates each" if (self.updates or 1) > 1 else "")
        if self.scale is not None:
            return f"ball {self.scale:.4f} × sensitivity, d ≥ {self.components}"
        if self.noise_multiplier is not None:
            return f"Gaussian σ = {self.noise_multiplier:.4f} × sensitivity"
        return f"flip probability {self.flip_probability:.4f} of a label by itself"


@dataclass(frozen=True)
class Quote:
    """The joint price of a policy."""

    # of what computed it, by package
    versions: Mapping[str, str]
    # which neighbours it is about
    adjacency: str
    # how it was computed
    accountant: str
    # ε of everything that the policy allows
    epsilon: float
    # the policy's ε less that
    slack: float
    # its allowances one by one
    events: Sequence[EventPrice]


def delta_for_continuous_noise(policy: Policy) -> float:
    """Return the δ that continuous noise may spend: that of the policy, less what bits take.

    Noise is drawn from 256-bit numbers, which may change a statistic with a probability below
    2^-100 (docs/guarantees.md). Raises `PolicyError` where that takes more than half of δ.
    """
    delta = policy.delta
    taken = _discretization_delta(policy, policy.epsilon)
    if taken > delta / 2:
        raise PolicyError(
            f"noise from 256-bit numbers costs δ = {min(taken, 1):.2g} at ε = {policy.epsilon:g}, "
            f"more than half of the {delta:.2g} there is; take a larger delta, or a smaller epsilon"
        )
    return math.nextafter(delta - taken, 0.0) if taken else delta  # most often the last bit of δ


def _discretization_delta(policy: Policy, epsilon: float) -> float:
    """Return the δ that all noise of a policy takes for being drawn from finitely many bits."""
    each = policy.allowances
    return math.fsum(one.allowed * one.kind.discretization_delta(epsilon, one) for one in each)


def compute_prices(policy: Policy, event: str) -> dict[int, Price]:
    """Return the price of one of the k uses that a policy allows, by k.

    Randomized response: the threshold ⌈γ·2^64⌉ of a coin, which is what a block costs. Statistic:
    the noise multiplier σ, or scale and fewest components of ball noise; σ and scale are multiples
    of 2^-40, rounded up.

    Raises `PolicyError` if nothing buys that little noise.
    """
    try:
        return {policy.allowance(event).allowed: _joint_prices(policy)[event]}
    except ValueError as error:
        raise PolicyError(str(error)) from None


def format_price(price: Price) -> dict[str, str]:
    """Return a price as ledger and journal hold it: every number as text, exactly."""
    return {name: repr(number) for name, number in price.items()}


def parse_price(text: Mapping[str, str]) -> Price:
    """Return the inverse of `format_price`."""
    return {name: int(n) if n.isdigit() else float(n) for name, n in text.items()}


def compute_quote(policy: Policy) -> tuple[dict[str, Any], Prices]:
    """Return the quote of a policy, as the ledger keeps it, and the prices in it."""
    from labelguard.accounting import joint

    common: dict[str, Any] = {"versions": _list_versions(), "adjacency": policy.adjacency}
    by_event: Prices = {event: compute_prices(policy, event) for event in policy.events}
    parts = build_components(policy, by_event)
    laws = " × ".join(part.distribution for part in parts.values())
    runs = any(allowance.sampling for allowance in policy.allowances)
    how = "privacy loss on a grid, rounded up" if runs else "exact privacy loss in closed form"
    # Prices are rounded in the labelers' favour; the search's upper end may lie above again.
    epsilon = min(
        joint.epsilon(list(parts.values()), delta_for_continuous_noise(policy)), policy.epsilon
    )
    return common | {"accountant": f"{how}: {laws}", "epsilon": epsilon}, by_event


@cache
def _list_versions() -> dict[str, str]:
    """Of what computes prices; looked up once, for an environment's packages are many."""
    return {"labelguard": __version__} | {
        name: version(name) for name in ("dp-accounting", "numpy", "scipy")
    }


def build_components(policy: Policy, prices: Prices) -> dict[str, Component]:
    """Return all events that a policy pays for, by kind."""
    return {
        one.event: one.kind.component(price, one.allowed)
        for one in policy.allowances
        for price in prices[one.event].values()
    }


def epsilon_of_two_units(policy: Policy, prices: Prices) -> float | None:
    """Return the ε of two units whose labels may all change together, at the δ of the policy's
    price.

    None where nothing is proven.
    """
    from labelguard.accounting import collusion

    most = 3 * policy.epsilon + 10  # up to here it is allowed for that noise is made from bits
    taken = _discretization_delta(policy, most)
    delta = math.nextafter(policy.delta - 2 * taken, 0.0) if taken else policy.delta
    if delta <= 0 < taken:
        return None
    epsilon = collusion.epsilon(list(build_components(policy, prices).values()), delta)
    return epsilon if epsilon is not None and epsilon <= most else None


def describe_quote(policy: Policy, stored: Mapping[str, Any], prices: Prices) -> Quote:
    """Return a `compute_quote` with what is shown beside it: the events one by one."""
    every = build_components(policy, prices)
    return Quote(
        **stored,
        slack=policy.epsilon - stored["epsilon"],
        events=[_price_event(policy, event, part) for event, part in every.items()],
    )


def _price_event(policy: Policy, event: str, part: Component) -> EventPrice:
    """Return one allowance: its parameter, how often, and what it costs by itself."""
    from labelguard.accounting import joint

    alone = joint.epsilon([part], delta_for_continuous_noise(policy))
    noise = events.find_event_kind(event).describe_noise(_price(part))
    return EventPrice(event, part.count, alone, **noise)


def _price(component: Component) -> Price:
    return {name: value for name, value in vars(component).items() if name != "count"}


@lru_cache
def _joint_prices(policy: Policy) -> dict[str, Price]:
    """Return the prices of all allowances together."""
    from labelguard.accounting.joint import Share, calibrate

    each = policy.allowances
    shares = [Share(one.kind.make_noise_finder(one), one.allowed, one.share) for one in each]
    parts = calibrate(policy.epsilon, delta_for_continuous_noise(policy), shares)
    return dict(zip(policy.events, map(_price, parts), strict=True))


@dataclass(frozen=True)
class Total:
    """ε and δ of a labeler over several policies, however the later ones were chosen."""

    # the sum of ε
    epsilon: float
    # the sum of δ
    delta: float


def sum_budgets(budgets: Iterable[Budgeted]) -> Total:
    """Return what a labeler loses to policies in force one after another, or to several projects.

    Adaptive basic composition: the sums of ε and of δ. Each policy costs its full price, used or
    not: crediting what was left at a moment chosen after seeing releases is unsound. The sum holds
    however the later policies were chosen (docs/guarantees.md).
    """
    each = list(budgets)
    delta = decimal_sum(one.delta for one in each)
    return Total(decimal_sum(one.epsilon for one in each), min(1.0, delta))


def decimal_sum(values: Iterable[float]) -> float:
    """Return the sum of numbers as they are written: ten times 1e-5 are 1e-4, and not a little
    more.
    """
    return float(sum(Fraction(repr(float(value))) for value in values))
