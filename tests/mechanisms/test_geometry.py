"""Principal axes, their number and their signs follow from the public pairs alone.

Clipping: norms that neither vanish nor overflow, and a bound of whole numbers.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.label_changes import comparisons, coordinates

from labelguard.errors import InvalidLabels, PolicyError
from labelguard.mechanisms import geometry, statistic
from labelguard.mechanisms.geometry import Shape
from labelguard.mechanisms.noise import Noise
from labelguard.mechanisms.statistic import Bounds


def test_principal_axes_are_those_of_the_curvature():
    x = coordinates("normal", 40, 5, np.random.default_rng(7))
    spectrum = geometry.compute_spectrum(x)
    curvature = x.astype(np.float64).T @ x / 4
    assert spectrum.axes * spectrum.values @ spectrum.axes.T == pytest.approx(curvature)
    assert (np.diff(spectrum.values) <= 0).all()


def test_axes_have_signs_that_the_order_and_the_sides_of_pairs_do_not_change():
    rng = np.random.default_rng(8)
    x = coordinates("normal", 40, 5, rng)
    x *= np.arange(1, 6)
    expected = geometry.compute_spectrum(x).axes
    assert (np.take_along_axis(expected, np.abs(expected).argmax(axis=0)[None], axis=0) > 0).all()
    for _ in range(5):
        turned = np.where(rng.random((40, 1)) < 0.5, x, -x)
        again = geometry.compute_spectrum(turned[rng.permutation(40)]).axes
        assert again == pytest.approx(expected, abs=1e-9)
    assert (geometry.compute_spectrum(x).axes == expected).all()


def test_counts_are_repeated_rows():
    rng = np.random.default_rng(9)
    x, counts = coordinates("normal", 30, 4, rng), rng.integers(0, 5, 30)
    counted, repeated = (
        geometry.compute_spectrum(x, counts),
        geometry.compute_spectrum(np.repeat(x, counts, axis=0)),
    )
    assert counted.values == pytest.approx(repeated.values)
    assert counted.axes == pytest.approx(repeated.axes, abs=1e-6)


@pytest.mark.parametrize("whitening", [0, 0.25, 0.5])
def test_coordinates_are_principal_ones_times_the_metric(whitening):
    """At whitening ½ all of them have about one variance, but for the floor."""
    x = coordinates("normal", 200, 3, np.random.default_rng(13))
    x *= np.array([1, 10, 100])
    spectrum = geometry.compute_spectrum(x)
    basis = geometry.choose_basis(spectrum, Shape(whitening=whitening, floor=1e-9))
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
    spectrum = geometry.compute_spectrum(x)
    assert spectrum.rank == rank
    basis = geometry.choose_basis(spectrum, Shape(components=64))
    assert basis.projection.shape == (d, rank) and basis.metric.shape == (rank,)


def test_a_feature_in_small_units_is_a_direction_too():
    """Its variance is 1e-8 of the largest, less than what single precision can add up."""
    rng = np.random.default_rng(10)
    x = rng.standard_normal((500, 3)) * [1, 1, 1e-4]
    x[:, 1] = x[:, 0]
    spectrum = geometry.compute_spectrum(x.astype(np.float32))
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
        geometry.compute_spectrum(x)
    with pytest.raises(InvalidLabels, match="expected finite features"):
        statistic.compute_bounds(x, comparisons([2, 2]), 0.5)


def test_equal_features_are_refused():
    nothing = np.zeros((4, 3), np.float32)
    with pytest.raises(InvalidLabels, match="equal features"):
        geometry.compute_spectrum(nothing)
    with pytest.raises(InvalidLabels, match="no labeled pair differs"):
        statistic.compute_bounds(nothing, comparisons([4]), 0.5)
    with pytest.raises(InvalidLabels, match="no labeled pair differs"):
        statistic.compute_bounds(nothing, comparisons([]), 0.5)
    with pytest.raises(InvalidLabels, match="no label can move"):
        statistic.choose_grid(Bounds(1.0, np.ones(1), 0.0), 3, Noise("gaussian", 1.0))


SCALES = [1e-320, 1e-300, 1e-162, 1e-40, 1e-23, 1e-10, 1.0, 1e10, 1e30, 1e155, 1e300]
ROWS = st.lists(st.floats(-1, 1), min_size=1, max_size=40)


@settings(max_examples=200, deadline=None)
@given(ROWS, st.sampled_from(SCALES))
def test_a_norm_is_never_below_the_exact_one_nor_far_above(row, scale):
    vector = np.array(row) * scale
    exact = sum(Fraction(float(x)) ** 2 for x in vector)
    found = Fraction(float(geometry.bound_norms(vector[None])[0]))
    slack = 1 + Fraction(2 * (len(row) + 6), 2**52)
    assert exact <= found**2
    assert found - Fraction(2) ** -1073 <= 0 or (found - Fraction(2) ** -1073) ** 2 <= (
        exact * slack**2
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_not_finite_has_an_infinite_norm_and_counts_for_nothing(dtype):
    rows = np.array([[np.nan, 1], [np.inf, 1], [1, -np.inf], [3, 4]], dtype)
    assert geometry.bound_norms(rows)[:3].tolist() == [np.inf] * 3
    assert not geometry.clip_rows(rows, 1.0)[:3].any()
    assert geometry.clip_rows(rows, 1.0)[3] == pytest.approx([0.6, 0.8])
    assert geometry.clip_to_grid(rows, 5.0, 2.0**-20)[3] == pytest.approx(
        [3 * 2**20, 4 * 2**20], abs=1
    )


@settings(max_examples=200, deadline=None)
@given(ROWS, st.sampled_from(SCALES), st.sampled_from([1e-40, 1e-3, 0.7, 1.0, 1e30]))
def test_on_a_grid_squares_add_up_to_the_bound_at_most_exactly(row, scale, clip):
    step = clip * 2.0**-29.5
    [found] = geometry.clip_to_grid(np.array([row]) * scale, clip, step)
    assert sum(int(x) ** 2 for x in found) <= (Fraction(clip) / Fraction(step)) ** 2
    if scale >= 1e155 and clip / scale > 1e-300 and max(map(abs, row)) > 0.1:
        assert np.linalg.norm(found * step) > 0.999 * clip, "and nearly as much is left"


@pytest.mark.parametrize("longer", [1 - 1e-12, 1 + 1e-12, 1.005, 1.5, 1e6])
def test_a_row_that_is_too_long_by_however_little_ends_at_the_clip(longer):
    rows = np.array([[0.6, 0.8], [0.0, -1.0], [2.0**-0.5] * 2]) * longer
    assert np.linalg.norm(geometry.clip_rows(rows, 1.0), axis=1) == pytest.approx(min(longer, 1.0))
    assert (np.linalg.norm(geometry.clip_rows(rows, 1.0), axis=1) <= 1.0).all()
    assert geometry.clip_to_grid(rows, 1.0, 2.0**-30).any(axis=1).all(), "and nothing is left out"


def test_the_bound_does_not_rest_on_norms(monkeypatch):
    """The control: with norms that say nothing, what is too long counts for nothing."""
    monkeypatch.setattr(geometry, "bound_norms", lambda vectors: np.zeros(len(vectors)))
    whole = 2**20
    rows = np.array([[0.6, 0.8], [0.6 + 2.0**-20, 0.8], [1e9, 0], [0.0, 1.0]])
    found = geometry.clip_to_grid(rows, 1.0, 1 / whole)
    inside = [int(x) ** 2 + int(y) ** 2 <= whole**2 for x, y in (rows * whole).astype(np.int64)]
    assert inside == [True, True, False, True] or inside == [True, False, False, True]
    assert found.any(axis=1).tolist() == inside


def test_one_step_beyond_the_bound_is_seen(monkeypatch):
    monkeypatch.setattr(geometry, "bound_norms", lambda vectors: np.zeros(len(vectors)))
    legs = np.array([[3.0, 4.0], [3.0, 5.0], [4.0, 3.0], [5.0, 1.0]]) * 2**28
    found = geometry.clip_to_grid(legs, 5.0 * 2**28, 1.0)
    assert found.any(axis=1).tolist() == [True, False, True, False]


def test_a_row_is_the_same_whatever_stands_beside_it():
    rng = np.random.default_rng(0)
    for d in (1, 7, 64, 300):
        rows = rng.normal(size=(50, d)) * 10.0 ** rng.integers(-30, 30, (50, 1))
        together = geometry.clip_to_grid(rows, 1.0, 2.0**-30)
        for at in range(50):
            assert np.array_equal(
                geometry.clip_to_grid(rows[at : at + 1], 1.0, 2.0**-30)[0], together[at]
            )


def test_on_finer_grids_the_bound_is_exact_as_well(monkeypatch):
    monkeypatch.setattr(geometry, "bound_norms", lambda vectors: np.zeros(len(vectors)))
    legs = np.array([[3.0, 4.0], [3.0, 4.0 + 2.0**-45]]) * 2**47
    found = geometry.clip_to_grid(legs, 5.0 * 2**47, 1.0)
    assert found.any(axis=1).tolist() == [True, False]


@pytest.mark.parametrize(
    ("clip", "step"), [(0.0, 1.0), (-1.0, 1.0), (np.inf, 1.0), (1.0, 0.0), (1.0, 2.0**-63)]
)
def test_a_clip_that_bounds_nothing_or_a_grid_too_fine_is_refused(clip, step):
    with pytest.raises(ValueError, match="clip"):
        geometry.clip_to_grid(np.ones((1, 2)), clip, step)
