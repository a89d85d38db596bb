"""Who is in a step: frequencies, independence, and the secret behind it."""

from __future__ import annotations

import numpy as np
import pytest
from labelguard_trainer.gradient.loop import COIN_RANGE, cohort, threshold
from scipy.stats import binom

UNITS, STEPS = 400, 500
FAILURE = 1e-6
"""How often a test of frequencies may fail."""


def secret(step: int) -> bytes:
    return step.to_bytes(32, "big")


def drawn(probability: float) -> np.ndarray:
    """Who was in which step, (steps, units)."""
    found = np.zeros((STEPS, UNITS), bool)
    for step in range(STEPS):
        found[step, cohort(secret(step), threshold(probability), UNITS)] = True
    return found


def in_range(count: int, trials: int, probability: float) -> bool:
    low, high = binom.ppf([FAILURE / 2, 1 - FAILURE / 2], trials, probability)
    return bool(low <= count <= high)


@pytest.mark.parametrize("probability", [0.02, 0.2, 0.5, 0.97])
def test_everybody_is_in_a_step_with_that_probability(probability: float) -> None:
    found = drawn(probability)
    assert in_range(int(found.sum()), found.size, probability)
    assert all(in_range(int(n), STEPS, probability) for n in found.sum(axis=0))
    # The control: frequencies a fifth off are seen.
    assert not in_range(int(found.sum()), found.size, probability * 0.8)


def test_coins_of_two_labelers_and_of_two_steps_are_independent() -> None:
    found = drawn(0.3)
    both = (found[:, ::2] & found[:, 1::2]).sum()
    assert in_range(int(both), found.size // 2, 0.09)
    after = (found[:-1] & found[1:]).sum()
    assert in_range(int(after), found[1:].size, 0.09)


def test_the_size_of_a_cohort_is_random_as_that_of_poisson_sampling_is() -> None:
    """A shuffled order, or a cohort of a fixed size, has no such variance, and another price."""
    sizes = drawn(0.2).sum(axis=1)
    assert 0.75 < sizes.var() / (UNITS * 0.2 * 0.8) < 1.3  # chi² of 499: fails once in 10^5


def test_a_cohort_is_that_of_its_secret() -> None:
    at = threshold(0.3)
    one, other = cohort(secret(1), at, UNITS), cohort(secret(2), at, UNITS)
    assert np.array_equal(one, cohort(secret(1), at, UNITS))
    assert not np.array_equal(one, other)
    assert (np.diff(one) > 0).all()


def test_more_is_never_sampled_than_is_paid_for() -> None:
    for probability in (1e-6, 0.1, 1 / 3, 0.2, 1.0):
        assert 0 < threshold(probability) <= probability * COIN_RANGE
    assert len(cohort(secret(0), threshold(1.0), UNITS)) == UNITS
