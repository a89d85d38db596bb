"""The steps of a private run: cohort, clipped sum, noise, step; resumed where it was kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.keys import keyring
from labelguard_trainer.gradient.checkpoints import Checkpoints
from labelguard_trainer.gradient.cohorts import cohort
from labelguard_trainer.gradient.course import Course
from labelguard_trainer.gradient.problem import Problem

__all__ = ["SECRET_BYTES", "Watch", "tell", "train"]

SECRET_BYTES = 32
_TOLD = 20  # times at which progress is told: how long a single step took tells its cohort's size

Watch: TypeAlias = Callable[[float], None]
"""Told how far a run is."""


def train(
    problem: Problem,
    labels: NDArray[np.float64],
    course: Course,
    kept: Checkpoints,
    watch: Watch,
) -> None:
    """All steps of a run, or those that remain of one that was interrupted.

    PRIVATE: labels (n,), in the order of the problem's records. What the problem has become is
    private until its release is committed, and may be published then. Guarantee: that of
    `accounting.subsampled` for `course`; randomness is fresh for every step and never stored, so
    that nothing visible depends on more than `course.steps` noised sums.

    Source: user-level-dp-finetuning, algorithm 2; aup-rlhf, algorithm 4.
    """
    for step in range(kept.restore(problem), course.steps):
        members = cohort(keyring.random_bytes(SECRET_BYTES), course.threshold, course.units)
        total = problem.clipped_sum(members, labels, course.clip)
        noised = problem.noised(total, course.deviation, keyring.random_bytes(SECRET_BYTES))
        problem.step(noised / course.divisor)
        kept.keep(step + 1, problem, last=step + 1 == course.steps)
        tell(watch, step + 1, course.steps)


def tell(watch: Watch, done: int, steps: int) -> None:
    """Say how far a run is, after one step in 20 of all: no single step's time is told."""
    if done * _TOLD % steps < _TOLD:
        watch(done / steps)
