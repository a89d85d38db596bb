"""No labels of one labeler move the statistic by more than its sensitivity.

Adversaries choose all labels of one labeler: every combination where there are few, signs along
bad directions where there are many.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.label_changes import (
    KINDS,
    NO_CLIP,
    assert_bounded,
    bad_labels,
    comparisons,
    coordinates,
    every_label,
    labels_of_orders,
    parts,
    rankings,
    unclipped,
)

from labelguard.errors import InvalidLabels
from labelguard.mechanisms import statistic
from labelguard.mechanisms.noise import Noise
from labelguard.mechanisms.statistic import Bounds, Rows
from labelguard.text import LABEL_A, LABEL_B, LABEL_TIE


@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    components=st.integers(1, 12),
    kind=st.sampled_from(KINDS),
    quantile=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=150, deadline=None)
def test_no_labels_of_one_labeler_move_the_sum_by_more_than_the_sensitivity(
    counts, components, kind, quantile, seed
):
    rng = np.random.default_rng(seed)
    rows = comparisons(counts)
    z = coordinates(kind, len(rows), components, rng)
    if not z.any():
        with pytest.raises(InvalidLabels, match="no labeled pair differs"):
            statistic.compute_bounds(z, rows, quantile)
        return
    for bounds in (statistic.compute_bounds(z, rows, quantile), unclipped(z, rows)):
        step = statistic.choose_grid(bounds, components, Noise("gaussian", 1.0)).step
        for unit in np.flatnonzero(counts).tolist():
            own = bad_labels(z[rows.unit == unit], rng)
            assert_bounded(z, rows, unit, own, bounds, min(step, bounds.clip / 2**10))


@pytest.mark.parametrize("components", [1, 2, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_of_all_labels_none_moves_the_sum_by_more_than_the_sensitivity(kind, components):
    rng = np.random.default_rng(components)
    rows = comparisons([4, 1, 2])
    z = coordinates(kind, len(rows), components, rng)
    z[0] += 1  # nobody is without signal
    for bounds in (statistic.compute_bounds(z, rows, 0.5), unclipped(z, rows)):
        for step in (bounds.sensitivity / 2**30, bounds.sensitivity / 11):
            assert_bounded(z, rows, 0, every_label(4), bounds, step)


def test_a_labeler_with_very_many_labels_is_bounded_as_well():
    rng = np.random.default_rng(0)
    rows = comparisons([40_000, 3, 1])
    z = coordinates("normal", len(rows), 3, rng)
    own = bad_labels(z[:40_000], rng)
    bounds = statistic.compute_bounds(z, rows, 0.5)
    moved = assert_bounded(z, rows, 0, own, bounds, bounds.sensitivity / 2**30)
    assert moved == pytest.approx(2 * bounds.clip)
    free = unclipped(z, rows)
    moved = assert_bounded(z, rows, 0, own, free, free.sensitivity / 2**30)
    assert moved > 0.7 * free.sensitivity


def test_the_clip_decides_and_is_attained():
    z, rows = np.ones((16, 2), np.float32), comparisons([16])
    bounds = statistic.compute_bounds(z, rows, 0.5)
    step = statistic.choose_grid(bounds, 2, Noise("gaussian", 1.0)).step
    assert bounds.sensitivity == 2 * bounds.clip
    one, zero = np.ones(16, np.uint8), np.zeros(16, np.uint8)
    moved = assert_bounded(z, rows, 0, [one, zero], bounds, step)
    assert moved > 0.95 * bounds.sensitivity


@pytest.mark.parametrize(
    ("z", "bound"),
    [
        # the triangle bound is Σ j = 36 where the spectral one is √(8 · 204)
        (np.arange(1, 9)[:, None] * np.ones((1, 1)), 36.0),
        # the spectral bound is √8 where the triangle one is 8
        (np.eye(8), math.sqrt(8)),
        (np.ones((8, 4)), 16.0),
    ],
    ids=["triangle", "spectral", "both"],
)
def test_an_unclipped_bound_is_attained(z, bound):
    single, rows = z.astype(np.float32), comparisons([8])
    bounds = unclipped(single, rows)
    assert bounds.sensitivity == pytest.approx(bound)
    own = [np.ones(8, np.uint8), np.zeros(8, np.uint8)]
    moved = assert_bounded(single, rows, 0, own, bounds, bound / 2**30)
    assert moved > 0.95 * bounds.sensitivity


SIZES = ([2], [3], [4], [2, 2], [3, 2], [3, 3], [4, 2], [4, 3], [2, 2, 2], [3, 2, 2])


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_no_ranking_moves_the_sum_by_more_than_the_sensitivity(sizes):
    rng = np.random.default_rng(sum(sizes))
    for components in (1, 2, 5):
        responses = [rng.standard_normal((k, components)).astype(np.float32) for k in sizes]
        z, rows = rankings(responses, [0] * len(sizes))
        orders = itertools.product(*map(labels_of_orders, sizes))
        choices = [np.concatenate(one) for one in orders]
        for bounds in (statistic.compute_bounds(z, rows, 0.5), unclipped(z, rows)):
            assert_bounded(z, rows, 0, choices, bounds, bounds.sensitivity / 2**30)


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("number", [1, 3])
def test_the_bound_of_rankings_is_attained(size, number):
    """Responses at equal distances on a line, a line for each ranking; turned all round."""
    responses = [np.outer(np.arange(size), axis).astype(np.float32) for axis in np.eye(number)]
    z, rows = rankings(responses, [0] * number)
    own = [np.full(len(rows), label, np.uint8) for label in (LABEL_A, LABEL_B)]
    bounds = unclipped(z, rows)
    scatter = size * (size**2 - 1) / 12
    movement = number * size * (size + 1) / (3 * (size - 1))
    assert bounds.sensitivity == pytest.approx(math.sqrt(scatter * movement))
    moved = assert_bounded(z, rows, 0, own, bounds, bounds.sensitivity / 2**30)
    assert moved > 0.95 * bounds.sensitivity


def of_best(z, rows):
    """The pairs of one labeler's rankings as those of choices, and the labels of all answers."""
    asked = Rows(rows.pair, rows.unit, rows.units, rows.ranking, rows.size, choices=True)
    sizes = [int(rows.size[rows.ranking == one][0]) for one in np.unique(rows.ranking)]
    answers = []
    for best in itertools.product(*map(range, sizes)):
        ends = [np.triu_indices(size, 1) for size in sizes]
        labels = [
            np.select([first == one, second == one], [LABEL_A, LABEL_B], LABEL_TIE)
            for one, (first, second) in zip(best, ends, strict=True)
        ]
        answers.append(np.concatenate(labels).astype(np.uint8))
    return asked, answers


