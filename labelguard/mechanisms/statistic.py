"""The statistic release: one noisy vector from which every linear head can be fitted.

For a linear head log(1 + e^z) − y z = log(2 cosh(z/2)) − (y − ½) z: the likelihood touches the
labels only through S = Σ_u w_u Σ_j (y_uj − ½) z_uj. Each labeler's part is clipped, rounded toward
zero on a grid, and summed exactly, as integers; noise rounded to the grid is added once.

Guarantee: with Gaussian noise of deviation σΔ, or ball noise of scale sΔ, Δ the `sensitivity`
below, one release is (ε, δ)-private under `replace_labels`, σ and s from `labelguard.accounting`
(docs/guarantees.md). Sources: Vu and Slavković 2009; Wang 2018 (sufficient-statistic
perturbation); Chowdhury, Zhou and Natarajan 2024 (label-private reward estimation).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelguard.errors import InvalidLabels, PolicyError
from labelguard.learning.heads import square_sums
from labelguard.mechanisms import geometry
from labelguard.mechanisms.geometry import compute_squared_norms
from labelguard.mechanisms.noise import (
    DIMENSION_LIMIT,
    SCALE_LIMIT,
    Noise,
    NoiseKind,
    NoiseStream,
    draw_noise,
)
from labelguard.text import LABEL_A, LABEL_TIE

NAME = "statistic"
VERSION = 1
# The grid's step is Δ / 2^30: far below the noise, far above what 62 bits of sums can hold.
STEP_BITS = 30

# Covers double-precision rounding of norms and sums.
SLACK = 1 + 1e-9

_MEDIAN = 0.5
_CHUNK = 1 << 10  # rows at a time: stays in cache

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Public: who compared what. Columns have shape (n,).

    `pair` indexes the matrix of pair coordinates, `unit` the labelers (or households, teams: the
    unit of protection). `ranking` numbers the rankings that pairs were broken from and `size` tells
    how many responses each ranked; without them every row is a comparison of its own. If `choices`,
    only the best of them was named: the chosen response is first and all others are tied, so that
    a share 2/K of the pairs says something.
    """

    pair: NDArray[np.intp]
    unit: NDArray[np.intp]
    units: int
    ranking: NDArray[np.intp] | None = None
    size: NDArray[np.int64] | None = None
    choices: bool = False

    def __len__(self) -> int:
        return len(self.pair)

    def row_weights(self) -> Floats:
        """Return the weight of each row, shape (n,): 1, or 1/(K − 1) for the pairs of a ranking of
        K.
        """
        return np.ones(len(self)) if self.size is None else 1 / (self.size - 1.0)

    def likelihood_weights(self) -> Floats:
        """Return what each row weighs in the likelihood, (n,): its weight, of a choice 2/K of it.

        A choice adds ½ K/(K − 1) (φ_c − mean φ) to the statistic, near θ = 0 in expectation
        Σ z zᵀ θ / (2K(K − 1)) over its pairs: as much as pairs of this weight.
        """
        weights = self.row_weights()
        return weights if self.size is None or not self.choices else weights * 2 / self.size

    def information(self) -> Floats:
        """Return what each row adds to H, in units of z zᵀ, shape (n,)."""
        return self.likelihood_weights() / 4


@dataclass(frozen=True)
class Bounds:
    """Public: the clip norm C, the weight of every labeler (units,), and the sensitivity Δ."""

    clip: float
    weight: Floats
    sensitivity: float


@dataclass(frozen=True)
class Grid:
    """Public: sums are integers in units of `step`, and so is the `scale` of their noise.

    The noise is of a `kind`, for so many `components`, or for `least`, if these are more.
    """

    step: float
    scale: int
    kind: NoiseKind
    components: int
    least: int = 1

    @property
    def noise(self) -> Noise:
        """In units of the statistic."""
        return Noise(self.kind, self.scale * self.step, self.least)

    @property
    def deviation(self) -> float:
        """The standard deviation of each coordinate's noise, in units of the statistic."""
        return self.noise.deviation(self.components)


