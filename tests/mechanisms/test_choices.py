"""The statistic of choices among K responses: its sensitivity, comparisons as K = 2, the fit.

Adversaries take every combination of a labeler's answers, ties of every kind included.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import optimize, stats
from scipy.spatial.distance import pdist
from scipy.special import logsumexp

from labelguard.errors import InvalidLabels
from labelguard.learning import heads
from labelguard.mechanisms import choices, statistic
from labelguard.mechanisms.choices import Choices
from labelguard.mechanisms.noise import Noise
from labelguard.mechanisms.statistic import Bounds, Rows

FALSE_FAILURE = 1e-6
ROUNDING = 1 + 1e-8

Floats = NDArray[np.float64]
Single = NDArray[np.float32]
Marks = NDArray[np.bool_]


def among(sizes: Iterable[int], unit: Iterable[int] | None = None) -> Choices:
    """Choices among `sizes` responses each, by one labeler unless `unit` says whose they are."""
    size = np.array(list(sizes), np.intp)
    whose = np.zeros(len(size), np.intp) if unit is None else np.array(list(unit), np.intp)
    return Choices(np.append(0, size.cumsum()), whose, int(whose.max(initial=0)) + 1)


def normal(asked: Choices, components: int, seed: int) -> Single:
    shape = (int(asked.offsets[-1]), components)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def dyadic(asked: Choices, components: int, seed: int) -> Single:
    """Multiples of 1/8 whose means are, too, where K is a power of two: sums without rounding."""
    shape = (int(asked.offsets[-1]), components)
    return (np.random.default_rng(seed).integers(-40, 41, shape) / 8).astype(np.float32)


def random_marks(asked: Choices, rng: np.random.Generator) -> Marks:
    """Chosen responses with ties, and choices without any."""
    return rng.random(int(asked.offsets[-1])) < 0.4


def every_answer(size: int) -> list[Marks]:
    """All that can be marked as best among `size` responses."""
    return [np.array(marks) for marks in itertools.product([False, True], repeat=size)]


def every_answer_of(asked: Choices) -> list[Marks]:
    per_choice = [every_answer(size) for size in asked.size.tolist()]
    return [np.concatenate(answers) for answers in itertools.product(*per_choice)]


def unclipped(features: Single, asked: Choices) -> Bounds:
    """Bounds of a clip that touches nobody, so that only the movement of choices counts."""
    clip, weight = 1e6 * float(np.abs(features).sum()), np.ones(asked.units)
    z = choices._centred(features, asked)
    return Bounds(clip, weight, choices._sensitivity(z, asked, weight, clip))


def part(features: Single, asked: Choices, best: Marks) -> Floats:
    """Σ_j (mean of the best − mean of all) by its definition, of all labelers together."""
    total = np.zeros(features.shape[1])
    for first, end in itertools.pairwise(asked.offsets.tolist()):
        own, marked = features[first:end].astype(np.float64), best[first:end]
        if marked.any():
            total += own[marked].mean(axis=0) - own.mean(axis=0)
    return total


def largest_change(
    features: Single, asked: Choices, answers: list[Marks], bounds: Bounds, step: float
) -> float:
    sums = [choices.exact_sum(features, asked, best, bounds, step) for best in answers]
    return step * float(pdist(np.stack(sums).astype(np.float64)).max())


def assert_bounded(features: Single, asked: Choices, answers: list[Marks], bounds: Bounds) -> float:
    """No two answers lie farther apart than Δ_h; returns how far they lie."""
    step, components = bounds.sensitivity / 2**30, features.shape[1]
    moved = largest_change(features, asked, answers, bounds, step)
    on_grid = min(2 * bounds.clip, bounds.sensitivity + step * math.sqrt(components))
    assert moved <= on_grid * ROUNDING
    return moved


SIZES = ([2], [3], [4], [5], [2, 2], [3, 2], [3, 3], [4, 3], [2, 2, 2], [3, 3, 2])


@pytest.mark.quick(
    "1-[2]",
    "1-[2, 2]",
    "1-[2, 2, 2]",
    "2-[4]",
    "2-[3, 3]",
    "6-[2]",
    "6-[2, 2]",
    "6-[2, 2, 2]",
    "20-[4]",
    "20-[3, 3]",
)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("components", [1, 2, 6, 20])
def test_no_answers_move_the_sum_by_more_than_the_sensitivity(
    sizes: list[int], components: int
) -> None:
    asked = among(sizes)
    for seed in range(2):
        features = normal(asked, components, seed)
        features[:, 0] += 3
        for bounds in (choices.bounds(features, asked, 0.5), unclipped(features, asked)):
            assert_bounded(features, asked, every_answer_of(asked), bounds)


@given(
    sizes=st.lists(st.lists(st.integers(2, 5), max_size=6), min_size=1, max_size=5),
    components=st.integers(1, 8),
    quantile=st.sampled_from([0.0, 0.5, 1.0]),
    wide=st.booleans(),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=80, deadline=None)
def test_one_labeler_among_others_moves_the_sum_by_no_more_than_the_sensitivity(
    sizes: list[list[int]], components: int, quantile: float, wide: bool, seed: int
) -> None:
    """Answers along directions: the best response by a random score, and the worst."""
    rng = np.random.default_rng(seed)
    flat = [(unit, k) for unit, own in enumerate(sizes) for k in own]
    if not flat:
        return
    asked = among([k for _, k in flat], [unit for unit, _ in flat])
    features = normal(asked, components, seed)
    if wide:
        scale = 10 ** rng.uniform(-12, 12, len(asked))
        features = (features * np.repeat(scale, asked.size)[:, None]).astype(np.float32)
    of_response = np.repeat(asked.unit, asked.size)
    others = random_marks(asked, rng)
    for bounds in (choices.bounds(features, asked, quantile), unclipped(features, asked)):
        for unit in np.unique(asked.unit).tolist():
            mine, answers = of_response == unit, [others]
            for _ in range(4):
                score = features.astype(np.float64) @ rng.standard_normal(components)
                for signed in (score, -score):
                    top = np.maximum.reduceat(signed, asked.offsets[:-1])
                    best = signed == np.repeat(top, asked.size)
                    answers.append(np.where(mine, best, others))
            assert_bounded(features, asked, answers, bounds)


def test_the_clip_decides_and_is_attained() -> None:
    """Twenty choices between −1, 0 and 1: b² = 20 · ⅔, far below what they can add up to."""
    asked = among([3] * 20)
    features = np.tile(np.array([[-1.0], [0], [1]], np.float32), (20, 1))
    bounds = choices.bounds(features, asked, 0.5)
    assert bounds.clip == pytest.approx(math.sqrt(40 / 3))
    assert bounds.sensitivity == 2 * bounds.clip
    low, high = (np.tile(np.arange(3) == k, 20) for k in (0, 2))
    assert assert_bounded(features, asked, [low, high], bounds) > 0.95 * bounds.sensitivity


@pytest.mark.parametrize(
    ("directions", "lengths", "bound"),
    [
        # on one line, where the spectral bound is √(2 · 4 · 2 · 30)
        (np.ones((4, 1)), [1, 2, 3, 4], 20.0),
        # at right angles, where the triangle bound is 8
        (np.eye(4), [1, 1, 1, 1], 4.0),
    ],
    ids=["triangle", "spectral"],
)
def test_an_unclipped_bound_is_attained(
    directions: Floats, lengths: list[int], bound: float
) -> None:
    """Choices among −r, 0 and r, the vector r having a length and a direction each."""
    radius = np.array(lengths)[:, None] * directions
    features = np.stack([-radius, 0 * radius, radius], axis=1).reshape(12, -1).astype(np.float32)
    asked = among([3] * 4)
    bounds = unclipped(features, asked)
    assert bounds.sensitivity == pytest.approx(bound)
    low, high = (np.tile(np.arange(3) == k, 4) for k in (0, 2))
    assert assert_bounded(features, asked, [low, high], bounds) > 0.95 * bounds.sensitivity


def test_one_choice_among_many_moves_less_than_two_clips() -> None:
    """Sixteen responses at right angles are √2 from each other, and b = √(15/16)."""
    asked, features = among([16]), np.eye(16, dtype=np.float32)
    bounds = choices.bounds(features, asked, 0.5)
    assert 2 * bounds.clip == pytest.approx(2 * math.sqrt(15 / 16))
    assert bounds.sensitivity == pytest.approx(math.sqrt(2))
    answers = [np.arange(16) == k for k in range(16)]
    assert assert_bounded(features, asked, answers, bounds) > 0.95 * bounds.sensitivity


@given(
    sizes=st.lists(st.lists(st.integers(2, 6), max_size=5), min_size=1, max_size=5),
    components=st.integers(1, 12),
    times=st.sampled_from([0.3, 1.0, 5.0]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=80, deadline=None)
def test_the_sensitivity_is_the_largest_of_all_labelers(
    sizes: list[list[int]], components: int, times: float, seed: int
) -> None:
    flat = [(unit, k) for unit, own in enumerate(sizes) for k in own]
    if not flat:
        return
    asked = among([k for _, k in flat], [unit for unit, _ in flat])
    rng = np.random.default_rng(seed)
    z = choices._centred(normal(asked, components, seed), asked)
    weight, clip = rng.uniform(0.1, 1, asked.units), times * math.sqrt(components)
    largest = 0.0
    for unit in range(asked.units):
        own = [
            z[first:end].astype(np.float64)
            for (first, end), whose in zip(
                itertools.pairwise(asked.offsets.tolist()), asked.unit, strict=True
            )
            if whose == unit
        ]
        if own:
            triangle = sum(float(pdist(responses).max()) for responses in own)
            spectral = math.sqrt(2 * len(own)) * float(np.linalg.norm(np.concatenate(own), 2))
            largest = max(largest, min(2 * clip, weight[unit] * min(triangle, spectral)))
    assert choices._sensitivity(z, asked, weight, clip) == pytest.approx(largest, rel=1e-8)


def test_a_norm_without_signal_is_that_of_random_choices() -> None:
    """E‖v‖² = b² for choices at random: exactly, over all of them."""
    asked = among([3, 2, 4])
    features = normal(asked, 5, 0)
    squares = [
        float((part(features, asked, best) ** 2).sum())
        for best in every_answer_of(asked)
        if (np.add.reduceat(best.astype(int), asked.offsets[:-1]) == 1).all()
    ]
    assert len(squares) == 24
    assert choices.bounds(features, asked, 1.0).clip ** 2 == pytest.approx(np.mean(squares))


def test_the_sum_is_what_it_is_defined_to_be() -> None:
    """Ties count as their mean; a choice of all responses, or of none, adds nothing."""
    asked = among([3, 5, 2, 4, 2])
    features = normal(asked, 3, 1)
    bounds, step = Bounds(1e3, np.ones(1), 1.0), 1e-9
    rng = np.random.default_rng(2)
    for _ in range(20):
        best = random_marks(asked, rng)
        found = choices.exact_sum(features, asked, best, bounds, step) * step
        assert found == pytest.approx(part(features, asked, best), abs=1e-5)
    for nothing in (np.zeros(16, bool), np.ones(16, bool)):
        assert not choices.exact_sum(features, asked, nothing, bounds, step).any()


def test_several_best_responses_lie_between_single_ones() -> None:
    """The tie's part is the mean of the parts of those who tie."""
    asked, features = among([4]), dyadic(among([4]), 3, 3)
    bounds, step = Bounds(1e3, np.ones(1), 1.0), 2.0**-20
    single = [choices.exact_sum(features, asked, np.arange(4) == k, bounds, step) for k in range(4)]
    tied = choices.exact_sum(features, asked, np.array([True, False, True, False]), bounds, step)
    assert (2 * tied).tolist() == (single[0] + single[2]).tolist()


