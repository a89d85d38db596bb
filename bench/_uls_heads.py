"""Heads: a cohort's step of labeler-level DP-SGD and of AUP against plain SGD, in seconds.

Plain SGD gathers the cohort's rows, multiplies them by θ and their residuals by them. The floor is
the second of these products alone, of rows that lie together. ULS clips, sums and steps; its noise,
which is drawn exactly, is told apart. AUP scores, leaves out and steps.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from labelguard_trainer.gradient import aup
from labelguard_trainer.gradient.heads import ComparisonRecords, HeadProblem
from numpy.typing import NDArray

from labelguard.mechanisms.statistic import Rows

__all__ = ["HELD", "SIZES", "Cohort", "rows"]

HELD = (1, 10, 100)
"""Records of a labeler."""
SIZES = ((4_096, 384), (50_000, 64))
"""Records of a cohort, and features."""
_SHARE = 4  # one in so many is in the cohort
_NEAR = 5_000  # members whose distances from each other fit into memory
_CLIP = 1.0


class Cohort:
    """A head's problem, and a quarter of its labelers, who have `records` records together."""

    def __init__(self, records: int, features: int, held: int) -> None:
        draw = np.random.default_rng(0)
        members, total = records // held, _SHARE * (records // held) * held
        self.z = draw.normal(size=(total, features)).astype(np.float32)
        unit = np.arange(total) // held
        found = ComparisonRecords.of(self.z, Rows(draw.permutation(total), unit, _SHARE * members))
        weight = found.weigh_by_unit("mean")
        self.problem = HeadProblem(found, weight, np.full(features, 0.01), _CLIP)
        self.units = np.sort(draw.permutation(_SHARE * members)[:members])
        self.labels = draw.choice([0.0, 0.5, 1.0], total)
        self.features, self.held = features, held
        places = (found.starts[self.units][:, None] + np.arange(held)).ravel()
        self.rows = found.index[places]
        self.targets = self.labels[found.row[places]].astype(np.float32)

    def sgd(self) -> NDArray[np.float32]:
        """The mean gradient of a step of plain SGD, which is taken."""
        x = self.z[self.rows]
        residual = 0.5 * (1 + np.tanh(x @ self.problem.theta.astype(np.float32) / 2))
        gradient = (x.T @ (residual - self.targets)) / np.float32(len(x))
        self.problem.step(gradient)
        return gradient

    def uls(self) -> NDArray[np.float64]:
        """The mean of clipped gradients, without noise; the step is taken."""
        gradient = self.problem.clipped_sum(self.units, self.labels, _CLIP) / len(self.units)
        self.problem.step(gradient)
        return gradient

    def noise(self) -> None:
        """What noise of a step costs."""
        self.problem.add_noise(np.zeros(self.features), 1.0, bytes(32))

    def aup(self) -> None:
        """A step of AUP, without noise."""
        gradients = self.problem.gradients(self.units, self.labels)
        aup.concentration(gradients, _CLIP)
        kept = aup.select_inliers(gradients, _CLIP, np.full(len(self.units), 0.5))
        self.problem.step(gradients[kept].sum(axis=0) / max(1, int(kept.sum())))

    def floor(self) -> Callable[[], Any]:
        """One product of all rows, which lie together, with a vector."""
        x, one = self.z[self.rows], np.ones(len(self.rows), np.float32)
        return lambda: x.T @ one


def rows(sizes: tuple[tuple[int, int], ...] = SIZES, rounds: int = 15) -> list[list[Any]]:
    """Model, records of a labeler, way, milliseconds, and ratios to plain SGD and to the floor."""
    found = []
    for records, features in sizes:
        for held in HELD:
            cohort = Cohort(records, features, held)
            ways: dict[str, Callable[[], Any]] = {"SGD": cohort.sgd, "ULS": cohort.uls}
            ways |= {"noise, exactly": cohort.noise, "floor": cohort.floor()}
            seconds = _interleaved(list(ways.values()), rounds)
            told = dict(zip(ways, seconds, strict=True))
            if len(cohort.units) <= _NEAR:  # by itself: its distances push all else out of caches
                told["AUP"] = _interleaved([cohort.aup], rounds)[0]
            name = f"head, {records:,} × {features}"
            for way, one in told.items():
                ratios = (round(one / told[other], 2) for other in ("SGD", "floor"))
                found.append([name, held, way, round(1000 * one, 2), *ratios])
    return found


def _interleaved(steps: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Median seconds of each step, of this process, after a round that is not counted."""
    seconds: list[list[float]] = [[] for _ in steps]
    for round_ in range(rounds + 1):
        for step, kept in zip(steps, seconds, strict=True):
            start = time.process_time()
            step()
            if round_:
                kept.append(time.process_time() - start)
    return [statistics.median(one) for one in seconds]
