"""The joint price of all allowances of a policy: coins, noisy sums and runs of gradient methods.

A policy lets every labeler be touched by at most k coins of a given price, by at most R Gaussian
releases of a given noise, or one release with ball noise, and by so many runs of gradient methods,
in any order, each step chosen after seeing the earlier ones. All of it is dominated by the product
of the allowances' pairs of distributions. The privacy loss ℓ of the coins takes finitely many
values; the Gaussian releases are one Gaussian whose two means are μ = √(Σ R_i/σ_i²) standard
deviations apart; so

    δ(ε) = Σ_ℓ P[ℓ] · δ_N(ε − ℓ),

with δ_N of `gaussian.deltas` or `ball.deltas` (for every real x), and δ_N(x) = max(0, 1 − e^x)
without noisy sums. This is exact, in closed form. k blocks of labels at ε0 (`blocks`) cost what k
coins do, ℓ = (k−2j)·ε0 with j flips out of k; unlike blocks add up independently.

Runs of gradient methods have no closed form: their losses, and those of the coins beside them, are
put on a grid (`losses`), pessimistically, and ℓ takes the values of that grid and ∞; δ_N stays that
of the Gaussians.

Every function concerns ONE labeler under `replace_labels` adjacency; ε is in nats. The formula is
that of continuous noise, which a release rounds; what noise from finitely many bits costs is set
aside beforehand (`budget.pricing.delta_for_continuous_noise`).
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial, reduce
from types import ModuleType
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import _numbers, ball, gaussian, subsampled
from labelguard.accounting import randomized_response as rr
from labelguard.accounting._numbers import ROUNDING
from labelguard.accounting.components import (
    Balls,
    Component,
    Converted,
    Gaussians,
    Groups,
    RandomizedBlocks,
    SampledRecords,
    Subsampled,
    Unproven,
    WholeRecords,
)
from labelguard.accounting.losses import (
    Losses,
    choose_interval,
    convolve,
    discretize,
    discretize_approximate,
    smallest_epsilon,
)
from labelguard.accounting.randomized_response import COIN_RANGE

Floats: TypeAlias = NDArray[np.float64]

_MOST_LOSSES = 2**26  # values of the loss of unlike blocks
# The common factor of `calibrate` is a multiple of 2^-20: coarse beside rounding, so that another
# machine's last digits do not lead to another result.
_FACTOR_ONE = 2**20


Noise: TypeAlias = tuple[Gaussians, ...] | Balls
Run: TypeAlias = Subsampled | SampledRecords | Groups | Unproven


@dataclass(frozen=True)
class MergedComponents:
    """Components in an order of their own, like ones merged."""

    blocks: tuple[RandomizedBlocks, ...]
    noise: Noise | None
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True)
class Share:
    """Events that a policy wants to allow: `count` of them, weighed against the others.

    `calibrate` makes the component of an ε, a δ and a count: `Gaussians.calibrate`, for example.
    """

    calibrate: Callable[[float, float, int], Component]
    count: int
    weight: float = 1.0

    def __post_init__(self) -> None:
        _numbers.at_least_one(count=self.count)
        _numbers.positive(weight=self.weight)


def delta(components: Sequence[Component], epsilon: float) -> float:
    """Return the δ at which everything the components allow is (epsilon, δ)-private together.

    The order of the components is of no consequence, and n components of count 1 are one of
    count n, bit for bit. No components cost nothing.

    Never below the true value, with the exception of `rr.delta`: where the losses of coins alone
    add up to epsilon, to 14 digits, δ is 0. Added for rounding, relative: 4e-15 for each coin, and
    2e-14 + 2e-15·(|y|+2)·(z+2) for Gaussians, whose normal tails are taken at y and z = y + μ;
    epsilon is lowered by 4e-15·(epsilon + Σ k·ε0). In all about 1e-11 for 1000 coins.

    Ball noise adds the margins of `ball.delta`. Runs of gradient methods are rounded upward to a
    grid, some 1e-5 of δ, with the margins of `losses`. A converted run is taken for an (epsilon,
    delta)-private event, once its noise was found to be enough for that.

    Raises ValueError unless epsilon is finite and >= 0, for more than 2^26 values of the loss
    (several unlike coins, hundreds of each), for ball noise beside Gaussians, runs or twice, and
    for a converted run with less noise than its (epsilon, delta) takes.
    """
    _numbers.nonnegative(epsilon=epsilon)
    if records := _whole_records(components):
        return records.delta(epsilon)
    return _delta(_merge_components(components), epsilon)


def epsilon(components: Sequence[Component], delta: float) -> float:
    """Return the smallest ε, in nats, at which the components together are (ε, delta)-private.

    The upper end of a bisection, so that the computed δ at the result is at most `delta`. For
    coins and ball noise at delta = 0: Σ k·ε0. With runs within 1e-9, and infinite where delta is
    below their margins.

    Raises ValueError unless 0 <= delta < 1, and >= `gaussian.SMALLEST_DELTA` with Gaussians.
    """
    _numbers.delta_below_one(delta)
    if records := _whole_records(components):
        return records.epsilon(delta)
    merged = _merge_components(components)
    if merged.runs:
        return _epsilon_of_runs(merged, delta)
    coins, noise = merged.blocks, merged.noise
    high = pure_epsilon(coins)
    if noise:
        # No loss of coins exceeds Σ k·ε0, so that δ(Σ k·ε0 + x) <= δ_N(x).
        alone = _noise_epsilon(noise, delta)
        slack = 2.0**-20 if delta else 0.0
        high = (high + alone) * (1 + slack) if coins else alone
    if not coins or math.isinf(high):
        return high
    return _numbers.smallest_epsilon(partial(_delta, merged), high, delta)


def calibrate(epsilon: float, delta: float, shares: Sequence[Share]) -> tuple[Component, ...]:
    """Components, one for each share, that together are (epsilon, delta)-private, and just so.

    One common factor t makes all of them as strong as they can be: share a is calibrated alone, by
    its own exact accountant, to (t·w_a/Σw · epsilon, delta), w its weight, and t is the largest
    multiple of 2^-20 at which the joint price of the components *as stored* is at most
    (epsilon, delta). A single share gets what its accountant's `calibrate` gives, bit for bit.

    t is usually above 1. It is below 1 where delta is no longer small beside epsilon, because n
    mechanisms at (ε_a, delta) each are promised n·delta only; then delta shrinks with t as well,
    and t = 1/n suffices by basic composition. At delta = 0 (no Gaussians) t is 1.

    A converted run costs its whole δ whatever stands beside it: with one of them every share gets
    delta/n, and t is at least 1 by basic composition.

    About ten joint prices, of a second or two each where runs are calibrated for them.

    Raises ValueError unless epsilon is finite and > 0, 0 <= delta < 1 (and >=
    `gaussian.SMALLEST_DELTA` with Gaussians) and there is at least one share.
    """
    _numbers.positive(epsilon=epsilon)
    _numbers.delta_below_one(delta)
    if not shares:
        raise ValueError("shares must hold at least one share, found none")
    if len(shares) == 1:
        return (shares[0].calibrate(epsilon, delta, shares[0].count),)
    weights = [each.weight / math.fsum(share.weight for share in shares) for each in shares]

    def components_of_step(step: int, split: bool) -> tuple[Component, ...]:
        factor = step / _FACTOR_ONE
        part = delta / len(shares) if split else min(factor, 1.0) * delta
        return tuple(
            share.calibrate(min(factor * weight, 1.0) * epsilon, part, share.count)
            for share, weight in zip(shares, weights, strict=True)
        )

    split = any(isinstance(each, Converted) for each in components_of_step(_FACTOR_ONE, False))

    def excess(step: int) -> float:
        value = _delta(_merge_components(components_of_step(step, split)), epsilon)
        return math.log(max(value, sys.float_info.min) / delta)

    if delta == 0:
        return components_of_step(_FACTOR_ONE, split)
    if excess(low := _FACTOR_ONE) <= 0:
        # Beyond this factor the heaviest share alone would cost more than epsilon, or all of it.
        high, most = (math.ceil(_FACTOR_ONE / each) + 1 for each in (max(weights), min(weights)))
        while excess(high) <= 0:
            if high == most:
                return components_of_step(high, split)
            low, high = high, min(2 * high, most)
    else:
        low, high = _FACTOR_ONE // len(shares), low
        while excess(low) > 0:  # by rounding only
            low, high = low - low // 2**10 - 1, low
    return components_of_step(_numbers.largest_whole(excess, low, high), split)


def pure_epsilon(components: Sequence[Component]) -> float:
    """Return the ε of the components at δ = 0: Σ k·ε0 nats, infinite with a Gaussian or a run."""
    return math.fsum(
        component.count * component.epsilon0
        if isinstance(component, RandomizedBlocks | Balls)
        else math.inf
        for component in components
    )


def compute_noise_distance(gaussians: Sequence[Gaussians]) -> float:
    """μ = √(Σ R/σ²), rounded up: how far the means of all releases together are apart, or 0."""
    squares = math.fsum(each.count / each.noise_multiplier**2 for each in gaussians)
    return math.sqrt(squares) * (1 + 4 * ROUNDING)


# --- components ----------------------------------------------------------------------------------


def _whole_records(components: Sequence[Component]) -> WholeRecords | None:
    """Return stages of whole records, which have a price by themselves; None of other events.

    Raises ValueError where anything else stands beside them: it is about other neighbours.
    """
    if not any(isinstance(one, WholeRecords) for one in components):
        return None
    first = components[0]
    terms = {replace(one, count=1) for one in components}
    if not isinstance(first, WholeRecords) or len(terms) > 1:
        raise ValueError("whole records, under zero_out, have no price together with anything else")
    return replace(first, count=sum(one.count for one in components))


def _merge_components(components: Sequence[Component]) -> MergedComponents:
    """Return what is priced: fair coins left out, runs that draw everybody as Gaussian releases."""
    counts: Counter[Component] = Counter()
    for component in components:
        if isinstance(component, Subsampled):
            every = int(component.count) * int(component.steps)
            if component.sampling_probability == 1:
                counts[Gaussians(component.noise_multiplier / 2, 1)] += every
            else:
                counts[replace(component, steps=1, count=1)] += every
        else:
            counts[replace(component, count=1)] += int(component.count)
    # Runs of one step become one run of so many steps.
    merged = [
        replace(one, steps=count) if isinstance(one, Subsampled) else replace(one, count=count)
        for one, count in counts.items()
    ]
    for one in merged:
        if isinstance(one, Converted):
            _check_converted_noise(replace(one, count=1))
    blocks = sorted((each for each in merged if isinstance(each, RandomizedBlocks)), key=repr)
    blocks = [each for each in blocks if each.epsilon0 > 0]
    noise = sorted((each for each in merged if isinstance(each, Gaussians)), key=repr)
    balls = [each for each in merged if isinstance(each, Balls)]
    runs = sorted((each for each in merged if isinstance(each, Subsampled | Converted)), key=repr)
    if balls and (noise or runs or len(balls) > 1):
        raise ValueError(
            "ball noise has a price for one release only, and none beside Gaussian noise or runs "
            "of gradient methods; use Gaussian noise for several releases"
        )
    return MergedComponents(tuple(blocks), balls[0] if balls else tuple(noise) or None, tuple(runs))


def _noise_accountant(noise: Noise) -> tuple[ModuleType, float, int]:
    """Return the accountant of noisy sums alone, their scale, and components or number.

    Unlike Gaussians are one that reveals as much as all of them.
    """
    if isinstance(noise, Balls):
        return ball, noise.scale, noise.components
    if len(noise) == 1:
        return gaussian, noise[0].noise_multiplier, noise[0].count
    return gaussian, 1 / compute_noise_distance(noise), 1


def _noise_epsilon(noise: Noise, delta: float) -> float:
    """Return the ε of noisy sums alone."""
    accountant, scale, number = _noise_accountant(noise)
    return float(accountant.epsilon(scale, delta, number))


def _noise_deltas(noise: Noise | None, epsilons: Floats) -> Floats:
    """δ_N of the module's formula, at every entry."""
    if noise is None:
        return np.asarray(-np.expm1(np.minimum(epsilons, 0)))
    if isinstance(noise, Balls):
        return ball.deltas(epsilons, noise.scale, noise.components)
    return gaussian.deltas(epsilons, compute_noise_distance(noise))


