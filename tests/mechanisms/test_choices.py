"""The fit of a statistic of choices among K responses; comparisons are choices with K = 2."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.special import logsumexp
from support.choices import Choices, sum_of_choices

from labelguard.errors import InvalidLabels
from labelguard.learning import heads
from labelguard.mechanisms import choices

FALSE_FAILURE = 1e-6


def among(sizes, unit=None):
    """Choices among `sizes` responses each, by one labeler unless `unit` says whose they are."""
    size = np.array(list(sizes), np.intp)
    whose = np.zeros(len(size), np.intp) if unit is None else np.array(list(unit), np.intp)
    return Choices(np.append(0, size.cumsum()), whose, int(whose.max(initial=0)) + 1)


def normal(asked, components, seed):
    shape = (int(asked.offsets[-1]), components)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def dyadic(asked, components, seed):
    """Multiples of 1/8 whose means are, too, where K is a power of two: sums without rounding."""
    shape = (int(asked.offsets[-1]), components)
    return (np.random.default_rng(seed).integers(-40, 41, shape) / 8).astype(np.float32)


def test_a_fit_of_choices_between_two_is_that_of_comparisons():
    rng = np.random.default_rng(6)
    asked = among([2] * 80)
    features = dyadic(asked, 4, 7)
    z = features[::2] - features[1::2]
    weight, ridge = rng.uniform(0, 1, 80), rng.uniform(0.5, 2, 4)
    released = 10 * rng.standard_normal(4)
    theta = choices.fit_choices(features, asked.size, weight, released, ridge)
    assert theta == pytest.approx(heads.fit_statistic(z, weight, released, ridge), rel=1e-6)


def test_a_fit_is_the_minimum_of_the_written_objective():
    rng = np.random.default_rng(8)
    asked = among(rng.integers(2, 7, 30))
    features = normal(asked, 3, 9)
    weight, ridge, released = rng.uniform(0, 1, 30), np.array([0.5, 1, 2]), np.array([3.0, -5, 1])

    def objective(theta):
        value = -float(theta @ released) + float(ridge @ theta**2) / 2
        for j, (first, end) in enumerate(itertools.pairwise(asked.offsets.tolist())):
            own = features[first:end].astype(np.float64)
            value += weight[j] * float(logsumexp(own @ theta) - own.mean(axis=0) @ theta)
        return value

    expected = optimize.minimize(objective, np.zeros(3), tol=1e-10).x
    theta = choices.fit_choices(features, asked.size, weight, released, ridge)
    assert theta == pytest.approx(expected, abs=1e-4)
    assert objective(theta) <= objective(expected) + 1e-9


def probabilities(features, asked, theta):
    score = features @ theta
    top = np.maximum.reduceat(score, asked.offsets[:-1])
    score = np.exp(score - np.repeat(top, asked.size))
    total = np.add.reduceat(score, asked.offsets[:-1])
    return np.asarray(score / np.repeat(total, asked.size), np.float64)


def test_the_expected_statistic_gives_back_the_planted_head():
    asked = among(np.random.default_rng(10).integers(2, 9, 300))
    features, theta = normal(asked, 6, 11), np.array([1.0, -2, 0.5, 0, 3, -1])
    excess = probabilities(features, asked, theta) - np.repeat(1 / asked.size, asked.size)
    found = choices.fit_choices(features, asked.size, 1.0, excess @ features, 1e-9)
    assert found == pytest.approx(theta, abs=1e-4)


def test_simulated_choices_give_back_the_planted_head():
    """(θ̂ − θ)ᵀ H (θ̂ − θ) is chi-square: beyond the limit with a probability below 1e-6."""
    rng = np.random.default_rng(12)
    asked = among(rng.integers(2, 6, 3000), rng.integers(0, 50, 3000))
    features, theta = normal(asked, 4, 13), np.array([0.8, -0.5, 0.3, 0.0])
    gumbel = features @ theta + rng.gumbel(size=len(features))
    best = gumbel == np.repeat(np.maximum.reduceat(gumbel, asked.offsets[:-1]), asked.size)
    exact = sum_of_choices(features, asked, best, 1e4, np.ones(50))
    found = choices.fit_choices(features, asked.size, 1.0, exact, 1e-6)
    chance = probabilities(features, asked, theta)
    expected = np.add.reduceat(chance[:, None] * features, asked.offsets[:-1], axis=0)
    information = features.T @ (chance[:, None] * features) - expected.T @ expected

    def is_accepted(candidate):
        off = candidate - theta
        return bool(off @ information @ off < stats.chi2.isf(FALSE_FAILURE, 4))

    assert is_accepted(found)
    assert not is_accepted(0.8 * found)
    of_the_worst = choices.fit_choices(features, asked.size, 1.0, -exact, 1e-6)
    assert not is_accepted(of_the_worst)


@pytest.mark.parametrize("sizes", [[2, 1], [2, 3], [4, -2]], ids=str)
def test_sizes_that_are_none_are_refused(sizes):
    with pytest.raises(InvalidLabels, match="at least 2 responses"):
        choices.fit_choices(np.zeros((4, 1), np.float32), np.array(sizes), 1.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("weight", "released", "ridge"),
    [(-1.0, 0.0, 1.0), (1.0, math.nan, 1.0), (1.0, 0.0, 0.0), (np.ones(3), 0.0, 1.0)],
)
def test_a_fit_of_wrong_arguments_is_refused(weight, released, ridge):
    asked = among([2, 3])
    with pytest.raises(ValueError, match=r"weight|statistic|ridge"):
        choices.fit_choices(normal(asked, 2, 16), asked.size, weight, released, ridge)


def test_chunks_and_a_common_shift_change_nothing(monkeypatch):
    """What all responses of a choice share is not part of a choice."""
    rng = np.random.default_rng(19)
    asked = among(rng.choice([2, 4, 8], 25))
    features, released = dyadic(asked, 3, 20), rng.standard_normal(3)
    theta = choices.fit_choices(features, asked.size, 1.0, released, 1.0)
    shifted = features + np.repeat(rng.integers(-1000, 1000, (25, 3)), asked.size, axis=0)
    monkeypatch.setattr(choices, "_CHUNK", 5)
    again = choices.fit_choices(shifted.astype(np.float32), asked.size, 1.0, released, 1.0)
    assert again == pytest.approx(theta, rel=1e-5, abs=1e-8)


def test_a_statistic_of_zero_gives_a_head_of_zero():
    asked = among([2, 3])
    assert choices.fit_choices(normal(asked, 2, 17), asked.size, 1.0, 0.0, 1.0) == pytest.approx(
        [0, 0], abs=1e-6
    )


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_a_fit_far_from_zero_converges(size):
    """A noisy statistic outside of what choices can give: only the ridge holds the head back."""
    asked = among([3] * 20)
    features = normal(asked, 3, 18) * np.float32(size)
    released = np.array([400.0, -300, 100]) * size
    theta = choices.fit_choices(features, asked.size, 1.0, released, 1e-3 * size**2)
    excess = probabilities(features, asked, theta) - 1 / 3
    assert excess @ features + 1e-3 * size**2 * theta == pytest.approx(released, rel=1e-3)