def compute_bounds(z: NDArray[np.float32], rows: Rows, clip_quantile: float) -> Bounds:
    """Weights, clip and sensitivity from the pairs' coordinates z (pairs, components).

    b_u = ½ √Σ_j ‖z_uj‖² is the norm of a labeler without signal; C is its quantile over labelers
    with any, and w_u = min(1, C / b_u). Δ = 2C, from the ball alone: nothing rests on how rankings
    are numbered, nor on choices being whole. (What a labeler's labels can move without the clip is
    no less, for those whose b_u is at least C.) Raises `InvalidLabels` if no labeler has a row that
    differs in any coordinate, or if a coordinate is not finite.
    """
    clip, weight = choose_clip_and_weights(compute_norms_of_random_labels(z, rows), clip_quantile)
    return Bounds(clip, weight, 2 * clip)


def compute_norms_of_random_labels(z: NDArray[np.float32], rows: Rows) -> Floats:
    """b_u = ½ √Σ_j share² ‖z_uj‖², the norm of a labeler without signal, shape (units,)."""
    norms = compute_squared_norms(z)[rows.pair]
    return np.asarray(np.sqrt(_sum_by_unit(rows, rows.row_weights() ** 2 * norms)) / 2)


def compute_unclipped_bounds(z: NDArray[np.float32], rows: Rows) -> Bounds:
    """Weights under which no labels at all are clipped, so that the sum is unbiased.

    ‖v_u‖ is at most half of D_u, whatever the labels are: of the triangle bound, or the spectral
    one, if that is smaller (‖Σ_j (y_uj − ½) z_uj‖ ≤ ½ ‖Z_u‖₂ √m_u). C is the median of D_u / 2 over
    labelers with any, and w_u = min(1, 2C / D_u). The clip stays, and the guarantee rests on it
    alone; it is a hair wider than any part can be, so that rounding never meets it.

    Raises as `compute_bounds`.
    """
    clip, weight = choose_clip_and_weights(_largest_norms(z, rows), _MEDIAN)
    return Bounds(clip * SLACK, weight, 2 * clip * SLACK)


def _largest_norms(z: NDArray[np.float32], rows: Rows) -> Floats:
    """Return D_u / 2, what ‖v_u‖ can be at most, whatever the labels are: shape (units,)."""
    triangle = _sum_by_unit(rows, rows.row_weights() * np.sqrt(compute_squared_norms(z)[rows.pair]))
    ends = np.cumsum(np.bincount(rows.unit, minlength=rows.units))
    of_units = np.split(np.argsort(rows.unit, kind="stable"), ends[:-1])
    spectral = np.array([_bound_norm_by_eigenvalue(z, rows, own) for own in of_units])
    return np.asarray(np.minimum(triangle, spectral) / 2)


def choose_clip_and_weights(norms: Floats, clip_quantile: float) -> tuple[float, Floats]:
    """C and w_u = min(1, C / b_u), shape (units,), from the norms without signal b_u (units,).

    C is a quantile of those above 0. Raises `InvalidLabels` if there are none, or if one is not
    finite: 0 · ∞ and ½ · ∞ differ, so that what became of it would tell a label.
    """
    if not np.isfinite(norms).all():
        raise InvalidLabels("expected finite features, found NaN, infinite or too large values")
    if not norms.any():
        raise InvalidLabels("no labeled pair differs in its features; take other features")
    clip = float(np.quantile(norms[norms > 0], clip_quantile))
    return clip, np.minimum(1, clip / np.maximum(norms, clip))


def _bound_norm_by_eigenvalue(z: NDArray[np.float32], rows: Rows, own: NDArray[np.intp]) -> float:
    """2 √(Λ Σ_j ‖c_j‖²), Λ = λ_max(Σ_j Φ_jᵀΦ_j), of one labeler's rows: twice what ‖v‖ can be.

    Φ_j holds the centred responses, so Φ_jᵀΦ_j = (1/K_j) Σ_pairs z zᵀ, and v = Σ_j Φ_jᵀc_j with
    ‖c_j‖² <= K(K+1)/(12(K−1)) for a ranking and = K/(4(K−1)) for a choice. With K = 2 both are ½
    and this is √(m λ_max(Σ z zᵀ)).
    """
    size = np.full(len(own), 2.0) if rows.size is None else rows.size[own].astype(np.float64)
    largest = compute_top_eigenvalue(z, rows.pair[own], 1 / np.sqrt(size))
    if rows.ranking is not None:
        size = size[np.unique(rows.ranking[own], return_index=True)[1]]
    square = (3 if rows.choices else size + 1) * size / (12 * (size - 1))
    return 2 * math.sqrt(largest * float(square.sum()))


