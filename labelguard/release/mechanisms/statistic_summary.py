"""Describe a teacher (`release.head_summary`) by public columns and released statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.learning.features import Group
from labelguard.learning.newton import blocks
from labelguard.mechanisms import moments, statistic
from labelguard.mechanisms.geometry import Basis, Shape
from labelguard.mechanisms.moments import Comparisons
from labelguard.mechanisms.noise import ReleasedNoise
from labelguard.mechanisms.statistic import Bounds, Rows
from labelguard.release.head import Window
from labelguard.release.head_summary import CoefficientErrors, HeadSummary, SourceScores

# Of more there is no leaderboard: nobody reads it, and its matrices are large.
MOST_SOURCES = 512

Floats = NDArray[np.float64]


def compute_window_fields(
    x: NDArray[np.float32],
    z: NDArray[np.float32],
    rows: Rows,
    bounds: Bounds,
    used: NDArray[np.intp],
    groups: Sequence[Group],
    known: NDArray[np.bool_] | None = None,
) -> dict[str, Any]:
    """Return the fields of a `Window` on the pairs `used` about who compared what, all public.

    `known` (pairs,) says of which pairs all sources are known.
    """
    size = _compute_variance_inflation(rows)
    shares = (rows.row_weights() * bounds.weight[rows.unit]) ** 2 * size
    fields: dict[str, Any] = {"sampling": statistic.bound_sampling_covariance(z, rows, bounds)}
    fields["radius"] = bounds.clip * math.sqrt(len(np.unique(rows.unit)))
    if known is not None:
        fields["unknown"] = int((~known[rows.pair]).sum())
    fields["square_weight"] = np.bincount(rows.pair, shares, len(z))[used]
    sources = [group for group in groups if group.has_sources]
    if sources and sum(group.stop - group.start for group in sources) <= MOST_SOURCES:
        place = np.full(len(z), -1)
        place[used] = np.arange(len(used))
        fields["edges"] = np.concatenate(
            [_count_compared_sources(x, rows, group) for group in sources]
        )
        fields["row_pair"] = place[rows.pair].astype(np.int32)
        fields["row_unit"] = rows.unit.astype(np.int32)
        fields["row_size"] = rows.size
        fields["unit_weight"] = bounds.weight
    return fields


def _compute_variance_inflation(rows: Rows) -> Floats:
    """Return by what the variance of rows exceeds that of independent ones, shape (n,).

    The pairs of a ranking of K hang together: one at random has the covariance
    K (K + 1) / (12 (K − 1)²) ΦᵀΦ, its K (K − 1) / 2 pairs would have 3 / (K + 1) of that.
    """
    if rows.size is None or rows.choices:
        return np.ones(len(rows))
    return (rows.size + 1) / 3.0


def _count_compared_sources(x: NDArray[np.float32], rows: Rows, group: Group) -> NDArray[np.int64]:
    """Return which two columns of a group met, and in how many rows: shape (edges, 3)."""
    count = np.bincount(rows.pair, minlength=len(x)).astype(np.float32)
    part = x[:, group.start : group.stop]
    unit = max(float(np.abs(part).max()), float(np.finfo(np.float32).tiny))
    met = (np.maximum(part, 0).T * count) @ np.maximum(-part, 0) / unit**2  # A+B is half of each
    met = np.triu(met + met.T, 1)
    left, right = np.nonzero(met)
    times = np.maximum(np.rint(met[left, right]), 1)
    return np.column_stack([left + group.start, right + group.start, times]).astype(np.int64)


def describe_head(
    groups: tuple[Group, ...],
    x: NDArray[np.float32],
    windows: Sequence[Window],
    shape: Shape,
    basis: Basis,
    coefficients: Floats,
    *,
    scale: float = 1.0,
    design_effect: float = 1.0,
) -> HeadSummary:
    """Describe a head with `coefficients` (d,) on pairs x (pairs, d), fitted from `windows`.

    `scale` is what its coefficients were multiplied by beyond the fit, and `design_effect` by what
    labels scatter more than independent ones.
    """
    # The sides' order is arbitrary: moments are around 0.
    square, carried = np.zeros((2, len(coefficients)))
    for _, block in blocks(x):
        square += np.einsum("ij,ij->j", block, block) / len(x)
        carried += (block @ coefficients) @ block / len(x) * coefficients
    whole = float(carried.sum())
    share = carried / whole if whole > 0 else np.zeros_like(carried)
    errors = _compute_coefficient_errors(windows, shape, basis, coefficients, scale, design_effect)
    board = _estimate_leaderboard_scores(windows, basis) if errors else None
    units = [float(np.abs(x[:, group.start : group.stop]).max()) for group in groups]
    unknown = sum(window.unknown for window in windows)
    return HeadSummary(groups, np.sqrt(square), share, np.array(units), errors, board, unknown)


def _list_released_noises(windows: Sequence[Window]) -> tuple[ReleasedNoise, ...]:
    return tuple(ReleasedNoise(window.kind, window.noise, window.least) for window in windows)


def _compute_coefficient_errors(
    windows: Sequence[Window],
    shape: Shape,
    basis: Basis,
    coefficients: Floats,
    scale: float,
    design_effect: float,
) -> CoefficientErrors | None:
    """Return J (V + N) J of the ridge fit, scaled with it; None for choices."""
    theta = np.linalg.lstsq(basis.projection, coefficients, rcond=None)[0] / scale
    components = len(theta)
    curvature, scatter = np.zeros((2, components, components))
    for window in windows:
        if window.square_weight is None:
            return None
        for rows, z in blocks(window.z):
            bend = 0.25 / np.cosh(np.minimum(np.abs(z @ theta) / 2, 300)) ** 2
            curvature += (z * (bend * window.weight[rows])[:, None]).T @ z
            scatter += (z * (bend * window.square_weight[rows])[:, None]).T @ z
    noise = float(np.sqrt(sum(window.noise**2 for window in windows)))
    every = np.concatenate([window.z for window in windows])
    weight = np.concatenate([window.weight for window in windows])
    ridge = statistic.compute_noise_aware_ridge(every, weight, shape.ridge * basis.metric**2, noise)
    # Labels of one labeler in several windows may hang together.
    several = len(windows)
    return CoefficientErrors(
        np.asarray(scale * np.linalg.inv(curvature + np.diag(ridge)), np.float64),
        several * design_effect * scatter,
        several * _sum_sampling_bounds(windows),
        np.zeros((components, components)),
        np.zeros(components),
        _add_radii(windows),
        _list_released_noises(windows),
    )


def _add_radii(windows: Sequence[Window]) -> float:
    """Return the sum of the windows' radii: their labelers may be the same."""
    return float(sum(window.radius for window in windows))


