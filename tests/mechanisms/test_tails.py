"""Quantiles of noise along a direction: exact for the ball, and those of normal noise would not do.

Counts are of 400,000 draws. Where a count is tested, the chance of a false failure is below 1e-6
(five standard errors), and seeds are fixed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri

from labelguard.mechanisms.noise import Noise, NoiseStream, sample
from labelguard.mechanisms.tails import ReleasedNoise, reach

DRAWS = 400_000
Floats = NDArray[np.float64]


def ball(deviation=1.0, least=1):
    return ReleasedNoise("ball", deviation, least)


def along(direction, noises, variance):
    """N(0, variance) + Σ cᵀY, shape (DRAWS,)."""
    c, rng = np.array(direction), np.random.default_rng(len(direction))
    total = math.sqrt(variance) * rng.standard_normal(DRAWS)
    for noise in noises:
        total += noise.draws(len(c), rng, DRAWS) @ c
    return total


def beyond(values, t, probability):
    """By how many standard errors more of the values exceed t than should."""
    error = math.sqrt(probability * (1 - probability) / len(values))
    return (float(np.mean(values > t)) - probability) / error


def test_in_one_dimension_it_is_laplace_noise():
    for probability in (0.4, 0.1, 0.05, 0.01, 1e-4, 1e-8):
        exact = math.log(1 / (2 * probability)) / math.sqrt(2)
        assert exact <= reach(probability, 0.0, [ball()], 1.0, 1) <= 1.01 * exact
    t = 2.326348 / math.sqrt(1 / 2)  # in scales
    assert math.exp(-t) / 2 == pytest.approx(0.0187, abs=1e-4)


def test_without_ball_noise_it_is_normal():
    noises = [ReleasedNoise("gaussian", 3.0), ReleasedNoise("gaussian", 1.0)]
    assert reach(0.05, 4.0, noises, 2.0, 7) == pytest.approx(1.644854 * math.sqrt(44), rel=1e-6)
    assert reach(0.5, 4.0, [ball()], 2.0, 7) == 0
    assert reach(0.05, 4.0, [ball()], 0.0, 7) == pytest.approx(1.644854 * 2, rel=1e-6)
    with pytest.raises(ValueError, match="probability"):
        reach(0.6, 1.0, [], 1.0, 1)


@pytest.mark.parametrize("variance", [0.0, 0.5])
@pytest.mark.parametrize("dimensions", [1, 2, 4, 16])
def test_noise_along_a_direction_exceeds_it_as_often_as_it_says(dimensions, variance):
    direction = np.linspace(1, 2, dimensions)
    values = along(direction.tolist(), [ball()], variance)
    for probability in (0.05, 0.01, 0.001):
        t = reach(probability, variance, [ball()], float(np.linalg.norm(direction)), dimensions)
        assert beyond(values, 0.99 * t, probability) > -5  # less than 1 % too large
        assert beyond(values, t, probability) < 5


@pytest.mark.parametrize("dimensions", [1, 2, 4])
def test_a_normal_quantile_is_exceeded_too_often(dimensions):
    """The negative control: .0187 in place of .01 for one dimension."""
    values = along([1.0] + [0.0] * (dimensions - 1), [ball()], 0.0)
    assert beyond(values, -float(ndtri(0.01)), 0.01) > 20
    if dimensions == 1:
        assert np.mean(values > -ndtri(0.01)) == pytest.approx(0.0187, abs=0.001)


@pytest.mark.slow
def test_the_mechanism_draws_noise_of_this_law():
    """Its own sampler, three coordinates of noise in five dimensions: 30,000 draws."""
    stream, unit, released = NoiseStream(bytes(32)), 2**20, Noise("ball", 1.0, 5)
    drawn = np.array([sample("ball", unit, 5, stream)[:3] for _ in range(30_000)], float) / unit
    noise = ball(released.deviation(3), 5)
    c = np.array([0.6, 0.0, -0.8])
    for probability in (0.05, 0.01):
        t = reach(probability, 0.0, [noise], 1.0, 3)
        assert abs(beyond(drawn @ c, t, probability)) < 5
        assert beyond(drawn @ c, 0.7 * t, probability) > 5  # noise 30 % off is found out


def test_windows_of_several_scales_and_kinds_are_never_underrated():
    noises = [ball(1.0), ball(0.3), ReleasedNoise("gaussian", 0.5)]
    values = along([0.6, 0.8], noises, 0.2)
    for probability in (0.05, 0.01):
        t = reach(probability, 0.2, noises, 1.0, 2)
        assert beyond(values, t, probability) < 5
        assert beyond(values, 0.85 * t, probability) > 5  # nor by much too large
    equal = [ball(1.0), ball(1.0)]
    values = along([0.6, 0.8], equal, 0.0)
    assert abs(beyond(values, reach(0.01, 0.0, equal, 1.0, 2), 0.01)) < 5
