"""Quantiles of noise along one direction, where some of it is ball noise.

Ball noise Y in D dimensions, of a density proportional to e^(−‖y‖/s), has the characteristic
function (1 + s²‖t‖²)^(−(D+1)/2). Along a unit vector that is the one of s √(2G) · N with G of law
Gamma((D+1)/2) and N standard normal, independent (a symmetric variance-gamma law; D = 1 is
Laplace's). So it is normal given G, and what is normal beside it only adds to its variance:

    P(N(0, v) + Σ_i l_i Y_i > t) = E Φ(−t / √(v + 2 Σ_i (s_i l_i)² G_i)).

At one variance these tails are heavier than those of a normal law: beyond 2.326 standard deviations
lie .0187 of D = 1, not .01.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, gammaincinv, ndtr, ndtri

from labelguard.mechanisms.noise import NoiseKind

_EDGES = np.linspace(-34.0, 34.0, 2**13)  # of bins of G, as logits of its distribution function
_FEW_EDGES = np.linspace(-34.0, 34.0, 2**10)
_PRECISION = 1e-6

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ReleasedNoise:
    """Public: the noise of one window. Its `kind`, the standard deviation of each component, and in
    how many dimensions at `least` it was drawn (see `mechanisms.noise`).
    """

    kind: NoiseKind
    deviation: float
    least: int = 1

    def dimension(self, components: int) -> int:
        """In how many dimensions noise of so many components was drawn."""
        return max(components, self.least)

    def draws(self, components: int, rng: np.random.Generator, count: int) -> Floats:
        """Simulated noise, shape (count, components)."""
        normal = rng.standard_normal((count, components))
        if self.kind == "gaussian":
            return np.asarray(self.deviation * normal)
        dimension = self.dimension(components)
        length = np.einsum("ij,ij->i", normal, normal)
        if dimension > components:  # of the coordinates that are dropped the length is enough
            length += rng.chisquare(dimension - components, count)
        radius = rng.gamma(dimension, self.deviation / np.sqrt(dimension + 1), count)
        return np.asarray((radius / np.sqrt(length))[:, None] * normal)


def reach(
    probability: float,
    variance: float,
    noises: Sequence[ReleasedNoise],
    length: float,
    components: int,
) -> float:
    """Return a t that N + Σ cᵀY_i exceeds with at most this `probability`, in (0, ½], `length` =
    ‖c‖.

    N is normal with at most this `variance`; the Y_i are independent noise of so many `components`.
    Never too small: Σ s_i² G_i is rounded up to the end of a bin, which adds less than 1 % to t
    for a window, and about 1 % for each further one of another scale.
    """
    if not 0 < probability <= 0.5:
        raise ValueError(f"expected a probability in (0, 1/2], found {probability}")
    normal = variance + sum((n.deviation * length) ** 2 for n in noises if n.kind == "gaussian")
    balls = [n for n in noises if n.kind == "ball" and n.deviation * length]
    bell = -float(ndtri(probability)) * math.sqrt(normal)
    if not balls or probability == 0.5:
        return bell
    parts = [(one.deviation**2, one.dimension(components) + 1) for one in balls]
    ends, weights = _mixture(tuple(sorted(parts)))
    spread = np.sqrt(normal + length**2 * ends)

    def beyond(t: float) -> float:
        return float(weights @ ndtr(-t / spread))

    low, high = 0.0, bell + length * math.sqrt(sum(each for each, _ in parts))
    while beyond(high) > probability:
        low, high = high, 2 * high
    while high - low > _PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if beyond(middle) > probability else (low, middle)
    return high


@lru_cache(maxsize=64)
def _mixture(parts: tuple[tuple[float, int], ...]) -> tuple[Floats, Floats]:
    """Upper ends of bins of Σ 2 s_i² G_i, the last one at infinity, and their chances.

    `parts` are (variance, dimensions + 1) of each noise, so that 2 s² = 2 · variance / (D + 1).
    """
    total: tuple[Floats, Floats] | None = None
    for (variance, halves), several in groupby(parts):
        shape = halves * len(list(several)) / 2  # of equal scales the sum is a Gamma variable too
        edges = _EDGES if len(set(parts)) == 1 else _FEW_EDGES
        ends = np.append(gammaincinv(shape, expit(edges)), math.inf) * 2 * variance / halves
        weights = np.diff(expit(edges), prepend=0.0, append=1.0)
        total = (ends, weights) if total is None else _sum(*total, ends, weights)
    assert total is not None
    return total


def _sum(one: Floats, chance: Floats, other: Floats, likewise: Floats) -> tuple[Floats, Floats]:
    """Return the sum of two independent variables, rounded up to as many bins."""
    values, weights = np.add.outer(one, other).ravel(), np.outer(chance, likewise).ravel()
    order = np.argsort(values, kind="stable")
    values, below = values[order], np.cumsum(weights[order])
    last = np.searchsorted(below, expit(_FEW_EDGES)).clip(max=len(values) - 1)
    ends = np.append(values[last], math.inf)
    return ends, np.diff(np.append(below[last], 1.0), prepend=0.0).clip(min=0.0)
