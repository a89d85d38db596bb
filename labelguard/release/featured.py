"""An input as heads see it: its distinct pairs, and their features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from labelguard.ingest.pairs import DistinctPairs, comparisons, distinct_pairs
from labelguard.ingest.staged import Staged
from labelguard.learning.features import PairFeatures, Wait, open_fitted
from labelguard.mechanisms.statistic import Rows
from labelguard.terms import Progress


@dataclass(frozen=True, eq=False)
class Featured:
    """Public: distinct pairs, x (pairs, d) of a provider fitted on them, and who compared them.

    Computed once in a run: a first policy is sized by it, and the release is made of it.
    """

    spec: str
    pairs: DistinctPairs
    provider: PairFeatures
    x: NDArray[np.float32]
    compared: Rows

    @classmethod
    def of(cls, staged: Staged, spec: str, progress: Progress, wait: Wait | None = None) -> Self:
        """Of a staged input; raises as `distinct_pairs` and `open_fitted`, and `wait` may raise."""
        pairs = distinct_pairs(staged)
        provider = open_fitted(spec, pairs.table, progress, wait)
        x = provider(pairs.table)
        return cls(spec, pairs, provider, x, _unkeyed(comparisons(staged, pairs.of_row), len(x)))


def _unkeyed(rows: Rows, pairs: int) -> Rows:
    """The same comparisons with units numbered by what they compared, not by their pseudonyms.

    Simulated labels follow the order of units: so a forecast is the same under every key, in a dry
    run without a project, too. Units that compared the same are interchangeable.
    """
    code = np.random.default_rng(0).integers(2**63, size=pairs, dtype=np.uint64)
    compared = np.zeros(rows.units, np.uint64)
    np.add.at(compared, rows.unit, code[rows.pair])
    number = np.empty(rows.units, np.intp)
    number[np.argsort(compared, kind="stable")] = np.arange(rows.units)
    unit = number[rows.unit]
    order = np.lexsort((rows.pair, unit))
    ranking, size = rows.ranking, rows.size
    if ranking is not None:
        _, first, found = np.unique(ranking[order], return_index=True, return_inverse=True)
        ranking = np.argsort(np.argsort(first))[found]
    return replace(
        rows,
        pair=rows.pair[order],
        unit=unit[order],
        ranking=ranking,
        size=None if size is None else size[order],
    )