def _sum_sampling_bounds(windows: Sequence[Window]) -> Floats:
    """Return the sum of the windows' bounds on what labels scatter by."""
    bounds = [window.sampling for window in windows if window.sampling is not None]
    return np.asarray(np.sum(bounds, axis=0))


def _estimate_leaderboard_scores(windows: Sequence[Window], basis: Basis) -> SourceScores | None:
    """Return coefficients for a leaderboard, if all windows tell who compared what."""
    comparisons = []
    for window in windows:
        if window.row_pair is None or window.row_unit is None or window.unit_weight is None:
            return None
        size = window.row_size
        comparisons.append(
            Comparisons(
                window.z,
                window.row_pair.astype(np.intp),
                window.row_unit.astype(np.intp),
                np.ones(len(window.row_pair)) if size is None else 1 / (size - 1.0),
                np.ones(len(window.row_pair)) if size is None else (size + 1) / 3.0,
                window.unit_weight,
                window.clip,
            )
        )
    total = np.sum([window.statistic for window in windows], axis=0)
    noise = float(np.sqrt(sum(window.noise**2 for window in windows)))
    estimate = moments.estimate_coefficients(comparisons, basis.metric, total, noise)
    bound = len(windows) * _sum_sampling_bounds(windows)
    errors = CoefficientErrors(
        estimate.gain,
        estimate.scatter,
        bound,
        estimate.prior,
        estimate.drift,
        _add_radii(windows),
        _list_released_noises(windows),
    )
    edges = [window.edges for window in windows if window.edges is not None]
    return SourceScores(estimate.theta, errors, _merge_equal_edges(np.concatenate(edges)))


def _merge_equal_edges(edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return equal edges once, with the sum of their counts."""
    pairs, which = np.unique(edges[:, :2], axis=0, return_inverse=True)
    times = np.bincount(which.ravel(), edges[:, 2], len(pairs)).astype(np.int64)
    return np.column_stack([pairs, times]).astype(np.int64)
