"""Ball noise: the exact cost of one release for one labeler, and its inverse.

A release adds Y to a vector of d components, with a density proportional to exp(−|y|₂/(s·Δ)); Δ
bounds how far the vector moves (L2) when all labels of one labeler are replaced, and s is the
scale. It is the K-norm mechanism of the l2 ball (Hardt and Talwar, "On the geometry of differential
privacy", 2010; Joseph, Kulesza and Yu 2025). At s = 1/ε it is ε-private with δ = 0, and for small d
its variance, (d+1)·s² per coordinate, is far below that of a Gaussian.

Around the two means, Δ apart, let a = 1/(2s) and η = (|y + v| − |y|)/Δ in [−1, 1]: the privacy loss
is 2aη. With η = cos t its density in t is proportional to

    sin^(d−2)(t) · e^(a cos t) · (r + sin² t),    r = (d−1)/a · K_(ν+1)(a)/K_ν(a),    ν = (d−2)/2,

K the modified Bessel function of the second kind, and

    δ(ε) = ∫_{2a cos t > ε} (1 − e^(ε − 2a cos t)) p(t) dt    for ε ≥ 0, and 0 from ε = 2a on;
    δ(−ε) = 1 − e^(−ε) + e^(−ε)·δ(ε)    (exchanging the means).

d = 1 is Laplace noise, δ(ε) = 1 − e^((ε − 2a)/2). δ falls in d and rises in Δ (docs/guarantees.md):
noise in more components than a price was made for, or for a shorter shift, costs less.

Numerical errors are put on the safe side. The integrand is entire in t, and the error of
Gauss–Legendre quadrature on it is bounded beforehand on Bernstein ellipses and added; ε is lowered
and a margin added for rounding, some 1e-13, relative, for usual budgets. Every function concerns
ONE labeler and ONE release; ε is in nats.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache, partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import _numbers
from labelguard.accounting._numbers import ROUNDING

Floats: TypeAlias = NDArray[np.float64]

# Components that a price can be made for; it covers any larger number.
MOST_COMPONENTS = 2**16

_PER_ONE = 2**40  # scales are calibrated to multiples of 2^-40
_ROOTS, _WEIGHTS = np.polynomial.legendre.leggauss(32)
_MOST_PANELS = 2**10
_RADII = np.geomspace(1.25, 32, 12)  # the sums of the half-axes of Bernstein ellipses
_NEGLIGIBLE = -50 * math.log(2)  # of an error bound beside the value, in logarithms
_LOG_SMALLEST = math.log(sys.float_info.min)
_ENTRIES = 2**18  # nodes that are evaluated together


def delta(scale: float, epsilon: float, components: int) -> float:
    """Return the δ at which one release is (epsilon, δ)-private, in [0, 1].

    Never below the true value; exactly 0 where epsilon >= 1/scale.

    Raises ValueError unless scale is finite and > 0, epsilon finite and >= 0 and components an
    integer >= 1, and outside the range that can be computed (see `deltas`).
    """
    _numbers.nonnegative(epsilon=epsilon)
    return float(deltas(np.array([epsilon]), scale, components)[0])


def epsilon(scale: float, delta: float, components: int) -> float:
    """Return the smallest ε, in nats, at which one release is (ε, delta)-private; 1/scale at delta
    = 0.

    By bisection; the upper end is returned, so that the computed δ at the result is at most
    `delta`.

    Raises ValueError unless 0 <= delta < 1, and as `delta`.
    """
    _numbers.delta_below_one(delta)
    noise = _ball(scale, components)
    return _numbers.smallest_epsilon(partial(_delta, noise), noise.most, delta)


@lru_cache(maxsize=2**12, typed=True)
def calibrate(epsilon: float, delta: float, components: int) -> float:
    """Return the smallest scale at which one release stays (epsilon, delta)-private; 1/epsilon is
    enough.

    A multiple of 2^-40, rounded up, and `delta(calibrate(ε, δ, d), ε, d) <= δ` holds
    for the computed numbers. Results are cached.

    Raises ValueError unless epsilon is finite and > 0, 0 <= delta < 1 and components an
    integer >= 1, and outside the range that can be computed (see `deltas`).
    """
    _numbers.positive(epsilon=epsilon)
    _numbers.delta_below_one(delta)
    _numbers.at_least_one(components=components)
    _numbers.within(1, MOST_COMPONENTS, components=components)
    # Of numpy's they may have less precision.
    epsilon, delta, components = float(epsilon), float(delta), int(components)

    def is_private(whole: int) -> bool:
        return _delta(_ball(whole / _PER_ONE, components), epsilon) <= delta

    low = high = math.ceil(Fraction(_PER_ONE) / Fraction(epsilon))
    while low and is_private(low):
        low, high = low // 2, low
    return _numbers.smallest_whole(is_private, low, high) / _PER_ONE


def deltas(epsilons: Floats, scale: float, components: int) -> Floats:
    """δ(ε) of every entry, of any sign: upper bounds, 1 − e^ε for ε <= −1/scale.

    Raises ValueError unless scale is finite and > 0 and components an integer from 1 to
    MOST_COMPONENTS; and where 1024 panels of 32 nodes do not bound the error of the quadrature, for
    scales below some 1e-4.
    """
    noise = _ball(scale, components)
    amounts = np.abs(np.asarray(epsilons, dtype=np.float64))
    value = np.zeros_like(amounts)
    costly = amounts < noise.most
    value[costly] = noise.delta_bounds(amounts[costly])
    # Both terms of δ(−x) = 1 − e^−x + e^−x·δ(x) are positive.
    below = np.minimum(epsilons, 0.0)
    certain = -np.expm1(below) * (1 + 4 * ROUNDING)
    return np.asarray(np.minimum(1.0, certain + np.exp(below) * value))


@dataclass(frozen=True)
class _Ball:
    """The law of the privacy loss of one release, in at least two components or in one."""

    # the smallest float that no loss exceeds, 2a
    most: float
    dimension: int
    # 1/r
    ratio: float
    # logarithm of ∫ sin^(d−2)(t) e^(a cos t − a) (1 + sin²(t)/r) dt, 0 … π, rounded down
    log_total: float

    def delta_bounds(self, epsilons: Floats) -> Floats:
        """δ(ε) for 0 <= ε < 2a, an upper bound."""
        # δ falls in ε: this covers the rounding of ε/2a and of all that is computed from it.
        lowered = np.maximum(epsilons - 32 * ROUNDING * self.most, 0.0)
        if self.dimension == 1:
            return np.asarray(-np.expm1((lowered - self.most) / 2) * (1 + 8 * ROUNDING))
        ends = np.arccos(lowered / self.most)

        def hockey_stick(t: Floats, end: Floats) -> Floats:
            loss = 2 * self.most * np.sin((end + t) / 2) * np.sin((end - t) / 2)
            return np.log(-np.expm1(-loss))

        def bound_largest_log(epsilon: Floats, low: Floats, high: Floats, cosh: Floats) -> Floats:
            # |1 − e^w| <= |w|·max(1, e^Re w), w = ε − 2a cos t.
            least = np.cos(high) * np.where(np.cos(high) < 0, cosh, 1.0)
            return np.log(self.most * (1 + cosh)) + np.maximum(0.0, epsilon - self.most * least)

        logs = _log_integrals(self, ends, lowered, hockey_stick, bound_largest_log) - self.log_total
        operations = 64 + self.dimension + 2 * self.most + abs(self.log_total) + np.abs(logs)
        value = np.exp(logs) * (1 + 8 * ROUNDING * operations)
        return np.asarray(value + sys.float_info.min)


@lru_cache(maxsize=64, typed=True)
def _ball(scale: float, components: int) -> _Ball:
    """Return the noise of a scale, in sensitivities."""
    _numbers.positive(scale=scale)
    _numbers.at_least_one(components=components)
    _numbers.within(1, MOST_COMPONENTS, components=components)
    dimension, most = operator.index(components), _reciprocal_rounded_up(scale)
    if dimension == 1:
        return _Ball(most, 1, 0.0, 0.0)
    ratio = most / 2 / (dimension - 1) / _bessel_ratio(dimension, most / 2)
    noise = _Ball(most, dimension, ratio, -math.inf)  # whose bounds have to be relative

    # Half of the range, both signs of cos t.
    def log_both_signs(t: Floats, _: Floats) -> Floats:
        return np.log1p(np.exp(-most * np.cos(t)))

    def bound_largest_log(_: Floats, low: Floats, high: Floats, cosh: Floats) -> Floats:
        # |e^(a cos t) + e^(−a cos t)| <= 2·e^(a |Re cos t|); `_log_integrals` bounds the first.
        back = np.maximum(0.0, -np.cos(high) - np.cos(np.maximum(low, 0.0)))
        return np.asarray(math.log(2) + most / 2 * back * cosh)

    end = np.array([math.pi / 2])
    # The upper bound less twice its allowance for the quadrature is a lower one.
    upper = float(_log_integrals(noise, end, end, log_both_signs, bound_largest_log)[0])
    return _Ball(most, dimension, ratio, upper - 4 * math.exp(_NEGLIGIBLE))


Terms: TypeAlias = Callable[[Floats, Floats], Floats]
Largest: TypeAlias = Callable[[Floats, Floats, Floats, Floats], Floats]


def _log_integrals(
    noise: _Ball, ends: Floats, epsilons: Floats, factor: Terms, largest: Largest
) -> Floats:
    """log ∫_0^T sin^(d−2)(t) e^(a cos t − a) (1 + sin²(t)/r) f(t) dt for each end T <= π/2.

    Upper bounds, at most 2^-49 too large, relative, or below any float beside `log_total`.
    `factor` is log f(t); `largest` bounds log |f| on a complex neighbourhood with real parts in
    [low, high] and cosh of the largest imaginary part.
    """
    integrals = np.empty_like(ends)
    left, panels = np.arange(ends.size), 1
    while left.size:
        if panels > _MOST_PANELS:
            raise ValueError(
                f"ball noise of scale {1 / noise.most:.3g} in {noise.dimension} components is "
                "outside the range that can be priced exactly; expected a scale of 1e-4 or more"
            )
        again = []
        step = max(1, _ENTRIES // (panels * _ROOTS.size))
        for start in range(0, left.size, step):
            part = left[start : start + step]
            logs, errors = _quadrature(noise, ends[part], epsilons[part], panels, factor, largest)
            floor = noise.log_total + _LOG_SMALLEST - 8
            settled = errors <= np.maximum(logs + _NEGLIGIBLE, floor)
            integrals[part] = np.logaddexp(logs, errors)
            again.append(part[~settled])
        left, panels = np.concatenate(again), panels * 2
    return integrals


def _quadrature(
    noise: _Ball, ends: Floats, epsilons: Floats, panels: int, factor: Terms, largest: Largest
) -> tuple[Floats, Floats]:
    """Logarithms of the integrals by so many equal panels, and of bounds on their errors.

    On a panel of half-width h, N nodes err by h · 64/15 · M ρ^(−2(N−1))/(1 − ρ^−2) at most, where
    |f| <= M on the Bernstein ellipse of radius ρ > 1 (Trefethen, "Approximation theory and
    approximation practice", theorem 19.3). There |sin(x+iy)|² = sin²x + sinh²y and
    Re cos(x+iy) = cos x cosh y.
    """
    a, power = noise.most / 2, noise.dimension - 2
    half = ends[:, np.newaxis] / (2 * panels)
    middle = half * (2 * np.arange(panels) + 1)

    end, epsilon = ends[:, np.newaxis, np.newaxis], epsilons[:, np.newaxis, np.newaxis]
    t = (middle[:, :, np.newaxis] + half[:, :, np.newaxis] * _ROOTS).clip(max=end)
    sine = np.sin(t)
    with np.errstate(divide="ignore"):
        terms = power * np.log(sine) - 2 * a * np.sin(t / 2) ** 2
        terms += np.log1p(noise.ratio * sine * sine) + factor(t, end)
    logs = _log_sum_exp(terms + np.log(_WEIGHTS)) + np.log(half[:, 0])

    wide = half[:, :, np.newaxis] * (_RADII + 1 / _RADII) / 2
    tall = half[:, :, np.newaxis] * (_RADII - 1 / _RADII) / 2
    low = np.maximum(middle[:, :, np.newaxis] - wide, 0.0)
    high = np.minimum(middle[:, :, np.newaxis] + wide, math.pi)
    cosh = np.cosh(tall)
    square = np.sin(np.minimum(high, math.pi / 2)) ** 2 + np.sinh(tall) ** 2
    bounds = power / 2 * np.log(square) + a * (np.cos(low) * cosh - 1)
    bounds += np.log1p(noise.ratio * square) + largest(epsilon, low, high, cosh)
    bounds -= 2 * (_ROOTS.size - 1) * np.log(_RADII) + np.log1p(-(_RADII**-2))
    errors = _log_sum_exp(bounds.min(axis=2)) + np.log(half[:, 0] * 64 / 15)
    return logs, errors


def _log_sum_exp(logs: Floats) -> Floats:
    """log Σ e^x of each row, whatever its shape."""
    rows = logs.reshape(len(logs), -1)
    top = rows.max(axis=1)
    return np.asarray(top + np.log(np.exp(rows - top[:, np.newaxis]).sum(axis=1)))


def _bessel_ratio(dimension: int, a: float) -> float:
    """K_(ν+1)(a)/K_ν(a), ν = (dimension−2)/2, by the upward recurrence, where all is positive."""
    from scipy.special import kve

    order = dimension % 2 / 2
    ratio = 1 + 1 / a if order else float(kve(1, a) / kve(0, a))
    for step in range((dimension - 2) // 2):
        ratio = 1 / ratio + 2 * (order + step + 1) / a
    return ratio


def _reciprocal_rounded_up(scale: float) -> float:
    """Return the smallest float that is not below 1/scale."""
    quotient, exact = 1 / scale, Fraction(scale)
    if Fraction(quotient) * exact < 1:
        return math.nextafter(quotient, math.inf)
    below = math.nextafter(quotient, 0.0)
    return below if Fraction(below) * exact >= 1 else quotient


def _delta(noise: _Ball, epsilon: float) -> float:
    """`delta` without checks."""
    if epsilon >= noise.most:
        return 0.0
    return min(1.0, float(noise.delta_bounds(np.array([epsilon]))[0]))
