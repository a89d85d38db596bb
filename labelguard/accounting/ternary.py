"""Ternary randomized response on a label that may be a tie: the exact cost of k answers.

One label in {0, ½, 1} is kept with probability p = e^ε0/(e^ε0+2) and otherwise becomes one of
the two other values, each with probability r = 1/(e^ε0+2). Changing the label shifts the log
probability of an answer by ε0 (the answer is the true label), −ε0 (it is the other candidate) or
0, so that k labels of one labeler, every one of them changed, are exactly (ε, δ)-private with

    δ(ε) = Σ_{a+b+c=k} k!/(a! b! c!) p^a r^(b+c) · max(0, 1 − e^(ε − (a−b) ε0))
         = Σ_s P[S_k = s] · max(0, 1 − e^(ε − s ε0)),

where S_k is a sum of k steps: +1 with probability p, 0 and −1 with probability r each.

As in `randomized_response`: ONE labeler under `replace_labels` adjacency, nats, valid for an
adaptive choice of the next label, and a computed δ carries a margin for rounding (relative,
3e-14 at k = 1 and 4e-10 at k = 100,000).
"""

from __future__ import annotations

import math
from functools import lru_cache

from labelguard.accounting import _validate
from labelguard.accounting._search import ROUNDING
from labelguard.accounting.randomized_response import (
    COIN_RANGE,
    ceil_of_share,
    largest_epsilon0,
    smallest_epsilon,
    smallest_lossy_sum,
)

__all__ = [
    "calibrate",
    "delta",
    "epsilon",
    "epsilon0_of",
    "threshold",
]

_MOST_PER_VALUE = COIN_RANGE // 3
_RESCALE_BITS = 512


def delta(epsilon0: float, k: int, epsilon: float) -> float:
    """The δ at which k ternary labels, each answered at `epsilon0`, are (epsilon, δ)-private.

    Never below the true value, beyond one exception: where k·epsilon0 and epsilon agree to 15
    digits, δ is 0, the value of pure privacy. Costs O(k) operations: about 1 ms for
    k = 4096, 25 ms for k = 100,000.

    Raises ValueError unless epsilon0 and epsilon are finite and >= 0 and k >= 1.
    """
    _validate.nonnegative(epsilon0=epsilon0, epsilon=epsilon)
    _validate.at_least_one(k=k)
    return _delta(epsilon0, int(k), epsilon)


def epsilon(epsilon0: float, k: int, delta: float) -> float:
    """The smallest ε, in nats, at which k ternary labels at `epsilon0` are (ε, delta)-private.

    At most the basic k·epsilon0, and equal to it for delta = 0. By bisection; the upper end is
    returned, so that the computed δ at the result is at most `delta`. O(k) per step.

    Raises ValueError unless epsilon0 is finite and >= 0, k >= 1 and 0 <= delta < 1.
    """
    _validate.nonnegative(epsilon0=epsilon0)
    _validate.at_least_one(k=k)
    _validate.delta_below_one(delta)
    return smallest_epsilon(_delta, epsilon0, int(k), delta)


def calibrate(epsilon: float, delta: float, k: int) -> float:
    """The largest per-label ε0, in nats, at which k ternary labels stay (epsilon, delta)-private.

    The largest number of 41 significant bits whose computed δ is at most `delta`, and never
    below epsilon/k, which is the result for delta = 0. About ten evaluations of `delta`;
    results are cached.

    Raises ValueError unless epsilon is finite and > 0, 0 <= delta < 1 and k >= 1.
    """
    _validate.positive(epsilon=epsilon)
    _validate.delta_below_one(delta)
    _validate.at_least_one(k=k)
    return _calibrate(float(epsilon), float(delta), int(k))


def threshold(epsilon0: float) -> int:
    """T = 2·⌈2^64/(e^epsilon0+2)⌉, even: a label changes if and only if its coin u is below T.

    The parity of u then chooses between the two other values, with equal probability. The
    probability of a change is rounded up, by exact arithmetic, and stays below ⅔, so that every
    ratio of answer probabilities is at most e^epsilon0.

    Raises ValueError unless epsilon0 is finite and at least `epsilon0_of` of the largest T,
    1.6e-19: 2^64 is no multiple of three, so that a 64-bit coin cannot make the three answers
    equally likely.
    """
    _validate.nonnegative(epsilon0=epsilon0)
    per_value = ceil_of_share(epsilon0, further=2)
    if per_value > _MOST_PER_VALUE:
        finest = epsilon0_of(2 * _MOST_PER_VALUE)
        raise ValueError(
            f"epsilon0 must be at least {finest:.3g} for a 64-bit coin, found {epsilon0!r}"
        )
    return 2 * per_value


def epsilon0_of(threshold: int) -> float:
    """ln((2^64−T)/(T/2)), the ε0 in nats that coins with this threshold realise.

    `epsilon0_of(threshold(e)) <= e` holds in real numbers; in floats, up to 2 units in the last
    place of e.

    Raises ValueError unless the threshold is even and 2 <= threshold <= 2·⌊2^64/3⌋.
    """
    _validate.at_least_one(threshold=threshold)
    _validate.within(2, 2 * _MOST_PER_VALUE, threshold=threshold)
    per_value, odd = divmod(int(threshold), 2)
    if odd:
        raise ValueError(f"threshold must be even, found {threshold}")
    return math.log1p((COIN_RANGE - 3 * per_value) / per_value)


def _delta(epsilon0: float, k: int, epsilon: float) -> float:
    """`delta` without checks.

    With m = k − s, the probabilities of the sum obey (from P(x)·F' = k·P'·F for F = P^k)

        f(m+1) = (r/p) · ((k−m) f(m) + (2k−m+1) f(m−1)) / (m+1),     f(0) = p^k, f(−1) = 0.

    Only s > 0, that is m < k, can add to δ, where every coefficient is positive: nothing
    cancels, and each step adds a rounding error of a few units only.
    """
    fewest = smallest_lossy_sum(epsilon0, k, epsilon)
    if fewest > k:
        return 0.0
    ratio = math.exp(-epsilon0)
    log_scale = -k * math.log1p(2 * ratio)
    before, here, total = 0.0, 1.0, 0.0
    ceiling, rescale = 2.0**_RESCALE_BITS, 2.0**-_RESCALE_BITS
    for m in range(k - fewest + 1):
        total += here * -math.expm1(epsilon - (k - m) * epsilon0)
        before, here = here, ratio * ((k - m) * here + (2 * k - m + 1) * before) / (m + 1)
        if here > ceiling:
            before, here, total = before * rescale, here * rescale, total * rescale
            log_scale += _RESCALE_BITS * math.log(2)
    margin = 16 * ROUNDING * (k + 8)
    return min(1.0, total * math.exp(log_scale) * (1 + margin))


@lru_cache(maxsize=2**14)
def _calibrate(epsilon: float, delta: float, k: int) -> float:
    """`calibrate` without checks."""
    single = epsilon + math.log1p(2 * delta * math.exp(-epsilon)) - math.log1p(-delta)
    return largest_epsilon0(_delta, epsilon, delta, k, single)
