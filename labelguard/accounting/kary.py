"""K-ary randomized response on a choice among K options: the exact cost of k answers.

A choice is kept with probability p = e^ε0/(e^ε0+K−1) and otherwise becomes each of the other
options with probability r = 1/(e^ε0+K−1). Changing it shifts the log probability of an answer by
ε0 (the answer is the true choice), −ε0 (it is the other candidate) or 0 (any of the rest), so that
k choices of one labeler, every one of them changed, are exactly (ε, δ)-private with

    δ(ε) = Σ_{a+b+c=k} k!/(a! b! c!) p^a r^b ((K−2) r)^c · max(0, 1 − e^(ε − (a−b) ε0))
         = Σ_s P[S_k = s] · max(0, 1 − e^(ε − s ε0)),

where S_k is a sum of k steps: +1 with probability p, −1 with r, and 0 with (K−2) r. K = 2 is
`randomized_response`.

δ falls in K: the pair of distributions of a choice among K is binary randomized response with
probability (e^ε0+1)/(e^ε0+K−1), and nothing otherwise; erasing it more often makes the pair of any
larger K of it. So the price of the FEWEST options that may occur holds for more of them too, each
choice among its own number at a threshold of `among`, in any mixture.

As in `randomized_response`: ONE labeler under `replace_labels` adjacency, nats, valid for an
adaptive choice of what is asked next, and a computed δ carries a margin for rounding (relative,
for K = 3 3e-14 at k = 1 and 4e-10 at k = 100,000; twice that for K = 256).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial

from labelguard.accounting import _validate
from labelguard.accounting._search import ROUNDING
from labelguard.accounting.randomized_response import (
    COIN_RANGE,
    ceil_of_share,
    largest_epsilon0,
    smallest_epsilon,
    smallest_lossy_sum,
)

__all__ = ["MOST_OPTIONS", "KAry"]

# The most options that a choice may have.
MOST_OPTIONS = 256

_RESCALE_BITS = 512


@dataclass(frozen=True)
class KAry:
    """The accountant of choices among so many `options`, 2 to 256.

    Raises ValueError for another number of options.
    """

    options: int

    def __post_init__(self) -> None:
        _validate.at_least_one(options=self.options)
        _validate.within(2, MOST_OPTIONS, options=self.options)

    def delta(self, epsilon0: float, k: int, epsilon: float) -> float:
        """Return the δ at which k choices, each answered at `epsilon0`, are (epsilon, δ)-private.

        Never below the true value, beyond one exception: where k·epsilon0 and epsilon agree to 15
        digits, δ is 0, the value of pure privacy. Costs O(k) operations: about 1 ms for
        k = 4096, 25 ms for k = 100,000.

        Raises ValueError unless epsilon0 and epsilon are finite and >= 0 and k >= 1.
        """
        _validate.nonnegative(epsilon0=epsilon0, epsilon=epsilon)
        _validate.at_least_one(k=k)
        return _delta(self.options, epsilon0, int(k), epsilon)

    def epsilon(self, epsilon0: float, k: int, delta: float) -> float:
        """Return the smallest ε, in nats, at which k choices at `epsilon0` are (ε, delta)-private.

        At most the basic k·epsilon0, and equal to it for delta = 0. By bisection; the upper end is
        returned, so that the computed δ at the result is at most `delta`. O(k) per step.

        Raises ValueError unless epsilon0 is finite and >= 0, k >= 1 and 0 <= delta < 1.
        """
        _validate.nonnegative(epsilon0=epsilon0)
        _validate.at_least_one(k=k)
        _validate.delta_below_one(delta)
        return smallest_epsilon(partial(_delta, self.options), epsilon0, int(k), delta)

    def calibrate(self, epsilon: float, delta: float, k: int) -> float:
        """Return the largest ε0 of a choice, in nats, at which k of them stay (epsilon,
        delta)-private.

        The largest number of 41 significant bits whose computed δ is at most `delta`, and never
        below epsilon/k, which is the result for delta = 0. About ten evaluations of `delta`;
        results are cached.

        Raises ValueError unless epsilon is finite and > 0, 0 <= delta < 1 and k >= 1.
        """
        _validate.positive(epsilon=epsilon)
        _validate.delta_below_one(delta)
        _validate.at_least_one(k=k)
        return _calibrate(self.options, float(epsilon), float(delta), int(k))

    def threshold(self, epsilon0: float) -> int:
        """T = (K−1)·⌈2^64/(e^epsilon0+K−1)⌉: a choice changes if and only if its coin u < T.

        T is a multiple of K−1, so that u mod (K−1) then takes each of the other options with equal
        probability. That probability is rounded up, by exact arithmetic, and stays below 1/K, so
        that every ratio of answer probabilities is at most e^epsilon0.

        Raises ValueError unless epsilon0 is finite and at least `epsilon0_of` of the largest T (for
        K = 3 1.6e-19): where 2^64 is no multiple of K, a 64-bit coin cannot make all answers
        equally likely.
        """
        _validate.nonnegative(epsilon0=epsilon0)
        return self._to_threshold(ceil_of_share(epsilon0, further=self.options - 1), epsilon0)

    def epsilon0_of(self, threshold: int) -> float:
        """ln((2^64−T)(K−1)/T), the ε0 in nats that coins with this threshold realise.

        `epsilon0_of(threshold(e)) <= e` holds in real numbers; in floats, up to 2 units in the last
        place of e.

        Raises ValueError unless the threshold is a multiple of K−1 and K−1 <= threshold <=
        (K−1)·⌊2^64/K⌋.
        """
        _validate.at_least_one(threshold=threshold)
        others = self.options - 1
        _validate.within(others, others * (COIN_RANGE // self.options), threshold=threshold)
        per_option, rest = divmod(int(threshold), others)
        if rest:
            raise ValueError(f"threshold must be a multiple of {others}, found {threshold}")
        return math.log1p((COIN_RANGE - self.options * per_option) / per_option)

    def among(self, options: int, threshold: int) -> int:
        """Return the threshold for a choice among more `options`, where one among K has this
        `threshold`.

        The smallest whose ε0 is at most `epsilon0_of(threshold)`, exactly: of n = T/(K−1) that
        option takes ⌈2^64·n/(2^64 + (K'−K)·n)⌉. The price of the latter holds for it.

        Raises ValueError for fewer options than K, or where a 64-bit coin is too coarse.
        """
        _validate.within(self.options, MOST_OPTIONS, options=options)
        epsilon0 = self.epsilon0_of(threshold)
        per_option = threshold // (self.options - 1)
        further = COIN_RANGE + (int(options) - self.options) * per_option
        return KAry(int(options))._to_threshold(-(-COIN_RANGE * per_option // further), epsilon0)

    def _to_threshold(self, per_option: int, epsilon0: float) -> int:
        """Return (K−1) times so much, if a coin can be that fair."""
        if per_option > (most := COIN_RANGE // self.options):
            finest = self.epsilon0_of((self.options - 1) * most)
            raise ValueError(
                f"epsilon0 must be at least {finest:.3g} for a 64-bit coin, found {epsilon0!r}"
            )
        return (self.options - 1) * per_option


def _delta(options: int, epsilon0: float, k: int, epsilon: float) -> float:
    """`KAry.delta` without checks.

    With m = k − s, the probabilities of the sum obey (from P(x)·F' = k·P'·F for F = P^k)

        f(m+1) = (r/p) · ((K−2)(k−m) f(m) + (2k−m+1) f(m−1)) / (m+1),    f(0) = p^k, f(−1) = 0.

    Only s > 0, that is m < k, can add to δ, where no coefficient is negative: nothing cancels, and
    each step adds a rounding error of a few units only.
    """
    fewest = smallest_lossy_sum(epsilon0, k, epsilon)
    if fewest > k:
        return 0.0
    ratio, still = math.exp(-epsilon0), options - 2
    log_scale = -k * math.log1p((options - 1) * ratio)
    before, here, total = 0.0, 1.0, 0.0
    ceiling, rescale = 2.0**_RESCALE_BITS, 2.0**-_RESCALE_BITS
    for m in range(k - fewest + 1):
        total += here * -math.expm1(epsilon - (k - m) * epsilon0)
        following = ratio * (still * (k - m) * here + (2 * k - m + 1) * before) / (m + 1)
        before, here = here, following
        if here > ceiling:
            before, here, total = before * rescale, here * rescale, total * rescale
            log_scale += _RESCALE_BITS * math.log(2)
    # `log_scale` errs by its size, which grows with ln K.
    margin = (12 + 2 * options.bit_length()) * ROUNDING * (k + 8)
    return min(1.0, total * math.exp(log_scale) * (1 + margin))


@lru_cache(maxsize=2**14)
def _calibrate(options: int, epsilon: float, delta: float, k: int) -> float:
    """`KAry.calibrate` without checks."""
    single = epsilon + math.log1p((options - 1) * delta * math.exp(-epsilon)) - math.log1p(-delta)
    return largest_epsilon0(partial(_delta, options), epsilon, delta, k, single)
