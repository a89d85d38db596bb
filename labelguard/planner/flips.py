"""Randomized response in simulated worlds, under one bound or the best of several; and PROPS.

Every labeler's labels of one release are blocks, or single coins where releases recur so often that
coins tell more (`choose_blocks`). Of a labeler, m labels that are flipped with probability γ inform
as much as m (1 − 2γ)² labels without noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import randomized_response
from labelguard.accounting.blocks import MOST_LABELS, Block, find_block
from labelguard.mechanisms.randomized_response import compute_largest_eigenvalue
from labelguard.planner.outcomes import INDISTINCT, Forecast, Interval
from labelguard.planner.trials import FlippedLabels, Heads, Trial, Worlds

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

# Labels per labeler that are tried in a release; None: all of them.
#
# The labels of one block inform about as much as one or three alone do, which then are flipped
# less: fewer labels, answered more truly, can teach more.
BOUNDS = (None, 1, 3)

_QUANTILES = (1.0, 0.9, 0.5)


def list_bounds_to_try(counts: Counts) -> tuple[int | None, ...]:
    """Return the bounds that are tried for labelers with so many labels each; the first is None."""
    most = int(counts.max(initial=0))
    return tuple(bound for bound in BOUNDS if bound is None or bound < most)


def choose_blocks(counts: Counts, periods: int, epsilon: float, delta: float) -> tuple[int, int]:
    """Return the (uses, block) of an allowance whose releases tell most at (ε, δ).

    `counts` (units,) are public: how many labels of each unit one release draws, which bounds of a
    release have cut already; as many are expected in each of `periods` releases. Either a use is a
    block of all labels that a unit gives in one release, or it is one label, and there are as many
    as all units give over all periods, or 90% of units, or half of them: the rest is not released.
    What tells more of one period's labels, by Σ (1 − 2γ)², is taken; blocks, if it is the same.

    Raises ValueError for no unit with a label, less than one period, or budgets no coin has.
    """
    given = np.asarray(counts)[np.asarray(counts) > 0]
    if not len(given) or periods < 1:
        raise ValueError("expected labels of at least one unit, and at least one period")
    options = [(periods, MOST_LABELS)]
    if periods > 1:
        enough = np.ceil(np.quantile(given, _QUANTILES)).astype(np.int64) * periods
        options += [(int(uses), 1) for uses in dict.fromkeys(enough.tolist())]
    return max(
        options, key=lambda option: _measure_information(given, periods, epsilon, delta, *option)
    )


def _measure_information(
    counts: Counts, periods: int, epsilon: float, delta: float, uses: int, most: int
) -> float:
    """Return how many labels without noise inform as much as those of one period."""
    laws = _Laws.of(counts, periods, epsilon, delta, uses, most)
    return float(laws.released @ laws.signal**2)


@dataclass(frozen=True, eq=False)
class _Laws:
    """Of each unit: labels released in one period, the size of its blocks, c1 and c2."""

    released: Floats
    size: Counts
    signal: Floats
    second: Floats

    @classmethod
    def of(
        cls, counts: Counts, periods: int, epsilon: float, delta: float, uses: int, most: int
    ) -> _Laws:
        """Return those of an allowance of so many uses at (ε, δ), spent evenly over periods."""
        threshold = randomized_response.threshold(
            randomized_response.calibrate(epsilon, delta, uses)
        )
        released = np.minimum(counts, most * uses / periods)
        blocks = np.maximum(np.ceil(released / most), 1)
        size = np.ceil(released / blocks).astype(np.int64)
        sizes, which = np.unique(size, return_inverse=True)
        laws: list[Block | None] = [find_block(threshold, int(m)) if m else None for m in sizes]
        moments = [(law.mean_sign, law.mean_sign_product) if law else (0.0, 0.0) for law in laws]
        first, second = np.array(moments).T[:, which]
        return cls(released, size, first, second)


@dataclass(frozen=True, eq=False)
class Flips:
    """Randomized response under one bound, or None, in one of several periods.

    It takes `uses` of so many labels (`block`) over all periods. `every` holds γ of all labelers,
    `released` how many of their labels are released and `noise` the `compute_largest_eigenvalue` of
    each; `sampled` is what happens to the labels of the sampled labelers.
    """

    bound: int | None
    uses: int
    block: int
    every: Floats
    released: Floats
    noise: Floats
    sampled: FlippedLabels

    @classmethod
    def of(
        cls,
        counts: Counts,
        sampled: Counts,
        epsilon: float,
        delta: float,
        bound: int | None,
        periods: int = 1,
    ) -> Flips:
        """Return what (ε, δ) makes of labels, of which a release takes `bound` of each labeler.

        `counts` are those of all labelers, and `sampled` those of the sampled ones.
        """
        taken, some = (np.minimum(each, bound or each) for each in (counts, sampled))
        uses, size = choose_blocks(taken, periods, epsilon, delta)
        every = _Laws.of(taken, periods, epsilon, delta, uses, size)
        of_some = _Laws.of(some, periods, epsilon, delta, uses, size)
        return cls(
            bound,
            uses,
            size,
            (1 - every.signal) / 2,
            every.released,
            compute_largest_eigenvalue(every.signal, every.second, every.size),
            FlippedLabels.of(
                *(of_some.signal, of_some.second, of_some.size, of_some.released), sampled
            ),
        )

    @property
    def information(self) -> float:
        """Σ (1 − 2γ)² over released labels: how many labels without noise inform as much."""
        return float((1 - 2 * self.every) ** 2 @ self.released)

    def heads(self, trial: Trial) -> Heads:
        """Heads from all released labels."""
        return trial.flipped_heads(self.sampled)

    def half_heads(self, trial: Trial) -> Heads:
        """Heads from one of two stages of PROPS: every other labeler's labels."""
        return trial.flipped_heads(self.sampled.drop_every_second_labeler())

    def mean(self, values: Floats | float) -> float:
        """Mean over released labels of what labelers have."""
        return float(
            np.average(np.broadcast_to(values, self.released.shape), weights=self.released)
        )

    def flip_interval(self) -> Interval:
        """γ over released labels."""
        of_labels = self.every[self.released > 0]
        return Interval(self.mean(self.every), float(of_labels.min()), float(of_labels.max()))


