"""Linear heads on frozen features, in coordinates: a cohort's gradients in one sparse product.

What is clipped is rounded toward zero to a grid and summed in whole numbers, and its noise is drawn
exactly (`labelguard.mechanisms.noise`): floating point is no part of the guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from labelguard.mechanisms import statistic
from labelguard.mechanisms.statistic import STEP_BITS, Grid
from labelguard_trainer.gradient.head_records import Records

__all__ = ["HeadProblem", "clip_norm", "rates"]

Floats = NDArray[np.float64]

_FLOOR = 1e-12
_BLOCK = 1 << 18  # gradients' coordinates that are clipped while they lie in the cache


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
        parts = self.gradients(units, labels)
        total = np.zeros(parts.shape[1], np.int64)
        for block in _blocks(parts):
            norm = np.sqrt(np.einsum("ij,ij->i", block, block))
            if not (finite := np.isfinite(norm)).all():  # what overflowed counts for nothing
                block[~finite], norm[~finite] = 0, 0
            scale = clip * _below_one(block.shape[1]) / np.maximum(norm, clip) / self._grid
            block *= scale.astype(np.float32)[:, None]
            np.trunc(block, out=block)
            total += block.sum(axis=0, dtype=np.float64).astype(np.int64)  # exact, being whole
        return np.asarray(total * self._grid)

    def gradients(self, units: NDArray[np.intp], labels: Floats) -> NDArray[np.float32]:
        """PRIVATE: Σ weight · residual · features over the records of each unit, (units, d)."""
        starts = self._records.starts
        sizes = starts[units + 1] - starts[units]
        ends = np.append(0, np.cumsum(sizes))
        places = np.repeat(starts[units] - ends[:-1], sizes) + np.arange(ends[-1])
        features, index = self._records.features, self._records.index[places]
        if len(index) < len(features):  # each row is fetched from memory once
            features, index = features[index], np.arange(len(index))
        score = (features @ self.theta.astype(np.float32))[index]
        residual = self._records.residuals(score, places, labels)
        factor = (residual * np.repeat(self._weight[units], sizes)).astype(np.float32)
        rows = csr_array((factor, index, ends), shape=(len(units), len(features)))
        return np.asarray(rows @ features, np.float32)

    def noised(self, total: Floats, deviation: float, secret: bytes) -> Floats:
        """The sum with noise that was drawn exactly, on the grid."""
        scale = math.ceil(deviation / self._grid)
        grid = Grid(self._grid, scale, "gaussian", len(total))
        whole = np.rint(total / self._grid).astype(np.int64)
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


def _blocks(parts: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """Runs of rows, of some `_BLOCK` numbers each."""
    rows = max(1, _BLOCK // parts.shape[1])
    return (parts[at : at + rows] for at in range(0, len(parts), rows))


def _below_one(size: int) -> float:
    """By how much to clip below C, so that norms of `size` float32 numbers stay within it.

    A sum of d squares errs by d + 1 roundings of 2^-24 at most, and its root by half of that; the
    root, the scale and the products with it by one or two each.
    """
    return 1 - (size + 8) * 2.0**-24


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
    h = np.maximum(records.curvature(weight) / units, _FLOOR)
    scatter = records.curvature(weight**2) / units**2
    ridge = penalty * (scatter + noise**2) / h
    return np.asarray(np.log1p(h / ridge) / h / steps)
