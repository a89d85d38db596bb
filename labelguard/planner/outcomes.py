"""What a mechanism may be expected to give at one ε, and which of several serves best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelguard.mechanisms.geometry import Shape
from labelguard.mechanisms.noise import Noise

INDISTINCT = 0.002
"""A difference in accuracy that decides nothing."""


@dataclass(frozen=True)
class Interval:
    """A mean over simulated worlds, and the range that holds 90% of them."""

    mean: float
    """the mean"""
    low: float
    """the 5% quantile"""
    high: float
    """the 95% quantile"""


@dataclass(frozen=True)
class Forecast:
    """What one mechanism may be expected to give at one ε.

    A statistic and a run of `uls` have a `shape`; randomized response, and PROPS on top of it, have
    a flip probability and a bound.
    """

    mechanism: str
    """rr, props, statistic, uls or non-private"""
    epsilon: float | None
    """its ε; null for non-private"""
    accuracy: Interval
    """share of fresh labelers' strict labels that a head learns to predict"""
    label_error: Interval
    """share of strict labels whose released value differs"""
    shape: Shape | None = None
    """the public choices of a statistic or a run"""
    noise: Noise | None = None
    """its noise; of a run, that of the mean of all steps"""
    flip_probability: Interval | None = None
    """over released labels"""
    max_labels_per_labeler: int | None = None
    """the bound; null: everybody's own number of labels, rounded up"""
    released: float = 1.0
    """share of labels within the bound"""
    twice_labelers: float | None = None
    """accuracy with twice as many labelers"""
    twice_labels: float | None = None
    """accuracy with twice as many labels from each"""


@dataclass(frozen=True)
class Sizing:
    """What a policy has to allow, so that the mechanism that serves best lasts for all periods."""

    mechanism: str
    """rr, props, statistic or uls"""
    periods: int
    """how many releases the policy is for"""
    releases: int | None
    """statistic releases, or runs, to allow; None where the mechanism takes randomized labels"""
    ball: int | None
    """the fewest components that its ball noise is for; None: Gaussian noise, or no statistic"""
    max_labels_per_labeler: int | None
    """labels of each labeler to allow; None: their own number, rounded up, or a statistic"""
    fits: float
    """share of the labels expected over all periods that this lets in"""
    forecast: Forecast
    """what a period's release may be expected to give"""

    @classmethod
    def of(cls, forecast: Forecast, periods: int) -> Sizing:
        """What the mechanism of a forecast for so many periods needs."""
        summed, noise = forecast.mechanism in ("statistic", "uls"), forecast.noise
        return cls(
            forecast.mechanism,
            periods,
            periods if summed else None,
            noise.least if noise and noise.kind == "ball" else None,
            forecast.max_labels_per_labeler,
            forecast.released,
            forecast,
        )


def best(forecasts: Sequence[Forecast], epsilon: float) -> Forecast:
    """The forecast of highest accuracy at ε, but for `uls`, whose sampling has to be asked for.

    Of those as good within .002, one that releases most labels, and of these the least label error.
    """
    here = [f for f in forecasts if f.epsilon == epsilon and f.mechanism != "uls"]
    top = max(f.accuracy.mean for f in here)
    near = [f for f in here if f.accuracy.mean >= top - INDISTINCT]
    return min(near, key=lambda f: (-f.released, f.label_error.mean))


def worth_training(forecasts: Sequence[Forecast], epsilon: float) -> Forecast:
    """The `best` at ε, or `uls` where that is the statistic and a run is better by over .002.

    A statistic of about the same worth is one release, which takes no training and no steps.
    """
    found = best(forecasts, epsilon)
    runs = [f for f in forecasts if (f.mechanism, f.epsilon) == ("uls", epsilon)]
    if found.mechanism != "statistic" or not runs:
        return found
    return runs[0] if runs[0].accuracy.mean > found.accuracy.mean + INDISTINCT else found


def learned(found: Forecast, plain: Forecast) -> float:
    """How much of what a head learns without privacy (above a coin toss) is learnt, in [0, 1]."""
    most = plain.accuracy.mean - 0.5
    return min(max((found.accuracy.mean - 0.5) / most, 0.0), 1.0) if most > 0 else 0.0


def interval(mean: float, values: NDArray[np.float64]) -> Interval:
    """The range of 90% of `values`, widened to hold their `mean`."""
    low, high = np.quantile(values, (0.05, 0.95))
    return Interval(mean, min(float(low), mean), max(float(high), mean))
