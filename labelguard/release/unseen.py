"""What is not known of a head's coefficients because it lies outside of the released directions.

Released directions are chosen by public columns alone, so that before the release nothing tells
them from the others: coefficients along all of them are taken to be normal, of one variance. Of few
of them that variance is hardly known. An upper bound of it is taken, at 95% (the chi-square
distribution of the sum of squares), between a small variance and that of the wide prior of
`mechanisms.moments`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.stats import chi2

from labelguard.learning.features import Group
from labelguard.mechanisms.moments import WIDE
from labelguard.release.described import Standings
from labelguard.release.head import Head
from labelguard.release.uncertainty import DRAWS, LEVEL, normal_draws

__all__ = ["NEGLIGIBLE", "Unseen", "islands", "own_edges", "unseen"]

LEAST_VARIANCE = 1 / 3
"""Of a coefficient along a principal axis, on features of mean squared norm 1."""
NEGLIGIBLE = 1e-3
"""Share of a direction's length below which what is outside is rounding."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Unseen:
    """The part of directions (columns, n) that is outside of what was released."""

    rest: Floats
    """what is left of each direction, shape (columns, n)"""
    share: Floats
    """its length as a share of the direction's, shape (n,)"""
    known: Floats
    """coefficients along the principal axes that were released, shape (components,)"""

    def draws(self) -> Floats:
        """Simulated errors along the directions, shape (DRAWS, n); always the same ones."""
        if not (self.share > NEGLIGIBLE).any():
            return np.zeros((DRAWS, self.rest.shape[1]))
        bound = float((self.known**2).sum()) / chi2.ppf(1 - LEVEL, len(self.known))
        variance = min(max(bound, LEAST_VARIANCE), WIDE**2)
        return normal_draws(variance * self.rest.T @ self.rest)


def unseen(head: Head, directions: Floats, beta: Floats) -> Unseen:
    """What is not known along `directions` (columns, n) of raw features.

    `beta` (components,) are the coefficients that are known, in the head's coordinates.
    """
    projection, metric = head.basis.projection, head.basis.metric
    rest = directions - projection @ (np.linalg.pinv(projection) @ directions)
    length = np.maximum(np.linalg.norm(directions, axis=0), np.finfo(float).tiny)
    share = np.linalg.norm(rest, axis=0) / length
    rest[:, share <= NEGLIGIBLE] = 0
    return Unseen(rest, share, np.asarray(metric * beta))


def own_edges(
    edges: NDArray[np.int64], group: Group
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """The edges of a group: two columns of it, and how often they met."""
    own = edges[(edges[:, 0] >= group.start) & (edges[:, 0] < group.stop)]
    return own[:, 0] - group.start, own[:, 1] - group.start, own[:, 2]


def islands(standings: Standings, group: Group) -> NDArray[np.intp]:
    """Which sources of a group comparisons connect, directly or through others, shape (sources,).

    Equal numbers are connected.
    """
    size = group.stop - group.start
    one, other, _ = own_edges(standings.edges, group)
    graph = coo_array((np.ones(len(one)), (one, other)), shape=(size, size))
    return np.asarray(connected_components(graph, directed=False)[1], np.intp)
