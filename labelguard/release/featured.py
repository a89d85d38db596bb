"""An input as heads see it: its distinct pairs, and their features."""

from __future__ import annotations

from dataclasses import dataclass
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
        return cls(spec, pairs, provider, x, comparisons(staged, pairs.of_row))
