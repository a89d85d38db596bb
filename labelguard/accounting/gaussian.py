"""The Gaussian mechanism: the exact cost of several releases for one labeler, and its inverse.

A release adds noise of standard deviation σ·Δ to each coordinate of a vector, where Δ bounds how
far the vector moves (L2) when all labels of one labeler are replaced, and σ is the noise
multiplier. R releases, each chosen after seeing the earlier ones, are dominated by ONE Gaussian
mechanism with noise multiplier σ/√R, which is (ε, δ)-private if and only if (Balle and Wang,
"Improving the Gaussian Mechanism for Differential Privacy", 2018, theorem 8)

    δ(ε) = Φ(√R/(2σ) − εσ/√R) − e^ε · Φ(−√R/(2σ) − εσ/√R).

Every function here concerns ONE labeler under `replace_labels` adjacency, and Δ is the sensitivity
under that adjacency itself: nothing is doubled. (`dp_accounting.PLDAccountant` under REPLACE_ONE
takes Δ for the sensitivity to removal and doubles it.) ε is in natural-log units (nats).

Noise that is rounded to a grid on which the vector lies, as `labelguard.mechanisms.noise` does,
costs the same: it is post-processing.

Numerical errors are put on the safe side: a computed δ carries a margin that covers rounding
(relative, 1e-13 for usual budgets).
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache, partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import _numbers
from labelguard.accounting._numbers import ROUNDING

Floats: TypeAlias = NDArray[np.float64]

# Gaussian noise gives no pure privacy: a δ below this one cannot be asked for.
SMALLEST_DELTA = 1e-300

_PER_ONE = 2**40  # noise multipliers are calibrated to multiples of 2^-40
_FARTHEST = 40.0  # the normal tail beyond is 1e-349, below any float


def delta(noise_multiplier: float, epsilon: float, releases: int = 1) -> float:
    """Return the δ at which `releases` Gaussian releases are (epsilon, δ)-private, in (0, 1].

    Never below the true value; where that is below 2.3e-308, the result is 2.3e-308.

    Raises ValueError unless noise_multiplier is finite and > 0, epsilon finite and >= 0 and
    releases >= 1.
    """
    _numbers.positive(noise_multiplier=noise_multiplier)
    _numbers.nonnegative(epsilon=epsilon)
    _numbers.at_least_one(releases=releases)
    return _delta(_distance(noise_multiplier, releases), epsilon)


def epsilon(noise_multiplier: float, delta: float, releases: int = 1) -> float:
    """Return the smallest ε, in nats, at which `releases` releases are (ε, delta)-private.

    By bisection; the upper end is returned, so that the computed δ at the result is at most
    `delta`. Infinite where it exceeds every float.

    Raises ValueError unless noise_multiplier is finite and > 0, SMALLEST_DELTA <= delta < 1 and
    releases >= 1.
    """
    _numbers.positive(noise_multiplier=noise_multiplier)
    check_attainable(delta)
    _numbers.at_least_one(releases=releases)
    distance = _distance(noise_multiplier, releases)
    # ρ + 2√(ρ ln(1/δ)) with ρ = distance²/2 is always enough (Bun and Steinke 2016, prop. 1.3).
    high = distance * (distance / 2 + math.sqrt(-2 * math.log(delta)))
    while _delta(distance, high) > delta:  # by rounding only
        high *= 2
    return _numbers.smallest_epsilon(partial(_delta, distance), high, delta)


@lru_cache(maxsize=2**12, typed=True)
def calibrate(epsilon: float, delta: float, releases: int = 1) -> float:
    """Return the smallest noise multiplier at which `releases` releases stay (epsilon,
    delta)-private.

    A multiple of 2^-40, coarse beside rounding, and `delta(calibrate(ε, δ, R), ε, R) <= δ` holds
    for the computed numbers. Results are cached.

    Raises ValueError unless epsilon is finite and > 0, SMALLEST_DELTA <= delta < 1 and
    releases >= 1.
    """
    _numbers.positive(epsilon=epsilon)
    check_attainable(delta)
    _numbers.at_least_one(releases=releases)
    # Of numpy's they may have less precision.
    epsilon, delta, releases = float(epsilon), float(delta), int(releases)

    def is_private(whole: int) -> bool:
        return _delta(_distance(whole / _PER_ONE, releases), epsilon) <= delta

    # ε = ρ + 2√(ρ ln(1/δ)) at ρ = R/(2σ²) is always enough (Bun and Steinke 2016, prop. 1.3).
    spread = math.sqrt(-math.log(delta))
    enough = (math.sqrt(epsilon - math.log(delta)) + spread) / epsilon * math.sqrt(releases / 2)
    high = math.ceil(enough * _PER_ONE)
    while not is_private(high):  # by rounding only
        high *= 2
    low = high // 2
    while low and is_private(low):
        low, high = low // 2, low
    return _numbers.smallest_whole(is_private, low, high) / _PER_ONE


# --- the exact formula ---------------------------------------------------------------------------


def check_attainable(delta: float) -> None:
    """Raise ValueError unless Gaussian noise can reach `delta`."""
    _numbers.delta_below_one(delta)
    if delta < SMALLEST_DELTA:
        raise ValueError(
            f"delta must be at least {SMALLEST_DELTA} (Gaussian noise gives no pure privacy), "
            f"found {delta!r}"
        )


def _distance(noise_multiplier: float, releases: int) -> float:
    """√R/σ: how far the two means are apart, in standard deviations of the noise."""
    return math.sqrt(int(releases)) / noise_multiplier


def _delta(distance: float, epsilon: float) -> float:
    """`delta` without checks, for two unit normals whose means are `distance` apart."""
    [value] = deltas(np.array([epsilon]), distance).tolist()
    return max(sys.float_info.min, float(value))


# Gauss–Legendre on [0, 1] with 6 nodes: for f below and distances up to ¼ exact to 1e-16, relative.
_ROOTS, _WEIGHTS = np.polynomial.legendre.leggauss(6)
_SMALL_DISTANCE = 0.25


def deltas(epsilons: Floats, distance: float) -> Floats:
    """δ(ε) of every entry, of any sign, for two unit normals `distance` apart; an upper bound.

    It is δ_G(x) = Φ(μ/2 − x/μ) − e^x · Φ(−μ/2 − x/μ), which holds for negative x too. With
    y = x/μ − μ/2, z = y + μ and Mills' ratio M(t) = (1−Φ(t))/φ(t), e^x·φ(z) = φ(y) turns it into
    φ(y)·(M(y) − M(z)). For small μ the difference cancels; it is ∫_y^z f then, where
    f(t) = −M'(t) = 1 − t·M(t) > 0. Negative x never enter: exchanging the two normals gives
    δ_G(x) = 1 − e^x + e^x·δ_G(−x), of two positive terms.
    """
    from scipy.special import erfcx, ndtr

    def mills_ratio(at: Floats) -> Floats:
        return np.asarray(math.sqrt(math.pi / 2) * erfcx(at / math.sqrt(2)))

    near = np.clip(np.abs(epsilons) / distance - distance / 2, -_FARTHEST, _FARTHEST)
    far = near + distance
    density = np.exp(-near * near / 2) / math.sqrt(2 * math.pi)
    if distance < _SMALL_DISTANCE:
        nodes = near[:, np.newaxis] + distance * (1 + _ROOTS) / 2
        value = density * distance * ((1 - nodes * mills_ratio(nodes)) @ _WEIGHTS) / 2
    else:
        # Left of −1 Mills' ratio grows without bound, and nothing cancels.
        central = ndtr(-near) - density * mills_ratio(far)
        tail = density * (mills_ratio(np.maximum(near, -1.0)) - mills_ratio(far))
        value = np.where(near < -1, central, tail)
    # Mills' ratio errs by a few units, and the difference is at least M/(4·(|y|+2)), f at least
    # M/(|y|+2)²; the nodes err by 2 units of `far`, and ln δ changes by at most |y|+2 a unit of y.
    value = value * (1 + ROUNDING * (64 + 8 * (np.abs(near) + 2) * (far + 2)))
    below = np.minimum(epsilons, 0.0)
    certain = -np.expm1(below) * (1 + 4 * ROUNDING)
    return np.asarray(np.minimum(1.0, certain + np.exp(below) * value))


# --- noise with an end ---------------------------------------------------------------------------

# The uniform number U of a normal draw is at least 2^-BITS: 192 bits, and a half.
BITS = 193

# For models of so many parameters runs are priced; a larger one is refused.
MOST_COORDINATES = 2**40


def delta_of_truncation(coordinates: int, epsilon: float) -> float:
    """Return the cost of the largest value that normal noise of a language model can have:
    (1 + e^ε)·⌈coordinates/2⌉·2^-BITS, rounded up, at most 1.

    Its normals are made in pairs, from a uniform number U that gives a radius √(−2 ln U) and one
    that gives an angle. U is never below 2^-BITS, so that pairs beyond √(2·BITS·ln 2) deviations,
    which have a probability of 2^-BITS, are not drawn: noise in d coordinates and T steps is at a
    total variation distance of at most η = ⌈d/2⌉·T·2^-BITS from that without an end. Under either
    of two neighbours, so that (ε, δ) becomes (ε, δ + (1 + e^ε)·η).

    It covers the tail, and nothing else: that numbers in floating point are discrete is covered by
    no guarantee.

    `coordinates` are d·T, those of all steps together. Raises ValueError unless coordinates is an
    integer >= 1 and epsilon finite and >= 0.
    """
    _numbers.at_least_one(coordinates=coordinates)
    _numbers.nonnegative(epsilon=epsilon)
    pairs = -(-coordinates // 2)
    apart = math.ldexp(float(pairs), -BITS)
    return min(1.0, (1 + math.exp(min(epsilon, 700.0))) * apart * (1 + 2.0**-48))
