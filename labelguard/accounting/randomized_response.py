"""Randomized response on a binary label: the exact cost of k answers, and its inverse.

One label is flipped with probability γ = 1/(1+e^ε0). A labeler with k labels, each flipped by a
coin of its own, is protected by the k-fold composition, whose δ has the closed form

    δ(ε) = Σ_{j=0..k} C(k,j) γ^j (1−γ)^(k−j) · max(0, 1 − e^(ε − (k−2j) ε0))     (j = flips).

It is exact, because randomized response is its own dominating pair of distributions, and it
stays valid when the choice of the next label depends on earlier answers (Kairouz, Oh and
Viswanath, "The Composition Theorem for Differential Privacy", 2015).

Every function here concerns ONE labeler under `replace_labels` adjacency: neighbouring data sets
differ in any number of that labeler's labels. ε and ε0 are natural-log units (nats).

Numerical errors are put on the safe side: a computed δ carries a margin that covers the rounding
of logarithms of factorials (relative, 2e-14 at k = 1 and 2e-8 at k = 1,000,000).
"""

from __future__ import annotations

import decimal
import math
import struct
import sys
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import _numbers
from labelguard.accounting._numbers import ROUNDING

# A coin is a whole number drawn uniformly from 0 <= u < COIN_RANGE.
COIN_RANGE = 2**64

Floats: TypeAlias = NDArray[np.float64]

_NEGLIGIBLE = 2.0**-56
_BLOCK = 256
_LARGEST_EXPONENT = 700.0


def delta(epsilon0: float, k: int, epsilon: float) -> float:
    """Return the δ at which k labels, each flipped at `epsilon0`, are (epsilon, δ)-private.

    Never below the true value, beyond one exception: where k·epsilon0 and epsilon agree to 15
    digits, δ is 0, the value of pure privacy, although k·(epsilon/k) may round to just above
    epsilon. Costs O(√k) operations.

    Raises ValueError unless epsilon0 and epsilon are finite and >= 0 and k >= 1.
    """
    _numbers.nonnegative(epsilon0=epsilon0, epsilon=epsilon)
    _numbers.at_least_one(k=k)
    return _delta(epsilon0, int(k), epsilon)


def epsilon(epsilon0: float, k: int, delta: float) -> float:
    """Return the smallest ε, in nats, at which k labels flipped at `epsilon0` are (ε,
    delta)-private.

    At most the basic k·epsilon0, and equal to it for delta = 0. By bisection; the upper end is
    returned, so that the computed δ at the result is at most `delta`.

    Raises ValueError unless epsilon0 is finite and >= 0, k >= 1 and 0 <= delta < 1.
    """
    _numbers.nonnegative(epsilon0=epsilon0)
    _numbers.at_least_one(k=k)
    _numbers.delta_below_one(delta)
    whole = int(k)
    return _numbers.smallest_epsilon(lambda e: _delta(epsilon0, whole, e), whole * epsilon0, delta)


@lru_cache(maxsize=2**14, typed=True)
def calibrate(epsilon: float, delta: float, k: int) -> float:
    """Return the largest per-label ε0, in nats, at which k labels stay (epsilon, delta)-private.

    The largest number of 41 significant bits whose computed δ is at most `delta`: at most 1e-12
    (relative) below the true maximum, plus the safety margin of `delta`. Never below epsilon/k
    rounded down (see `epsilon_per_label`), which it is for delta = 0.

    Raises ValueError unless epsilon is finite and > 0, 0 <= delta < 1 and k >= 1.
    """
    _numbers.positive(epsilon=epsilon)
    _numbers.delta_below_one(delta)
    _numbers.at_least_one(k=k)
    epsilon, delta = float(epsilon), float(delta)  # of numpy's they may have less precision
    whole, basic = int(k), epsilon_per_label(epsilon, int(k))
    if delta == 0:
        return basic

    def excess(index: int) -> float:
        value = _delta(_grid_value(index), whole, epsilon)
        return math.log(max(value, sys.float_info.min) / delta)

    # One label may have so much; several cannot have more. The grid makes the result a property of
    # the numbers, not of the path of the search: rounding in δ is far smaller than one step.
    single = epsilon + math.log1p(delta * math.exp(-epsilon)) - math.log1p(-delta)
    most = _grid_index(single) + 2
    return max(basic, _grid_value(_numbers.largest_whole(excess, _grid_index(basic), most)))


def epsilon_per_label(epsilon: float, k: int) -> float:
    """epsilon/k, rounded down: the largest float whose k-fold is, exactly, at most epsilon.

    Rounded to nearest, 5·(1/5) exceeds 1 by 6e-17, and pure privacy knows no tolerance.
    """
    nearest = epsilon / k
    return math.nextafter(nearest, 0.0) if k * Fraction(nearest) > Fraction(epsilon) else nearest


def flip_probability(epsilon0: float) -> float:
    """γ = 1/(1+e^epsilon0), in [0, ½]; 0 only where the float underflows.

    Raises ValueError unless epsilon0 is finite and >= 0.
    """
    _numbers.nonnegative(epsilon0=epsilon0)
    odds = math.exp(-epsilon0)
    return odds / (1 + odds)


def threshold(epsilon0: float) -> int:
    """T = ⌈γ·2^64⌉, 1 <= T <= 2^63: a label is flipped if and only if its coin is below T.

    Exactly the ceiling, by decimal arithmetic of as many digits as it takes: the label is
    flipped with probability at least γ, so the realised ε0 is at most `epsilon0`.

    Raises ValueError unless epsilon0 is finite and >= 0.
    """
    _numbers.nonnegative(epsilon0=epsilon0)
    return _exact_threshold(epsilon0)


