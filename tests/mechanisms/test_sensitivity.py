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
    ROUNDING,
    assert_bounded,
    bad_labels,
    comparisons,
    coordinates,
    every_label,
    farthest,
    labels_of_orders,
    largest_change,
    on_grid,
    parts,
    rankings,
    replaced,
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
def test_the_bound_of_choices_is_attained_and_that_of_rankings_would_clip_them(size):
    """One response apart from all others, in three choices at right angles.

    With the constant of rankings, K(K+1)/(12(K−1)) in place of 1 − 1/K, labelers who always
    take it would exceed C by up to 16 %.
    """
    responses = [np.outer(np.arange(size) == 0, axis).astype(np.float32) for axis in np.eye(3)]
    z, rows = rankings(responses, [0] * 3)
    asked, answers = of_best(z, rows)
    found = statistic.compute_unclipped_bounds(z, asked)
    assert longest(z, asked, answers, found.weight) == pytest.approx(found.clip)
    wrong = math.sqrt(size * (size + 1) / (12 * (size - 1)) / (1 - 1 / size))
    assert statistic._bound_norm_by_eigenvalue(z, rows, rows.pair) == pytest.approx(
        2 * wrong * found.clip
    )
    assert longest(z, asked, answers, found.weight) > 1.009 * wrong * found.clip
    assert wrong == pytest.approx({3: 1 / 1.1547, 8: 1 / 1.0104}.get(size, wrong), abs=1e-4)


@pytest.mark.parametrize("size", [3, 4])
def test_pairs_of_identical_responses_may_be_missing(size):
    rng = np.random.default_rng(size)
    responses = rng.standard_normal((size, 3)).astype(np.float32)
    responses[1] = responses[0]
    z, rows = rankings([responses], [0])
    kept = np.arange(1, len(z))  # the first pair is (0, 1)
    dropped = Rows(rows.pair[kept], rows.unit[kept], 1, rows.ranking[kept], rows.size[kept])
    assert unclipped(z, dropped).sensitivity == pytest.approx(unclipped(z, rows).sensitivity)
    own = [labels[kept] for labels in labels_of_orders(size)]
    for bounds in (statistic.compute_bounds(z, dropped, 0.5), unclipped(z, dropped)):
        assert_bounded(z, dropped, 0, own, bounds, bounds.sensitivity / 2**30)


@given(
    sizes=st.lists(st.integers(2, 6), min_size=1, max_size=4),
    components=st.integers(1, 10),
    quantile=st.floats(0, 1),
    kept=st.floats(0.1, 1.9),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=100, deadline=None)
def test_the_same_holds_for_rankings_even_if_pairs_are_missing_or_come_twice(
    sizes, components, quantile, kept, seed
):
    """Then labels need not come from any order, and the sensitivity must not rely on one."""
    rng = np.random.default_rng(seed)
    responses = [rng.standard_normal((k, components)).astype(np.float32) for k in sizes]
    z, rows = rankings(responses, rng.integers(0, 2, len(sizes)))
    times = rng.binomial(2, kept / 2, len(rows))
    times[0] = max(times[0], 1)
    some = np.repeat(np.arange(len(rows)), times)
    broken = Rows(rows.pair[some], rows.unit[some], rows.units, rows.ranking[some], rows.size[some])
    bounds = statistic.compute_bounds(z, broken, quantile)
    assert bounds.sensitivity == 2 * bounds.clip
    unit = int(broken.unit[0])
    own = bad_labels(z[broken.pair[broken.unit == unit]], rng)
    assert_bounded(z, broken, unit, own, bounds, bounds.sensitivity / 2**30)


@pytest.mark.parametrize("m", [1, 5, 6, 7, 40])
def test_many_labels_and_few_give_the_same_spectral_bound(m, monkeypatch):
    """Six components: up to six labels go by the Gram matrix, more by the scatter matrix."""
    monkeypatch.setattr(statistic, "_CHUNK", 4)
    z = coordinates("normal", m, 6, np.random.default_rng(m))
    rows = comparisons([m])
    expected = math.sqrt(m) * np.linalg.norm(z.astype(np.float64), 2)
    padded = np.pad(z, ((0, 0), (0, 50)))  # more components than labels, none of which counts
    for same in (z, padded):
        assert statistic._bound_norm_by_eigenvalue(same, rows, np.arange(m)) == pytest.approx(
            expected
        )


def test_weights_and_clip_follow_the_norms_without_signal():
    """b = ½, 1 and 2, and a fourth labeler whose pairs do not differ."""
    z = np.array([[1.0, 0], [2, 0], [0, 4], [0, 0]], np.float32)
    bounds = statistic.compute_bounds(z, comparisons([1, 1, 1, 1]), 0.5)
    assert bounds.clip == 1
    assert bounds.weight.tolist() == [1, 1, 0.5, 1]


