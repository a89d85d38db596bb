"""Coefficients from a released statistic, and their errors: the method of simulated moments.

A head fitted from the statistic is shrunk: its ridge pulls toward 0, and the clip shortens labelers
who agree with themselves. For a ranking of systems with intervals that is no use. Here θ is the
one at which simulated labelers, who compare what the real ones compared and are weighted and
clipped like them, give the released statistic on average (method of simulated moments, McFadden
1989): m(θ) = S̃, m(θ) = E_θ[Σ_u clip_C(v_u)].

Labelers differ: one's margin on z is z·θ, scaled so that z·θ is what all of them together answer,
plus a taste of their own, z·δ_u. How far tastes differ is not known: θ is found for the middle of
the range `TASTES`, and how far it would be off at the ends is part of its error. Nor does one sum
tell whether labelers fall into camps, whose shares in a sample scatter more than tastes of all
kinds: labels are taken to scatter by the mean of what they do in the middle of the range and at its
upper end, which serves camps of many labelers and is too wide for labelers of one mind. With
Ω = Cov_θ of the clipped sum, N the noise's covariance, G = dm/dθ and a wide prior of precision Λ,

    B = (Gᵀ(Ω + N)⁻¹G + Λ)⁻¹,    θ̂ − θ = B Gᵀ(Ω + N)⁻¹ (scatter of labels + noise) + prior part.

G is E[clip_C(v_u) · score_u], the score that of labels given tastes. All of it reads public rows
and the released statistic: nothing is charged, and no label or residual is looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from labelguard.mechanisms.clipping import clip_rows

Floats = NDArray[np.float64]

# Standard deviations, in log-odds, of a labeler's own margin on a typical pair: the range that is
# thought possible. Where contributions are clipped, the statistic tells how far θ is from 0
# compared with how much labelers differ, so that not knowing the one leaves the other open.
TASTES = (0.0, 1.6)
# Share of ties: labels scatter that much less.
TIES = 0.15
# Standard deviation of margins under the prior, in log-odds: 260 points of Elo.
WIDE = 1.5

_SEED = 20150807
_WORLDS, _LAST_WORLDS = 16, 32
_STEPS, _FURTHER_STEPS = 8, 4
_FARTHEST = 1.0  # by which a step may change a typical margin
# Of mixtures over tastes: nodes, Newton's steps, and where margins and deviations are cut off.
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(32)
_MARGIN_STEPS, _LARGEST_MARGIN, _LARGEST_DEVIATION = 8, 60.0, 6.0


@dataclass(frozen=True)
class Comparisons:
    """Public: who compared what in one window, and how they are bounded.

    `z` (pairs, components) are coordinates, `pair` and `unit` (n,) say which pair each row is about
    and whose it is, `share` (n,) is its weight and `spread` (n,) what its label's variance is
    multiplied by, since labels of one ranking hang together. `weight` (units,) and `clip` are those
    of `statistic.Bounds`.
    """

    z: NDArray[np.float32]
    pair: NDArray[np.intp]
    unit: NDArray[np.intp]
    share: Floats
    spread: Floats
    weight: Floats
    clip: float


@dataclass(frozen=True)
class MomentEstimate:
    """θ (components,), and what makes its error; matrices have shape (components, components).

    error = gain · (scatter + noise) + prior + u · drift with Cov(scatter) = `scatter`,
    Cov(prior) = `prior`, and u in [−1, 1] for how far labelers may differ; `drift` (components,).
    """

    theta: Floats
    gain: Floats
    scatter: Floats
    prior: Floats
    drift: Floats


def estimate_coefficients(
    comparisons: Sequence[Comparisons],
    metric: Floats,
    total: Floats,
    noise: float,
    *,
    tastes: tuple[float, float] = TASTES,
) -> MomentEstimate:
    """Estimate θ and its errors from a released sum `total` (components,) of windows, of noise
    `noise`.

    `metric` (components,) is that of the basis, `noise` the standard deviation of each component.
    Labels of one labeler in several windows may hang together: windows' scatter is added as if they
    all did. Deterministic.
    """
    solver = _Solver([_Crowd(one, metric) for one in comparisons], metric, total, noise)
    low, high = tastes
    middle = solver.solve(np.zeros(len(metric)), (low + high) / 2, _STEPS)
    if low == high:
        return middle
    least, most = (solver.solve(middle.theta, taste, _FURTHER_STEPS) for taste in tastes)
    return replace(
        middle,
        scatter=(middle.scatter + most.scatter) / 2,
        drift=(most.theta - least.theta) / 2,
    )


class _Solver:
    """Solves m(θ) = S̃ by Gauss–Newton steps, with a wide prior."""

    def __init__(
        self, crowds: Sequence[_Crowd], metric: Floats, total: Floats, noise: float
    ) -> None:
        self._crowds, self._metric, self._total = crowds, metric, total
        self._noise = noise**2 * np.eye(len(metric))
        rows = max(sum(one.rows for one in crowds), 1)
        mean_square = sum(one.square for one in crowds) / rows  # of x, along the components
        self._typical = max(float(np.sqrt(mean_square)), float(np.finfo(float).tiny))
        self._precision = np.diag((metric * self._typical / WIDE) ** 2)

    def solve(self, theta: Floats, taste: float, steps: int) -> MomentEstimate:
        """Return the estimate, if labelers' tastes deviate so much on a typical pair."""
        tastes = taste / (self._typical * self._metric)
        for step in range(steps):
            last = step >= steps - 2
            worlds = _LAST_WORLDS if last else _WORLDS
            mean, scatter, slope = _sum_moments(self._crowds, theta, tastes, worlds)
            known = np.linalg.inv(scatter + self._noise)
            spread = np.linalg.inv(slope.T @ known @ slope + self._precision)
            gain = spread @ slope.T @ known
            move = gain @ (self._total - mean) - spread @ self._precision @ theta
            size = self._typical * float(np.linalg.norm(self._metric * move))
            theta = theta + move * min(1.0, _FARTHEST / max(size, _FARTHEST))
        scatter = scatter * (1 + 1 / _LAST_WORLDS)
        return MomentEstimate(
            theta, gain, scatter, spread @ self._precision @ spread, np.zeros_like(theta)
        )