# --- the closed form -----------------------------------------------------------------------------


def _delta(merged: MergedComponents, epsilon: float) -> float:
    """`delta` of merged components, without checks; like ones are priced by their own module."""
    if merged.runs:
        return _delta_of_runs(merged, epsilon)
    blocks, noise = merged.blocks, merged.noise
    if noise and not blocks:
        accountant, scale, number = _noise_accountant(noise)
        return float(accountant.delta(scale, epsilon, number))
    pure = pure_epsilon(blocks)
    if not noise and len(blocks) == 1:
        return rr.delta(blocks[0].epsilon0, blocks[0].count, epsilon)
    if not noise and pure <= epsilon * (1 + 16 * ROUNDING):
        return 0.0
    losses, probabilities, lost = _loss_distribution(blocks)
    # δ_N falls in its argument: moving that down covers the rounding of losses and difference.
    rest = epsilon - losses - 16 * ROUNDING * (epsilon + pure)
    return min(1.0, float(np.sum(probabilities * _noise_deltas(noise, rest))) + lost)


# --- runs, on a grid ------------------------------------------------------------------------------


def _delta_of_runs(merged: MergedComponents, epsilon: float) -> float:
    """`_delta` where there are runs."""
    losses = _losses(merged.blocks, merged.runs)
    if merged.noise is None:
        return losses.delta(epsilon)
    return losses.delta_beside(lambda rest: _noise_deltas(merged.noise, rest), epsilon)