def longest(z, rows, answers, weight):
    """max ‖v‖ over all answers of the only labeler."""
    bounds = Bounds(NO_CLIP, weight, 1.0)
    return max(float(np.linalg.norm(parts(z, rows, own, bounds))) for own in answers)


@pytest.mark.parametrize("sizes", [[3], [4, 2], [3, 3, 3], [4, 4, 4], [5, 3, 2], [8, 8]], ids=str)
def test_no_choices_are_clipped_where_nothing_shall_be(sizes):
    rng = np.random.default_rng(sum(sizes))
    for components in (1, 3, 12):
        responses = [rng.standard_normal((k, components)).astype(np.float32) for k in sizes]
        z, rows = rankings(responses, [0] * len(sizes))
        rows, answers = of_best(z, rows)
        found = statistic.compute_unclipped_bounds(z, rows)
        assert longest(z, rows, answers, found.weight) <= found.clip
        assert_bounded(z, rows, 0, answers, found, found.sensitivity / 2**30)


@pytest.mark.parametrize("size", range(3, 9))
def test_the_bound_of_choices_is_attained_and_that_of_rankings_is_larger(size):
    """One response apart from all others, in three choices at right angles.

    The constant of rankings, K(K+1)/(12(K−1)) in place of K/(4(K−1)), would be √((K+1)/3) times
    too large.
    """
    responses = [np.outer(np.arange(size) == 0, axis).astype(np.float32) for axis in np.eye(3)]
    z, rows = rankings(responses, [0] * 3)
    asked, answers = of_best(z, rows)
    found = statistic.compute_unclipped_bounds(z, asked)
    assert longest(z, asked, answers, found.weight) == pytest.approx(found.clip)
    of_ranking = statistic._bound_norm_by_eigenvalue(z, rows, rows.pair)
    assert of_ranking == pytest.approx(2 * math.sqrt((size + 1) / 3) * found.clip)