def compute_top_eigenvalue(
    z: NDArray[np.float32], index: NDArray[np.intp], factor: Floats
) -> float:
    """λ_max(Σ_i factor_i² z_i z_iᵀ) over the rows `index` of z; `factor` has shape (len(index),).

    From the Gram matrix where there are fewer rows than components: it has the same eigenvalues.
    """
    if len(index) <= z.shape[1]:
        mine = z[index].astype(np.float64) * factor[:, None]
        product = mine @ mine.T
    else:
        product = np.zeros((z.shape[1], z.shape[1]))
        for start in range(0, len(index), _CHUNK):
            part = slice(start, start + _CHUNK)
            mine = z[index[part]].astype(np.float64) * factor[part, None]
            product += mine.T @ mine
    return float(np.linalg.eigvalsh(product).max(initial=0.0))


def choose_grid(bounds: Bounds, components: int, noise: Noise) -> Grid:
    """Return the grid, and the integer scale of the noise on it, rounded up.

    Rounding toward zero keeps a clipped part inside its ball and moves each coordinate by less
    than a step, so on the grid Δ_h = min(2C, Δ + h √components).

    Raises `InvalidLabels` if no label can move the sum, `PolicyError` for noise that is not drawn.
    """
    if not bounds.sensitivity > 0:
        raise InvalidLabels("no label can move the statistic: its features say nothing")
    step = math.ldexp(bounds.sensitivity, -STEP_BITS)
    rounded = bounds.sensitivity + step * math.sqrt(components)
    sensitivity = min(2 * bounds.clip * SLACK, rounded) * SLACK
    scale = math.ceil(noise.scale * sensitivity / step)
    if scale > SCALE_LIMIT:
        raise PolicyError(
            f"expected noise of at most {SCALE_LIMIT >> STEP_BITS:,} sensitivities, found "
            f"{noise.scale:g}; take a larger epsilon"
        )
    if noise.dimension(components) > DIMENSION_LIMIT:
        raise PolicyError(
            f"expected at most {DIMENSION_LIMIT:,} components, found "
            f"{noise.dimension(components):,}; take fewer"
        )
    return Grid(step, scale, noise.kind, components, noise.least)


def clip_and_sum_labels(
    z: NDArray[np.float32], rows: Rows, labels: NDArray[np.uint8], bounds: Bounds, step: float
) -> NDArray[np.int64]:
    """PRIVATE: Σ_u clip_C(v_u) on the grid, shape (components,). `labels` are 0, 1 or 2 (tie).

    A tie adds 0. The sum is over integers, so it does not depend on the order of labelers.
    """
    half = np.where(labels == LABEL_TIE, 0, (labels == LABEL_A) - 0.5) * rows.row_weights()
    return clipped_sum(z, rows, half, bounds, step)


def clipped_sum(
    z: NDArray[np.float32], rows: Rows, half: Floats, bounds: Bounds, step: float
) -> NDArray[np.int64]:
    """PRIVATE: Σ_u clip_C(w_u Σ_j half_uj z_uj) on the grid, shape (components,).

    `half` (n,) is the centred label of each row, times its share.
    """
    total = np.zeros(z.shape[1], np.int64)
    for units, part in sum_by_labeler(z, rows, half):
        part *= bounds.weight[units, None]
        total += geometry.clip_to_grid(part, bounds.clip, step).sum(axis=0)
    return total