def as_pairs(features: Single, asked: Choices) -> tuple[Single, Rows]:
    """Choices between two as comparisons of the first with the second."""
    rows = Rows(np.arange(len(asked)), asked.unit, asked.units)
    return features[::2] - features[1::2], rows


def test_choices_between_two_are_comparisons() -> None:
    rng = np.random.default_rng(4)
    asked = among([2] * 60, rng.integers(0, 7, 60))
    features = dyadic(asked, 4, 5)
    z, rows = as_pairs(features, asked)
    of_choices, of_pairs = choices.bounds(features, asked, 0.5), statistic.bounds(z, rows, 0.5)
    assert of_choices.clip == pytest.approx(of_pairs.clip)
    assert of_choices.weight == pytest.approx(of_pairs.weight)
    assert of_choices.sensitivity == pytest.approx(of_pairs.sensitivity)
    labels = rng.integers(0, 3, 60).astype(np.uint8)
    best = np.stack([labels > 0, labels != 1], axis=1).ravel()  # a tie marks both
    step = statistic.grid(of_pairs, 4, Noise("gaussian", 1.0)).step
    assert (
        choices.exact_sum(features, asked, best, of_pairs, step).tolist()
        == statistic.exact_sum(z, rows, labels, of_pairs, step).tolist()
    )