def test_a_norm_without_signal_is_that_of_random_labels():
    """E‖v‖² = b² for fair coins: exactly, over all of them."""
    z = coordinates("normal", 5, 3, np.random.default_rng(0))
    halves = np.array(list(itertools.product([-0.5, 0.5], repeat=5)))
    squares = ((halves @ z.astype(np.float64)) ** 2).sum(axis=1)
    bounds = statistic.compute_bounds(z, comparisons([5]), 1.0)
    assert bounds.clip**2 == pytest.approx(squares.mean())


@pytest.mark.parametrize("coarse", [1, 2**24])
def test_rounding_stays_in_the_ball_and_moves_less_than_a_step(coarse):
    rng = np.random.default_rng(1)
    for number in range(40):
        rows = comparisons([int(rng.integers(1, 9))])
        z = coordinates(KINDS[number % len(KINDS)], len(rows), 5, rng)
        z[0] += 1
        bounds = statistic.compute_bounds(z, rows, 0.5)
        step = statistic.choose_grid(bounds, 5, Noise("gaussian", 1.0)).step * coarse
        labels = rng.integers(0, 3, len(rows)).astype(np.uint8)
        rounded = statistic.clip_and_sum_labels(z, rows, labels, bounds, step) * step
        [exact] = parts(z, rows, labels, bounds)
        assert np.linalg.norm(rounded) <= bounds.clip * (1 + 1e-12)
        assert (np.abs(rounded) <= np.abs(exact) * (1 + 1e-12)).all()
        assert (np.abs(rounded - exact) < step * ROUNDING).all()


# Negative controls: natural mistakes, judged by the checks above.


def align():
    """41 labelers of 9 equal comparisons each."""
    z, rows = np.ones((1, 1), np.float32), Rows(np.zeros(369, np.intp), np.repeat(range(41), 9), 41)
    return z, rows, statistic.compute_bounds(z, rows, 0.5)


def test_a_clip_that_is_skipped_is_caught():
    z, rows, bounds = align()
    own = bad_labels(np.ones((9, 1), np.float32), np.random.default_rng(0))
    free = Bounds(NO_CLIP, bounds.weight, 1.0)
    moved = largest_change(z, rows, 0, own, lambda y: parts(z, rows, y, free).sum(axis=0))
    assert moved > 2 * bounds.sensitivity


def test_a_sensitivity_of_one_clip_is_caught():
    z, rows, bounds = align()
    own = bad_labels(np.ones((9, 1), np.float32), np.random.default_rng(0))
    wrong = Bounds(bounds.clip, bounds.weight, bounds.clip)
    noise = Noise("gaussian", 1.0)
    with pytest.raises(AssertionError):
        assert_bounded(z, rows, 0, own, wrong, statistic.choose_grid(wrong, 1, noise).step)
    assert_bounded(z, rows, 0, own, bounds, statistic.choose_grid(bounds, 1, noise).step)


def test_a_clip_and_weights_that_use_the_labels_are_caught():
    """The clip is the median of ‖v_u‖: one labeler moves it, and with it what all others add."""
    z, rows, bounds = align()
    step = statistic.choose_grid(bounds, 1, Noise("gaussian", 1.0)).step

    def used(labels):
        norm = np.abs(parts(z, rows, labels, bounds, clip=NO_CLIP)[:, 0])
        clip = float(np.median(norm))
        return Bounds(clip, clip / np.maximum(norm, clip), 2 * clip)

    others = np.tile(np.arange(9) % 2, 41).astype(np.uint8)  # parts of ½ …
    others[rows.unit > 20] = LABEL_A  # … and, half of them, of 4½
    each = [LABEL_A] * 9, [LABEL_A] * 5 + [LABEL_B] * 4
    both = [replaced(rows, 20, np.array(own, np.uint8), others) for own in each]
    most = max(on_grid(used(y), 1, step) for y in both)
    moved = step * farthest(statistic.clip_and_sum_labels(z, rows, y, used(y), step) for y in both)
    rightly = step * farthest(statistic.clip_and_sum_labels(z, rows, y, bounds, step) for y in both)
    assert moved > 2 * most
    assert rightly <= on_grid(bounds, 1, step) * ROUNDING


def test_rounding_to_nearest_is_caught():
    rng = np.random.default_rng(12)
    outside = np.zeros(2, int)
    for _ in range(30):
        rows, z = comparisons([6]), coordinates("normal", 6, 5, rng)
        bounds = statistic.compute_bounds(z, rows, 0.5)
        labels = bad_labels(z, rng)[1]
        step = bounds.clip / 20
        rounded = np.rint(parts(z, rows, labels, bounds)[0] / step)
        truncated = statistic.clip_and_sum_labels(z, rows, labels, bounds, step)
        limit = bounds.clip * (1 + 1e-12) / step
        outside += [np.linalg.norm(rounded) > limit, np.linalg.norm(truncated) > limit]
    assert outside[0] > 5 and outside[1] == 0
