"""The joint price of all allowances of a policy: coins and Gaussian releases, exactly, closed form.

A policy lets every labeler be touched by at most k coins of a given price and by at most R Gaussian
releases of a given noise, in any order, each step chosen after seeing the earlier ones. All of it
is dominated by the product of the allowances' pairs of distributions. The privacy loss ℓ of the
coins takes finitely many values; the Gaussian releases are one Gaussian whose two means are
μ = √(Σ R_i/σ_i²) standard deviations apart; so

    δ(ε) = Σ_ℓ P[ℓ] · δ_G(ε − ℓ),

with δ_G of `gaussian.deltas` (for every real x), and δ_G(x) = max(0, 1 − e^x) without Gaussian
releases. k binary answers at ε0 have ℓ = (k−2j)·ε0 with j flips out of k; ternary ones have the
steps of `ternary`; unlike answers add up independently.

Every function concerns ONE labeler under `replace_labels` adjacency; ε is in nats. Components say
what the ledger stores, thresholds and noise multipliers, so that what is priced is what is charged
(ValueError for numbers that the accountants of a kind do not give). The grid of a discrete Gaussian
is not in the formula: set `gaussian.discretisation_delta` aside beforehand.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import _search, _validate, gaussian, ternary
from labelguard.accounting import randomized_response as rr
from labelguard.accounting._search import ROUNDING
from labelguard.accounting.randomized_response import COIN_RANGE

__all__ = [
    "Answers",
    "BinaryAnswers",
    "Component",
    "Gaussians",
    "Share",
    "TernaryAnswers",
    "calibrate",
    "delta",
    "epsilon",
    "noise_distance",
    "pure_epsilon",
]

Floats: TypeAlias = NDArray[np.float64]

_MOST_LOSSES = 2**26  # values of the loss of unlike answers
# The common factor of `calibrate` is a multiple of 2^-20: coarse beside rounding, so that another
# machine's last digits do not lead to another result.
_FACTOR_ONE = 2**20


class _Accountant(Protocol):
    """What `randomized_response` and `ternary` have in common."""

    def calibrate(self, epsilon: float, delta: float, k: int, /) -> float: ...
    def delta(self, epsilon0: float, k: int, epsilon: float, /) -> float: ...
    def threshold(self, epsilon0: float, /) -> int: ...
    def epsilon0_of(self, threshold: int, /) -> float: ...


@dataclass(frozen=True)
class Answers:
    """At most `count` labels, each answered otherwise with probability threshold/2^64."""

    threshold: int
    count: int

    distribution: ClassVar[str]
    accountant: ClassVar[_Accountant]

    def __post_init__(self) -> None:
        self.accountant.epsilon0_of(self.threshold)
        _validate.at_least_one(count=self.count)

    @classmethod
    def calibrated(cls, epsilon: float, delta: float, count: int) -> Self:
        """`count` answers with as little noise as (epsilon, delta) allows."""
        epsilon0 = cls.accountant.calibrate(epsilon, delta, count)
        return cls(cls.accountant.threshold(epsilon0), count)

    @property
    def epsilon0(self) -> float:
        """The largest loss of one answer, in nats."""
        return self.accountant.epsilon0_of(self.threshold)


class BinaryAnswers(Answers):
    """Labels in {0, 1}, each flipped with probability threshold/2^64, at most ½."""

    distribution: ClassVar[str] = "binomial"
    accountant: ClassVar[_Accountant] = rr


class TernaryAnswers(Answers):
    """Labels in {0, ½, 1}, each changed with probability threshold/2^64, even."""

    distribution: ClassVar[str] = "trinomial"
    accountant: ClassVar[_Accountant] = ternary


@dataclass(frozen=True)
class Gaussians:
    """At most `count` Gaussian releases whose noise has this deviation, in sensitivities."""

    noise_multiplier: float
    count: int

    distribution: ClassVar[str] = "Gaussian"

    def __post_init__(self) -> None:
        _validate.positive(noise_multiplier=self.noise_multiplier)
        _validate.within(0, 2**23, noise_multiplier=self.noise_multiplier)
        _validate.at_least_one(count=self.count)

    @classmethod
    def calibrated(cls, epsilon: float, delta: float, count: int) -> Self:
        """`count` releases with as little noise as (epsilon, delta) allows."""
        return cls(gaussian.calibrate(epsilon, delta, count), count)


Component: TypeAlias = BinaryAnswers | TernaryAnswers | Gaussians
AnyAnswers: TypeAlias = BinaryAnswers | TernaryAnswers
Merged: TypeAlias = tuple[tuple[AnyAnswers, ...], tuple[Gaussians, ...]]


@dataclass(frozen=True)
class Share:
    """What a policy wants to allow: `count` events of a kind, weighed against the others."""

    kind: type[Component]
    count: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        _validate.at_least_one(count=self.count)
        _validate.positive(weight=self.weight)


def delta(components: Sequence[Component], epsilon: float) -> float:
    """The δ at which everything the components allow is (epsilon, δ)-private together.

    The order of the components is of no consequence, and n components of count 1 are one of
    count n, bit for bit. No components cost nothing.

    Never below the true value, with the exception of `rr.delta`: where the losses of coins alone
    add up to epsilon, to 14 digits, δ is 0. Added for rounding, relative: 4e-15 for each coin, and
    2e-14 + 2e-15·(|y|+2)·(z+2) for Gaussians, whose normal tails are taken at y and z = y + μ;
    epsilon is lowered by 4e-15·(epsilon + Σ k·ε0). In all about 1e-11 for 1000 coins.

    Raises ValueError unless epsilon is finite and >= 0, and for more than 2^26 values of the loss
    (several unlike coins, hundreds of each).
    """
    _validate.nonnegative(epsilon=epsilon)
    return _delta(*_merged(components), epsilon)


def epsilon(components: Sequence[Component], delta: float) -> float:
    """The smallest ε, in nats, at which the components together are (ε, delta)-private.

    The upper end of a bisection, so that the computed δ at the result is at most `delta`. For
    coins alone at delta = 0: Σ k·ε0.

    Raises ValueError unless 0 <= delta < 1, and >= `gaussian.SMALLEST_DELTA` with Gaussians.
    """
    _validate.delta_below_one(delta)
    coins, gaussians = _merged(components)
    high = pure_epsilon(coins)
    if gaussians:
        # No loss of coins exceeds Σ k·ε0, so that δ(Σ k·ε0 + x) <= δ_G(x).
        noise_multiplier, releases = _one_gaussian(gaussians)
        alone = gaussian.epsilon(noise_multiplier, delta, releases)
        high = (high + alone) * (1 + 2.0**-20) if coins else alone
    if not coins or math.isinf(high):
        return high
    return rr.smallest_epsilon(lambda *at: _delta(coins, gaussians, at[-1]), high, 1, delta)


def calibrate(epsilon: float, delta: float, shares: Sequence[Share]) -> tuple[Component, ...]:
    """Components, one for each share, that together are (epsilon, delta)-private, and just so.

    One common factor t makes all of them as strong as they can be: share a is calibrated alone, by
    its own exact accountant, to (t·w_a/Σw · epsilon, delta), w its weight, and t is the largest
    multiple of 2^-20 at which the joint price of the components *as stored* is at most
    (epsilon, delta). A single share gets what its accountant's `calibrate` gives, bit for bit.

    t is usually above 1. It is below 1 where delta is no longer small beside epsilon, because n
    mechanisms at (ε_a, delta) each are promised n·delta only; then delta shrinks with t as well,
    and t = 1/n suffices by basic composition. At delta = 0 (coins only) t is 1.

    About twenty joint prices. Raises ValueError unless epsilon is finite and > 0, 0 <= delta < 1
    (and >= `gaussian.SMALLEST_DELTA` with statistics) and there is at least one share.
    """
    _validate.positive(epsilon=epsilon)
    _validate.delta_below_one(delta)
    if not shares:
        raise ValueError("shares must hold at least one share, found none")
    if len(shares) == 1:
        return (shares[0].kind.calibrated(epsilon, delta, shares[0].count),)
    weights = [each.weight / math.fsum(share.weight for share in shares) for each in shares]

    def at(step: int) -> tuple[Component, ...]:
        factor = step / _FACTOR_ONE
        return tuple(
            share.kind.calibrated(
                min(factor * weight, 1.0) * epsilon, min(factor, 1.0) * delta, share.count
            )
            for share, weight in zip(shares, weights, strict=True)
        )

    def private(step: int) -> bool:
        return _delta(*_merged(at(step)), epsilon) <= delta

    if delta == 0:
        return at(_FACTOR_ONE)
    if private(low := _FACTOR_ONE):
        # Beyond this factor the heaviest share alone would cost more than epsilon.
        high = math.ceil(_FACTOR_ONE / max(weights)) + 1
    else:
        low, high = _FACTOR_ONE // len(shares), low
        while not private(low):  # by rounding only
            low, high = low - low // 2**10 - 1, low
    return at(_search.smallest_whole(lambda step: not private(step), low, high) - 1)


def pure_epsilon(components: Sequence[Component]) -> float:
    """The ε of the components at δ = 0, in nats: Σ k·ε0 of coins, infinite with a Gaussian."""
    return math.fsum(
        math.inf if isinstance(component, Gaussians) else component.count * component.epsilon0
        for component in components
    )


def noise_distance(gaussians: Sequence[Gaussians]) -> float:
    """μ = √(Σ R/σ²), rounded up: how far the means of all releases together are apart, or 0."""
    squares = math.fsum(each.count / each.noise_multiplier**2 for each in gaussians)
    return math.sqrt(squares) * (1 + 4 * ROUNDING)


# --- components ----------------------------------------------------------------------------------


def _merged(components: Sequence[Component]) -> Merged:
    """Answers and Gaussians, like ones merged, in an order of their own; fair coins left out."""
    counts: Counter[Component] = Counter()
    for component in components:
        counts[replace(component, count=1)] += int(component.count)
    merged = [replace(one, count=count) for one, count in counts.items()]
    answers = sorted((each for each in merged if isinstance(each, Answers)), key=_order)
    noise = sorted((each for each in merged if isinstance(each, Gaussians)), key=_order)
    return tuple(each for each in answers if each.epsilon0 > 0), tuple(noise)


def _order(component: Component) -> tuple[str, float]:
    name = type(component).__name__
    if isinstance(component, Gaussians):
        return name, component.noise_multiplier
    return name, component.threshold


def _one_gaussian(gaussians: tuple[Gaussians, ...]) -> tuple[float, int]:
    """Noise multiplier and number of the like releases that reveal as much as all of these."""
    if len(gaussians) == 1:
        return gaussians[0].noise_multiplier, gaussians[0].count
    return 1 / noise_distance(gaussians), 1


# --- the closed form -----------------------------------------------------------------------------


def _delta(
    answers: tuple[AnyAnswers, ...], gaussians: tuple[Gaussians, ...], epsilon: float
) -> float:
    """`delta` of merged components, without checks; like ones are priced by their own module."""
    if gaussians and not answers:
        noise_multiplier, releases = _one_gaussian(gaussians)
        return gaussian.delta(noise_multiplier, epsilon, releases)
    pure = pure_epsilon(answers)
    if not gaussians and len(answers) == 1:
        return answers[0].accountant.delta(answers[0].epsilon0, answers[0].count, epsilon)
    if not gaussians and pure <= epsilon * (1 + 16 * ROUNDING):
        return 0.0
    losses, probabilities = _loss_distribution(answers)
    # δ_G falls in its argument: moving that down covers the rounding of losses and difference.
    rest = epsilon - losses - 16 * ROUNDING * (epsilon + pure)
    if gaussians:
        parts = gaussian.deltas(rest, noise_distance(gaussians))
    else:
        parts = -np.expm1(np.minimum(rest, 0))
    margin = 16 * ROUNDING * (sum(each.count for each in answers) + 16)
    lost = losses.size * sys.float_info.min  # probabilities that underflow
    return min(1.0, float(np.sum(probabilities * parts)) * (1 + margin) + lost)


# --- the loss of coins ---------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _loss_distribution(answers: tuple[AnyAnswers, ...]) -> tuple[Floats, Floats]:
    """Losses of all answers together, and their probabilities."""
    groups = [
        _binomial(each) if isinstance(each, BinaryAnswers) else _trinomial(each) for each in answers
    ]
    if math.prod(losses.size for losses, _ in groups) > _MOST_LOSSES:
        raise ValueError("components hold too many unlike answers to be priced together")
    losses, probabilities = np.zeros(1), np.ones(1)
    for more_losses, more_probabilities in groups:
        losses = np.add.outer(losses, more_losses).ravel()
        probabilities = np.multiply.outer(probabilities, more_probabilities).ravel()
    return losses, probabilities


def _binomial(coins: BinaryAnswers) -> tuple[Floats, Floats]:
    """(k−2j)·ε0 and P[j flips], j = 0 … k: products of ratios outward from the mode, normalised."""
    k, odds = coins.count, coins.threshold / (COIN_RANGE - coins.threshold)
    mode = min(k, (k + 1) * coins.threshold // COIN_RANGE)
    flips = np.arange(k + 1, dtype=np.float64)
    down, up = flips[mode:0:-1], flips[mode:k]
    below = np.cumprod(down / (k - down + 1) / odds)
    above = np.cumprod((k - up) / (up + 1) * odds)
    weights = np.concatenate([below[::-1], [1.0], above])
    return (k - 2 * flips) * coins.epsilon0, weights / float(np.sum(weights))


def _trinomial(coins: TernaryAnswers) -> tuple[Floats, Floats]:
    """s·ε0 and P[S = s], s = −k … k: from k down to 0 by the recursion of `ternary`, where every
    term is positive, and below 0 by P[S = −s] = e^(−s·ε0) · P[S = s].
    """
    k, ratio = coins.count, (coins.threshold // 2) / (COIN_RANGE - coins.threshold)
    weights = np.empty(k + 1)
    before, here = 0.0, 1.0
    for m in range(k + 1):
        weights[m] = here
        before, here = here, ratio * ((k - m) * here + (2 * k - m + 1) * before) / (m + 1)
        if here > 2.0**512:
            weights[: m + 1] *= 2.0**-512
            before, here = before * 2.0**-512, here * 2.0**-512
    sums = np.arange(-k, k + 1, dtype=np.float64)
    both = np.concatenate([weights[:-1] * np.exp(coins.epsilon0 * sums[:k]), weights[::-1]])
    return sums * coins.epsilon0, both / float(np.sum(both))