def epsilon0_of(threshold: int) -> float:
    """ln((2^64−T)/T), the ε0 in nats that coins with this threshold realise.

    `epsilon0_of(threshold(e)) <= e` holds in real numbers; in floats, up to 2 units in the last
    place of e.

    Raises ValueError unless 1 <= threshold <= 2^63.
    """
    _numbers.at_least_one(threshold=threshold)
    _numbers.within(1, COIN_RANGE // 2, threshold=threshold)
    flipped = int(threshold)
    # Whole numbers first: their quotient is correctly rounded, also where T is close to 2^63.
    return math.log1p((COIN_RANGE - 2 * flipped) / flipped)


# --- the closed form -----------------------------------------------------------------------------


def _delta(epsilon0: float, k: int, epsilon: float) -> float:
    """`delta` without checks: terms outward from the largest one, all of them positive."""
    most_flips = (k - smallest_lossy_sum(epsilon0, k, epsilon)) // 2
    if most_flips < 0:
        return 0.0
    if epsilon0 > epsilon + _LARGEST_EXPONENT:
        return 1.0
    odds = math.exp(min(epsilon0, _LARGEST_EXPONENT))
    # Start at the largest binomial probability, so that nothing on the way can overflow.
    start = min(most_flips, int((k + 1) / (1 + odds)))
    down = range(start - 1, -1, -1)
    up = range(start + 1, most_flips + 1)

    def positive_part(flips: Floats) -> Floats:
        return -np.expm1(epsilon - (k - 2 * flips) * epsilon0)

    total = -math.expm1(epsilon - (k - 2 * start) * epsilon0)
    total = _add_outward(total, down, lambda j: (j + 1) / (k - j) * odds, positive_part)
    total = _add_outward(total, up, lambda j: (k - j + 1) / j / odds, positive_part)

    log_factorial = math.lgamma(k + 1)
    log_start = (
        log_factorial
        - math.lgamma(start + 1)
        - math.lgamma(k - start + 1)
        - start * epsilon0
        - k * math.log1p(math.exp(-epsilon0))
    )
    # math.lgamma errs by at most 1.2 ROUNDING relative to its value + 1 (measured up to 1e6);
    # every other logarithm above is at most k, and so is the number of products.
    margin = 6 * ROUNDING * (log_factorial + k + 16)
    return min(1.0, total * math.exp(log_start) * (1 + margin))


def _add_outward(
    total: float, flips: range, ratio: Callable[[Floats], Floats], part: Callable[[Floats], Floats]
) -> float:
    """`total` plus part(j) times the product of all ratios up to j, for j in `flips`.

    The ratios are at most 1 and shrink along `flips`, the parts are at most 1. Once the rest is
    negligible, the geometric series that bounds it is added in its place.
    """
    product = 1.0
    for first in range(0, len(flips), _BLOCK):
        block = flips[first : first + _BLOCK]
        j = np.arange(block.start, block.stop, block.step, dtype=np.float64)
        ratios = ratio(j)
        products = product * np.cumprod(ratios)
        total += float(np.sum(products * part(j)))
        product, last = float(products[-1]), float(ratios[-1])
        if product < _NEGLIGIBLE * (1 - last) * total:
            return total + product / (1 - last)
    return total


def smallest_lossy_sum(epsilon0: float, k: int, epsilon: float) -> int:
    """Return the smallest whole s with s·epsilon0 > epsilon, or k+1 if there is none up to k.

    s counts unflipped labels less flipped ones: outcomes with a smaller s add nothing to δ.
    """
    # Without the slack, k·(epsilon/k) could exceed epsilon by its rounding error.
    limit = epsilon * (1 + 4 * ROUNDING)
    if k * epsilon0 <= limit:
        return k + 1
    candidate = max(1, int(epsilon / epsilon0) - 1)
    while candidate * epsilon0 <= limit:
        candidate += 1
    return candidate


# --- searches ------------------------------------------------------------------------------------

_GRID_BITS = 40
_MANTISSA_BITS = sys.float_info.mant_dig - 1


def _grid_index(value: float) -> int:
    """Return the rank of a positive float, rounded down, among those of _GRID_BITS + 1 bits."""
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits) >> (_MANTISSA_BITS - _GRID_BITS)


def _grid_value(index: int) -> float:
    """Return the inverse of `_grid_index`: rising, and close to linear, in the index."""
    (value,) = struct.unpack("<d", struct.pack("<q", index << (_MANTISSA_BITS - _GRID_BITS)))
    return float(value)


def _exact_threshold(epsilon0: float) -> int:
    """⌈2^64 / (e^epsilon0 + 1)⌉, exactly."""
    if epsilon0 == 0:
        return COIN_RANGE // 2
    if epsilon0 > math.log(COIN_RANGE) + 1:
        return 1
    digits = 50
    while True:
        context = decimal.Context(prec=digits)
        share = context.divide(
            decimal.Decimal(COIN_RANGE),
            context.add(context.exp(decimal.Decimal(epsilon0)), decimal.Decimal(1)),
        )
        # Three operations, each correctly rounded: together they err by less than this.
        error = context.scaleb(share, 3 - digits)
        low = math.ceil(context.subtract(share, error))
        if low == math.ceil(context.add(share, error)):
            return low
        digits *= 2
