"""Coefficients by simulated moments: they are those of the labelers, not of the clip."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from labelguard.learning.heads import fit_statistic
from labelguard.mechanisms import moments, statistic
from labelguard.mechanisms.geometry import Shape, basis, spectrum
from labelguard.mechanisms.moments import Comparisons
from labelguard.mechanisms.statistic import Rows

TRUE = np.array([0.9, -0.6, 0.4])


def tight(z, rows):
    return statistic.bounds(z, rows, 0.25)


def roomy(z, rows):
    return statistic.score_bounds(z, rows, 0.25, 0.5)


def world(seed=0, taste=0.0, bound=tight):
    """What 200 labelers compared, the metric, and their clipped sum without noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    rows = Rows(rng.integers(200, size=4_000), np.repeat(np.arange(200), 20), 200)
    axes = basis(spectrum(x), Shape(3, 0.5, 1e-3, 0.5, 1.0))
    z = axes.coordinates(x)
    bounds = bound(z, rows)
    own = TRUE + taste * rng.normal(size=(200, 3))
    gap = np.einsum("ij,ij->i", x[rows.pair], own[rows.unit])
    half = (rng.random(4_000) < 1 / (1 + np.exp(-gap))) - 0.5
    step = 2.0**-20
    total = statistic.clipped_sum(z, rows, half, bounds, step) * step
    asked = Comparisons(
        z, rows.pair, rows.unit, rows.share(), np.ones(len(rows)), bounds.weight, bounds.clip
    )
    return asked, axes.metric, total


def on_features(theta):
    """Coefficients on x, of coordinates of `world`."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 3)).astype(np.float32)
    return np.asarray(basis(spectrum(x), Shape(3, 0.5, 1e-3, 0.5, 1.0)).projection @ theta)


def test_clipped_sums_give_the_coefficients_of_those_who_labeled():
    asked, metric, total = world()
    found = moments.estimate([asked], metric, total, 0.0, tastes=(0.0, 0.0))
    assert on_features(found.theta) == pytest.approx(TRUE, abs=0.2)  # four standard errors
    assert not found.drift.any()
    # A fit that knows nothing of the clip falls short of it: the control of this test.
    weight = np.bincount(asked.pair, asked.share * asked.weight[asked.unit], len(asked.z))
    plain = on_features(fit_statistic(asked.z, weight, total, 1e-6))
    assert np.linalg.norm(plain) < 0.85 * np.linalg.norm(TRUE)


def stretch(bound):
    """The slope of scores on the truth, of labelers of one mind who are taken to differ."""
    asked, metric, total = world(bound=bound)
    return on_features(moments.estimate([asked], metric, total, 1.0).theta) @ TRUE / (TRUE @ TRUE)


def test_scores_are_not_stretched_where_few_are_clipped():
    assert stretch(roomy) == pytest.approx(1, abs=0.1)  # three standard errors
    assert stretch(tight) > 1.12  # the control


def test_bounds_for_scores_lie_between_those_without_signal_and_without_clip():
    """So that Δ is 2C, as for all others; where noise is large they are those of every release."""
    rng = np.random.default_rng(2)
    z = rng.normal(size=(50, 3)).astype(np.float32)
    rows = Rows(rng.integers(50, size=600), np.sort(rng.integers(30, size=600)), 30)
    least, most = statistic.without_signal(z, rows), statistic.unclipped_bounds(z, rows)
    wide = statistic.score_bounds(z, rows, 0.5, 0.1)
    assert wide.sensitivity == 2 * wide.clip
    assert np.median(least) < wide.clip < most.clip
    noisy, usual = statistic.score_bounds(z, rows, 0.5, 100.0), statistic.bounds(z, rows, 0.5)
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
    one, two = (moments.estimate([a], metric, total, 1.0) for a in (asked, shuffled))
    assert np.array_equal(one.theta, two.theta) and np.array_equal(one.gain, two.gain)


def test_pairs_of_equal_coordinates_count_as_pairs_of_their_own():
    asked, metric, total = world()
    again = replace(asked, z=np.tile(asked.z, (2, 1)), pair=asked.pair + np.arange(4_000) % 2 * 200)
    apart = replace(again, z=again.z * np.repeat([1, 1 + 2e-7], 200)[:, None].astype(np.float32))
    assert len(np.unique(apart.z, axis=0)) == 2 * len(np.unique(again.z, axis=0))
    one, other = (moments.estimate([each], metric, total, 0.5) for each in (again, apart))
    assert one.theta == pytest.approx(other.theta, rel=1e-3)
    assert one.scatter == pytest.approx(other.scatter, rel=1e-2)


def test_what_is_not_known_of_tastes_is_part_of_the_error():
    asked, metric, total = world(taste=0.5)
    found = moments.estimate([asked], metric, total, 0.0)
    assert np.linalg.norm(found.drift) > 0.02 * np.linalg.norm(found.theta)


def test_noise_without_end_leaves_the_prior():
    asked, metric, total = world()
    found = moments.estimate([asked], metric, total, 1e6)
    assert np.abs(on_features(found.theta)).max() < 0.05
    typical = np.sqrt(np.diag(found.prior)) * metric  # on principal axes, per unit of x
    assert (typical > 0.5).all()