def sum_by_labeler(
    z: NDArray[np.float32], rows: Rows, half: Floats
) -> Iterator[tuple[NDArray[np.intp], Floats]]:
    """PRIVATE: Σ_j half_uj z_uj of every labeler, some labelers at a time: (indices, sums).

    `half` (n,) is the centred label of each row, times its share.
    """
    order = np.argsort(rows.unit, kind="stable")
    unit, pair, half = rows.unit[order], rows.pair[order], half[order]
    # Labelers' rows are summed in pieces that begin anew with each: a labeler's sum is the same to
    # the last bit, whoever else is there.
    firsts = np.flatnonzero(np.diff(unit, prepend=-1))
    own = np.arange(len(unit)) - np.repeat(firsts, np.diff(np.append(firsts, len(unit))))
    starts = np.flatnonzero(own % _CHUNK == 0)
    stops = np.append(starts[1:], len(unit))
    carried: NDArray[np.float64] = np.zeros((0, z.shape[1]))
    last = np.zeros(0, np.intp)
    for pieces in np.split(np.arange(len(starts)), np.flatnonzero(np.diff(starts // _CHUNK)) + 1):
        if not len(pieces):
            continue
        part = slice(starts[pieces[0]], stops[pieces[-1]])
        products = z[pair[part]] * half[part, None]
        sums = np.add.reduceat(products, starts[pieces] - part.start, axis=0)
        sums, units = np.concatenate([carried, sums]), np.concatenate([last, unit[starts[pieces]]])
        continued = units[1:] == units[:-1]
        for piece in np.flatnonzero(continued):  # of a labeler with many rows
            sums[piece + 1] += sums[piece]
        whole = np.append(~continued, True)
        sums, units = sums[whole], units[whole]
        last, carried = units[-1:], sums[-1:]
        if len(units) > 1:
            yield units[:-1], sums[:-1]
    if len(carried):
        yield last, carried


def add_noise(total: NDArray[np.int64], grid: Grid, nonce: bytes) -> NDArray[np.object_]:
    """Return the statistic as it may be released, on the grid: `total` plus noise from `nonce`.

    Python's whole numbers, shape (components,): a sum with its noise may exceed 64 bits.
    """
    drawn = draw_noise(grid.kind, grid.scale, grid.noise.dimension(len(total)), NoiseStream(nonce))
    noise = drawn[: len(total)]  # coordinates beyond those asked for are never seen
    return np.array([one + more for one, more in zip(total.tolist(), noise, strict=True)], object)


def sum_pair_weights(rows: Rows, bounds: Bounds, pairs: int) -> Floats:
    """Return what each pair weighs in the likelihood: Σ w_u share over its rows, shape (pairs,)."""
    shares = rows.likelihood_weights() * bounds.weight[rows.unit]
    return np.bincount(rows.pair, shares, pairs).astype(np.float64)


def bound_sampling_covariance(z: NDArray[np.float32], rows: Rows, bounds: Bounds) -> Floats:
    """M = Σ_u (m_u/4) Σ_j w_uj² z_uj z_ujᵀ, (components, components): public.

    Whatever a labeler's labels are, given which pairs they met, and however they hang together,
    dᵀ clip(v_u) lies within ±½ Σ_j w_uj |d·z_uj|, so its variance is at most the square of that
    (Popoviciu), which is at most dᵀ M_u d (Cauchy–Schwarz over their m_u rows). Labelers answer
    independently: Var(dᵀS) ≤ dᵀ M d, without the noise.
    """
    weight = (rows.row_weights() * bounds.weight[rows.unit]) ** 2
    weight *= np.bincount(rows.unit, minlength=rows.units)[rows.unit] / 4
    of_pair = np.bincount(rows.pair, weight, len(z))
    total = np.zeros((z.shape[1], z.shape[1]))
    for start in range(0, len(z), _CHUNK):
        part = z[start : start + _CHUNK].astype(np.float64)
        total += (part * of_pair[start : start + _CHUNK, None]).T @ part
    return total


def compute_noise_aware_ridge(
    z: NDArray[np.float32], pair_weight: Floats, penalty: Floats, noise: float
) -> Floats:
    """Ridge per component that also answers for the noise: penalty · (1 + ν / h), (components,).

    With S = Hβ + e, Cov(e) = H + ν I (sampling and mechanism), H ≈ diag(h), h = ¼ Σ W z², and a
    prior β ~ N(0, 1 / penalty), the posterior mean is that of a ridge of this size. `noise` is the
    standard deviation of each coordinate's noise; post-processing, nothing is charged.
    """
    information = square_sums(z, pair_weight) / 4
    least = max(float(information.max()) * 1e-12, np.finfo(float).tiny)
    return penalty * (1 + noise**2 / np.maximum(information, least))


def _sum_by_unit(rows: Rows, values: Floats) -> Floats:
    """Sums over the rows of each labeler, shape (units,)."""
    return np.bincount(rows.unit, values, rows.units).astype(np.float64)
