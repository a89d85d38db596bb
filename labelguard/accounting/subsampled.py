"""The Poisson-subsampled Gaussian mechanism: what a run of user-wise DP-SGD costs, and its inverse.

In each of `steps` steps every labeler is drawn with probability q, by coins that stay secret, and
noise of standard deviation σ·C is added to the sum of the drawn labelers' vectors, each of norm C
at most (user-level-dp-finetuning, algorithm 2; aup-rlhf, algorithm 4). σ, the noise multiplier, is
relative to C. Under `replace_labels` one labeler's vector moves by up to 2C, and where it is drawn
at all is the same for both neighbours, so that a step is dominated by the pair

    (1−q)·N(0, σ²) + q·N(1, σ²)    and    (1−q)·N(0, σ²) + q·N(−1, σ²),

which is what dp-accounting calls REPLACE_ONE. (Its default, ADD_OR_REMOVE_ONE, is another adjacency
and understates ε: 4.45 for 6.95 at σ = 1, q = .02, 1000 steps and δ = 1e-6.) The loss of the pair
is put on a grid by `dp_accounting.pld` and composed there, pessimistically. With q = 1 it is
`gaussian` at noise multiplier σ/2, in closed form.

Never below the true value: what dp-accounting promises is that discretization and truncation err
upward. It makes no promise for floating point: a margin is added (`losses.compose_steps`), some
2e-10 for 250 steps and 1e-9 for 1000, so that smaller δ cannot be promised.

Every function concerns ONE labeler; ε is in nats.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, Literal

from labelguard.accounting import _numbers, gaussian
from labelguard.accounting.losses import Losses, choose_interval, compose_steps

# Factor by which the intervals of the first steps of a search are longer.
COARSER = 8


def delta(
    noise_multiplier: float, sampling_probability: float, steps: int, epsilon: float
) -> float:
    """Return the δ at which a run is (epsilon, δ)-private, in (0, 1]; never below the true value.

    Raises ValueError unless noise_multiplier is finite and > 0, sampling_probability in (0, 1],
    steps an integer >= 1 and epsilon finite and >= 0.
    """
    _numbers.nonnegative(epsilon=epsilon)
    check(noise_multiplier, sampling_probability, steps)
    if sampling_probability == 1:
        return gaussian.delta(noise_multiplier / 2, epsilon, steps)
    return losses(noise_multiplier, sampling_probability, steps).delta(epsilon)


def epsilon(
    noise_multiplier: float, sampling_probability: float, steps: int, delta: float
) -> float:
    """Return the smallest ε, in nats, at which a run is (ε, delta)-private, to 1e-9, relative.

    The computed δ at the result is at most `delta`. Infinite where delta is below the margin.

    Raises ValueError unless 0 <= delta < 1, and as `delta`.
    """
    _numbers.delta_below_one(delta)
    check(noise_multiplier, sampling_probability, steps)
    if sampling_probability == 1:
        return gaussian.epsilon(noise_multiplier / 2, delta, steps)
    return losses(noise_multiplier, sampling_probability, steps).epsilon(delta)


@lru_cache(maxsize=2**10, typed=True)
def calibrate(epsilon: float, delta: float, sampling_probability: float, steps: int) -> float:
    """Return the noise multiplier, in clip norms, at which a run is (epsilon, delta)-private.

    A multiple of 2^-20, rounded up, and `delta(calibrate(ε, δ, q, T), q, T, ε) <= δ` holds for the
    computed numbers; the smallest such one within 1e-5, relative. Kept for the process.

    Raises ValueError unless epsilon is finite and > 0, `gaussian.SMALLEST_DELTA` <= delta < 1,
    sampling_probability in (0, 1] and steps an integer >= 1, where the margin for rounding leaves
    nothing of delta, and where `check_needs_noise` does.
    """
    _numbers.positive(epsilon=epsilon)
    gaussian.check_attainable(delta)
    check(1.0, sampling_probability, steps)
    # Of numpy's they may have less precision.
    epsilon, delta, sampling_probability = map(float, (epsilon, delta, sampling_probability))
    steps = int(steps)
    check_needs_noise(sampling_probability, steps, delta)
    alone = gaussian.calibrate(epsilon, delta, steps)
    if sampling_probability == 1:
        return math.ceil(2 * alone * _numbers.PER_ONE) / _numbers.PER_ONE

    def price(noise_multiplier: float, coarse: bool) -> float:
        return losses(noise_multiplier, sampling_probability, steps, coarse=coarse).delta(epsilon)

    # With many steps a step's q takes off as much noise as a factor q.
    return _numbers.find_noise_multiplier(price, delta, 2 * sampling_probability * alone)


@lru_cache(maxsize=32)
def losses(
    noise_multiplier: float, sampling_probability: float, steps: int, *, coarse: bool = False
) -> Losses:
    """Return the loss of a run on a grid; sampling_probability below 1."""
    run = noise_multiplier, sampling_probability, steps
    step = discretize_step(*run, relation="REPLACE_ONE", coarse=coarse)
    return compose_steps(step._pmf_remove, steps)


def discretize_step(
    noise: float,
    sampling_probability: float,
    steps: int,
    relation: Literal["REPLACE_ONE", "ADD_OR_REMOVE_ONE"],
    *,
    coarse: bool,
) -> Any:
    """Return the loss of a step, of dp-accounting, on a grid that suits so many of them.

    `relation` is that of the neighbours. The loss has a deviation of some m·q/σ and a mean of at
    most m·q/σ² (joint convexity of the Kullback-Leibler divergence), m = 2 for replacement, else 1,
    and lies within 2·(10/σ + 1/σ²) but for a mass of 1e-22.
    """
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism
    from dp_accounting.privacy_accountant import NeighboringRelation

    moved = (2 if relation == "REPLACE_ONE" else 1) * sampling_probability / noise
    span = 2 / noise * (10 + 1 / noise)
    interval = choose_interval(deviation=moved, span=span, mean=moved / noise, steps=steps)
    return from_gaussian_mechanism(
        noise,
        value_discretization_interval=interval * (COARSER if coarse else 1),
        sampling_prob=sampling_probability,
        neighboring_relation=NeighboringRelation[relation],
        pessimistic_estimate=True,
    )


def check_needs_noise(sampling_probability: float, steps: int, delta: float) -> None:
    """Raise ValueError where somebody is drawn at all with probability delta at most.

    There no noise is too little: whoever is drawn may be given away.
    """
    q = sampling_probability
    if q < 1 and -math.expm1(steps * math.log1p(-q)) <= delta:
        raise ValueError(
            f"one person is drawn at all with probability delta = {delta!r} at most, which would "
            "take no noise; expected a smaller delta, or more steps"
        )


def check(noise_multiplier: float, sampling_probability: float, steps: int) -> None:
    """Raise ValueError for numbers that a run cannot have."""
    _numbers.positive(noise_multiplier=noise_multiplier, sampling_probability=sampling_probability)
    _numbers.within(0, 1, sampling_probability=sampling_probability)
    _numbers.within(0, 2**23, noise_multiplier=noise_multiplier)
    _numbers.at_least_one(steps=steps)