def test_a_fit_of_choices_between_two_is_that_of_comparisons() -> None:
    rng = np.random.default_rng(6)
    asked = among([2] * 80)
    features = dyadic(asked, 4, 7)
    z, _ = as_pairs(features, asked)
    weight, ridge = rng.uniform(0, 1, 80), rng.uniform(0.5, 2, 4)
    released = 10 * rng.standard_normal(4)
    theta = choices.fit(features, asked, weight, released, ridge)
    assert theta == pytest.approx(heads.fit_statistic(z, weight, released, ridge), rel=1e-6)


def test_a_fit_is_the_minimum_of_the_written_objective() -> None:
    rng = np.random.default_rng(8)
    asked = among(rng.integers(2, 7, 30))
    features = normal(asked, 3, 9)
    weight, ridge, released = rng.uniform(0, 1, 30), np.array([0.5, 1, 2]), np.array([3.0, -5, 1])

    def objective(theta: Floats) -> float:
        value = -float(theta @ released) + float(ridge @ theta**2) / 2
        for j, (first, end) in enumerate(itertools.pairwise(asked.offsets.tolist())):
            own = features[first:end].astype(np.float64)
            value += weight[j] * float(logsumexp(own @ theta) - own.mean(axis=0) @ theta)
        return value

    expected = optimize.minimize(objective, np.zeros(3), tol=1e-10).x
    theta = choices.fit(features, asked, weight, released, ridge)
    assert theta == pytest.approx(expected, abs=1e-4)
    assert objective(theta) <= objective(expected) + 1e-9


