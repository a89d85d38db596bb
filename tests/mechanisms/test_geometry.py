"""Principal axes, their number and their signs follow from the public pairs alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.label_changes import comparisons, coordinates

from labelguard.errors import InvalidLabels, PolicyError
from labelguard.mechanisms import geometry, statistic
from labelguard.mechanisms.geometry import Shape
from labelguard.mechanisms.noise import Noise
from labelguard.mechanisms.statistic import Bounds


def test_principal_axes_are_those_of_the_curvature():
    x = coordinates("normal", 40, 5, np.random.default_rng(7))
    spectrum = geometry.spectrum(x)
    curvature = x.astype(np.float64).T @ x / 4
    assert spectrum.axes * spectrum.values @ spectrum.axes.T == pytest.approx(curvature)
    assert (np.diff(spectrum.values) <= 0).all()


def test_axes_have_signs_that_the_order_and_the_sides_of_pairs_do_not_change():
    rng = np.random.default_rng(8)
    x = coordinates("normal", 40, 5, rng)
    x *= np.arange(1, 6)
    expected = geometry.spectrum(x).axes
    assert (np.take_along_axis(expected, np.abs(expected).argmax(axis=0)[None], axis=0) > 0).all()
    for _ in range(5):
        turned = np.where(rng.random((40, 1)) < 0.5, x, -x)
        again = geometry.spectrum(turned[rng.permutation(40)]).axes
        assert again == pytest.approx(expected, abs=1e-9)
    assert (geometry.spectrum(x).axes == expected).all()


def test_counts_are_repeated_rows():
    rng = np.random.default_rng(9)
    x, counts = coordinates("normal", 30, 4, rng), rng.integers(0, 5, 30)
    counted, repeated = (
        geometry.spectrum(x, counts),
        geometry.spectrum(np.repeat(x, counts, axis=0)),
    )
    assert counted.values == pytest.approx(repeated.values)
    assert counted.axes == pytest.approx(repeated.axes, abs=1e-6)


@pytest.mark.parametrize("whitening", [0, 0.25, 0.5])
def test_coordinates_are_principal_ones_times_the_metric(whitening):
    """At whitening ½ all of them have about one variance, but for the floor."""
    x = coordinates("normal", 200, 3, np.random.default_rng(13))
    x *= np.array([1, 10, 100])
    spectrum = geometry.spectrum(x)
    basis = geometry.basis(spectrum, Shape(whitening=whitening, floor=1e-9))
    assert basis.metric == pytest.approx((spectrum.values / spectrum.values[0]) ** -whitening, 1e-3)
    z = basis.coordinates(x)
    assert z == pytest.approx(x @ spectrum.axes * basis.metric, rel=1e-3, abs=1e-3)
    variances = (z.astype(np.float64) ** 2).mean(axis=0)
    assert variances / variances[0] == pytest.approx(
        (spectrum.values / spectrum.values[0]) ** (1 - 2 * whitening), rel=1e-2
    )


@pytest.mark.parametrize(("pairs", "d", "rank"), [(50, 10, 3), (3, 10, 3), (400, 40, 8), (9, 1, 1)])
def test_the_rank_counts_directions_in_which_pairs_differ(pairs, d, rank):
    rng = np.random.default_rng(rank)
    x = (rng.standard_normal((pairs, rank)) @ rng.standard_normal((rank, d))).astype(np.float32)
    spectrum = geometry.spectrum(x)
    assert spectrum.rank == rank
    basis = geometry.basis(spectrum, Shape(components=64))
    assert basis.projection.shape == (d, rank) and basis.metric.shape == (rank,)


def test_a_feature_in_small_units_is_a_direction_too():
    """Its variance is 1e-8 of the largest, less than what single precision can add up."""
    rng = np.random.default_rng(10)
    x = rng.standard_normal((500, 3)) * [1, 1, 1e-4]
    x[:, 1] = x[:, 0]
    spectrum = geometry.spectrum(x.astype(np.float32))
    assert spectrum.rank == 2
    assert abs(spectrum.axes[2, 1]) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"components": 0}, "components must be at least 1, found 0"),
        ({"whitening": 0.3}, "whitening must be 0, 0.25 or 0.5, found 0.3"),
        ({"floor": 0.0}, "must be between 1e-12 and 1e12"),
        ({"ridge": math.nan}, "must be between 1e-12 and 1e12"),
        ({"clip_quantile": 1.1}, r"clip-quantile must be in \[0, 1\], found 1.1"),
        ({"clip_quantile": math.nan}, "clip-quantile must be in"),
    ],
    ids=str,
)
def test_a_shape_out_of_range_is_refused(options, message):
    with pytest.raises(PolicyError, match=message):
        Shape(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_features_that_are_not_finite_are_refused(bad):
    x = np.ones((4, 3), np.float32)
    x[1, 2] = bad
    with pytest.raises(InvalidLabels, match="expected finite features"):
        geometry.spectrum(x)
    with pytest.raises(InvalidLabels, match="expected finite features"):
        statistic.bounds(x, comparisons([2, 2]), 0.5)


def test_equal_features_are_refused():
    nothing = np.zeros((4, 3), np.float32)
    with pytest.raises(InvalidLabels, match="equal features"):
        geometry.spectrum(nothing)
    with pytest.raises(InvalidLabels, match="no labeled pair differs"):
        statistic.bounds(nothing, comparisons([4]), 0.5)
    with pytest.raises(InvalidLabels, match="no labeled pair differs"):
        statistic.bounds(nothing, comparisons([]), 0.5)
    with pytest.raises(InvalidLabels, match="no label can move"):
        statistic.grid(Bounds(1.0, np.ones(1), 0.0), 3, Noise("gaussian", 1.0))
