"""Which of a labeler's records a step looks at, and what each of them weighs: public things only.

A labeler of m > G records shows G of them a step, in turn: at step t those in the places tG, …,
tG + G − 1 (mod m) of their public order. Cohorts are drawn independently of the step, so over a run
all records are seen equally often, and a step that is computed again looks at the same ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Drawn", "Records", "Weighting"]

Indices: TypeAlias = NDArray[np.intp]

Weighting: TypeAlias = Literal["mean", "root"]
"""A labeler's vector of k gradients: their mean, or their sum over √k."""


@dataclass(frozen=True)
class Drawn:
    """k records of a step, labeler by labeler: each of shape (k,)."""

    rows: Indices
    """their places in the records' arrays"""
    owners: Indices
    """whose they are: places in the cohort, ascending"""
    weights: NDArray[np.float64]
    """what their gradients weigh in their labeler's vector"""


@dataclass(frozen=True, eq=False, repr=False)
class Records:
    """n records, in an order that does not depend on labels: `pairs` and `units`, shape (n,).

    `pairs` number the distinct pairs, `units` the labelers, of which there are `population`; at
    most `limit` records of a labeler are used a step (aup-rlhf Alg. 4, line 7).
    """

    pairs: Indices
    units: Indices
    population: int
    limit: int
    weighting: Weighting

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ValueError(f"limit must be at least 1, found {self.limit}")
        if self.weighting not in ("mean", "root"):
            raise ValueError(f"weighting must be mean or root, found {self.weighting!r}")
        if len(self.pairs) != len(self.units):
            raise ValueError(f"{len(self.pairs)} pairs and {len(self.units)} units of records")

    def drawn(self, step: int, cohort: Indices) -> Drawn:
        """The records of `cohort`, distinct labelers, at a step counted from 0."""
        held = self._counts[cohort]
        used = np.minimum(held, self.limit)
        owners = np.repeat(np.arange(len(cohort)), used)
        place = np.arange(len(owners)) - np.repeat(np.cumsum(used) - used, used)
        turn = (step * self.limit + place) % held[owners]
        rows = self._order[self._starts[cohort][owners] + turn]
        power = 1.0 if self.weighting == "mean" else 0.5
        return Drawn(rows, owners, (1.0 / used[owners]) ** power)

    @cached_property
    def _counts(self) -> Indices:
        return np.bincount(self.units, minlength=self.population)

    @cached_property
    def _order(self) -> Indices:
        return np.argsort(self.units, kind="stable")

    @cached_property
    def _starts(self) -> Indices:
        return np.cumsum(self._counts) - self._counts
