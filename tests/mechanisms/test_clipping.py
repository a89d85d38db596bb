"""Clipping: norms that neither vanish nor overflow, and a bound of whole numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelguard.mechanisms import clipping

SCALES = [1e-320, 1e-300, 1e-162, 1e-40, 1e-23, 1e-10, 1.0, 1e10, 1e30, 1e155, 1e300]
ROWS = st.lists(st.floats(-1, 1), min_size=1, max_size=40)


@settings(max_examples=200, deadline=None)
@given(ROWS, st.sampled_from(SCALES))
def test_a_norm_is_never_below_the_exact_one_nor_far_above(row, scale):
    vector = np.array(row) * scale
    exact = sum(Fraction(float(x)) ** 2 for x in vector)
    found = Fraction(float(clipping.norms(vector[None])[0]))
    slack = 1 + Fraction(2 * (len(row) + 6), 2**52)
    assert exact <= found**2
    assert found - Fraction(2) ** -1073 <= 0 or (found - Fraction(2) ** -1073) ** 2 <= (
        exact * slack**2
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_not_finite_has_an_infinite_norm_and_counts_for_nothing(dtype):
    rows = np.array([[np.nan, 1], [np.inf, 1], [1, -np.inf], [3, 4]], dtype)
    assert clipping.norms(rows)[:3].tolist() == [np.inf] * 3
    assert not clipping.clip_rows(rows, 1.0)[:3].any()
    assert clipping.clip_rows(rows, 1.0)[3] == pytest.approx([0.6, 0.8])
    assert clipping.on_grid(rows, 5.0, 2.0**-20)[3] == pytest.approx([3 * 2**20, 4 * 2**20], abs=1)


@settings(max_examples=200, deadline=None)
@given(ROWS, st.sampled_from(SCALES), st.sampled_from([1e-40, 1e-3, 0.7, 1.0, 1e30]))
def test_on_a_grid_squares_add_up_to_the_bound_at_most_exactly(row, scale, clip):
    step = clip * 2.0**-29.5
    [found] = clipping.on_grid(np.array([row]) * scale, clip, step)
    assert sum(int(x) ** 2 for x in found) <= (Fraction(clip) / Fraction(step)) ** 2
    if scale >= 1e155 and clip / scale > 1e-300 and max(map(abs, row)) > 0.1:
        assert np.linalg.norm(found * step) > 0.999 * clip, "and nearly as much is left"


@pytest.mark.parametrize("longer", [1 - 1e-12, 1 + 1e-12, 1.005, 1.5, 1e6])
def test_a_row_that_is_too_long_by_however_little_ends_at_the_clip(longer):
    rows = np.array([[0.6, 0.8], [0.0, -1.0], [2.0**-0.5] * 2]) * longer
    assert np.linalg.norm(clipping.clip_rows(rows, 1.0), axis=1) == pytest.approx(min(longer, 1.0))
    assert (np.linalg.norm(clipping.clip_rows(rows, 1.0), axis=1) <= 1.0).all()
    assert clipping.on_grid(rows, 1.0, 2.0**-30).any(axis=1).all(), "and nothing is left out"


def test_the_bound_does_not_rest_on_norms(monkeypatch):
    """The control: with norms that say nothing, what is too long counts for nothing."""
    monkeypatch.setattr(clipping, "norms", lambda vectors: np.zeros(len(vectors)))
    whole = 2**20
    rows = np.array([[0.6, 0.8], [0.6 + 2.0**-20, 0.8], [1e9, 0], [0.0, 1.0]])
    found = clipping.on_grid(rows, 1.0, 1 / whole)
    inside = [int(x) ** 2 + int(y) ** 2 <= whole**2 for x, y in (rows * whole).astype(np.int64)]
    assert inside == [True, True, False, True] or inside == [True, False, False, True]
    assert found.any(axis=1).tolist() == inside


def test_one_step_beyond_the_bound_is_seen(monkeypatch):
    monkeypatch.setattr(clipping, "norms", lambda vectors: np.zeros(len(vectors)))
    legs = np.array([[3.0, 4.0], [3.0, 5.0], [4.0, 3.0], [5.0, 1.0]]) * 2**28
    found = clipping.on_grid(legs, 5.0 * 2**28, 1.0)
    assert found.any(axis=1).tolist() == [True, False, True, False]


def test_a_row_is_the_same_whatever_stands_beside_it():
    rng = np.random.default_rng(0)
    for d in (1, 7, 64, 300):
        rows = rng.normal(size=(50, d)) * 10.0 ** rng.integers(-30, 30, (50, 1))
        together = clipping.on_grid(rows, 1.0, 2.0**-30)
        for at in range(50):
            assert np.array_equal(
                clipping.on_grid(rows[at : at + 1], 1.0, 2.0**-30)[0], together[at]
            )


def test_on_finer_grids_the_bound_is_exact_as_well(monkeypatch):
    monkeypatch.setattr(clipping, "norms", lambda vectors: np.zeros(len(vectors)))
    legs = np.array([[3.0, 4.0], [3.0, 4.0 + 2.0**-45]]) * 2**47
    found = clipping.on_grid(legs, 5.0 * 2**47, 1.0)
    assert found.any(axis=1).tolist() == [True, False]


@pytest.mark.parametrize(
    ("clip", "step"), [(0.0, 1.0), (-1.0, 1.0), (np.inf, 1.0), (1.0, 0.0), (1.0, 2.0**-63)]
)
def test_a_clip_that_bounds_nothing_or_a_grid_too_fine_is_refused(clip, step):
    with pytest.raises(ValueError, match="clip"):
        clipping.on_grid(np.ones((1, 2)), clip, step)
