"""The joint price of all allowances of a policy: coins and Gaussian releases, exactly, closed form.

A policy lets every labeler be touched by at most k coins of a given price and by at most R Gaussian
releases of a given noise, in any order, each step chosen after seeing the earlier ones. All of it
is dominated by the product of the allowances' pairs of distributions. The privacy loss ℓ of the
coins takes finitely many values; the Gaussian releases are one Gaussian whose two means are
μ = √(Σ R_i/σ_i²) standard deviations apart; so

    δ(ε) = Σ_ℓ P[ℓ] · δ_G(ε − ℓ),        δ_G(x) = Φ(μ/2 − x/μ) − e^x · Φ(−μ/2 − x/μ),

for every real x (Balle and Wang 2018, theorem 8, holds for negative x too), and δ_G(x) = max(0,
1 − e^x) without Gaussian releases. k binary coins at ε0 have ℓ = (k−2j)·ε0 with j flips out of k;
ternary coins have the steps of `ternary`; unlike coins add up independently.

Every function concerns ONE labeler under `replace_labels` adjacency; ε is in nats. Components say
what the ledger stores, thresholds and units, so that what is priced is what is charged (ValueError
for numbers that the accountants of a kind do not give). The grid of a discrete Gaussian is not in
the formula: set `gaussian.discretisation_delta` aside beforehand.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import _validate, gaussian, ternary
from labelguard.accounting import randomized_response as rr
from labelguard.accounting.randomized_response import COIN_RANGE, ROUNDING

__all__ = [
    "Coins",
    "Component",
    "Gaussians",
    "Share",
    "ShareKind",
    "TernaryCoins",
    "calibrate",
    "delta",
    "epsilon",
    "noise_distance",
    "pure_epsilon",
]

Floats: TypeAlias = NDArray[np.float64]
ShareKind = Literal["rr", "ternary", "statistic"]

_MOST_ATOMS = 2**20  # values of the loss of unlike coins that are kept apart
_GRID_CELLS, _CUT_MASS = 2**19, 1e-40  # beyond: cells, and what is cut of each group's tails
# The common factor of `calibrate` is a multiple of 2^-20: coarse beside rounding, so that another
# machine's last digits do not lead to another result.
_FACTOR_ONE = 2**20


@dataclass(frozen=True)
class Coins:
    """At most `count` binary labels, each flipped with probability threshold/2^64, at most ½."""

    threshold: int
    count: int

    def __post_init__(self) -> None:
        rr.epsilon0_of(self.threshold)
        _validate.at_least_one(count=self.count)

    @property
    def epsilon0(self) -> float:
        """The loss of one coin, in nats."""
        return rr.epsilon0_of(self.threshold)


@dataclass(frozen=True)
class TernaryCoins:
    """At most `count` labels in {0, ½, 1}, each changed with probability threshold/2^64, even."""

    threshold: int
    count: int

    def __post_init__(self) -> None:
        ternary.epsilon0_of(self.threshold)
        _validate.at_least_one(count=self.count)

    @property
    def epsilon0(self) -> float:
        """The largest loss of one coin, in nats."""
        return ternary.epsilon0_of(self.threshold)


@dataclass(frozen=True)
class Gaussians:
    """At most `count` Gaussian releases with a noise multiplier of units·2^-40 each."""

    units: int
    count: int

    def __post_init__(self) -> None:
        gaussian.noise_multiplier_of(self.units)
        _validate.at_least_one(count=self.count)

    @property
    def noise_multiplier(self) -> float:
        """The standard deviation of the noise, in sensitivities."""
        return gaussian.noise_multiplier_of(self.units)


AnyCoins: TypeAlias = Coins | TernaryCoins
Component: TypeAlias = Coins | TernaryCoins | Gaussians
Merged: TypeAlias = tuple[tuple[AnyCoins, ...], tuple[Gaussians, ...]]


@dataclass(frozen=True)
class Share:
    """What a policy wants to allow: `count` events of a kind, weighed against the others."""

    kind: ShareKind
    count: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        _validate.one_of(get_args(ShareKind), kind=self.kind)
        _validate.at_least_one(count=self.count)
        _validate.positive(weight=self.weight)


def delta(components: Sequence[Component], epsilon: float) -> float:
    """The δ at which everything the components allow is (epsilon, δ)-private together.

    The order of the components is of no consequence, and n components of count 1 are one of
    count n, bit for bit. No components cost nothing.

    Never below the true value, with the exception of `rr.delta`: where the losses of coins alone
    add up to epsilon, to 14 digits, δ is 0. Added for rounding, relative: 4e-15 for each coin, and
    2e-14 + 4e-15·(|y|+2)·(z+4) for Gaussians, whose normal tails are taken at y and z = y + μ;
    epsilon is lowered by 4e-15·(epsilon + Σ k·ε0). In all about 1e-11 for 1000 coins. More than a
    million values of the loss (several unlike coins, hundreds of each) are rounded UP to a grid of
    half a million cells: at most one cell of ε for each kind of coin, and 1e-40 of δ.

    Raises ValueError unless epsilon is finite and >= 0.
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
        return (_alone(shares[0], epsilon, delta),)
    weights = [each.weight / math.fsum(share.weight for share in shares) for each in shares]

    def at(place: int) -> tuple[Component, ...]:
        factor = place / _FACTOR_ONE
        return tuple(
            _alone(share, min(factor * weight, 1.0) * epsilon, min(factor, 1.0) * delta)
            for share, weight in zip(shares, weights, strict=True)
        )

    def private(place: int) -> bool:
        return _delta(*_merged(at(place)), epsilon) <= delta

    if delta == 0:
        return at(_FACTOR_ONE)
    if private(low := _FACTOR_ONE):
        # Beyond this factor the heaviest share alone would cost more than epsilon.
        high = math.ceil(_FACTOR_ONE / max(weights)) + 1
    else:
        low, high = _FACTOR_ONE // len(shares), low
        while not private(low):  # by rounding only
            low, high = low - low // 2**10 - 1, low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if private(middle) else (low, middle)
    return at(low)


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