def probabilities(features: Single, asked: Choices, theta: Floats) -> Floats:
    score = features @ theta
    top = np.maximum.reduceat(score, asked.offsets[:-1])
    score = np.exp(score - np.repeat(top, asked.size))
    total = np.add.reduceat(score, asked.offsets[:-1])
    return np.asarray(score / np.repeat(total, asked.size), np.float64)


def test_the_expected_statistic_gives_back_the_planted_head() -> None:
    asked = among(np.random.default_rng(10).integers(2, 9, 300))
    features, theta = normal(asked, 6, 11), np.array([1.0, -2, 0.5, 0, 3, -1])
    excess = probabilities(features, asked, theta) - np.repeat(1 / asked.size, asked.size)
    found = choices.fit(features, asked, 1.0, excess @ features, 1e-9)
    assert found == pytest.approx(theta, abs=1e-4)


def test_simulated_choices_give_back_the_planted_head() -> None:
    """(θ̂ − θ)ᵀ H (θ̂ − θ) is chi-square: beyond the limit with a probability below 1e-6."""
    rng = np.random.default_rng(12)
    asked = among(rng.integers(2, 6, 3000), rng.integers(0, 50, 3000))
    features, theta = normal(asked, 4, 13), np.array([0.8, -0.5, 0.3, 0.0])
    gumbel = features @ theta + rng.gumbel(size=len(features))
    best = gumbel == np.repeat(np.maximum.reduceat(gumbel, asked.offsets[:-1]), asked.size)
    bounds, step = Bounds(1e4, np.ones(50), 1.0), 1e-8
    exact = choices.exact_sum(features, asked, best, bounds, step) * step
    found = choices.fit(features, asked, choices.choice_weights(asked, bounds), exact, 1e-6)
    chance = probabilities(features, asked, theta)
    expected = np.add.reduceat(chance[:, None] * features, asked.offsets[:-1], axis=0)
    information = features.T @ (chance[:, None] * features) - expected.T @ expected

    def accepted(candidate: Floats) -> bool:
        off = candidate - theta
        return bool(off @ information @ off < stats.chi2.isf(FALSE_FAILURE, 4))

    assert accepted(found)
    assert not accepted(0.8 * found)
    of_the_worst = choices.fit(features, asked, 1.0, -exact, 1e-6)
    assert not accepted(of_the_worst)


