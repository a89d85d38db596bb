"""Randomized response in simulated worlds, under one bound or the best of several; and PROPS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf

from labelguard.accounting import randomized_response
from labelguard.budget.policy import round_up_bounds
from labelguard.planner.outcomes import INDISTINCT, Forecast, Interval
from labelguard.planner.trials import Heads, PublicSide, Trial, Worlds

Floats = NDArray[np.float64]

# Labels per labeler that are tried for randomized response; None: all, at their own price.
#
# A labeler's k labels inform about as k · (1 − 2γ)² labels without noise would, which falls with k
# once (1 − 2γ) falls faster than 1/√k: fewer labels, answered more truly, can teach more.
BOUNDS = (None, 1, 2, 4, 8, 16, 32)

_QUANTILES = (1.0, 0.9, 0.5)


def bounds_for(counts: NDArray[np.int64], periods: int) -> tuple[int | None, ...]:
    """Return the bounds that are tried; the first lets in all labels.

    `counts` (labelers,) are public: the labels of each labeler in one period. For several periods
    one K has to serve everybody, because nobody's own number is known yet: as many labels as so
    many periods like this one bring to all labelers, to 90% and to half of them, rounded up to 8,
    16, 32, …, and 1, 2, 4, … labels a period.
    """
    if periods == 1:
        return BOUNDS
    projected = np.ceil(np.quantile(counts, _QUANTILES)).astype(np.int64) * periods
    enough = [int(bound) for bound in round_up_bounds(projected)]
    few = [bound * periods for bound in BOUNDS if bound is not None]
    return tuple(dict.fromkeys([*enough, *(bound for bound in few if bound < enough[0])]))


@dataclass(frozen=True, eq=False)
class Flips:
    """Randomized response under one bound, or None: what each labeler's labels become.

    `signal` is 1 − 2γ and `share` the share of labels released, of the sampled labelers; `every`
    holds γ of all labelers and `released` how many of their labels are released. A bound for
    several periods is spent evenly over them.
    """

    bound: int | None
    signal: Floats
    share: Floats
    every: Floats
    released: Floats

    @classmethod
    def of(
        cls, public: PublicSide, epsilon: float, delta: float, bound: int | None, periods: int = 1
    ) -> Flips:
        """Return what (epsilon, delta) makes of labels, of which `bound` are priced over all
        periods.
        """

        def flips(counts: NDArray[np.int64]) -> Floats:
            answers = round_up_bounds(counts) if bound is None else counts * 0 + bound
            prices = randomized_response.calibrate_many(epsilon, delta, answers)
            return np.asarray(1 / (1 + np.exp(prices)))

        most = math.inf if bound is None else bound / periods
        sampled = np.bincount(public.rows.unit, minlength=public.rows.units)
        return cls(
            bound,
            1 - 2 * flips(sampled),
            np.minimum(1, most / sampled),
            flips(public.counts),
            np.minimum(public.counts, most).astype(np.float64),
        )

    @property
    def information(self) -> float:
        """Σ (1 − 2γ)² over released labels: how many labels without noise inform as much."""
        return float((1 - 2 * self.every) ** 2 @ self.released)

    def heads(self, trial: Trial) -> Heads:
        """Heads from all released labels."""
        return trial.flipped_heads(self.signal, self.share)

    def half_heads(self, trial: Trial) -> Heads:
        """Heads from one of two stages of PROPS."""
        return trial.flipped_heads(self.signal, self.share / 2)

    def mean(self, values: Floats | float) -> float:
        """Mean over released labels of what labelers have."""
        return float(
            np.average(np.broadcast_to(values, self.released.shape), weights=self.released)
        )

    def spread(self) -> Interval:
        """γ over released labels."""
        return Interval(self.mean(self.every), float(self.every.min()), float(self.every.max()))


def all_labels(options: Sequence[Flips]) -> Flips:
    """Return the first of those that release most labels: what no bound was put to."""
    return max(options, key=lambda option: float(option.released.sum()))


def drop_dominated(options: Sequence[Flips]) -> list[Flips]:
    """Return the options that can be chosen; public counts alone rule out the others.

    An option is ruled out if another releases at least as many labels that hold at least as much
    `information`; of equal ones the first stays. Heads learn more from more information, and of
    equally good options `choose_bound` takes what releases most, so the other one would be taken in
    its place. A bound that nobody reaches, say, is ruled out by any smaller one that nobody
    exceeds.
    """
    value = [(option.information, float(option.released.sum())) for option in options]

    def ruled_out(at: int) -> bool:
        mine = value[at]
        return any(
            other[0] >= mine[0] and other[1] >= mine[1] and (other != mine or before < at)
            for before, other in enumerate(value)
            if before != at
        )

    return [option for at, option in enumerate(options) if not ruled_out(at)]


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
    def head(self) -> int:
        """The head that is most accurate on average."""
        return int(self.accuracies.mean(axis=0).argmax())

    @property
    def accuracy(self) -> Floats:
        """The accuracy of that head, shape (worlds,)."""
        return np.asarray(self.accuracies[:, self.head])


def choose_bound(tried: Sequence[TriedBound]) -> TriedBound:
    """Return the most accurate; of those as good as that, what releases most labels."""
    top = max(float(one.accuracy.mean()) for one in tried) - INDISTINCT
    near = [one for one in tried if float(one.accuracy.mean()) >= top]
    return max(near, key=lambda one: float(one.flips.released.sum()))


def forecast_rr(worlds: Worlds, epsilon: float, tried: TriedBound) -> Forecast:
    """Randomized response under one bound."""
    flips = tried.flips
    accuracy, _ = worlds.score_head(flips.heads, tried.head)
    error = flips.mean(flips.every)
    return Forecast(
        "rr",
        epsilon,
        accuracy,
        Interval(error, error, error),
        flip_probability=flips.spread(),
        max_labels_per_labeler=flips.bound,
        released=float(flips.released.sum() / worlds.public.counts.sum()),
    )


def forecast_props(worlds: Worlds, flips: Flips, rr: Forecast) -> Forecast:
    """Two stages, hard votes, on the labels of `rr`.

    The model of stage 1 overrules a label of stage 2 where its estimated error is below γ. The
    second model then learns what the first one knew; elsewhere it learns from all labels. Its
    accuracy is therefore between that of `rr` and that of half of its labels.
    """
    half, _ = worlds.best(flips.half_heads)
    signal = 1 - 2 * flips.every
    weight = float(signal**2 @ flips.released) / 2
    noise = math.sqrt((signal**2 * flips.every * (1 - flips.every)) @ flips.released / 2)
    standard_error = noise / weight

    def against(accuracy: float) -> tuple[float, float]:
        """Return how often the model decides, and the error of all labels."""
        error = 1 - accuracy
        ratio = (flips.every - error) / (math.sqrt(2) * standard_error)
        decides = (1 + erf(ratio)) / 2
        second = flips.mean(decides * error + (1 - decides) * flips.every)
        return flips.mean(decides), (rr.label_error.mean + second) / 2

    decides, error = against(half.mean)
    errors = [error, against(half.low)[1], against(half.high)[1]]

    def between(full: float, part: float) -> float:
        return decides * part + (1 - decides) * full

    accuracy = Interval(
        between(rr.accuracy.mean, half.mean),
        between(rr.accuracy.low, half.low),
        between(rr.accuracy.high, half.high),
    )
    label_error = Interval(error, min(errors), max(errors))
    return replace(rr, mechanism="props", accuracy=accuracy, label_error=label_error)