def _epsilon_of_runs(merged: MergedComponents, delta: float) -> float:
    """`epsilon` where there are runs, rounded up by 1e-9; infinite where delta is below margins."""
    losses = _losses(merged.blocks, merged.runs)
    left = (delta - losses.infinite) / 2
    if left < gaussian.SMALLEST_DELTA:
        return math.inf
    high = losses.largest + (_noise_epsilon(merged.noise, left) if merged.noise else 0.0)
    return smallest_epsilon(lambda at: _delta_of_runs(merged, at), high, delta)


@lru_cache(maxsize=8)
def _losses(blocks: tuple[RandomizedBlocks, ...], runs: tuple[Run, ...]) -> Losses:
    """Return the losses of all runs and blocks on one grid."""
    sampled = [
        subsampled.losses(each.noise_multiplier, each.sampling_probability, each.steps)
        for each in runs
        if isinstance(each, Subsampled)
    ]
    converted = [each for each in runs if isinstance(each, Converted)]
    furthest = sum(each.count * each.epsilon for each in converted) + pure_epsilon(blocks)
    interval = max(
        [each.interval for each in sampled]
        or [choose_interval(deviation=1.0, span=2 * furthest, mean=0.0, steps=1)]
    )
    parts = sampled + [
        discretize_approximate(each.epsilon, each.delta, each.count, interval) for each in converted
    ]
    if blocks:
        losses, probabilities, lost = _loss_distribution(blocks)
        parts.append(discretize(losses, probabilities, interval, lost))
    return reduce(convolve, parts)