@pytest.mark.slow
@given(
    sizes=st.lists(st.sampled_from([2, 4, 8]), min_size=1, max_size=25),
    chunk=st.integers(1, 20),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=80, deadline=None)
def test_order_chunks_and_a_common_shift_change_nothing(
    sizes: list[int], chunk: int, seed: int
) -> None:
    """What all responses of a choice share is not part of a choice; here without any rounding."""
    rng = np.random.default_rng(seed)
    asked = among(sizes, np.sort(rng.integers(0, 5, len(sizes))))
    features, best = dyadic(asked, 3, seed), random_marks(asked, rng)
    features[0] += 1
    bounds = choices.bounds(features, asked, 0.5)
    best = np.where(np.repeat(np.arange(len(sizes)) % 3, asked.size) > 0, best, features[:, 0] > 0)
    step = statistic.grid(bounds, 3, Noise("gaussian", 1.0)).step
    expected = choices.exact_sum(features, asked, best, bounds, step)
    theta = choices.fit(features, asked, 1.0, expected * step, 1.0)
    order = rng.permutation(len(sizes))
    rows = np.concatenate(
        [np.arange(asked.offsets[j], asked.offsets[j + 1]) for j in order.tolist()]
    )
    again = Choices(np.append(0, asked.size[order].cumsum()), asked.unit[order], asked.units)
    shift = rng.integers(-1000, 1000, (len(sizes), 3))
    shifted = (features[rows] + np.repeat(shift, again.size, axis=0)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choices, "_CHUNK", chunk)
        patch.setattr(choices, "_DIAMETER_ELEMENTS", 8 * chunk)
        patch.setattr(statistic, "_CHUNK", chunk)
        same = choices.bounds(shifted, again, 0.5)
        moved = choices.exact_sum(shifted, again, best[rows], bounds, step)
        fitted = choices.fit(shifted, again, 1.0, expected * step, 1.0)
    assert same.sensitivity == pytest.approx(bounds.sensitivity)
    assert same.weight == pytest.approx(bounds.weight)
    # shares of a third are rounded, so that a labeler's part may fall on the step beside
    assert np.abs(moved - expected).max() <= asked.units
    assert fitted == pytest.approx(theta, rel=1e-5, abs=1e-8)


def test_noise_goes_on_as_for_comparisons() -> None:
    asked = among([3, 4, 2], [0, 1, 2])
    features = normal(asked, 5, 14)
    bounds = choices.bounds(features, asked, 0.5)
    grid = statistic.grid(bounds, 5, Noise("gaussian", 2.0))
    exact = choices.exact_sum(features, asked, np.arange(9) % 3 == 0, bounds, grid.step)
    released = statistic.noisy(exact, grid, bytes(32))
    assert (released - exact).tolist() == statistic.noisy(0 * exact, grid, bytes(32)).tolist()


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 2, 3], "at least 2 responses"),
        ([0, 4, 2], "at least 2 responses"),
        ([1, 3, 5], "3 offsets from 0"),
        ([0, 2], "3 offsets from 0"),
    ],
    ids=str,
)
def test_offsets_that_are_none_are_refused(offsets: list[int], message: str) -> None:
    with pytest.raises(InvalidLabels, match=message):
        Choices(np.array(offsets), np.zeros(2, np.intp), 1)


