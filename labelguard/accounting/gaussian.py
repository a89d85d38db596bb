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

Noise on a grid, drawn by `labelguard.mechanisms.discrete_gaussian`, is not covered by the formula:
`discretisation_delta` is what it costs on top, to be set aside beforehand.

Numerical errors are put on the safe side: a computed δ carries a margin that covers rounding
(relative, 1e-13 for usual budgets).
"""

from __future__ import annotations

import math
import sys
from functools import lru_cache

from labelguard.accounting import _validate
from labelguard.accounting.randomized_response import ROUNDING

__all__ = [
    "LARGEST_STEP_RATIO",
    "SMALLEST_DELTA",
    "UNITS_PER_ONE",
    "calibrate",
    "delta",
    "discretisation_delta",
    "epsilon",
    "epsilon_zcdp",
    "noise_multiplier_of",
    "units",
    "zcdp",
]

UNITS_PER_ONE = 2**40
"""The ledger counts noise multipliers in whole units of 2^-40."""

LARGEST_STEP_RATIO = 2.0**-20
"""The coarsest grid, in standard deviations of the noise, that `discretisation_delta` covers."""

SMALLEST_DELTA = 1e-300
"""Gaussian noise gives no pure privacy: a δ below this one cannot be asked for."""

_MOST_UNITS = 2**63 - 1  # what a database holds in an integer column
_FARTHEST = 40.0  # the normal tail beyond is 1e-349, below any float


def delta(noise_multiplier: float, epsilon: float, releases: int = 1) -> float:
    """The δ at which `releases` Gaussian releases are (epsilon, δ)-private, in (0, 1].

    Never below the true value; where that is below 2.3e-308, the result is 2.3e-308.

    Raises ValueError unless noise_multiplier is finite and > 0, epsilon finite and >= 0 and
    releases >= 1.
    """
    _validate.positive(noise_multiplier=noise_multiplier)
    _validate.nonnegative(epsilon=epsilon)
    _validate.at_least_one(releases=releases)
    return _delta(_distance(noise_multiplier, releases), epsilon)


def epsilon(noise_multiplier: float, delta: float, releases: int = 1) -> float:
    """The smallest ε, in nats, at which `releases` releases are (ε, delta)-private.

    By bisection; the upper end is returned, so that the computed δ at the result is at most
    `delta`. Infinite where it exceeds every float.

    Raises ValueError unless noise_multiplier is finite and > 0, SMALLEST_DELTA <= delta < 1 and
    releases >= 1.
    """
    _validate.positive(noise_multiplier=noise_multiplier)
    _attainable(delta)
    _validate.at_least_one(releases=releases)
    distance = _distance(noise_multiplier, releases)
    low = 0.0
    if _delta(distance, low) <= delta:
        return low
    # ρ + 2√(ρ ln(1/δ)) with ρ = distance²/2 is always enough (Bun and Steinke 2016, prop. 1.3).
    high = distance * (distance / 2 + math.sqrt(-2 * math.log(delta)))
    while _delta(distance, high) > delta:  # by rounding only
        high *= 2
    while high - low > 2 * ROUNDING * high:
        middle = low + (high - low) / 2
        if _delta(distance, middle) <= delta:
            high = middle
        else:
            low = middle
    return high


def calibrate(epsilon: float, delta: float, releases: int = 1) -> float:
    """The smallest noise multiplier at which `releases` releases stay (epsilon, delta)-private.

    A whole number of the ledger's units of 2^-40, so that what is charged is what was
    calibrated, and `delta(calibrate(ε, δ, R), ε, R) <= δ` holds for the computed numbers.
    Results are cached.

    Raises ValueError unless epsilon is finite and > 0, SMALLEST_DELTA <= delta < 1 and
    releases >= 1.
    """
    _validate.positive(epsilon=epsilon)
    _attainable(delta)
    _validate.at_least_one(releases=releases)
    return _calibrate(float(epsilon), float(delta), int(releases))


def units(noise_multiplier: float) -> int:
    """⌈noise_multiplier · 2^40⌉, the whole number that stands for it in the ledger.

    Exactly the ceiling: the rounding only ever adds noise.

    Raises ValueError unless 0 < noise_multiplier < 2^23 (a 64-bit integer holds no more).
    """
    _validate.positive(noise_multiplier=noise_multiplier)
    if noise_multiplier >= 2**23:
        raise ValueError(f"noise_multiplier must be below 2^23, found {noise_multiplier!r}")
    return math.ceil(float(noise_multiplier) * UNITS_PER_ONE)


def noise_multiplier_of(units: int) -> float:
    """units/2^40, the noise multiplier that the ledger's number stands for, without rounding.

    Raises ValueError unless 1 <= units < 2^63 and a float holds the quotient exactly, which it
    does for every result of the function `units`.
    """
    _validate.at_least_one(units=units)
    _validate.within(1, _MOST_UNITS, units=units)
    noise_multiplier = int(units) / UNITS_PER_ONE
    if int(noise_multiplier * UNITS_PER_ONE) != units:
        raise ValueError(
            f"units must have at most {sys.float_info.mant_dig} significant bits, "
            f"found {units}; take them from the function `units`"
        )
    return noise_multiplier


def discretisation_delta(
    epsilon: float, dimension: int, step_ratio: float, releases: int = 1
) -> float:
    """What noise on a grid costs over continuous noise: (1+e^ε) · d·R/48 · step_ratio².

    `step_ratio` is the step of the grid in standard deviations of the noise, h/(σΔ); vector and
    noise are whole multiples of h. Rounding continuous noise to the grid costs nothing
    (post-processing); a discrete Gaussian is at total variation distance τ from rounded
    continuous noise in each of d coordinates, and R releases of it are, for both of two
    neighbours, at distance at most d·R·τ, which adds (1+e^ε)·d·R·τ to δ. Where n is the distance
    from the centre in standard deviations, a cell of the grid holds 1 + (n²−1)·step_ratio²/24
    times the discrete probability, up to step_ratio⁴, so that

        τ = ½ · E|Z²−1| · step_ratio²/24 = 0.02017 · step_ratio² < step_ratio²/48,

    with E|Z²−1| = 4φ(1) = 0.968 for a standard normal Z. The bound is 3% above τ, which for
    step_ratio <= 2^-20 covers the higher orders by far. Infinite where e^ε exceeds every float.

    Raises ValueError unless epsilon is finite and >= 0, dimension >= 1, 0 < step_ratio <= 2^-20
    and releases >= 1.
    """
    _validate.nonnegative(epsilon=epsilon)
    _validate.at_least_one(dimension=dimension, releases=releases)
    _validate.positive(step_ratio=step_ratio)
    if step_ratio > LARGEST_STEP_RATIO:
        raise ValueError(
            f"step_ratio must be at most 2^-20 = {LARGEST_STEP_RATIO:.6g} (take a finer grid), "
            f"found {step_ratio!r}"
        )
    if epsilon > math.log(sys.float_info.max):
        return math.inf
    return (1 + math.exp(epsilon)) / 48 * int(dimension) * int(releases) * step_ratio * step_ratio


def zcdp(noise_multiplier: float, releases: int = 1) -> float:
    """ρ = releases/(2·noise_multiplier²): the releases are ρ-zCDP (Bun and Steinke 2016).

    Discrete Gaussian noise on a grid satisfies it too, in any dimension and without any further
    cost (Canonne, Kamath and Steinke 2020).

    Raises ValueError unless noise_multiplier is finite and > 0 and releases >= 1.
    """
    _validate.positive(noise_multiplier=noise_multiplier)
    _validate.at_least_one(releases=releases)
    return int(releases) / 2 / noise_multiplier / noise_multiplier


def epsilon_zcdp(rho: float, delta: float) -> float:
    """An ε, in nats, at which every ρ-zCDP mechanism is (ε, delta)-private.

    For each order α > 1 a ρ-zCDP mechanism is (ε, δ)-private at (Canonne, Kamath and Steinke
    2020, proposition 12, with Rényi divergence αρ)

        ε(α) = αρ + (ln(1/δ) − ln α)/(α−1) + ln(1 − 1/α).

    Its derivative is ρ + (ln α − ln(1/δ))/(α−1)², so that the best order is the one root of
    ρ(α−1)² + ln α = ln(1/δ). A bound beside `epsilon`, which is exact for Gaussian noise.

    Raises ValueError unless rho is finite and >= 0 and SMALLEST_DELTA <= delta < 1.
    """
    _validate.nonnegative(rho=rho)
    _attainable(delta)
    if rho == 0:
        return 0.0
    target = -math.log(delta)
    low, excess = 0.0, min(math.sqrt(target / rho), 1 / delta)  # α − 1
    while excess - low > 4 * ROUNDING * excess:
        middle = low + (excess - low) / 2
        if rho * middle * middle + math.log1p(middle) < target:
            low = middle
        else:
            excess = middle
    log_order = math.log1p(excess)
    at_order = (1 + excess) * rho + (target - log_order) / excess + math.log(excess) - log_order
    return max(0.0, at_order)


# --- the exact formula ---------------------------------------------------------------------------


def _attainable(delta: float) -> None:
    """Raise ValueError unless Gaussian noise can reach `delta`."""
    _validate.delta_below_one(delta)
    if delta < SMALLEST_DELTA:
        raise ValueError(
            f"delta must be at least {SMALLEST_DELTA} (Gaussian noise gives no pure privacy), "
            f"found {delta!r}"
        )


def _distance(noise_multiplier: float, releases: int) -> float:
    """√R/σ: how far the two means are apart, in standard deviations of the noise."""
    return math.sqrt(int(releases)) / noise_multiplier


def _delta(distance: float, epsilon: float) -> float:
    """`delta` without checks, for two unit normals whose means are `distance` apart.

    With x = ε/distance − distance/2 and y = x + distance, the formula is Φ(−x) − e^ε·Φ(−y), and
    e^ε·φ(y) = φ(x). Its two terms cancel for small distances, so that

        δ = φ(x) · ∫_0^∞ e^(−xu − u²/2) · (1 − e^(−distance·u)) du

    is computed instead, where every contribution is positive.
    """
    near, far = epsilon / distance - distance / 2, epsilon / distance + distance / 2
    if near > _FARTHEST:
        return sys.float_info.min
    if near < -_FARTHEST:
        return 1.0
    density = math.exp(-near * near / 2) / math.sqrt(2 * math.pi)
    if near < -1:
        # The integrand peaks away from 0, where it is not integrated well; nothing cancels here.
        value = math.erfc(near / math.sqrt(2)) / 2 - density * _integral(far, math.inf)
    else:
        value = density * _integral(near, distance)
    # `near` errs by at most 4 units of rounding of `far`; d(ln δ)/d(near) is below |near| + 2.
    margin = ROUNDING * (64 + 8 * (abs(near) + 2) * far)
    return min(1.0, max(sys.float_info.min, value * (1 + margin)))


# Trapezoidal rule in ln(u): for an integrand that is analytic and bounded for |arg u| < π/4 the
# error is e^(−π²/(2·step)), relative, here 1e-17; both ends are cut where less is left.
_STEP = 1 / 8
_NODES = tuple(math.exp(place * _STEP) for place in range(-320, 33))


def _integral(x: float, distance: float) -> float:
    """∫_0^∞ e^(−xu − u²/2) · (1 − e^(−distance·u)) du for x >= −1; distance may be infinite."""
    scale = 1 / (1 + max(x, 0.0))
    terms = []
    for node in _NODES:
        u = node * scale
        terms.append(-u * math.exp(-u * (x + u / 2)) * math.expm1(-distance * u))
    return math.fsum(terms) * _STEP


@lru_cache(maxsize=2**12)
def _calibrate(epsilon: float, delta: float, releases: int) -> float:
    """`calibrate` without checks, by bisection over whole units."""

    def private(whole: int) -> bool:
        return _delta(_distance(whole / UNITS_PER_ONE, releases), epsilon) <= delta

    # ε = ρ + 2√(ρ ln(1/δ)) at ρ = R/(2σ²) is always enough (Bun and Steinke 2016, prop. 1.3).
    spread = math.sqrt(-math.log(delta))
    enough = (math.sqrt(epsilon - math.log(delta)) + spread) / epsilon * math.sqrt(releases / 2)
    high = math.ceil(enough * UNITS_PER_ONE)
    while not private(high):  # by rounding only
        high *= 2
    low = high // 2
    while low and private(low):
        low, high = low // 2, low
    while high - low > 1:
        middle = (low + high) // 2
        if private(middle):
            high = middle
        else:
            low = middle
    return high / UNITS_PER_ONE
