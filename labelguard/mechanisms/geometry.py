"""The public geometry of a statistic release: which directions of the features, in which metric.

Everything here is computed from public pairs: the principal axes of their differences, how many of
them are used, and the metric A in which contributions are clipped and noise is added.

Vectors are clipped here too: the one way in which anybody's part of a sum is bounded. Squares of
small numbers vanish: in single precision those below 2.6e-23, in double those below 1.5e-162. A
norm made of them is too small, and a vector of many small coordinates passes its clip as it is. So
norms are taken in double precision, after scaling by the largest entry, and rounded up. What enters
a guarantee is on a grid, where the bound is one of whole numbers, and no floating-point number has
a part in it. Every row is computed by itself, in one order: no other row changes it by a bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.errors import InvalidLabels, PolicyError
from labelguard.learning.newton import blocks
from labelguard.storage.portions import allocate, map_portions, rows_of_portion

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Shape:
    """The public choices of a statistic release.

    The metric is A = (H / λ_max(H) + `floor`)^(−`whitening`).
    """

    # principal axes that are used
    components: int = 64
    # how far they are evened out
    whitening: float = 0.5
    # floor of the whitening
    floor: float = 1e-3
    # contributions are clipped at this quantile of the labelers' norms without signal
    clip_quantile: float = 0.5
    # penalty of the fit, in units of labels
    ridge: float = 3.0

    def __post_init__(self) -> None:
        if self.components < 1:
            raise PolicyError(f"components must be at least 1, found {self.components}")
        if self.whitening not in (0, 0.25, 0.5):
            raise PolicyError(f"whitening must be 0, 0.25 or 0.5, found {self.whitening}")
        for name in ("floor", "ridge"):
            if not 1e-12 <= getattr(self, name) <= 1e12:
                raise PolicyError(
                    f"{name} must be between 1e-12 and 1e12, found {getattr(self, name):g}"
                )
        if not 0 <= self.clip_quantile <= 1:
            raise PolicyError(f"clip-quantile must be in [0, 1], found {self.clip_quantile}")

    def metric(self, values: Floats) -> Floats:
        """Return the diagonal of A on principal axes; of H they have these values, descending."""
        return np.asarray((values / values[0] + self.floor) ** -self.whitening)


@dataclass(frozen=True)
class Spectrum:
    """Principal axes of pair differences: H = ¼ Σ x xᵀ = axes · diag(values) · axesᵀ.

    `values` (d,) descend; `axes` has shape (d, d), one axis a column.
    """

    values: Floats
    axes: Floats

    @property
    def rank(self) -> int:
        """Axes along which pairs differ at all."""
        return int((self.values > self.values[0] * 1e-9).sum())


@dataclass(frozen=True)
class Basis:
    """Coordinates z = x · projection = A Vᵀ x; `metric` is the diagonal of A, shape (components,).

    A coefficient vector θ on principal axes is β = θ / metric on z, so a ridge λ on θ is
    λ · metric² on β.
    """

    projection: Floats
    metric: Floats

    def coordinates(
        self, x: NDArray[np.float32], scratch: Path | None = None
    ) -> NDArray[np.float32]:
        """z for each pair, shape (pairs, components); in a file of `scratch` if they are many."""
        return project(x, self.projection, scratch)


def project(
    x: NDArray[np.float32], projection: Floats, scratch: Path | None = None
) -> NDArray[np.float32]:
    """x · projection in single precision, shape (pairs, components)."""
    product: NDArray[np.float32] = allocate((len(x), projection.shape[1]), scratch)
    single = projection.astype(np.float32)
    for number, part in enumerate(map_portions(lambda rows: x[rows] @ single, len(x))):
        product[rows_of_portion(number)] = part
    return product


def compute_spectrum(x: NDArray[np.float32], counts: NDArray[Any] | None = None) -> Spectrum:
    """Principal axes of x (pairs, d); `counts` (pairs,) says how many labels each pair has.

    The axes' signs are fixed, so that the same pairs give the same coordinates.
    Raises `InvalidLabels` if no pair differs in any feature, or if a feature is not finite.
    """
    d = x.shape[1]

    def multiply(rows: slice) -> Floats:
        """Return Σ count x xᵀ over some rows, shape (d, d)."""
        total, weights = np.zeros((d, d)), None if counts is None else counts[rows]
        # Squares in single precision would hide, or make up, axes below 1e-7 of the largest.
        for part, block in blocks(x[rows]):
            weighted = block if weights is None else block * np.sqrt(weights[part])[:, None]
            total += weighted.T @ weighted
        return total

    curvature = np.zeros((d, d))
    for part in map_portions(multiply, len(x)):
        curvature += part
    if not np.isfinite(curvature).all():
        raise InvalidLabels("expected finite features, found NaN or infinite values")
    values, axes = np.linalg.eigh(curvature / 4)
    values, axes = np.maximum(values[::-1], 0), axes[:, ::-1]
    if not values[0] > 0:
        raise InvalidLabels("the two sides of every pair have equal features; take other features")
    largest = np.abs(axes).argmax(axis=0)
    return Spectrum(values, axes * np.sign(axes[largest, np.arange(d)]))


def choose_basis(spectrum: Spectrum, shape: Shape) -> Basis:
    """Return the coordinates of `shape`; at most as many components as pairs have directions."""
    components = min(shape.components, spectrum.rank)
    metric = shape.metric(spectrum.values[:components])
    return Basis(spectrum.axes[:, :components] * metric, metric)


def compute_squared_norms(z: NDArray[np.float32]) -> Floats:
    """‖z_i‖² of each row, accumulated in double precision."""
    norms = np.empty(len(z))
    for rows, block in blocks(z):
        norms[rows] = np.einsum("ij,ij->i", block, block)
    return norms


_ULP = 2.0**-52
_LEAST_EXPONENT = -1021  # 2 to its opposite is a double
_HALF_BITS = 31  # squares are added in two halves, which do not overflow


def bound_norms(vectors: NDArray[np.floating]) -> Floats:
    """Return upper bounds of the ℓ2 norms of rows (n, d), shape (n,).

    Above the norm by (d + 6)·2^-52 of it at most, or by 2^-1074; infinite for a row that is not
    finite, or whose norm no double holds.
    """
    exact = np.asarray(vectors, np.float64)
    largest = np.abs(exact).max(axis=1, initial=0.0)
    finite = np.isfinite(largest)
    exponent = np.frexp(np.where(finite, largest, 0.0))[1]
    # A power of 2, so that only what is far below the largest entry is rounded.
    scaled = exact * np.ldexp(1.0, -np.maximum(exponent, _LEAST_EXPONENT))[:, None]
    np.square(scaled, out=scaled)
    # d squares and sums err by d·2^-53, their root by half of that; root and products by one each.
    bounds = np.sqrt(scaled.sum(axis=1)) * (1 + (exact.shape[1] + 4) * _ULP)
    with np.errstate(over="ignore"):
        bounds = np.ldexp(bounds, np.maximum(exponent, _LEAST_EXPONENT))
    # Upward once more, for numbers so small that their last bits were rounded here.
    bounds = np.where(bounds > 0, np.nextafter(bounds, np.inf), 0.0)
    return np.where(finite, bounds, np.inf)


def clip_rows(vectors: NDArray[np.floating], clip: float) -> Floats:
    """Return rows (n, d), scaled to a norm of at most `clip` where they are longer.

    A row of infinite `bound_norms` counts for nothing: left in, it would undo the bound.
    """
    length = bound_norms(vectors)
    finite = np.isfinite(length)
    rows = np.array(vectors, np.float64)
    rows[~finite] = 0
    rows *= np.where(finite, clip / np.maximum(length, clip), 0.0)[:, None]
    return rows


def clip_to_grid(vectors: NDArray[np.floating], clip: float, step: float) -> NDArray[np.int64]:
    """Return `clip_rows` rows, rounded toward zero to whole numbers of `step`, shape (n, d).

    The squares of every row add up to (clip/step)² at most, exactly: a row for which they did not
    would count for nothing. Raises ValueError unless 0 < clip/step <= 2^62, both finite.
    """
    if not (math.isfinite(clip) and math.isfinite(step) and clip > 0 and step > 0):
        raise ValueError(f"clip and step must be positive and finite, found {clip} and {step}")
    ratio = Fraction(clip) / Fraction(step)
    if ratio > 2 ** (2 * _HALF_BITS):
        raise ValueError(f"clip must be at most 2^62 steps, found {float(ratio):g}")
    rows = clip_rows(vectors, clip)
    rows /= step
    whole = rows.astype(np.int64)  # toward zero
    whole[_exceeds_norm(whole, ratio)] = 0
    return whole


def _exceeds_norm(whole: NDArray[np.int64], most: Fraction) -> NDArray[np.bool_]:
    """Return which rows have squares that add up to more than most², (n,)."""
    if most > 2**_HALF_BITS:  # a grid finer than any release's: Python's whole numbers
        return np.asarray((whole.astype(object) ** 2).sum(axis=1) > most**2, np.bool_)
    beyond = (whole > math.floor(most)) | (whole < -math.floor(most))
    squares = np.square(np.where(beyond, 0, whole))
    low = (squares & (2**_HALF_BITS - 1)).sum(axis=1)
    high = (squares >> _HALF_BITS).sum(axis=1) + (low >> _HALF_BITS)
    limit = divmod(math.floor(most**2), 2**_HALF_BITS)
    equal = (high == limit[0]) & (low & (2**_HALF_BITS - 1) > limit[1])
    return np.asarray(beyond.any(axis=1) | (high > limit[0]) | equal)