@dataclass(frozen=True, eq=False)
class TriedBound:
    """Randomized response under one bound, and how it did: `accuracies` (worlds, heads)."""

    flips: Flips
    accuracies: Floats

    @classmethod
    def of(cls, worlds: Worlds, flips: Flips) -> TriedBound:
        """Fit heads in every world."""
        return cls(flips, worlds.accuracies(flips.heads))

    @property
    def best_head_index(self) -> int:
        """The head that is most accurate on average."""
        return int(self.accuracies.mean(axis=0).argmax())

    @property
    def accuracy(self) -> Floats:
        """The accuracy of that head, shape (worlds,)."""
        return np.asarray(self.accuracies[:, self.best_head_index])


def choose_bound(tried: Sequence[TriedBound]) -> TriedBound:
    """Return the most accurate; of those as good as that, what releases most labels."""
    top = max(float(one.accuracy.mean()) for one in tried) - INDISTINCT
    near = [one for one in tried if float(one.accuracy.mean()) >= top]
    return max(near, key=lambda one: float(one.flips.released.sum()))


def forecast_rr(worlds: Worlds, epsilon: float, tried: TriedBound) -> Forecast:
    """Randomized response under one bound."""
    accuracy, _ = worlds.score_head(tried.flips.heads, tried.best_head_index)
    return _forecast(tried.flips, worlds.public.counts, epsilon, accuracy)


def forecast_labels(
    counts: Counts, epsilon: float, delta: float, bound: int | None, periods: int
) -> Forecast:
    """Randomized response under one bound, of pairs that no head can tell apart: it is a coin."""
    flips = Flips.of(counts, counts, epsilon, delta, bound, periods)
    return _forecast(flips, counts, epsilon, Interval(0.5, 0.5, 0.5))


def _forecast(flips: Flips, counts: Counts, epsilon: float, accuracy: Interval) -> Forecast:
    error = flips.mean(flips.every)
    return Forecast(
        "rr",
        epsilon,
        accuracy,
        Interval(error, error, error),
        flip_probability=flips.flip_interval(),
        max_labels_per_labeler=flips.bound,
        uses=flips.uses,
        block=flips.block,
        released=float(flips.released.sum() / counts.sum()),
    )


def forecast_props(worlds: Worlds, flips: Flips, rr: Forecast) -> Forecast:
    """Two stages, hard votes, on the labels of `rr`.

    The model of stage 1 overrules a label of stage 2 where its estimated error is below γ. The
    second model then learns what the first one knew; elsewhere it learns from all labels. Its
    accuracy is therefore between that of `rr` and that of half of its labels.
    """
    from scipy.special import erf

    half, _ = worlds.score_best_head(flips.half_heads)
    signal = 1 - 2 * flips.every
    # Half of the labelers are in stage 2; the noise of d, where 1 marks a disagreement, is s/2.
    weight = float(signal**2 @ flips.released) / 2
    noise = math.sqrt((signal**2 * flips.noise) @ flips.released / 8)
    standard_error = noise / weight

    def model_share_and_error(accuracy: float) -> tuple[float, float]:
        """Return how often the model decides, and the error of all labels."""
        error = 1 - accuracy
        ratio = (flips.every - error) / (math.sqrt(2) * standard_error)
        decides = (1 + erf(ratio)) / 2
        second = flips.mean(decides * error + (1 - decides) * flips.every)
        return flips.mean(decides), (rr.label_error.mean + second) / 2

    decides, error = model_share_and_error(half.mean)
    errors = [error, model_share_and_error(half.low)[1], model_share_and_error(half.high)[1]]

    def interpolate(full: float, part: float) -> float:
        return decides * part + (1 - decides) * full

    accuracy = Interval(
        interpolate(rr.accuracy.mean, half.mean),
        interpolate(rr.accuracy.low, half.low),
        interpolate(rr.accuracy.high, half.high),
    )
    label_error = Interval(error, min(errors), max(errors))
    return replace(rr, mechanism="props", accuracy=accuracy, label_error=label_error)
