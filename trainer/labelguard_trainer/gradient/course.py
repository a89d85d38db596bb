"""What a run is: sampler, steps, noise and clip in one object, made of the price charged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from labelguard_trainer.gradient import cohorts

__all__ = ["SLACK", "Course"]

SLACK = 1 + 2.0**-48
"""Covers the rounding of the noise's own deviation: clipped parts are within C exactly."""


@dataclass(frozen=True)
class Course:
    """A run of noisy gradient steps, all of it public and fixed before a label is seen.

    In every step each of `units` is in with probability `threshold`/2^64, by a secret coin; the
    clipped gradients of the cohort are summed, noise of deviation `noise_multiplier` · `clip` is
    added, and the sum is divided by q · `units`, never by the size of the cohort, which is secret.
    """

    threshold: int
    steps: int
    noise_multiplier: float
    clip: float
    units: int

    @classmethod
    def priced(cls, price: Mapping[str, Any], clip: float, units: int) -> Self:
        """The run that a price pays for, of so many units, clipped at this norm."""
        q = cohorts.threshold(float(price["sampling_probability"]))
        return cls(q, int(price["steps"]), float(price["noise_multiplier"]), clip, units)

    @property
    def probability(self) -> float:
        """q."""
        return self.threshold / cohorts.COIN_RANGE

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise on every coordinate of a sum."""
        return self.noise_multiplier * self.clip * SLACK

    @property
    def divisor(self) -> float:
        """The public number by which sums are divided: the expected size of a cohort."""
        return self.probability * self.units