def test_features_that_say_nothing_or_too_much_are_refused() -> None:
    asked = among([2, 3])
    with pytest.raises(InvalidLabels, match="no labeled pair differs"):
        choices.bounds(np.ones((5, 2), np.float32), asked, 0.5)
    with pytest.raises(InvalidLabels, match="features of 5 responses"):
        choices.bounds(np.ones((6, 2), np.float32), asked, 0.5)
    for bad in (math.nan, math.inf):
        features = normal(asked, 2, 15)
        features[3, 1] = bad
        with np.errstate(invalid="ignore"), pytest.raises(InvalidLabels, match="expected finite"):
            choices.bounds(features, asked, 0.5)


@pytest.mark.parametrize(
    ("weight", "released", "ridge"),
    [(-1.0, 0.0, 1.0), (1.0, math.nan, 1.0), (1.0, 0.0, 0.0), (np.ones(3), 0.0, 1.0)],
)
def test_a_fit_of_wrong_arguments_is_refused(
    weight: float | Floats, released: float, ridge: float
) -> None:
    asked = among([2, 3])
    with pytest.raises(ValueError, match=r"weight|statistic|ridge"):
        choices.fit(normal(asked, 2, 16), asked, weight, released, ridge)


def test_a_statistic_of_zero_gives_a_head_of_zero() -> None:
    asked = among([2, 3])
    assert choices.fit(normal(asked, 2, 17), asked, 1.0, 0.0, 1.0) == pytest.approx(
        [0, 0], abs=1e-6
    )


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_a_fit_far_from_zero_converges(size: float) -> None:
    """A noisy statistic outside of what choices can give: only the ridge holds the head back."""
    asked = among([3] * 20)
    features = normal(asked, 3, 18) * np.float32(size)
    released = np.array([400.0, -300, 100]) * size
    theta = choices.fit(features, asked, 1.0, released, 1e-3 * size**2)
    excess = probabilities(features, asked, theta) - 1 / 3
    assert excess @ features + 1e-3 * size**2 * theta == pytest.approx(released, rel=1e-3)


# Negative controls: natural mistakes, judged by the checks above.


def crossed() -> tuple[Single, Choices, list[Marks]]:
    """Four choices among −r, 0 and r, at right angles: the spectral bound, 4, is attained."""
    radius = np.eye(4)
    features = np.stack([-radius, 0 * radius, radius], axis=1).reshape(12, 4).astype(np.float32)
    return features, among([3] * 4), [np.tile(np.arange(3) == k, 4) for k in (0, 2)]


def test_a_spectral_bound_without_its_factor_of_two_is_caught() -> None:
    features, asked, answers = crossed()
    right = unclipped(features, asked)
    wrong = Bounds(right.clip, right.weight, right.sensitivity / math.sqrt(2))
    assert_bounded(features, asked, answers, right)
    with pytest.raises(AssertionError):
        assert_bounded(features, asked, answers, wrong)


def test_a_sensitivity_of_one_clip_is_caught() -> None:
    asked = among([3] * 20)
    features = np.tile(np.array([[-1.0], [0], [1]], np.float32), (20, 1))
    right = choices.bounds(features, asked, 0.5)
    answers = [np.tile(np.arange(3) == k, 20) for k in (0, 2)]
    with pytest.raises(AssertionError):
        assert_bounded(features, asked, answers, Bounds(right.clip, right.weight, right.clip))


def test_ties_that_count_in_full_are_caught() -> None:
    """Not the mean of the best but their sum: 0 or 2 responses at 1 beside two at −1."""
    features, asked = np.array([[1.0], [1], [-1], [-1]], np.float32), among([4])
    bounds = unclipped(features, asked)
    answers = [best for best in every_answer_of(asked) if best.any()]
    assert_bounded(features, asked, answers, bounds)
    in_full = [best @ features - features.mean(axis=0) for best in answers]
    assert pdist(np.stack(in_full)).max() > 1.5 * bounds.sensitivity
