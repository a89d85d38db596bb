"""Privacy losses on a grid: what gradient methods cost together, where no closed form exists.

The loss of a pair of distributions that dominates a mechanism is kept as probabilities on multiples
of an interval, a power of two, and on ∞, so that

    δ(ε) = P[∞] + Σ_i P[i] · max(0, 1 − e^(ε − ℓ_i))    for every real ε

is an upper bound of the mechanism's own. Whatever is put on the grid keeps that: the mass of a loss
between two points is divided between them such that the sum of the probabilities and that of
P·e^(−ℓ) stay, which replaces the curve of δ over e^ε by a chord of it, and it is convex
(Doroshenko et al., "Connect the dots", 2022). Losses of independent mechanisms add up, adaptively
chosen ones too, and bounds of single mechanisms compose to a bound of all.

The Fourier transforms round. By Higham, "Accuracy and stability of numerical algorithms" (2002),
theorem 24.2, the result of a transform of n numbers errs by 7·log2(n)·u of its norm, u = 2^-53.
(It is proven for powers of two; SciPy's transform takes other small factors too.) By Cauchy–Schwarz
no δ then moves by more than that times √n times the norms of the probabilities: this much is added
to P[∞].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import _numbers
from labelguard.accounting._numbers import ROUNDING

Floats: TypeAlias = NDArray[np.float64]

# Mass at either end that is moved up: to the lowest loss that is kept, or to ∞.
_NEGLIGIBLE = 2.0**-53

_FINEST_USUAL = 2.0**-13
_MOST_POINTS = 2**18
_MOST_COMPOSED = 2**20


@dataclass(frozen=True, eq=False)
class Losses:
    """Probabilities of the losses (lowest + i)·interval, i = 0, 1, …, and of ∞."""

    interval: float
    lowest: int
    probabilities: Floats
    infinite: float

    @cached_property
    def values(self) -> Floats:
        """The losses, in nats, shape (n,), ascending."""
        return self.interval * np.arange(
            self.lowest, self.lowest + self.probabilities.size, dtype=np.float64
        )

    def delta(self, epsilon: float) -> float:
        """δ(epsilon), epsilon any real number."""
        return self.delta_beside(lambda rest: -np.expm1(np.minimum(rest, 0.0)), epsilon)

    def epsilon(self, delta: float) -> float:
        """Return the ε of `delta`, as `smallest_epsilon`."""
        return smallest_epsilon(self.delta, self.largest, delta)

    @property
    def largest(self) -> float:
        """A loss, at least 0, beyond which only the infinite one lies."""
        return max(0.0, float(self.values[-1])) + self.interval

    def delta_beside(self, deltas: Callable[[Floats], Floats], epsilon: float) -> float:
        """δ(epsilon) together with a mechanism whose own δ(x), of any real x, is given."""
        rest = epsilon - self.values
        rest -= 8 * ROUNDING * (abs(epsilon) + abs(self.values[0]) + abs(self.values[-1]))
        value = float(np.dot(self.probabilities, deltas(rest)))
        return min(1.0, max(0.0, value) + self.infinite + _NEGLIGIBLE)

    def regrid(self, interval: float) -> Losses:
        """Return the same on a grid that is as coarse or coarser."""
        if interval == self.interval:
            return self
        return discretize(self.values, self.probabilities, interval, self.infinite)

    def trim(self) -> Losses:
        """Cut off ends of next to no mass, which is moved up."""
        below = np.cumsum(self.probabilities)
        above = np.cumsum(self.probabilities[::-1])
        first = int(np.searchsorted(np.maximum.accumulate(below), _NEGLIGIBLE))
        beyond = int(np.searchsorted(np.maximum.accumulate(above), _NEGLIGIBLE))
        first = min(first, self.probabilities.size - 1)
        last = max(self.probabilities.size - beyond, first + 1)
        middle = self.probabilities[first:last].copy()
        # What is cut off at either end may have come out below 0, by rounding.
        middle[0] += max(0.0, float(np.sum(self.probabilities[:first])))
        beyond_mass = max(0.0, float(np.sum(self.probabilities[last:])))
        return Losses(self.interval, self.lowest + first, middle, self.infinite + beyond_mass)


def discretize(
    values: Floats, probabilities: Floats, interval: float, infinite: float = 0.0
) -> Losses:
    """Put losses of any values, shape (n,), on the grid."""
    # Moving a loss up covers the rounding of its division between two points.
    places = (values + 8 * ROUNDING * (np.abs(values) + interval)) / interval
    below = np.floor(places)
    lowest = int(below.min())
    at = (below - lowest).astype(np.intp)
    # p·e^(−ℓ) stays where the upper point gets (1 − e^−x)/(1 − e^−d), x = ℓ less the lower one.
    upper = np.expm1(-(places - below) * interval) / math.expm1(-interval)
    grid = np.zeros(int(at.max()) + 2)
    np.add.at(grid, at, probabilities * (1 - upper))
    np.add.at(grid, at + 1, probabilities * upper)
    return Losses(interval, lowest, grid, infinite)


def convolve(first: Losses, second: Losses) -> Losses:
    """Return the losses of two independent mechanisms, on the coarser grid of the two."""
    from scipy.signal import fftconvolve

    interval = max(first.interval, second.interval)
    first, second = first.regrid(interval), second.regrid(interval)
    probabilities = fftconvolve(first.probabilities, second.probabilities)
    infinite = first.infinite + second.infinite
    infinite += _bound_rounding_error(probabilities.size, first.probabilities, second.probabilities)
    return Losses(interval, first.lowest + second.lowest, probabilities, infinite).trim()


def discretize_approximate(epsilon: float, delta: float, count: int, interval: float) -> Losses:
    """Return the losses of `count` mechanisms of which no more is known than (epsilon, delta) each.

    All are post-processing of a pair with loss ∞ at probability δ and ±ε at (1−δ)/(1+e^∓ε): such
    a mechanism is dominated by it (Kairouz, Oh and Viswanath 2015).
    """
    from scipy.stats import binom

    ups = np.arange(count + 1, dtype=np.float64)
    probabilities = binom.pmf(ups, count, 1 / (1 + math.exp(-epsilon)))
    probabilities *= 1 + 64 * ROUNDING * (count + 16)
    infinite = -math.expm1(count * math.log1p(-delta)) * (1 + 16 * ROUNDING)
    return discretize((2 * ups - count) * epsilon, probabilities, interval, infinite)


def smallest_epsilon(delta_of: Callable[[float], float], high: float, delta: float) -> float:
    """Return where a falling δ(ε) reaches `delta`, rounded up by 1e-9 at most, relative above ε =
    1.

    δ does not fall beyond `high`; the result is infinite if it is above `delta` there.
    """
    if delta_of(0.0) <= delta:
        return 0.0
    if not delta_of(high) <= delta:
        return math.inf

    def excess(epsilon: float) -> float:
        return math.log(delta_of(epsilon) / delta)

    return _numbers.find_crossing(excess, 0.0, high, 1e-9 * min(1.0, high))


def compose_steps(step: Any, steps: int) -> Losses:
    """Return the losses of so many steps, each a pmf of `dp_accounting.pld`, with a margin for
    rounding.

    Each probability of a step, on a grid of n points, comes from differences that err by some
    units of rounding u = 2^-53, of either sign, and so does the Fourier transform. 16·T·u·√n is
    added for T steps: √n because errors of neighbours are independent (if all had one sign, n).
    """
    # The numbers have no public name; dp-accounting is pinned below 0.7.
    pmf = step.self_compose(steps).to_dense_pmf()
    probabilities = np.asarray(pmf._probs, dtype=np.float64)
    margin = 16 * steps * ROUNDING / 2 * math.sqrt(probabilities.size)
    infinite = float(pmf._infinity_mass) + margin
    return Losses(float(pmf._discretization), int(pmf._lower_loss), probabilities, infinite).trim()


def choose_interval(*, deviation: float, span: float, mean: float, steps: int) -> float:
    """Return a power of two: fine beside the loss of a step, but no more points than can be
    computed.

    `deviation`, `span` and `mean` are those of the loss of a step, roughly.
    """
    interval = min(_FINEST_USUAL, 2.0 ** math.floor(math.log2(deviation / 16)))
    least = max(span / _MOST_POINTS, steps * mean / _MOST_COMPOSED)
    return max(interval, 2.0 ** math.ceil(math.log2(least)))


def _bound_rounding_error(length: int, *factors: Floats) -> float:
    """Return what transforms of that many numbers may be off by, in any δ."""
    norms = math.prod(float(np.linalg.norm(each)) for each in factors)
    return 4 * 7 * math.log2(length + 2) * ROUNDING / 2 * math.sqrt(2 * length) * norms