def _alone(share: Share, epsilon: float, delta: float) -> Component:
    """The share calibrated to (epsilon, delta) by the accountant of its kind."""
    if share.kind == "rr":
        return Coins(rr.threshold(rr.calibrate(epsilon, delta, share.count)), share.count)
    if share.kind == "ternary":
        epsilon0 = ternary.calibrate(epsilon, delta, share.count)
        return TernaryCoins(ternary.threshold(epsilon0), share.count)
    return Gaussians(gaussian.units(gaussian.calibrate(epsilon, delta, share.count)), share.count)


def _merged(components: Sequence[Component]) -> Merged:
    """Coins and Gaussians, like ones merged, in an order of their own; fair coins left out."""
    counts: Counter[tuple[type[Component], int]] = Counter()
    for component in components:
        price = component.units if isinstance(component, Gaussians) else component.threshold
        counts[type(component), int(price)] += int(component.count)
    ordered = sorted(counts.items(), key=lambda item: (item[0][0].__name__, item[0][1]))
    merged = [kind(price, count) for (kind, price), count in ordered]
    coins = (each for each in merged if not isinstance(each, Gaussians) and each.epsilon0 > 0)
    return tuple(coins), tuple(each for each in merged if isinstance(each, Gaussians))


def _one_gaussian(gaussians: tuple[Gaussians, ...]) -> tuple[float, int]:
    """Noise multiplier and number of the like releases that reveal as much as all of these."""
    if len(gaussians) == 1:
        return gaussians[0].noise_multiplier, gaussians[0].count
    return 1 / noise_distance(gaussians), 1


# --- the closed form -----------------------------------------------------------------------------


def _delta(coins: tuple[AnyCoins, ...], gaussians: tuple[Gaussians, ...], epsilon: float) -> float:
    """`delta` of merged components, without checks; like ones are priced by their own module."""
    if gaussians and not coins:
        noise_multiplier, releases = _one_gaussian(gaussians)
        return gaussian.delta(noise_multiplier, epsilon, releases)
    pure = pure_epsilon(coins)
    if not gaussians and len(coins) == 1:
        delta_of = rr.delta if isinstance(coins[0], Coins) else ternary.delta
        return delta_of(coins[0].epsilon0, coins[0].count, epsilon)
    if not gaussians and pure <= epsilon * (1 + 16 * ROUNDING):
        return 0.0
    losses, probabilities, beyond = _loss_distribution(coins)
    # δ_G falls in its argument: moving that down covers the rounding of losses and difference.
    rest = epsilon - losses - 16 * ROUNDING * (epsilon + pure)
    if gaussians:
        parts = _gaussian_deltas(rest, noise_distance(gaussians))
    else:
        parts = -np.expm1(np.minimum(rest, 0))
    margin = 16 * ROUNDING * (sum(each.count for each in coins) + 16)
    lost = losses.size * sys.float_info.min + beyond  # probabilities that underflow, and cut tails
    return min(1.0, float(np.sum(probabilities * parts)) * (1 + margin) + lost)


# Gauss–Legendre on [0, 1] with 6 nodes: for f below and distances up to ¼ exact to 1e-16, relative.
_ROOTS, _WEIGHTS = np.polynomial.legendre.leggauss(6)
_SMALL_DISTANCE, _FARTHEST = 0.25, 40.0  # beyond 40, the normal tail is below any float