@lru_cache(maxsize=64)
def _check_converted_noise(converted: Run) -> None:
    """Raise ValueError for a converted run with less noise than its stated cost takes."""
    if isinstance(converted, Converted) and converted.compute_own_delta() > converted.delta:
        raise ValueError(
            f"noise_multiplier must be larger for a run to be ({converted.epsilon}, "
            f"{converted.delta})-private, found {converted.noise_multiplier}"
        )


# --- the loss of coins ---------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _loss_distribution(blocks: tuple[RandomizedBlocks, ...]) -> tuple[Floats, Floats, float]:
    """Losses of all blocks together, bounds of their probabilities, and what underflowed."""
    groups = [_coin_loss_distribution(each) for each in blocks]
    if math.prod(losses.size for losses, _ in groups) > _MOST_LOSSES:
        raise ValueError("components hold too many unlike blocks to be priced together")
    losses, probabilities = np.zeros(1), np.ones(1)
    for more_losses, more_probabilities in groups:
        losses = np.add.outer(losses, more_losses).ravel()
        probabilities = np.multiply.outer(probabilities, more_probabilities).ravel()
    margin = 16 * ROUNDING * (sum(each.count for each in blocks) + 16)
    return losses, probabilities * (1 + margin), losses.size * sys.float_info.min


def _coin_loss_distribution(coins: RandomizedBlocks) -> tuple[Floats, Floats]:
    """s·ε0 and P[S = s], s = −k, −k + 2, … k: the numbers of ways by the ratio of neighbours, from
    all kept to half of them, and the rest by P[S = −s] = e^(−s·ε0) · P[S = s].
    """
    k, ratio = coins.count, coins.threshold / (COIN_RANGE - coins.threshold)
    weights, here = np.empty(k // 2 + 1), 1.0
    for j in range(k // 2 + 1):
        weights[j] = here
        here *= ratio * (k - j) / (j + 1)
        if here > 2.0**512:
            weights[: j + 1] *= 2.0**-512
            here *= 2.0**-512
    sums = np.arange(-k, k + 1, 2, dtype=np.float64)
    below = weights[: (k + 1) // 2] * np.exp(coins.epsilon0 * sums[: (k + 1) // 2])
    both = np.concatenate([below, weights[::-1]])
    return sums * coins.epsilon0, both / float(np.sum(both))
