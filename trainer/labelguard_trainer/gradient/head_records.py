"""The public records of a run on frozen features: comparisons, rankings or choices, whose they are.

Records are rows of a matrix of features, grouped by unit: the score of a record is made of the rows
`features[index]`, (rows, d) and (n,), unit after unit, and each unit's begin at `starts`,
(units + 1,) in `index`. `residuals` are ∂loss/∂score of the rows `index[places]`, which hold units
whole; `labels` are those of the rows that a release reads, in their order there. `counts` says how
many records each unit has, `expected_squared_norms` E‖gradient‖² of each unit's records at θ = 0,
summed, if labels are random, (units,) both, and `curvature` the loss's at θ = 0, (d,), Σ over
records, each of its unit's weight.

Rows of responses are contracted by sparse products, a cohort at once: no loop over records.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.inputs.pairs import DistinctPairs
from labelguard.learning.heads import square_sums
from labelguard.mechanisms import choices
from labelguard.mechanisms.geometry import compute_squared_norms
from labelguard.mechanisms.statistic import Rows
from labelguard.storage import blocks
from labelguard_trainer.gradient.options import Weighting

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ComparisonRecords:
    """Pairs, scored by the difference of their sides: Bradley and Terry's loss.

    −y log σ(z) − (1 − y) log σ(−z), z = x·θ, has the derivative σ(z) − y. `row` (n,) are the rows
    of a release that `index` was sorted from.
    """

    features: NDArray[np.float32]
    index: NDArray[np.intp]
    starts: NDArray[np.intp]
    row: NDArray[np.intp]

    @classmethod
    def of(cls, z: NDArray[np.float32], rows: Rows) -> Self:
        """Of coordinates z (pairs, d) and who compared what."""
        order = np.argsort(rows.unit, kind="stable")
        starts = np.searchsorted(rows.unit[order], np.arange(rows.units + 1))
        return cls(z, rows.pair[order], starts, order)

    def residuals(
        self, score: NDArray[np.float32], places: NDArray[np.intp], labels: Floats
    ) -> Floats:
        """σ(z) − y."""
        return 0.5 * (1 + np.tanh(score / 2)) - labels[self.row[places]]

    def counts(self) -> NDArray[np.int64]:
        """Return one record a row."""
        return np.diff(self.starts)

    def expected_squared_norms(self) -> Floats:
        """¼ ‖z‖²."""
        return _sum_by_unit(self, compute_squared_norms(self.features) / 4)

    def curvature(self, weight: Floats) -> Floats:
        """¼ z²."""
        each = np.repeat(weight, np.diff(self.starts))
        of_pair = np.bincount(self.index, each, len(self.features))
        return square_sums(self.features, of_pair.astype(np.float64)) / 4


@dataclass(frozen=True, eq=False)
class RankingRecords:
    """Rankings of K responses, or choices of the best of K: Plackett-Luce loss (aup-rlhf B.4).

    `features` are centred responses, set after set. `index` are the responses of every record, and
    `record` (n,) numbers the records; those of a choice count for their first place alone. `row`
    (rows,), `record_of_row`, `one` and `other` (rows,) say which response each row of a release
    prefers to which: so a response has as many wins as there are those that it was preferred to.
    """

    features: NDArray[np.float32]
    index: NDArray[np.intp]
    starts: NDArray[np.intp]
    record: NDArray[np.intp]
    first_only: bool
    one: NDArray[np.intp]
    other: NDArray[np.intp]

    @classmethod
    def of(cls, z: NDArray[np.float32], rows: Rows, pairs: DistinctPairs) -> Self:
        """Of coordinates z (pairs, d), rows that were broken from rankings, and the pairs' sets."""
        assert rows.ranking is not None and rows.size is not None
        used, pair = np.unique(rows.pair, return_inverse=True)
        size = np.zeros(len(used), np.int64)
        size[pair] = rows.size
        sets = blocks.unique(pairs.items[used])[1]
        number = pairs.number[used]
        features, offsets = choices.recover_responses(z[used], sets, number, size)
        records, record_of_row = np.unique(rows.ranking, return_inverse=True)
        first = np.unique(record_of_row, return_index=True)[1]
        unit, of_set = rows.unit[first], sets[pair[first]]
        order = np.argsort(unit, kind="stable")
        sizes = np.diff(offsets)[of_set[order]]
        begins = np.append(0, np.cumsum(sizes))
        index = np.repeat(offsets[of_set[order]] - begins[:-1], sizes) + np.arange(begins[-1])
        place = np.empty(len(records), np.intp)
        place[order] = begins[:-1]
        one, other = choices.locate_pairs(number, size)
        at = place[record_of_row]
        return cls(
            features,
            index,
            begins[np.searchsorted(unit[order], np.arange(rows.units + 1))],
            np.repeat(np.arange(len(records)), sizes),
            rows.choices,
            at + one[pair],
            at + other[pair],
        )

    def residuals(
        self, score: NDArray[np.float32], places: NDArray[np.intp], labels: Floats
    ) -> Floats:
        """Of a response, Σ of its probabilities in the draws that it is in, less 1 if it is drawn.

        Responses that tie are drawn from all that are not better, each by itself; of a choice they
        share the first place.
        """
        wins = np.bincount(self.one, labels, len(self.index))
        wins += np.bincount(self.other, 1 - labels, len(self.index))
        record, wins = self.record[places], wins[places]
        begins = np.flatnonzero(np.diff(record, prepend=-1))
        sizes = np.diff(np.append(begins, len(record)))
        rows = np.repeat(np.arange(len(begins)), sizes)
        columns = np.arange(len(record)) - np.repeat(begins, sizes)
        shape = (
            len(begins),
            self._longest_record,
        )  # of all, not of these: sums over a row have one order
        of_place = np.full(shape, -np.inf)
        of_place[rows, columns] = score
        won = np.full(shape, -1.0)
        won[rows, columns] = wins
        power = np.exp(of_place - of_place.max(axis=1, keepdims=True))
        if self.first_only:
            best = (won == won.max(axis=1, keepdims=True)) & (won >= 0)
            residuals = power / power.sum(axis=1, keepdims=True) - best / best.sum(
                axis=1, keepdims=True
            )
        else:
            # in_draw[r, j, k]: response k was still there when j was drawn.
            in_draw = (won[:, None, :] <= won[:, :, None]) & (won >= 0)[:, :, None]
            total = np.where(in_draw, power[:, None, :], 0.0).sum(axis=2)
            share = np.divide(1.0, total, out=np.zeros_like(total), where=won >= 0)
            residuals = power * np.where(in_draw, share[:, :, None], 0.0).sum(axis=1) - 1
        return np.asarray(residuals[rows, columns])

    @cached_property
    def _longest_record(self) -> int:
        """Of how many responses the longest record is."""
        return int(np.bincount(self.record).max(initial=1))

    def counts(self) -> NDArray[np.int64]:
        """Return one record a ranking."""
        first = np.append(0, np.cumsum(np.diff(self.record, prepend=-1) > 0))
        return np.diff(first[self.starts])

    def expected_squared_norms(self) -> Floats:
        """Σ a² / (K − 1) · Σ ‖φ‖², a the residuals of a random order, or 1/K Σ ‖φ‖² of a choice."""
        size = np.bincount(self.record)[self.record]
        factor = 1 / size if self.first_only else _compute_residual_variance(size)
        squares = compute_squared_norms(self.features)[self.index] * factor
        return np.asarray(np.add.reduceat(np.append(squares, 0), self.starts[:-1])) * (
            np.diff(self.starts) > 0
        )

    def curvature(self, weight: Floats) -> Floats:
        """Σ over draws of the variance of a response at random, along each axis."""
        size = np.bincount(self.record)[self.record]
        draws = 1 / size if self.first_only else _compute_response_curvature(size)
        each = np.repeat(weight, np.diff(self.starts)) * draws
        of_response = np.bincount(self.index, each, len(self.features))
        return square_sums(self.features, of_response.astype(np.float64))