def _gaussian_deltas(epsilons: Floats, distance: float) -> Floats:
    """δ_G of every entry, of any sign, for two unit normals `distance` apart; an upper bound.

    With y = x/μ − μ/2, z = y + μ and Mills' ratio M(t) = (1−Φ(t))/φ(t), e^x·φ(z) = φ(y) turns δ_G
    into φ(y)·(M(y) − M(z)). For small μ the difference cancels; it is ∫_y^z f then, where
    f(t) = −M'(t) = 1 − t·M(t) > 0. Negative x never enter: exchanging the two normals gives
    δ_G(x) = 1 − e^x + e^x·δ_G(−x), of two positive terms.
    """
    from scipy.special import erfcx, ndtr

    def mills(place: Floats) -> Floats:
        return np.asarray(math.sqrt(math.pi / 2) * erfcx(place / math.sqrt(2)))

    near = np.minimum(np.abs(epsilons) / distance - distance / 2, _FARTHEST)
    far = near + distance
    density = np.exp(-near * near / 2) / math.sqrt(2 * math.pi)
    if distance < _SMALL_DISTANCE:
        places = near[:, np.newaxis] + distance * (1 + _ROOTS) / 2
        value = density * distance * ((1 - places * mills(places)) @ _WEIGHTS) / 2
    else:
        # Left of −1 Mills' ratio grows without bound, and nothing cancels.
        central = ndtr(-near) - density * mills(far)
        tail = density * (mills(np.maximum(near, -1.0)) - mills(far))
        value = np.where(near < -1, central, tail)
    # Mills' ratio errs by a few units, the places by 2 units of `far`, ln δ_G changes by at most
    # |y|+2 per unit of y, and the difference, or f, is at least M/(4·(|y|+2)), or M/(|y|+2)².
    value = value * (1 + ROUNDING * (64 + 16 * (np.abs(near) + 2) * (far + 4)))
    below = np.minimum(epsilons, 0.0)
    return np.asarray(np.minimum(1.0, -np.expm1(below) + np.exp(below) * value))


# --- the loss of coins ---------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _loss_distribution(coins: tuple[AnyCoins, ...]) -> tuple[Floats, Floats, float]:
    """Losses of all coins together, their probabilities, and what was cut off above."""
    groups = [_binomial(each) if isinstance(each, Coins) else _trinomial(each) for each in coins]
    if math.prod(losses.size for losses, _ in groups) > _MOST_ATOMS:
        return _on_grid(groups)
    losses, probabilities = np.zeros(1), np.ones(1)
    for more_losses, more_probabilities in groups:
        losses = np.add.outer(losses, more_losses).ravel()
        probabilities = np.multiply.outer(probabilities, more_probabilities).ravel()
    return losses, probabilities, 0.0


def _binomial(coins: Coins) -> tuple[Floats, Floats]:
    """(k−2j)·ε0 and P[j flips], j = 0 … k: products of ratios outward from the mode, normalised."""
    k, odds = coins.count, coins.threshold / (COIN_RANGE - coins.threshold)
    mode = min(k, (k + 1) * coins.threshold // COIN_RANGE)
    flips = np.arange(k + 1, dtype=np.float64)
    down, up = flips[mode:0:-1], flips[mode:k]
    below = np.cumprod(down / (k - down + 1) / odds)
    above = np.cumprod((k - up) / (up + 1) * odds)
    weights = np.concatenate([below[::-1], [1.0], above])
    return (k - 2 * flips) * coins.epsilon0, weights / float(np.sum(weights))


def _trinomial(coins: TernaryCoins) -> tuple[Floats, Floats]:
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


def _on_grid(groups: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats, float]:
    """The sum of the groups' losses, each rounded up to a common grid; never a smaller loss.

    The tails of each group are cut first: the low one is moved up to the first loss that stays,
    the high one is returned as a probability, to be added to δ.
    """
    kept, beyond = [], 0.0
    for losses, probabilities in groups:
        order = np.argsort(losses)
        mass = probabilities[order]
        below, above = np.cumsum(mass), np.cumsum(mass[::-1])[::-1]
        first, last = np.flatnonzero((below >= _CUT_MASS) & (above >= _CUT_MASS))[[0, -1]]
        mass[first] = below[first]
        beyond += float(above[last] - mass[last]) if last + 1 < mass.size else 0.0
        kept.append((losses[order][first : last + 1], mass[first : last + 1]))
    cell = math.fsum(float(np.ptp(losses)) for losses, _ in kept) / _GRID_CELLS
    offset, total = 0, np.ones(1)
    for losses, masses in sorted(kept, key=lambda group: group[0].size):
        places = np.ceil(losses / cell).astype(np.int64)
        start = int(places[0])
        wider = np.zeros(total.size + int(places[-1]) - start)
        for place, probability in zip((places - start).tolist(), masses.tolist(), strict=True):
            wider[place : place + total.size] += probability * total
        offset, total = offset + start, wider
    occupied = np.flatnonzero(total)
    return (offset + occupied).astype(np.float64) * cell, total[occupied], beyond
