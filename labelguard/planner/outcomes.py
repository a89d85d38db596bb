"""Forecasts of mechanisms at one ε, and the choice among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelguard.mechanisms.geometry import Shape
from labelguard.mechanisms.noise import Noise

# A difference in accuracy that decides nothing.
INDISTINCT = 0.002


@dataclass(frozen=True)
class Interval:
    """A mean over simulated worlds, and the range that holds 90% of them."""

    # the mean
    mean: float
    # the 5% quantile
    low: float
    # the 95% quantile
    high: float


@dataclass(frozen=True)
class Forecast:
    """The forecast of one mechanism at one ε.

    A statistic and a run of `uls` have a `shape`; randomized response, and PROPS on top of it, have
    a flip probability and a bound.
    """

    # rr, props, statistic, uls or non-private
    mechanism: str
    # its ε; null for non-private
    epsilon: float | None
    # share of fresh labelers' strict labels that a head learns to predict
    accuracy: Interval
    # share of strict labels whose released value differs
    label_error: Interval
    # the public choices of a statistic or a run
    shape: Shape | None = None
    # its noise; of a run, that of the mean of all steps
    noise: Noise | None = None
    # over released labels
    flip_probability: Interval | None = None
    # the bound of one release; null: all labels
    max_labels_per_labeler: int | None = None
    # randomized blocks of a labeler over all periods
    uses: int | None = None
    # labels of a labeler that one use flips together, at most; 1: each by a coin of its own
    block: int | None = None
    # share of labels within the bound
    released: float = 1.0
    # accuracy with twice as many labelers
    twice_labelers: float | None = None
    # accuracy with twice as many labels from each
    twice_labels: float | None = None


def find_best_excluding_uls(forecasts: Sequence[Forecast], epsilon: float) -> Forecast:
    """Return the forecast of highest accuracy at ε, but for `uls`, whose sampling has to be asked
    for.

    Of those as good within .002, one that releases most labels, and of these the least label error.
    """
    here = [f for f in forecasts if f.epsilon == epsilon and f.mechanism != "uls"]
    top = max(f.accuracy.mean for f in here)
    near = [f for f in here if f.accuracy.mean >= top - INDISTINCT]
    return min(near, key=lambda f: (-f.released, f.label_error.mean))


def find_best_including_uls(forecasts: Sequence[Forecast], epsilon: float) -> Forecast:
    """Return the best at ε, as `find_best_excluding_uls`, or `uls` where that is the statistic and
    a run is better by over .002.

    A statistic of about the same worth is one release, which takes no training and no steps.
    """
    top = find_best_excluding_uls(forecasts, epsilon)
    runs = [f for f in forecasts if (f.mechanism, f.epsilon) == ("uls", epsilon)]
    if top.mechanism != "statistic" or not runs:
        return top
    return runs[0] if runs[0].accuracy.mean > top.accuracy.mean + INDISTINCT else top


def compute_learned_share(forecast: Forecast, plain: Forecast) -> float:
    """Return how much of what a head learns without privacy (above a coin toss) is learnt, in [0,
    1].
    """
    most = plain.accuracy.mean - 0.5
    return min(max((forecast.accuracy.mean - 0.5) / most, 0.0), 1.0) if most > 0 else 0.0


def compute_ninety_percent_range(mean: float, values: NDArray[np.float64]) -> Interval:
    """Return the range of 90% of `values`, widened to hold their `mean`."""
    low, high = np.quantile(values, (0.05, 0.95))
    return Interval(mean, min(float(low), mean), max(float(high), mean))
