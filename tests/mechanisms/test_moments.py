"""Coefficients by simulated moments: they are those of the labelers, not of the clip.

Quantiles of noise along a direction: exact for the ball, and those of normal noise would not do.

Counts are of 400,000 draws. Where a count is tested, the chance of a false failure is below 1e-6
(five standard errors), and seeds are fixed.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtri

from labelguard.learning.heads import fit_statistic
from labelguard.mechanisms import moments, statistic
from labelguard.mechanisms.geometry import Shape, choose_basis, compute_spectrum
from labelguard.mechanisms.moments import Comparisons
from labelguard.mechanisms.noise import (
    Noise,
    NoiseStream,
    ReleasedNoise,
    bound_quantile,
    draw_noise,
)
from labelguard.mechanisms.statistic import Rows

TRUE = np.array([0.9, -0.6, 0.4])


def tight(z, rows):
    return statistic.compute_bounds(z, rows, 0.25)


def roomy(z, rows):
    return statistic.compute_source_bounds(z, rows, 0.25, 0.5)


def world(seed=0, taste=0.0, bound=tight):
    """What 200 labelers compared, the metric, and their clipped sum without noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    rows = Rows(rng.integers(200, size=4_000), np.repeat(np.arange(200), 20), 200)
    axes = choose_basis(compute_spectrum(x), Shape(3, 0.5, 1e-3, 0.5, 1.0))
    z = axes.coordinates(x)
    bounds = bound(z, rows)
    own = TRUE + taste * rng.normal(size=(200, 3))
    gap = np.einsum("ij,ij->i", x[rows.pair], own[rows.unit])
    half = (rng.random(4_000) < 1 / (1 + np.exp(-gap))) - 0.5
    step = 2.0**-20
    total = statistic.clipped_sum(z, rows, half, bounds, step) * step
    asked = Comparisons(
        z, rows.pair, rows.unit, rows.row_weights(), np.ones(len(rows)), bounds.weight, bounds.clip
    )
    return asked, axes.metric, total


