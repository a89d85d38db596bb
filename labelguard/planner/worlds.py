"""Simulated worlds over one public side, and how heads do in them on average."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelguard.mechanisms.geometry import Shape
from labelguard.mechanisms.noise import Noise
from labelguard.mechanisms.statistic import Rows
from labelguard.planner.outcomes import Forecast, Interval, interval
from labelguard.planner.prior import Prior
from labelguard.planner.trials import Heads, PublicSide, Trial, public_side

__all__ = ["Worlds"]

Floats = NDArray[np.float64]

_NOISES = 8  # noise realised per simulated world, for intervals


@dataclass(frozen=True, eq=False)
class Worlds:
    """A public side, and trials of simulated labels on it."""

    public: PublicSide
    trials: tuple[Trial, ...]
    prior: Prior

    @classmethod
    def of(cls, x: NDArray[np.float32], rows: Rows, prior: Prior, number: int) -> Worlds:
        """So many worlds over pairs x (pairs, d) and who labels them. Raises as `public_side`."""
        public = public_side(x, rows, prior.seed)
        return cls(public, tuple(public.trials(prior, number)), prior)

    def more(self, number: int) -> Worlds:
        """These worlds and further ones, as if `number` had been asked for at first."""
        new = self.public.trials(self.prior, number, skip=len(self.trials))
        return Worlds(self.public, (*self.trials, *new), self.prior)

    def accuracies(self, heads_of: Callable[[Trial], Heads]) -> Floats:
        """The accuracy of each head in each world, shape (worlds, heads)."""
        return np.stack([trial.scores(heads_of(trial))[0] for trial in self.trials])

    def judged(self, heads_of: Callable[[Trial], Heads], index: int) -> tuple[Interval, Interval]:
        """Accuracy and label error of one head: means over noise, ranges with noise realised."""
        rng = np.random.default_rng(self.prior.seed)
        means, realised = [], []
        for trial in self.trials:
            heads = heads_of(trial)
            mean, variance = heads.mean[index], heads.variance[index]
            noise = np.sqrt(variance) * rng.standard_normal((_NOISES, len(mean)))
            one = Heads(mean[None], variance[None])
            means.append([float(score[0]) for score in trial.scores(one)])
            realised.append(trial.scores(Heads(mean + noise, np.zeros_like(noise))))
        accuracy, error = np.mean(means, axis=0)
        spread = np.stack([np.stack(scores) for scores in realised], axis=1)
        return interval(float(accuracy), spread[0]), interval(float(error), spread[1])

    def best(self, heads_of: Callable[[Trial], Heads]) -> tuple[Interval, Interval]:
        """What the head with the highest mean accuracy is `judged`."""
        return self.judged(heads_of, int(self.accuracies(heads_of).mean(axis=0).argmax()))

    def statistic(self, epsilon: float, noise: Noise, shape: Shape) -> Forecast:
        """A statistic release with this noise."""
        judged = self.judged(lambda trial: trial.statistic_head(shape, noise), 0)
        return Forecast("statistic", epsilon, *judged, shape, noise)

    def user_wise(self, epsilon: float, noise: Noise, shape: Shape) -> Forecast:
        """A run of user-wise DP-SGD, the mean of whose steps has this noise."""
        judged = self.judged(lambda trial: trial.user_wise_head(shape, noise), 0)
        return Forecast("uls", epsilon, *judged, shape, noise)