Records: TypeAlias = ComparisonRecords | RankingRecords


def records_of(z: NDArray[np.float32], rows: Rows, pairs: DistinctPairs) -> Records:
    """Return the records of rows on pairs at z (pairs, d)."""
    if rows.ranking is None:
        return ComparisonRecords.of(z, rows)
    return RankingRecords.of(z, rows, pairs)


def weights(records: Records, weighting: Weighting) -> Floats:
    """Return what each record of a unit weighs: 1/m, or 1/√m, of m records; (units,)."""
    counts = np.maximum(records.counts(), 1)
    return 1 / (counts if weighting == "mean" else np.sqrt(counts))


def _sum_by_unit(records: ComparisonRecords, of_feature: NDArray[np.floating]) -> Floats:
    """Σ over the rows of each unit, (units,): no difference of sums over others."""
    sizes = np.diff(records.starts)
    unit = np.repeat(np.arange(len(sizes)), sizes)
    each = of_feature[records.index].astype(np.float64)
    return np.asarray(np.bincount(unit, each, len(sizes)), np.float64)


def _compute_residual_variance(size: NDArray[np.int64]) -> Floats:
    """Σ a² / (K − 1), a_r = Σ_{j ≤ r} 1/(K − j + 1) − 1 the residual at rank r of K."""
    table = np.zeros(int(size.max(initial=2)) + 1)
    for k in range(2, len(table)):
        residual = np.cumsum(1 / np.arange(k, 0, -1)) - 1
        table[k] = residual @ residual / (k - 1)
    return np.asarray(table[size])


def _compute_response_curvature(size: NDArray[np.int64]) -> Floats:
    """Σ_{r = 2 … K} (r − 1) / (r (K − 1)): what the draws of a ranking of K tell of Σ φ²."""
    table = np.zeros(int(size.max(initial=2)) + 1)
    for k in range(2, len(table)):
        left = np.arange(2, k + 1)
        table[k] = ((left - 1) / left).sum() / (k - 1)
    return np.asarray(table[size])