def on_features(theta):
    """Coefficients on x, of coordinates of `world`."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    return np.asarray(
        choose_basis(compute_spectrum(x), Shape(3, 0.5, 1e-3, 0.5, 1.0)).projection @ theta
    )


def test_clipped_sums_give_the_coefficients_of_those_who_labeled():
    asked, metric, total = world()
    found = moments.estimate_coefficients([asked], metric, total, 0.0, tastes=(0.0, 0.0))
    assert on_features(found.theta) == pytest.approx(TRUE, abs=0.2)  # four standard errors
    assert not found.drift.any()
    # A fit that knows nothing of the clip falls short of it: the control of this test.
    weight = np.bincount(asked.pair, asked.share * asked.weight[asked.unit], len(asked.z))
    plain = on_features(fit_statistic(asked.z, weight, total, 1e-6))
    assert np.linalg.norm(plain) < 0.85 * np.linalg.norm(TRUE)


def stretch(bound):
    """The slope of scores on the truth, of labelers of one mind who are taken to differ."""
    asked, metric, total = world(bound=bound)
    return (
        on_features(moments.estimate_coefficients([asked], metric, total, 1.0).theta)
        @ TRUE
        / (TRUE @ TRUE)
    )


def test_scores_are_not_stretched_where_few_are_clipped():
    assert stretch(roomy) == pytest.approx(1, abs=0.1)  # three standard errors
    assert stretch(tight) > 1.12  # the control


def test_bounds_for_scores_lie_between_those_without_signal_and_without_clip():
    """So that Δ is 2C, as for all others; where noise is large they are those of every release."""
    rng = np.random.default_rng(2)
    z = rng.normal(size=(50, 3)).astype(np.float32)
    rows = Rows(rng.integers(50, size=600), np.sort(rng.integers(30, size=600)), 30)
    least, most = (
        statistic.compute_norms_of_random_labels(z, rows),
        statistic.compute_unclipped_bounds(z, rows),
    )
    wide = statistic.compute_source_bounds(z, rows, 0.5, 0.1)
    assert wide.sensitivity == 2 * wide.clip
    assert np.median(least) < wide.clip < most.clip
    noisy, usual = (
        statistic.compute_source_bounds(z, rows, 0.5, 100.0),
        statistic.compute_bounds(z, rows, 0.5),
    )
    assert noisy.clip == usual.clip and np.array_equal(noisy.weight, usual.weight)


def test_the_order_of_rows_does_not_matter():
    asked, metric, total = world()
    other = np.random.default_rng(1).permutation(len(asked.pair))
    shuffled = Comparisons(
        asked.z,
        asked.pair[other],
        asked.unit[other],
        asked.share[other],
        asked.spread[other],
        asked.weight,
        asked.clip,
    )
    one, two = (moments.estimate_coefficients([a], metric, total, 1.0) for a in (asked, shuffled))
    assert np.array_equal(one.theta, two.theta) and np.array_equal(one.gain, two.gain)


def test_pairs_of_equal_coordinates_count_as_pairs_of_their_own():
    asked, metric, total = world()
    again = replace(asked, z=np.tile(asked.z, (2, 1)), pair=asked.pair + np.arange(4_000) % 2 * 200)
    apart = replace(again, z=again.z * np.repeat([1, 1 + 2e-7], 200)[:, None].astype(np.float32))
    assert len(np.unique(apart.z, axis=0)) == 2 * len(np.unique(again.z, axis=0))
    one, other = (
        moments.estimate_coefficients([each], metric, total, 0.5) for each in (again, apart)
    )
    assert one.theta == pytest.approx(other.theta, rel=1e-3)
    assert one.scatter == pytest.approx(other.scatter, rel=1e-2)


def test_what_is_not_known_of_tastes_is_part_of_the_error():
    asked, metric, total = world(taste=0.5)
    found = moments.estimate_coefficients([asked], metric, total, 0.0)
    assert np.linalg.norm(found.drift) > 0.02 * np.linalg.norm(found.theta)


def test_labels_scatter_by_the_mean_of_the_middle_and_the_most_tastes():
    asked, metric, total = world(taste=0.5, bound=roomy)
    found = moments.estimate_coefficients([asked], metric, total, 0.0, tastes=(0.0, 1.6))
    middle, most = (
        np.trace(moments.estimate_coefficients([asked], metric, total, 0.0, tastes=(t, t)).scatter)
        for t in (0.8, 1.6)
    )
    assert np.trace(found.scatter) == pytest.approx((middle + most) / 2, rel=0.02)
    assert middle < 0.93 * np.trace(found.scatter)  # the control


@pytest.mark.parametrize("deviation", [0.0, 0.4, 0.8, 1.6, 3.0])
def test_labelers_who_differ_answer_together_as_their_common_margin_says(deviation):
    together, step = np.array([-8.0, -1.0, 0.0, 0.3, 2.5]), 1e-4
    margin, slope = moments.find_typical_labeler_margins(together, np.full(5, deviation))
    grid = np.linspace(-9, 9, 20_001)
    weight = np.exp(-(grid**2) / 2) / np.exp(-(grid**2) / 2).sum()

    def answers(margins):
        mixed = margins[:, None] + deviation * grid
        first, second = ((1 / (1 + np.exp(sign * mixed))) @ weight for sign in (-1, 1))
        return np.log(first / second)

    assert answers(margin) == pytest.approx(together, abs=2e-4)
    change = (
        moments.find_typical_labeler_margins(together + step, np.full(5, deviation))[0] - margin
    ) / step
    assert slope == pytest.approx(change, rel=2e-3)
    # A logistic curve taken for a normal one stretches scores by 3% at a deviation of .8.
    usual = together * np.sqrt(1 + (16 * np.sqrt(3) / 15 / np.pi) ** 2 * deviation**2)
    assert deviation < 0.8 or answers(usual)[3] < 0.975 * together[3]


def test_margins_without_end_stay_finite():
    margin, slope = moments.find_typical_labeler_margins(
        np.array([-1e9, 1e9, 0.0]), np.array([0.0, 1e9, 1e9])
    )
    assert np.isfinite([margin, slope]).all() and (slope >= 1).all()


def test_noise_without_end_leaves_the_prior():
    asked, metric, total = world()
    found = moments.estimate_coefficients([asked], metric, total, 1e6)
    assert np.abs(on_features(found.theta)).max() < 0.05
    typical = np.sqrt(np.diag(found.prior)) * metric  # on principal axes, per unit of x
    assert (typical > 0.5).all()


DRAWS = 400_000


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
        assert exact <= bound_quantile(probability, 0.0, [ball()], 1.0, 1) <= 1.01 * exact
    t = 2.326348 / math.sqrt(1 / 2)  # in scales
    assert math.exp(-t) / 2 == pytest.approx(0.0187, abs=1e-4)


def test_without_ball_noise_it_is_normal():
    noises = [ReleasedNoise("gaussian", 3.0), ReleasedNoise("gaussian", 1.0)]
    assert bound_quantile(0.05, 4.0, noises, 2.0, 7) == pytest.approx(
        1.644854 * math.sqrt(44), rel=1e-6
    )
    assert bound_quantile(0.5, 4.0, [ball()], 2.0, 7) == 0
    assert bound_quantile(0.05, 4.0, [ball()], 0.0, 7) == pytest.approx(1.644854 * 2, rel=1e-6)
    with pytest.raises(ValueError, match="probability"):
        bound_quantile(0.6, 1.0, [], 1.0, 1)


@pytest.mark.parametrize("variance", [0.0, 0.5])
@pytest.mark.parametrize("dimensions", [1, 2, 4, 16])
def test_noise_along_a_direction_exceeds_it_as_often_as_it_says(dimensions, variance):
    direction = np.linspace(1, 2, dimensions)
    values = along(direction.tolist(), [ball()], variance)
    for probability in (0.05, 0.01, 0.001):
        t = bound_quantile(
            probability, variance, [ball()], float(np.linalg.norm(direction)), dimensions
        )
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
    drawn = np.array([draw_noise("ball", unit, 5, stream)[:3] for _ in range(30_000)], float) / unit
    noise = ball(released.deviation(3), 5)
    c = np.array([0.6, 0.0, -0.8])
    for probability in (0.05, 0.01):
        t = bound_quantile(probability, 0.0, [noise], 1.0, 3)
        assert abs(beyond(drawn @ c, t, probability)) < 5
        assert beyond(drawn @ c, 0.7 * t, probability) > 5  # noise 30 % off is found out


def test_windows_of_several_scales_and_kinds_are_never_underrated():
    noises = [ball(1.0), ball(0.3), ReleasedNoise("gaussian", 0.5)]
    values = along([0.6, 0.8], noises, 0.2)
    for probability in (0.05, 0.01):
        t = bound_quantile(probability, 0.2, noises, 1.0, 2)
        assert beyond(values, t, probability) < 5
        assert beyond(values, 0.85 * t, probability) > 5  # nor by much too large
    equal = [ball(1.0), ball(1.0)]
    values = along([0.6, 0.8], equal, 0.0)
    assert abs(beyond(values, bound_quantile(0.01, 0.0, equal, 1.0, 2), 0.01)) < 5