def _sum_moments(
    crowds: Sequence[_Crowd], theta: Floats, tastes: Floats, worlds: int
) -> tuple[Floats, Floats, Floats]:
    """m(θ), Ω and G of all windows."""
    moments = [one.moments(theta, tastes, worlds, number) for number, one in enumerate(crowds)]
    mean, scatter, slope = (np.sum(part, axis=0) for part in zip(*moments, strict=True))
    return mean, scatter * len(crowds), slope


class _Crowd:
    """The labelers of one window, to be simulated."""

    def __init__(self, comparisons: Comparisons, metric: Floats) -> None:
        order = np.lexsort((comparisons.pair, comparisons.unit))
        unit = comparisons.unit[order]
        self._factor = comparisons.share[order] * comparisons.weight[unit]
        self._spread = np.sqrt((1 - TIES) * comparisons.spread[order])
        self._clip, self._units = comparisons.clip, len(comparisons.weight)
        # A labeler's rows on pairs of equal coordinates, two systems' say, are one cell.
        first, alike = _find_equal_rows(comparisons.z)
        self._z = comparisons.z[first].astype(np.float64)
        cells = unit * len(first) + alike[comparisons.pair[order]]
        distinct, self._cell = np.unique(cells, return_inverse=True)
        self._unit, self._pair = np.divmod(distinct, max(len(first), 1))
        self._starts = np.searchsorted(self._unit, np.arange(self._units + 1))
        plain = self._z / metric
        self._x_squared = np.einsum("ij,ij->i", plain, plain)
        self.rows = len(self._cell)
        self.square = float(self._x_squared[self._pair][self._cell].sum())
        self._metric = metric

    def moments(
        self, theta: Floats, tastes: Floats, worlds: int, window: int
    ) -> tuple[Floats, Floats, Floats]:
        """Mean and covariance of the clipped sum, and the mean's derivative."""
        components = len(theta)
        sums, scores = np.zeros((2, self._units, components))
        squares, crossed = np.zeros((2, components, components))
        deviation = tastes[0] * self._metric[0] * np.sqrt(self._x_squared)
        margin, slope = find_typical_labeler_margins(self._z @ theta, deviation)
        shared, steeper = margin[self._pair], slope[self._pair][self._cell]
        for world in range(worlds):
            rng = np.random.default_rng([_SEED, window, world])
            taste = tastes * rng.standard_normal((self._units, components))
            own = np.einsum("ij,ij->i", self._z[self._pair], taste[self._unit])
            chance = (1 / (1 + np.exp(-(shared + own))))[self._cell]
            surprise = (rng.random(self.rows) < chance) - chance
            part = self._sums_by_labeler(self._factor * (chance - 0.5 + self._spread * surprise))
            part = clip_rows(part, self._clip)
            score = self._sums_by_labeler(surprise * steeper)
            sums += part
            scores += score
            squares += part.T @ part
            crossed += part.T @ score
        mean = sums / worlds
        return (
            mean.sum(axis=0),
            (squares - sums.T @ mean) / (worlds - 1),
            (crossed - mean.T @ scores) / (worlds - 1),
        )

    def _sums_by_labeler(self, values: Floats) -> Floats:
        """Σ values · z over the rows of each labeler, shape (units, components)."""
        from scipy.sparse import csr_array

        cells = np.bincount(self._cell, values, len(self._pair))
        shape = (self._units, len(self._z))
        return np.asarray(csr_array((cells, self._pair, self._starts), shape=shape) @ self._z)


def find_typical_labeler_margins(together: Floats, deviation: Floats) -> tuple[Floats, Floats]:
    """Return margins m (n,) around which labelers differ, and dm / d`together`.

    Labelers of margins N(m, `deviation`²), in log-odds, answer as often together as one of margin
    `together`: the mean of σ is σ(`together`). Found by Newton's method on log-odds, which are
    nearly linear in m. Margins are cut off at 60, and deviations at 6.
    """
    together = np.clip(together, -_LARGEST_MARGIN, _LARGEST_MARGIN)
    deviation = np.minimum(deviation, _LARGEST_DEVIATION)
    weights, steepest = _WEIGHTS / _WEIGHTS.sum(), np.sqrt(1 + deviation**2)
    own, margin, slope = np.multiply.outer(deviation, _NODES), together, np.ones_like(together)
    for _ in range(_MARGIN_STEPS):
        each = margin[:, None] + own
        first, second = (1 / (1 + np.exp(sign * each)) for sign in (-1, 1))
        chance, other = first @ weights, second @ weights
        slope = np.clip(chance * other / ((first * second) @ weights), 1, steepest)
        margin = margin + (together - np.log(chance / other)) * slope
    return margin, slope


def _find_equal_rows(z: NDArray[np.float32]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return one of each set of equal rows, and which set each row is in, (rows,)."""
    if not z.size:
        return np.arange(min(len(z), 1)), np.zeros(len(z), np.intp)
    whole = np.ascontiguousarray(z + np.float32(0))  # so that -0 and 0 have the same bytes
    rows = whole.view(np.dtype((np.void, whole.itemsize * whole.shape[1]))).ravel()
    _, first, alike = np.unique(rows, return_index=True, return_inverse=True)
    return first, alike
