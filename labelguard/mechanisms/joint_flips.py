"""How far sums of labels scatter that were flipped together.

In a block of m labels (`labelguard.accounting.blocks`) let s = −1 for a label that was flipped,
else 1: E s = c1 = 1 − 2γ for each, and E s s' = c2 for any two. Their covariance matrix has two
eigenvalues, 1 − c1² + (m − 1)(c2 − c1²) and 1 − c1² − (c2 − c1²), and blocks are independent.
So whoever knows c1, c2 and m of each row, but not which rows are of one block, still knows

    Var Σ_r w_r s_r  ≤  Σ_r w_r² · (the larger eigenvalue of r's block),

for any weights, and for any part of a block's rows. Of single labels it is the variance itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["coin_variance", "variance_factor", "variance_factors"]

Floats: TypeAlias = NDArray[np.float64]

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


def variance_factors(flip_probability: ArrayLike, blocks: Sequence[Mapping[str, Any]]) -> Floats:
    """Return the factor of each row, shape (n,), by its flip probability.

    `blocks` are those of a release's card: mappings with `flip_probability`, `labels` (how many a
    block has) and `second_moment`. Where blocks of two sizes have one flip probability, the larger
    factor holds for both; a row whose flip probability no block has was flipped alone.
    """
    gamma = np.asarray(flip_probability, np.float64)
    factor = coin_variance(gamma)
    for one in blocks:
        law = variance_factor(1 - 2 * one["flip_probability"], one["second_moment"], one["labels"])
        rows = np.abs(gamma - one["flip_probability"]) <= _SAME
        factor[rows] = np.maximum(factor[rows], law)
    return factor
