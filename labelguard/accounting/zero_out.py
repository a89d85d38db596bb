"""Runs of DP-SGD on whole records, of which a person's may all be null: `zero_out` adjacency.

Neighbours differ in the records of one person, which are there or are null; a null record adds a
gradient of zero. Who takes part, and how many there are, is public, and so is what sums are divided
by. In each of `steps` steps everybody is drawn with probability q, by coins that stay secret; the
step takes `updates` noised sums of the same cohort, one after the other, each with noise of
deviation σ·C, where one person's vector has norm C at most.

Given who else was drawn, the updates of a step compose to a Gaussian mechanism at σ/√updates if the
person was drawn, and to the other world's own distribution P if not. So a step is dominated by

    P = N(0, s²)    and    (1−q)·N(0, s²) + q·N(1, s²),    s = σ/√updates,

in both orders (ADD_OR_REMOVE_ONE of dp-accounting), and a run by `steps` of them: composed first,
sampled then. Sampling first and composing then would price `updates` looks at one cohort as looks
at independent ones, which is too little (dp-alignment-rl, section 4, sets T_PPO = 1 for that). The
proof is in docs/mechanisms.md. With q = 1 it is `gaussian`, in closed form.

Never below the true value, as `subsampled`. Every function concerns ONE person; ε is in nats.
"""

from __future__ import annotations

import math
from functools import lru_cache

from labelguard.accounting import _numbers, gaussian, subsampled
from labelguard.accounting._numbers import ROUNDING
from labelguard.accounting.losses import Losses, compose_steps


def delta(
    noise_multiplier: float, sampling_probability: float, steps: int, updates: int, epsilon: float
) -> float:
    """Return the δ at which a run is (epsilon, δ)-private, in (0, 1]; never below the true value.

    Raises ValueError unless noise_multiplier is finite and > 0, sampling_probability in (0, 1],
    steps and updates integers >= 1 and epsilon finite and >= 0.
    """
    _numbers.nonnegative(epsilon=epsilon)
    check(noise_multiplier, sampling_probability, steps, updates)
    noise = _noise_of_a_step(noise_multiplier, updates)
    if sampling_probability == 1:
        return gaussian.delta(noise, epsilon, steps)
    return max(each.delta(epsilon) for each in _losses(noise, sampling_probability, steps))


def epsilon(
    noise_multiplier: float, sampling_probability: float, steps: int, updates: int, delta: float
) -> float:
    """Return the smallest ε, in nats, at which a run is (ε, delta)-private, to 1e-9, relative.

    Infinite where delta is below the margin. Raises ValueError unless 0 <= delta < 1, and as
    `delta`.
    """
    _numbers.delta_below_one(delta)
    check(noise_multiplier, sampling_probability, steps, updates)
    noise = _noise_of_a_step(noise_multiplier, updates)
    if sampling_probability == 1:
        return gaussian.epsilon(noise, delta, steps)
    return max(each.epsilon(delta) for each in _losses(noise, sampling_probability, steps))


@lru_cache(maxsize=2**10, typed=True)
def calibrate(
    epsilon: float, delta: float, sampling_probability: float, steps: int, updates: int
) -> float:
    """Return the noise multiplier of each update, in clip norms, at which a run is (epsilon,
    delta)-private.

    A multiple of 2^-20, rounded up, at which the computed `delta` is at most delta; the smallest
    such one within 1e-5, relative. Raises ValueError as `subsampled.calibrate`, and unless updates
    is an integer >= 1.
    """
    _numbers.positive(epsilon=epsilon)
    gaussian.check_attainable(delta)
    check(1.0, sampling_probability, steps, updates)
    epsilon, delta, q = map(float, (epsilon, delta, sampling_probability))
    subsampled.check_needs_noise(q, steps, delta)
    alone = gaussian.calibrate(epsilon, delta, steps) * math.sqrt(updates) * (1 + 4 * ROUNDING)
    if q == 1:
        return math.ceil(alone * _numbers.PER_ONE) / _numbers.PER_ONE

    def price(noise_multiplier: float, coarse: bool) -> float:
        noise = _noise_of_a_step(noise_multiplier, updates)
        return max(each.delta(epsilon) for each in _losses(noise, q, steps, coarse=coarse))

    return _numbers.find_noise_multiplier(price, delta, q * alone)


def check(noise_multiplier: float, sampling_probability: float, steps: int, updates: int) -> None:
    """Raise ValueError for numbers that a run cannot have."""
    subsampled.check(noise_multiplier, sampling_probability, steps)
    _numbers.at_least_one(updates=updates)


def _noise_of_a_step(noise_multiplier: float, updates: int) -> float:
    """Return σ/√updates, rounded down."""
    return noise_multiplier / math.sqrt(updates) * (1 - 4 * ROUNDING * (updates > 1))


@lru_cache(maxsize=32)
def _losses(noise: float, q: float, steps: int, *, coarse: bool = False) -> tuple[Losses, Losses]:
    """Return the losses of a run on a grid, in both orders of its pair; q below 1."""
    step = subsampled.discretize_step(
        *(noise, q, steps), relation="ADD_OR_REMOVE_ONE", coarse=coarse
    )
    return compose_steps(step._pmf_remove, steps), compose_steps(step._pmf_add, steps)
