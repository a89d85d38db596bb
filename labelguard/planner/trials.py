"""Heads fitted to simulated labels, in many worlds: what a mechanism may be expected to give.

Trials work on principal axes, where the information h = ¼ Σ w x² of a head is nearly diagonal.
Around margin 0 a head's coefficients are then S_k / (h_k + ridge_k), one division, and accuracy
under noise needs no repetition: given the labels a pair's margin is taken to be normal (of ball
noise it nearly is), so that its expected sign is an error function. Heads of many sizes and ridges
cost what a few logistic fits would.

Of many labelers a public sample is simulated, and the noise is scaled to the sample: signal grows
with the number of labelers, the mechanism's noise does not. Sampling noise is then the sample's, so
that accuracy is forecast too low rather than too high, by little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.errors import InvalidLabels
from labelguard.mechanisms.geometry import Shape, compute_spectrum
from labelguard.mechanisms.noise import Noise
from labelguard.mechanisms.statistic import (
    Rows,
    choose_clip_and_weights,
    compute_norms_of_random_labels,
)
from labelguard.planner.components import Directions
from labelguard.planner.outcomes import Forecast, Interval, compute_ninety_percent_range
from labelguard.planner.prior import Draw, Population, Prior

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
Small = NDArray[np.float32]

COMPONENTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# Of heads from raw and from flipped labels; in units of the pairs' mean square norm.
RIDGES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)

_MEDIAN = 0.5
_NOISES = 8  # noise realised per simulated world, for intervals
_MOST_UNITS = 4000
_MOST_ROWS = 250_000
_MOST_SEEN = 1500
_TINY = np.finfo(np.float64).tiny
_NO_SPREAD = np.float32(1e-20)  # far below any margin that is not 0


@dataclass(frozen=True, eq=False)
class Weighing:
    """Public: the clip C of a statistic, w_u of the sampled labelers (units,), and what follows.

    `metric` (components,) is the diagonal of A, and `information` (components,) is ¼ Σ w x² of the
    sampled labelers on principal axes. `scatter` (components,) is what a ridge takes for the
    variance of their labels' sum.
    """

    metric: Floats
    clip: float
    weight: Floats
    information: Floats
    scatter: Floats


@dataclass(frozen=True, eq=False)
class PublicSide:
    """Public: what is known before any label is seen.

    `z` (pairs, axes) are principal coordinates, whose H has the diagonal `values`; heads may use
    the first `sizes` of them. `every` are all rows, and `rows` those of the `sampled` labelers,
    grouped by labeler, each of whom stands for `scale` labelers; `counts` says how many labels each
    of ALL labelers gives. `energy` (sampled labelers, axes) is ¼ Σ share · z². Heads are judged on
    the pairs `seen`, which weigh `seen_weight`.
    """

    z: Small
    values: Floats
    sizes: tuple[int, ...]
    every: Rows
    sampled: NDArray[np.intp]
    rows: Rows
    scale: float
    counts: NDArray[np.int64]
    energy: Small
    seen: NDArray[np.intp]
    seen_weight: Floats

    @property
    def ridges(self) -> tuple[float, ...]:
        """The ridges that are tried, on coefficients of principal axes."""
        mean_square = 4 * float(self.values.sum()) / float(self.counts.sum())
        return tuple(ridge * mean_square for ridge in RIDGES)

    @lru_cache(maxsize=8)  # noqa: B019 - a public side lives as long as one plan
    def weighing(self, shape: Shape) -> Weighing:
        """Return the clip and the weights of a statistic of this shape."""
        metric, norms = self._metric_and_norms(shape)
        clip, weight = choose_clip_and_weights(norms, shape.clip_quantile)
        mine = weight[self.sampled]
        information = self._information(mine, len(metric))
        return Weighing(metric, clip, mine, information, information)

    @lru_cache(maxsize=8)  # noqa: B019 - as above
    def user_wise_weighing(self, shape: Shape) -> Weighing:
        """Return those of a run of user-wise DP-SGD: 1/√m for each of m records, clipped at the
        median.
        """
        metric, norms = self._metric_and_norms(shape)
        size = self.every.size
        # A ranking of K, or a choice among K, is one record of K(K − 1)/2 rows.
        part = np.ones(len(self.every)) if size is None else 2 / (size * (size - 1.0))
        records = np.bincount(self.every.unit, part, self.every.units)
        weight = 1 / np.sqrt(np.maximum(records, 1))
        clip = choose_clip_and_weights(norms * weight, _MEDIAN)[0]
        mine, components = weight[self.sampled], len(metric)
        of_labels = self._information(mine**2, components)
        return Weighing(metric, clip, mine, self._information(mine, components), of_labels)

    def _metric_and_norms(self, shape: Shape) -> tuple[Floats, Floats]:
        """Return a, and b_u of all labelers in it, (components,) and (units,)."""
        metric = shape.metric(self.values[: shape.components])
        z = self.z[:, : len(metric)] * metric.astype(np.float32)
        return metric, compute_norms_of_random_labels(z, self.every)

    def _information(self, weight: Floats, components: int) -> Floats:
        """¼ Σ weight x² of the sampled labelers, (components,)."""
        information = weight.astype(np.float32) @ self.energy[:, :components]
        return np.asarray(information, np.float64)

    @property
    def sampled_counts(self) -> Counts:
        """Return how many labels each of the sampled labelers gives."""
        return np.bincount(self.rows.unit, minlength=self.rows.units)

    @cached_property
    def directions(self) -> Directions:
        """The information of labels along principal axes."""
        return Directions.of_coordinates(self.z, self.values, self.every)

    @cached_property
    def scored_coordinates_and_squares(self) -> tuple[Small, Small]:
        """The pairs that heads are scored on: z and z² of the pairs `seen`, each (axes, seen)."""
        z = np.ascontiguousarray(self.z[self.seen].T)
        return z, np.square(z)

    def trials(self, prior: Prior, number: int, skip: int = 0) -> Iterator[Trial]:
        """Simulated labels of the sampled labelers, one draw after the other, but for the first."""
        for draw in Population(self.z, self.values, self.rows, prior).draws(number, skip):
            yield Trial(self, draw)


def derive_public_side(x: Small, rows: Rows, seed: int = 0) -> PublicSide:
    """Return the public side of every trial, from pairs x (pairs, d) and who labels them.

    Raises `InvalidLabels` if there are no rows, or no pair differs in any feature.
    """
    if not len(rows):
        raise InvalidLabels("there is no labeled pair")
    axes = compute_spectrum(x, np.bincount(rows.pair, minlength=len(x)))
    sizes = tuple(sorted({min(size, axes.rank) for size in COMPONENTS}))
    z = x @ axes.axes[:, : sizes[-1]].astype(np.float32)
    values = axes.values[: sizes[-1]]
    rng = np.random.default_rng(seed)
    counts = np.bincount(rows.unit, minlength=rows.units)
    sampled = sample_labelers(counts, rng, _MOST_ROWS, _MOST_UNITS)
    mine = select_rows_of_labelers(rows, sampled)
    seen, seen_weight = _choose_judged_pairs(mine, len(z), rng)
    return PublicSide(
        z=z,
        values=values,
        sizes=sizes,
        every=rows,
        sampled=sampled,
        rows=mine,
        scale=np.count_nonzero(counts) / len(sampled),
        counts=counts[counts > 0],
        energy=sums_by_labeler(np.square(z), mine, mine.information()),
        seen=seen,
        seen_weight=seen_weight,
    )


@dataclass(frozen=True, eq=False)
class Heads:
    """Coefficients on principal axes, normal given the labels: `mean`, `variance` (heads, axes)."""

    mean: Floats
    variance: Floats


@dataclass(frozen=True, eq=False)
class FlippedLabels:
    """The labels that randomized response leaves of the sampled labelers, each (sampled labelers,).

    `share` of a labeler's labels are released, at random, with E s = `signal` where s = −1 marks a
    flip. With s = 0 for a label that is not released, `together` is the covariance of two labels.
    """

    signal: Floats
    share: Floats
    together: Floats

    @classmethod
    def of(
        cls, first: Floats, second: Floats, size: Counts, released: Floats, given: Counts
    ) -> FlippedLabels:
        """Return it of blocks of `size` labels with these moments, `released` of `given` labels."""
        share = released / np.maximum(given, 1)
        pairs = np.maximum(given * (given - 1.0), 1)
        in_block, across = released * (size - 1), released * np.maximum(released - size, 0)
        both = (in_block * second + across * first**2) / pairs
        return cls(first, share, np.where(given > 1, both - (share * first) ** 2, 0.0))

    def drop_every_second_labeler(self) -> FlippedLabels:
        """Return it where the labels of every second labeler are left out."""
        is_in = np.arange(len(self.share)) % 2 == 0
        return FlippedLabels(self.signal, self.share * is_in, self.together * is_in)


class Trial:
    """One draw of labels: what heads learn from it, and how good they are."""

    def __init__(self, public: PublicSide, draw: Draw) -> None:
        self._public = public
        rows, seen = public.rows, public.seen
        self.sums = sums_by_labeler(public.z, rows, draw.half * rows.row_weights())
        given = np.bincount(rows.pair, minlength=len(public.z))[seen]
        weight = public.seen_weight / np.maximum(given, 1)
        half = np.bincount(rows.pair, draw.half, len(public.z))[seen]
        strict = np.bincount(rows.pair, np.abs(draw.half), len(public.z))[seen]
        fresh = public.seen_weight @ draw.strict[seen]
        strict_labels = max(float(weight @ strict), 1e-12)  # all simulated labels may be ties
        self._own = (weight * half / (2 * strict_labels)).astype(np.float32)
        self._fresh = (public.seen_weight * draw.gain[seen] / fresh).astype(np.float32)

    def statistic_head(self, shape: Shape, noise: Noise) -> Heads:
        """Return the head of a noisy statistic, one of one head.

        The sensitivity is 2C, which comparisons attain and nothing exceeds.
        """
        weighing = self._public.weighing(shape)
        total, variance, information, ridge = self._noisy_sum_and_ridge(weighing, shape, noise)
        shrunk = 1 / (information + ridge)
        return self._single_head(total * shrunk, variance * shrunk**2)

    def approximate_user_wise_head(self, shape: Shape, noise: Noise) -> Heads:
        """Return the head of a run of user-wise DP-SGD with root weighting, one of one head.

        To first order in its coefficients a run is a ridge fit of the mean of its steps' noisy
        gradients, and `noise` is the deviation of that mean, in sensitivities: σ/(2 q √steps). For
        many steps that is the multiplier of one Gaussian release at the same (ε, δ), by the central
        limit theorem, within a few per cent at q = .2 and 100 steps up to ε = 8: the forecast takes
        it, since pricing a run takes seconds.

        Early steps' noise has decayed by the end, so that what is left is more than the mean's: for
        ridge R and information h, by ln(1 + h/R) (½ + R/h).
        """
        weighing = self._public.user_wise_weighing(shape)
        total, variance, information, ridge = self._noisy_sum_and_ridge(weighing, shape, noise)
        shrunk = 1 / (information + ridge)
        grown = np.log1p(information / ridge) * (0.5 + ridge / information)
        return self._single_head(total * shrunk, variance * shrunk**2 * grown)

    def _noisy_sum_and_ridge(
        self, weighing: Weighing, shape: Shape, noise: Noise
    ) -> tuple[NDArray[np.floating[Any]], Floats, Floats, Floats]:
        """Return a clipped sum, the variance of its noise, information and ridge, each
        (components,).
        """
        public = self._public
        components = len(weighing.metric)
        parts = self.sums[:, :components] * weighing.metric.astype(np.float32)
        lengths = weighing.weight * np.sqrt(np.einsum("ij,ij->i", parts, parts, dtype=np.float64))
        factor = weighing.weight * weighing.clip / np.maximum(lengths, weighing.clip)
        total = factor.astype(np.float32) @ self.sums[:, :components]
        deviation = noise.deviation(components) * 2 * weighing.clip / public.scale
        variance = (deviation / weighing.metric) ** 2
        information = np.maximum(weighing.information, _TINY)
        ridge = shape.ridge / public.scale * ((weighing.scatter + variance) / information)
        return total, variance, information, ridge

    def _single_head(self, mean: Floats, variance: Floats) -> Heads:
        """Return one head with these leading coefficients."""
        heads = np.zeros((2, len(self._public.values)))
        heads[:, : len(mean)] = mean, variance
        return Heads(heads[:1], heads[1:])

    def plain_heads(self) -> Heads:
        """Heads from the raw labels, for every size and ridge: what privacy costs nothing to."""
        return self._heads(self.sums.sum(axis=0), self._public.energy.sum(axis=0), 0.0)

    def flipped_heads(self, labels: FlippedLabels) -> Heads:
        """Heads from randomized response, for every size and ridge.

        De-biased labels have a variance of about 1/(4 signal²), so rows weigh signal² (Chowdhury,
        Kini and Natarajan 2024). A labeler's flips, drawn together, and which rows are released add
        noise: along each axis its variance is exact, if no label is a tie.
        """
        weight = labels.signal**2
        alone = labels.share - (labels.share * labels.signal) ** 2 - labels.together
        both = np.stack([weight * labels.share, weight * alone]).astype(np.float32)
        information, noise = (both @ self._public.energy).astype(np.float64)
        if labels.together.any():
            noise = noise + (weight * labels.together).astype(np.float32) @ np.square(self.sums)
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

    def accuracy(self, margins: Floats) -> float:
        """Return how often fresh labelers prefer what these margins (pairs,) say."""
        return 0.5 + float(np.sign(margins[self._public.seen]) @ self._fresh)

    def compute_accuracy_and_error(self, heads: Heads) -> tuple[Floats, Floats]:
        """Expected accuracy on fresh labelers and error on the simulated labels, each (heads,)."""
        from scipy.special import erf

        z, squares = self._public.scored_coordinates_and_squares
        margin: Small = heads.mean.astype(np.float32) @ z
        spread: Small = (2 * heads.variance).astype(np.float32) @ squares
        np.maximum(np.sqrt(spread, out=spread), _NO_SPREAD, out=spread)
        sign = erf(np.divide(margin, spread, out=margin), out=margin)
        right = (sign @ np.stack([self._fresh, -self._own], axis=1)).astype(np.float64)
        return 0.5 + right[:, 0], 0.5 + right[:, 1]


def sample_labelers(
    counts: Counts, rng: np.random.Generator, most_rows: int, most_labelers: int | None = None
) -> NDArray[np.intp]:
    """Return some labelers with labels, at random, ascending: at least one, if any has."""
    some = rng.permutation(np.flatnonzero(counts))[:most_labelers]
    within = int(np.searchsorted(np.cumsum(counts[some]), most_rows, side="right"))
    return np.sort(some[: max(within, 1)])


def select_rows_of_labelers(rows: Rows, units: NDArray[np.intp], *, by_pair: bool = False) -> Rows:
    """Return the rows of some labelers, grouped by labeler and renumbered, in their order or by
    pair.
    """
    code = np.full(rows.units, -1)
    code[units] = np.arange(len(units))
    mine = code[rows.unit]
    order = np.lexsort((rows.pair, mine)) if by_pair else np.argsort(mine, kind="stable")
    order = order[np.count_nonzero(mine < 0) :]
    size = None if rows.size is None else rows.size[order]
    return Rows(rows.pair[order], mine[order], len(units), None, size, rows.choices)


def sums_by_labeler(z: Small, rows: Rows, coefficient: NDArray[np.floating[Any]]) -> Small:
    """Σ coefficient · z over the rows of each labeler, shape (labelers, axes).

    `rows` are grouped by labeler: they are the compressed rows of a sparse matrix as they stand.
    """
    from scipy.sparse import csr_array

    starts = np.searchsorted(rows.unit, np.arange(rows.units + 1))
    parts = coefficient.astype(np.float32), rows.pair, starts
    return np.asarray(csr_array(parts, shape=(rows.units, len(z))) @ z, np.float32)


def _choose_judged_pairs(
    rows: Rows, pairs: int, rng: np.random.Generator
) -> tuple[NDArray[np.intp], Floats]:
    """Pairs that heads are judged on, and what they weigh: all labeled ones, or a sample."""
    counts = np.bincount(rows.pair, minlength=pairs)
    labeled = np.flatnonzero(counts)
    if len(labeled) <= _MOST_SEEN:
        return labeled, counts[labeled] / len(rows)
    drawn, times = np.unique(rng.integers(len(rows), size=_MOST_SEEN), return_counts=True)
    return rows.pair[drawn], times / _MOST_SEEN


@dataclass(frozen=True, eq=False)
class Worlds:
    """A public side, and trials of simulated labels on it."""

    public: PublicSide
    trials: tuple[Trial, ...]
    prior: Prior

    @classmethod
    def of(cls, x: NDArray[np.float32], rows: Rows, prior: Prior, number: int) -> Worlds:
        """So many worlds over pairs x (pairs, d) and their labelers; see `derive_public_side`."""
        public = derive_public_side(x, rows, prior.seed)
        return cls(public, tuple(public.trials(prior, number)), prior)

    def extend_to(self, number: int) -> Worlds:
        """These worlds and further ones, as if `number` had been asked for at first."""
        new = self.public.trials(self.prior, number, skip=len(self.trials))
        return Worlds(self.public, (*self.trials, *new), self.prior)

    def accuracies(self, heads_of: Callable[[Trial], Heads]) -> Floats:
        """Return the accuracy of each head in each world, shape (worlds, heads)."""
        return np.stack([one.compute_accuracy_and_error(heads_of(one))[0] for one in self.trials])

    def score_head(
        self, heads_of: Callable[[Trial], Heads], index: int
    ) -> tuple[Interval, Interval]:
        """Accuracy and label error of one head: means over noise, ranges with noise realised."""
        rng = np.random.default_rng(self.prior.seed)
        means, realised = [], []
        for trial in self.trials:
            heads = heads_of(trial)
            mean, variance = heads.mean[index], heads.variance[index]
            noise = np.sqrt(variance) * rng.standard_normal((_NOISES, len(mean)))
            one = Heads(mean[None], variance[None])
            means.append([float(score[0]) for score in trial.compute_accuracy_and_error(one)])
            drawn = Heads(mean + noise, np.zeros_like(noise))
            realised.append(trial.compute_accuracy_and_error(drawn))
        accuracy, error = np.mean(means, axis=0)
        spread = np.stack([np.stack(scores) for scores in realised], axis=1)
        right = compute_ninety_percent_range(float(accuracy), spread[0])
        return right, compute_ninety_percent_range(float(error), spread[1])

    def score_best_head(self, heads_of: Callable[[Trial], Heads]) -> tuple[Interval, Interval]:
        """Return what the head with the highest mean accuracy is scored by `score_head`."""
        return self.score_head(heads_of, int(self.accuracies(heads_of).mean(axis=0).argmax()))

    def statistic(self, epsilon: float, noise: Noise, shape: Shape) -> Forecast:
        """Return a statistic release with this noise."""
        scores = self.score_head(lambda trial: trial.statistic_head(shape, noise), 0)
        return Forecast("statistic", epsilon, *scores, shape, noise)

    def user_wise(self, epsilon: float, noise: Noise, shape: Shape) -> Forecast:
        """Return a run of user-wise DP-SGD, the mean of whose steps has this noise."""
        scores = self.score_head(lambda trial: trial.approximate_user_wise_head(shape, noise), 0)
        return Forecast("uls", epsilon, *scores, shape, noise)
