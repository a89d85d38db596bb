"""Heads fitted to simulated labels, for every shape of a statistic release at once.

Trials work on principal axes, where the information h = ¼ Σ w x² of a head is nearly diagonal.
Around margin 0 a head's coefficients are then S_k / (h_k + ridge_k), one division, and accuracy
under noise needs no repetition: given the labels a pair's margin is normal, so that its expected
sign is an error function. A thousand shapes cost what a few logistic fits would.

Of many labelers a public sample is simulated, and the noise is scaled to the sample: signal grows
with the number of labelers, the mechanism's noise does not. Sampling noise is then the sample's, so
that accuracy is forecast too low rather than too high, by little.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import erf

from labelguard.errors import InvalidLabels
from labelguard.mechanisms.geometry import Shape, spectrum
from labelguard.mechanisms.statistic import Rows
from labelguard.planner.prior import Draw, Population, Prior

__all__ = ["Heads", "PublicSide", "Trial", "public_side"]

Floats = NDArray[np.float64]
Small = NDArray[np.float32]

COMPONENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
WHITENINGS = (0.0, 0.25, 0.5)
CLIP_QUANTILES = (0.25, 0.5, 0.75, 1.0)
RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""In units of the pairs' mean square norm, so that the scale of features does not matter."""
FLOOR = 1e-3

_MOST_UNITS = 4000
_MOST_ROWS = 250_000
_MOST_SEEN = 1500
_CHUNK = 1 << 14
_TINY = np.finfo(np.float64).tiny
_NO_SPREAD = np.float32(1e-20)  # far below any margin that is not 0


@dataclass(frozen=True, eq=False)
class PublicSide:
    """Public: what is known before any label is seen.

    `z` (pairs, axes) are principal coordinates, whose H has the diagonal `values`; heads may use
    the first `sizes` of them. `rows` are those of the sampled labelers, grouped by labeler, each of
    whom stands for `scale` labelers; `counts` says how many labels each of ALL labelers gives.
    `norm` (whitenings, sizes, sampled labelers) is b_u without signal, and `clip` (whitenings,
    sizes, quantiles) its quantiles over all labelers. `energy` (sampled labelers, axes) is
    ¼ Σ share · z². Heads are judged on the pairs `seen`, which weigh `seen_weight`.
    """

    z: Small
    values: Floats
    sizes: tuple[int, ...]
    rows: Rows
    scale: float
    counts: NDArray[np.int64]
    norm: Floats
    clip: Floats
    energy: Small
    seen: NDArray[np.intp]
    seen_weight: Floats

    @property
    def ridges(self) -> tuple[float, ...]:
        """The ridges that are tried, on coefficients of principal axes, of two digits."""
        mean_square = 4 * float(self.values.sum()) / float(self.counts.sum())
        return tuple(float(f"{ridge * mean_square:.2g}") for ridge in RIDGES)

    def metric(self, whitening: float) -> Floats:
        """The diagonal of A on principal axes, shape (axes,)."""
        return np.asarray((self.values / self.values[0] + FLOOR) ** -whitening)

    @cached_property
    def metrics(self) -> Floats:
        """`metric` of every whitening, shape (whitenings, axes)."""
        return np.stack([self.metric(whitening) for whitening in WHITENINGS])

    @cached_property
    def weights(self) -> Small:
        """w_u = min(1, C / b_u) of the sampled labelers: (whitenings, sizes, clips, labelers)."""
        least = np.maximum(self.norm, _TINY)[:, :, None]
        found: Small = np.minimum(1, self.clip[..., None] / least).astype(np.float32)
        return found

    @cached_property
    def information(self) -> Floats:
        """¼ Σ w z² of the sampled labelers: (whitenings, sizes, clips, axes)."""
        return self.totals(self.weights, self.energy)

    @cached_property
    def judged(self) -> tuple[Small, Small]:
        """What heads are judged on, z and z² of the pairs `seen`, each (axes, seen)."""
        z = np.ascontiguousarray(self.z[self.seen].T)
        return z, np.square(z)

    def totals(self, factor: Small, values: Small) -> Floats:
        """Sums over labelers of values (labelers, axes), weighed by (..., labelers)."""
        flat = factor.reshape(-1, factor.shape[-1])
        # One product for the whole grid: many small ones would mostly wait for each other.
        return (flat @ values).astype(np.float64).reshape(*factor.shape[:-1], -1)

    @cached_property
    def shapes(self) -> tuple[Shape, ...]:
        """All shapes that are tried."""
        grid = itertools.product(WHITENINGS, self.sizes, CLIP_QUANTILES, self.ridges)
        return tuple(Shape(size, a, FLOOR, quantile, ridge) for a, size, quantile, ridge in grid)

    def trials(self, prior: Prior, number: int, skip: int = 0) -> Iterator[Trial]:
        """Simulated labels of the sampled labelers, one draw after the other, but for the first."""
        for draw in Population(self.z, self.values, self.rows, prior).draws(number, skip):
            yield Trial(self, draw)


