"""Bound how far sums of labels scatter that were flipped together.

In a block of m labels (`labelguard.accounting.blocks`) let s = −1 for a label that was flipped,
else 1: E s = c1 = 1 − 2γ for each, and E s s' = c2 for any two. Their covariance matrix has two
eigenvalues, 1 − c1² + (m − 1)(c2 − c1²) and 1 − c1² − (c2 − c1²), and blocks are independent.
So whoever knows c1, c2 and m of each row, but not which rows are of one block, still knows

    Var Σ_r w_r s_r  ≤  Σ_r w_r² · (the larger eigenvalue of r's block),

for any weights, and for any part of a block's rows. Of single labels it is the variance itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["BlockLaws", "FlippedRows", "coin_variance", "variance_factor"]

Floats: TypeAlias = NDArray[np.float64]
# The blocks of a release, as its card has them.
BlockLaws: TypeAlias = Sequence[Mapping[str, Any]]

# How far a flip probability may be from that of its block, after it was written and read.
_SAME = 1e-9


def variance_factor(first: ArrayLike, second: ArrayLike, size: ArrayLike) -> Floats:
    """Return the larger eigenvalue of a block's covariance: c1 `first`, c2 `second`, m `size`."""
    c1, c2, m = (np.asarray(each, np.float64) for each in (first, second, size))
    excess = c2 - np.square(c1)
    together = np.where(m > 1, np.maximum(excess * (m - 1), -excess), 0.0)
    return np.asarray(1 - np.square(c1) + together)


def coin_variance(flip_probability: ArrayLike) -> Floats:
    """Return the variance of s of labels that were flipped one by one, 4γ(1 − γ)."""
    gamma = np.asarray(flip_probability, np.float64)
    return np.asarray(4 * gamma * (1 - gamma))


@dataclass(frozen=True, eq=False)
class FlippedRows:
    """Released rows: γ, and how many labels were flipped together with each, all of shape (n,).

    `second` is c2 of its block, and `noise` the `variance_factor`.
    """

    flip_probability: Floats
    size: NDArray[np.int64]
    second: Floats
    noise: Floats

    @classmethod
    def of(cls, flip_probability: ArrayLike, blocks: BlockLaws = ()) -> Self:
        """Look rows up by their flip probability in the `blocks` of a release's card.

        Those are mappings with `flip_probability`, `labels` (how many a block has) and
        `second_moment`. Where blocks of two sizes have one flip probability, the larger noise holds
        for both; a row whose flip probability no block has was flipped alone.
        """
        gamma = np.asarray(flip_probability, np.float64)
        first = 1 - 2 * gamma
        size, second, noise = np.ones(len(gamma), np.int64), first.copy(), coin_variance(gamma)
        for block in blocks:
            c1, c2 = 1 - 2 * block["flip_probability"], block["second_moment"]
            factor = float(variance_factor(c1, c2, block["labels"]))
            rows = (np.abs(gamma - block["flip_probability"]) <= _SAME) & (noise <= factor + _SAME)
            size[rows], second[rows], noise[rows] = block["labels"], c2, factor
        return cls(gamma, size, second, noise)
