"""Adaptive user-level private SGD (AUP-RLHF, algorithms 2 and 3, in one phase), with corrections.

A step happens only while the cohort's mean gradients lie close together; those that do not are left
out, and the noise is scaled to the distance τ within which the others lie, not to a clip norm.

The guarantee is as published and NOT proven: the test of concentration and the noised step see one
cohort, whose size is random, as is the number of those who stay; the constants of the published
proof are not worked out. What is corrected here: the score is divided by the size of the cohort and
compared to 4/5 of it, and so is the ramp, so that a score moves by at most 2 when one labeler's
labels change; Laplace noise is scaled accordingly. By the public ñ in place of the cohort's size it
would move by more (3.9 was seen).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from labelguard.keys import keyring
from labelguard.mechanisms.noise import NoiseStream, draw_noise
from labelguard_trainer.gradient.loop import (
    SECRET_BYTES,
    NoisyRun,
    Problem,
    Watch,
    cohort,
    report_progress,
)

Floats = NDArray[np.float64]

_SENSITIVITY = 2.0
_UNIT = 2**30  # Laplace noise is a whole number of 1/_UNIT
_PAIRS = 1 << 22  # of members, whose distances are in memory at once


@dataclass(frozen=True)
class AupRun(NoisyRun):
    """A run, all of it public: `clip` is the distance τ, and (ε, δ) are as published."""

    epsilon: float
    delta: float

    @classmethod
    def from_price(cls, price: Mapping[str, Any], clip: float, units: int) -> Self:
        """Return the run that a price pays for."""
        fields = vars(NoisyRun.from_price(price, clip, units))
        return cls(**fields, epsilon=float(price["epsilon"]), delta=float(price["delta"]))

    @property
    def deviation(self) -> float:
        """√(8 log(e^ε T/δ)) τ ς / ñ, the noise on every coordinate of a mean (line 15)."""
        grows = 8 * (self.epsilon + math.log(self.steps / self.delta))
        return math.sqrt(grows) * self.clip * self.noise_multiplier / self.divisor


def train(problem: Problem, labels: Floats, run: AupRun, watch: Watch) -> int:
    """Run until all steps are done or a cohort is not concentrated; return how many were done.

    PRIVATE: labels (n,). The problem ends with the mean of its iterates, each before its step
    (line 21). Nothing of it is kept on the way: one that is interrupted begins anew, as nobody saw
    it.
    """
    first = run.epsilon / 2  # of AboveThreshold; the other half is the noised steps'
    above = _draw_laplace(2 * _SENSITIVITY / first)
    mean, done = problem.state(), 0
    for step in range(run.steps):
        members = cohort(keyring.random_bytes(SECRET_BYTES), run.threshold, run.units)
        gradients = problem.gradients(members, labels)
        score = concentration(gradients, run.clip) - 4 * len(members) / 5
        if score + _draw_laplace(4 * _SENSITIVITY / first) < -above:
            break
        stays = select_inliers(gradients, run.clip, _draw_uniforms(len(members)))
        total = gradients[stays].astype(np.float64).sum(axis=0) / max(1, int(stays.sum()))
        noisy_mean = problem.add_noise(total, run.deviation, keyring.random_bytes(SECRET_BYTES))
        done = step + 1
        for name, array in problem.state().items():
            mean[name] = mean[name] + (array - mean[name]) / done
        problem.step(noisy_mean)
        report_progress(watch, done, run.steps)
    problem.restore(mean)
    return done


def concentration(gradients: NDArray[Any], distance: float) -> float:
    """(1/|U|) Σ_{i,i'} 1(‖g_i − g_i'‖ ≤ τ), over a cohort's gradients (members, d); 0 of none."""
    if not len(gradients):
        return 0.0
    return float(_count_close(gradients, distance).sum()) / len(gradients)


def select_inliers(gradients: NDArray[Any], distance: float, coins: Floats) -> NDArray[np.bool_]:
    """Return who is no outlier: all with 2/3 of the cohort within 2τ, none below 1/2, in between by
    coin.

    `coins` (members,) are the coins.
    """
    size = len(gradients)
    close = _count_close(gradients, 2 * distance)
    return np.asarray(coins < np.clip((close - size / 2) / (size / 6 if size else 1), 0, 1))


def _count_close(gradients: NDArray[Any], distance: float) -> NDArray[np.intp]:
    """Return how many of all lie within a distance of each, (members,); some members at a time.

    Of differences, in units of the distance: those of squares lose what the two have in common, and
    squares of small numbers vanish. A gradient that is not finite is near nobody.
    """
    from scipy.spatial.distance import cdist

    g = gradients / np.float64(distance)
    above = 1 + (g.shape[1] + 4) * 2.0**-52
    counts = np.zeros(len(g), np.intp)
    rows = max(1, _PAIRS // max(len(g), 1))
    for at in range(0, len(g), rows):
        part = slice(at, at + rows)
        counts[part] = (cdist(g[part], g) * above <= 1).sum(axis=1)
    return counts


def _draw_laplace(scale: float) -> float:
    """Laplace noise, rounded to a fine grid."""
    stream = NoiseStream(keyring.random_bytes(SECRET_BYTES))
    return draw_noise("ball", math.ceil(scale * _UNIT), 1, stream)[0] / _UNIT


def _draw_uniforms(count: int) -> Floats:
    coins = NoiseStream(keyring.random_bytes(SECRET_BYTES)).uniforms(count)
    return np.array([coin / 2**257 for coin in coins])