def public_side(x: Small, rows: Rows, seed: int = 0) -> PublicSide:
    """The public side of every trial, from pairs x (pairs, d) and who labels them.

    Raises `InvalidLabels` if there are no rows, or no pair differs in any feature.
    """
    if not len(rows):
        raise InvalidLabels("there is no labeled pair")
    axes = spectrum(x, np.bincount(rows.pair, minlength=len(x)))
    sizes = tuple(sorted({min(size, axes.rank) for size in COMPONENTS}))
    z = x @ axes.axes[:, : sizes[-1]].astype(np.float32)
    values = axes.values[: sizes[-1]]
    rng = np.random.default_rng(seed)
    counts = np.bincount(rows.unit, minlength=rows.units)
    sampled = _sample(counts, rng)
    mine = _rows_of(rows, sampled)
    norm, clip = _norms(z, values, sizes, rows, sampled)
    seen, seen_weight = _seen(mine, len(z), rng)
    return PublicSide(
        z=z,
        values=values,
        sizes=sizes,
        rows=mine,
        scale=np.count_nonzero(counts) / len(sampled),
        counts=counts[counts > 0],
        norm=norm,
        clip=clip,
        energy=_sums(z, mine, mine.information(), 2),
        seen=seen,
        seen_weight=seen_weight,
    )


@dataclass(frozen=True, eq=False)
class Heads:
    """Coefficients on principal axes, normal given the labels: `mean`, `variance` (heads, axes)."""

    mean: Floats
    variance: Floats


class Trial:
    """One draw of labels: what heads learn from it, and how good they are."""

    def __init__(self, public: PublicSide, draw: Draw) -> None:
        self._public = public
        rows, seen = public.rows, public.seen
        self.sums = _sums(public.z, rows, draw.half * rows.share(), 1)
        given = np.bincount(rows.pair, minlength=len(public.z))[seen]
        weight = public.seen_weight / np.maximum(given, 1)
        half = np.bincount(rows.pair, draw.half, len(public.z))[seen]
        strict = np.bincount(rows.pair, np.abs(draw.half), len(public.z))[seen]
        fresh = public.seen_weight @ draw.strict[seen]
        strict_labels = max(float(weight @ strict), 1e-12)  # all simulated labels may be ties
        self._own = (weight * half / (2 * strict_labels)).astype(np.float32)
        self._fresh = (public.seen_weight * draw.gain[seen] / fresh).astype(np.float32)
        self._clipped: Floats | None = None

    def clipped(self) -> Floats:
        """Σ_u clip_C(w_u v_u) for every metric, size and clip: (whitenings, sizes, clips, axes)."""
        if self._clipped is None:
            public = self._public
            ends = np.array(public.sizes) - 1
            lengths = np.empty((len(WHITENINGS), len(ends), len(self.sums)), np.float32)
            for index, metric in enumerate(public.metrics.astype(np.float32)):
                squares = np.square(self.sums * metric)
                lengths[index] = np.sqrt(np.cumsum(squares, axis=1)[:, ends].T)
            clip = public.clip[..., None].astype(np.float32)
            factor = public.weights * lengths[:, :, None]
            np.maximum(factor, clip, out=factor)
            np.divide(clip, factor, out=factor, where=factor > 0)
            factor *= public.weights
            self._clipped = public.totals(factor, self.sums)
        return self._clipped

    def statistic_heads(self, noise_multiplier: float) -> Heads:
        """Heads from noisy statistics, for every shape of `PublicSide.shapes`, in their order.

        The sensitivity is 2C, which comparisons attain and nothing exceeds.
        """
        public = self._public
        deviation = noise_multiplier * 2 * public.clip[..., None] / public.scale
        noise = (deviation / public.metrics[:, None, None]) ** 2
        information = np.maximum(public.information, _TINY)
        ridges = np.array(public.ridges)[:, None] / public.scale
        aware = ridges * (1 + noise / information)[..., None, :]
        shrunk = 1 / (information[..., None, :] + aware)
        shrunk *= np.arange(len(public.values)) < np.array(public.sizes)[:, None, None, None]
        axes = len(public.values)
        mean = self.clipped()[..., None, :] * shrunk
        variance = noise[..., None, :] * shrunk**2
        return Heads(mean.reshape(-1, axes), variance.reshape(-1, axes))

    def plain_heads(self) -> Heads:
        """Heads from the raw labels, for every size and ridge: what privacy costs nothing to."""
        return self._heads(self.sums.sum(axis=0), self._public.energy.sum(axis=0), 0.0)

    def flipped_heads(self, signal: Floats, share: Floats | float = 1.0) -> Heads:
        """Heads from randomized response, for every size and ridge.

        `signal` (sampled labelers,) is 1 − 2γ of each labeler's labels, of which `share` are kept,
        at random. De-biased labels have a variance of about 1/(4 signal²), so rows weigh signal²
        (Chowdhury, Kini and Natarajan 2024); coins and the choice of rows add noise.
        """
        weight = signal**2 * share
        both = np.stack([weight, weight * (1 - weight)]).astype(np.float32)
        information, noise = (both @ self._public.energy).astype(np.float64)
        return self._heads(both[0] @ self.sums, information, noise)

    def _heads(self, total: Floats, information: Floats, noise: Floats | float) -> Heads:
        public = self._public
        scale = public.scale
        sizes = np.array(public.sizes)[:, None, None]
        ridges = np.array(public.ridges)[:, None] / scale
        shrunk = 1 / np.maximum(information + ridges, _TINY)
        shrunk = shrunk * (np.arange(len(public.values)) < sizes)
        axes = len(public.values)
        mean, variance = total * shrunk, noise / scale * shrunk**2
        return Heads(mean.reshape(-1, axes), variance.reshape(-1, axes))

    def scores(self, heads: Heads) -> tuple[Floats, Floats]:
        """Expected accuracy on fresh labelers and error on the simulated labels, each (heads,)."""
        z, squares = self._public.judged
        margin: Small = heads.mean.astype(np.float32) @ z
        spread: Small = (2 * heads.variance).astype(np.float32) @ squares
        np.maximum(np.sqrt(spread, out=spread), _NO_SPREAD, out=spread)
        sign = erf(np.divide(margin, spread, out=margin), out=margin)
        right = (sign @ np.stack([self._fresh, -self._own], axis=1)).astype(np.float64)
        return 0.5 + right[:, 0], 0.5 + right[:, 1]


