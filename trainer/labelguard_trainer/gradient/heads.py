"""Linear heads on frozen features, in coordinates: a cohort's gradients in one sparse product.

What is clipped lies on a grid, within a bound of whole numbers (`labelguard.mechanisms.clipping`),
is summed exactly, and its noise is drawn exactly (`labelguard.mechanisms.noise`): floating point is
no part of the guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from labelguard.mechanisms import clipping, statistic
from labelguard.mechanisms.statistic import STEP_BITS, Grid
from labelguard_trainer.gradient.head_records import Records

__all__ = ["HeadProblem", "clip_norm", "rates"]

Floats = NDArray[np.float64]

_FLOOR = 1e-12  # of curvature, beside the largest
_BLOCK = 1 << 17  # numbers that are worked on while they lie in the cache


class HeadProblem:
    """θ (d,) on coordinates z (pairs, d), from 0; see `problem.Problem`.

    `weight` (units,) is what each record of a unit weighs in its gradient, and `rate` (d,) how far
    a step goes along each coordinate. All of it is public; `clip` sets the grid.
    """

    def __init__(
        self,
        z: NDArray[np.float32],
        records: Records,
        weight: Floats,
        rate: Floats,
        clip: float,
    ) -> None:
        self._z, self._records, self._weight, self._rate = z, records, weight, rate
        self._grid = math.ldexp(1.0, math.frexp(clip)[1] - STEP_BITS)  # a power of 2: exact
        self.theta: Floats = np.zeros(z.shape[1])

    def clipped_sum(self, units: NDArray[np.intp], labels: Floats, clip: float) -> Floats:
        """PRIVATE: a whole number of grid steps in every coordinate, (d,)."""
        total = np.zeros(len(self.theta), np.int64)
        parts = self.gradients(units, labels)
        for part in _slices(*parts.shape):
            total += clipping.on_grid(parts[part], clip, self._grid).sum(axis=0)
        return np.asarray(total * self._grid)

    def gradients(self, units: NDArray[np.intp], labels: Floats) -> NDArray[np.float32]:
        """PRIVATE: Σ weight · residual · features over the records of each unit, (units, d).

        That of a unit is a function of its own records: sums are taken row by row, in one order. A
        product of matrices would not do, since what it gives a row depends on how many there are.
        """
        starts = self._records.starts
        sizes = starts[units + 1] - starts[units]
        ends = np.append(0, np.cumsum(sizes))
        places = np.repeat(starts[units] - ends[:-1], sizes) + np.arange(ends[-1])
        features, index = self._records.features, self._records.index[places]
        theta, score = self.theta.astype(np.float32), np.empty(len(index), np.float32)
        for part in _slices(len(index), features.shape[1]):
            score[part] = np.einsum("ij,j->i", features[index[part]], theta)
        residual = self._records.residuals(score, places, labels)
        factor = (residual * np.repeat(self._weight[units], sizes)).astype(np.float32)
        rows = csr_array((factor, index, ends), shape=(len(units), len(features)))
        return np.asarray(rows @ features, np.float32)

    def noised(self, total: Floats, deviation: float, secret: bytes) -> Floats:
        """The sum with noise that was drawn exactly, on the grid."""
        scale = math.ceil(deviation / self._grid)
        grid = Grid(self._grid, scale, "gaussian", len(total))
        whole = np.array([int(one) for one in np.rint(total / self._grid)], object)
        return np.asarray(statistic.noisy(whole, grid, secret) * self._grid, np.float64)

    def step(self, gradient: Floats) -> None:
        """θ − rate · gradient."""
        self.theta = self.theta - self._rate * gradient

    def state(self) -> dict[str, NDArray[Any]]:
        """θ."""
        return {"theta": self.theta}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of `state`; ValueError for coefficients of another shape."""
        if state["theta"].shape != self.theta.shape:
            raise ValueError("coefficients of another shape")
        self.theta = state["theta"]

    def margins(self) -> Floats:
        """z·θ."""
        return np.asarray(self._z @ self.theta.astype(np.float32), np.float64)

    def export(self, directory: Path) -> tuple[Path, ...]:
        """Nothing: `release.methods.further.with_head` publishes a head."""
        return ()


def _slices(rows: int, width: int) -> Iterator[slice]:
    """Of so many rows, some `_BLOCK` numbers each."""
    height = max(1, _BLOCK // width)
    return (slice(at, at + height) for at in range(0, rows, height))


def clip_norm(records: Records, weight: Floats) -> float:
    """The median norm of a unit's gradient at θ = 0, were labels random and independent.

    Raises `InvalidLabels` if no record says anything, or a feature is not finite.
    """
    return statistic.clip_and_weights(weight * np.sqrt(records.energy()), 0.5)[0]


def rates(records: Records, weight: Floats, penalty: Floats, noise: float, steps: int) -> Floats:
    """How far each coordinate goes in a step, (d,), in closed form from public numbers.

    `steps` steps at rate η along a coordinate of curvature h, from 0, give (1 − e^(−ηh·steps))/h of
    the mean gradient: as much as a ridge R, the gradient's 1/(h + R), for η·steps = ln(1 + h/R)/h.
    R = penalty · (scatter of labels + noise²)/h makes it the posterior mean of a coefficient of
    prior variance 1/penalty. `noise` is the deviation of the mean of all steps' noise.
    """
    units = np.count_nonzero(records.counts())
    h = records.curvature(weight) / units
    h = np.maximum(h, max(float(h.max()) * _FLOOR, np.finfo(float).tiny))
    scatter = records.curvature(weight**2) / units**2
    ridge = penalty * (scatter + noise**2) / h
    return np.asarray(np.log1p(h / ridge) / h / steps)