def _sample(counts: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.intp]:
    """Some labelers with labels: as many as keep a trial fast, at random."""
    some = rng.permutation(np.flatnonzero(counts))[:_MOST_UNITS]
    within = int(np.searchsorted(np.cumsum(counts[some]), _MOST_ROWS, side="right"))
    return np.sort(some[: max(within, min(len(some), 1))])


def _rows_of(rows: Rows, units: NDArray[np.intp]) -> Rows:
    """The rows of some labelers, grouped by labeler and renumbered."""
    code = np.full(rows.units, -1)
    code[units] = np.arange(len(units))
    mine = code[rows.unit]
    order = np.argsort(mine, kind="stable")[np.count_nonzero(mine < 0) :]
    size = None if rows.size is None else rows.size[order]
    return Rows(rows.pair[order], mine[order], len(units), None, size, rows.choices)


def _norms(
    z: Small, values: Floats, sizes: tuple[int, ...], rows: Rows, sampled: NDArray[np.intp]
) -> tuple[Floats, Floats]:
    """b_u of the sampled labelers, and the quantiles of b_u over all with any."""
    norm = np.empty((len(WHITENINGS), len(sizes), len(sampled)))
    clip = np.empty((len(WHITENINGS), len(sizes), len(CLIP_QUANTILES)))
    share = rows.share() ** 2 / 4
    ends = np.array(sizes) - 1
    for index, whitening in enumerate(WHITENINGS):
        metric = ((values / values[0] + FLOOR) ** -whitening).astype(np.float32)
        squares = np.empty((len(sizes), len(z)))
        for start in range(0, len(z), _CHUNK):
            part = slice(start, start + _CHUNK)
            squares[:, part] = np.cumsum(np.square(z[part] * metric), axis=1)[:, ends].T
        for number in range(len(sizes)):
            every = np.sqrt(np.bincount(rows.unit, share * squares[number, rows.pair], rows.units))
            norm[index, number] = every[sampled]
            clip[index, number] = np.quantile(every[every > 0], CLIP_QUANTILES)
    return norm, clip


def _sums(z: Small, rows: Rows, coefficient: NDArray[np.floating[Any]], power: int) -> Small:
    """Σ coefficient · z^power over the rows of each labeler, shape (labelers, axes).

    `rows` are grouped by labeler: they are the compressed rows of a sparse matrix as they stand.
    """
    starts = np.searchsorted(rows.unit, np.arange(rows.units + 1))
    factor = csr_array(
        (coefficient.astype(np.float32), rows.pair, starts), shape=(rows.units, len(z))
    )
    return np.asarray(factor @ (z**power if power > 1 else z), np.float32)


def _seen(rows: Rows, pairs: int, rng: np.random.Generator) -> tuple[NDArray[np.intp], Floats]:
    """Pairs that heads are judged on, and what they weigh: all labeled ones, or a sample."""
    counts = np.bincount(rows.pair, minlength=pairs)
    labeled = np.flatnonzero(counts)
    if len(labeled) <= _MOST_SEEN:
        return labeled, counts[labeled] / len(rows)
    drawn, times = np.unique(rng.integers(len(rows), size=_MOST_SEEN), return_counts=True)
    return rows.pair[drawn], times / _MOST_SEEN
