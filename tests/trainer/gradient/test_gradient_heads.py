"""Heads: their gradients, clipped by labeler, on a grid; and how far they go."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labelguard_trainer.gradient import heads, loop
from labelguard_trainer.gradient.head_records import (
    ComparisonRecords,
    RankingRecords,
    Records,
    weights,
)
from labelguard_trainer.gradient.heads import HeadProblem, prepare_head_run
from labelguard_trainer.gradient.loop import Checkpoints, NoisyRun
from support.world import repeatable_bytes

from labelguard.keys import keyring
from labelguard.mechanisms.statistic import Rows
from labelguard.planner.prior import Prior
from labelguard.release.protocol import Featured

CLIP = 0.3


def comparisons(units=7, labels=40, d=5, seed=0):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(20, d)).astype(np.float32)
    rows = Rows(rng.integers(20, size=labels), rng.integers(units, size=labels), units)
    return ComparisonRecords.of(z, rows)


def rankings(*, first_only, sizes=(2, 3, 4), d=3):
    """One record of every size, of two units; every pair of a record is a row."""
    rng = np.random.default_rng(3)
    features = rng.normal(size=(sum(sizes), d)).astype(np.float32)
    begins = np.append(0, np.cumsum(sizes))
    pairs = [
        (begin + i, begin + j)
        for begin, size in zip(begins, sizes, strict=False)
        for i in range(size)
        for j in range(i + 1, size)
    ]
    one, other = np.array(pairs).T
    record = np.repeat(np.arange(len(sizes)), sizes)
    starts = np.array([0, begins[1], begins[-1]])
    return RankingRecords(
        features, np.arange(sum(sizes)), starts, record, first_only, one.astype(int), other
    )


def problem(records, z=None):
    d = records.features.shape[1]
    z = records.features if z is None else z
    return HeadProblem(z, records, weights(records, "root"), np.ones(d), CLIP)


def numeric(loss, theta):
    steps = 1e-5 * np.eye(len(theta))
    return np.array([(loss(theta + s) - loss(theta - s)) / 2e-5 for s in steps])


def test_gradients_of_comparisons_are_those_of_the_logistic_loss():
    records = comparisons()
    made = problem(records)
    made.theta = np.linspace(-1, 1, 5)
    labels = np.random.default_rng(1).choice([0, 0.5, 1], 40)
    found = made.gradients(np.arange(7), labels)
    for unit in range(7):
        own = slice(*records.starts[unit : unit + 2])
        x, y = records.features[records.index[own]].astype(float), labels[records.row[own]]

        def loss(theta, x=x, y=y):
            score = x @ theta
            return float((np.logaddexp(0, score) - y * score).sum()) / max(len(y), 1) ** 0.5

        assert found[unit] == pytest.approx(numeric(loss, made.theta), abs=1e-4)


@pytest.mark.parametrize("first_only", [True, False], ids=["choices", "rankings"])
def test_gradients_of_rankings_are_those_of_the_plackett_luce_loss(first_only):
    records = rankings(first_only=first_only)
    made = problem(records)
    made.theta = np.array([0.4, -0.7, 1.1])
    rng = np.random.default_rng(5)
    place = np.concatenate([rng.permutation(size) for size in (2, 3, 4)])
    labels = (place[records.one] < place[records.other]).astype(float)
    if first_only:  # of a choice, pairs without the chosen one say nothing
        chosen = (place[records.one] == 0) | (place[records.other] == 0)
        labels = np.where(chosen, labels, 0.5)
    found = made.gradients(np.arange(2), labels)
    for unit, own in enumerate(([0], [1, 2])):

        def loss(theta, own=own):
            total = 0.0
            for record in own:
                rows = np.flatnonzero(records.record == record)
                score = (records.features[rows] @ theta)[np.argsort(place[rows])]
                draws = 1 if first_only else len(score)
                total += sum(np.log(np.exp(score[j:]).sum()) - score[j] for j in range(draws))
            return total / len(own) ** 0.5

        assert found[unit] == pytest.approx(numeric(loss, made.theta), abs=1e-4)


@pytest.mark.parametrize("first_only", [True, False], ids=["choices", "rankings"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_energy_and_curvature_are_those_of_labels_at_random(first_only, size):
    """All orders of a ranking, enumerated; curvature is the mean Hessian's diagonal."""
    records = rankings(first_only=first_only, sizes=(size, size))
    phi = records.features[:size].astype(float)
    phi -= phi.mean(axis=0)
    records.features[:size] = phi
    norms, curvature = [], []
    for order in permutations(range(size)):
        ranked = phi[list(order)]
        draws = 1 if first_only else size
        gradient = sum(ranked[j:].mean(axis=0) - ranked[j] for j in range(draws))
        norms.append(gradient @ gradient)
        curvature.append(sum(ranked[j:].var(axis=0) for j in range(draws)))
    assert records.expected_squared_norms()[0] == pytest.approx(np.mean(norms), rel=1e-5)
    only_first = records.curvature(np.array([1.0, 0.0]))
    assert only_first == pytest.approx(np.mean(curvature, axis=0), rel=1e-4)


def test_choices_of_two_are_comparisons():
    whole = rankings(first_only=False, sizes=(2, 2))
    choice = rankings(first_only=True, sizes=(2, 2))
    z = whole.features[::2] - whole.features[1::2]
    pairs = ComparisonRecords.of(z, Rows(np.arange(2), np.arange(2), 2))
    labels = np.array([1.0, 0.0])
    found = [problem(records).gradients(np.arange(2), labels) for records in (whole, choice, pairs)]
    assert found[0] == pytest.approx(found[2], abs=1e-6)
    assert found[1] == pytest.approx(found[2], abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 6), st.integers(0, 10**6))
def test_labels_of_one_labeler_move_a_sum_by_two_clip_norms_at_most(unit, seed):
    rng = np.random.default_rng(seed)
    records = comparisons(labels=60)
    made = problem(records)
    made.theta = 3 * rng.normal(size=5)
    labels = rng.choice([0.0, 0.5, 1.0], 60)
    other = labels.copy()
    mine = records.row[records.starts[unit] : records.starts[unit + 1]]
    other[mine] = rng.choice([0.0, 0.5, 1.0], len(mine))
    members = np.arange(7)
    moved = made.clipped_sum(members, labels, CLIP) - made.clipped_sum(members, other, CLIP)
    assert np.linalg.norm(moved) <= 2 * CLIP
    without = made.clipped_sum(np.delete(members, unit), labels, CLIP)
    assert np.linalg.norm(made.clipped_sum(members, labels, CLIP) - without) <= CLIP


@pytest.mark.parametrize("d", [1, 64, 3000])
def test_rounding_in_single_precision_does_not_take_a_gradient_past_the_clip_norm(d):
    rng = np.random.default_rng(d)
    z = np.abs(rng.normal(size=(200, d))).astype(np.float32)
    records = ComparisonRecords.of(z, Rows(np.arange(200), np.arange(200), 200))
    made = HeadProblem(z, records, np.ones(200), np.ones(d), CLIP)
    labels = rng.choice([0.0, 1.0], 200)
    norms = [np.linalg.norm(made.clipped_sum(np.array([u]), labels, CLIP)) for u in range(200)]
    assert max(norms) <= CLIP
    assert np.median(norms) > 0.999 * CLIP or d == 1  # nearly all were longer, and lose little


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([1e-40, 1e-30, 1e-23, 1e-20, 1e-10, 1.0, 1e10, 1e20, 1e30]),
    st.sampled_from([1e-40, 1e-23, 1.0, 1e20]),
    st.integers(0, 10**6),
)
def test_at_every_scale_labels_move_a_sum_by_two_clip_norms_at_most(scale, unlike, seed):
    """One labeler's features are that much smaller, or larger, than all others'."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 70))
    with np.errstate(over="ignore", under="ignore"):
        z = (np.float64(scale) * rng.normal(size=(30, d))).astype(np.float32)
        z[:10] = (z[:10] / scale * np.minimum(scale * unlike, 1e30)).astype(np.float32)
    rows = Rows(np.arange(30), np.arange(30) // 10, 3)
    records = ComparisonRecords.of(z, rows)
    weight = weights(records, "root")
    if not records.expected_squared_norms().any():
        return  # refused: nothing differs
    clip = heads.choose_clip_norm(records, weight)
    made = HeadProblem(z, records, weight, np.ones(d), clip)
    with np.errstate(all="ignore"):
        sums = [made.clipped_sum(np.arange(3), np.full(30, y), clip) for y in (0.0, 1.0)]
        alone = made.clipped_sum(np.array([0]), np.ones(30), clip)
    assert np.linalg.norm(alone / clip) <= 1
    assert np.linalg.norm((sums[0] - sums[1]) / clip) <= 2 * 3


@pytest.mark.parametrize("scale", [1e-40, 1e-23, 1e-10, 1e10, 1e19, 1e30])
@pytest.mark.parametrize("kind", ["comparisons", "rankings", "choices"])
def test_energy_and_curvature_neither_vanish_nor_overflow(kind, scale):
    """In single precision both were 0 below 2.6e-23, and infinite above 1.8e19."""
    made: dict[str, Records] = {
        "comparisons": comparisons(),
        "rankings": rankings(first_only=False),
        "choices": rankings(first_only=True),
    }
    records = made[kind]
    weight = weights(records, "root")
    expected_squared_norms, curvature = records.expected_squared_norms(), records.curvature(weight)
    records.features[:] = (records.features * np.float64(scale)).astype(np.float32)
    close = 1e-3 if scale > 1e-38 else 1e-1  # of numbers below, few bits are left
    assert records.expected_squared_norms() / scale / scale == pytest.approx(
        expected_squared_norms, rel=close
    )
    assert records.curvature(weight) / scale / scale == pytest.approx(curvature, rel=close)
    rates = heads.rates(records, weight, np.ones(len(curvature)), scale, 10)
    assert np.isfinite(rates).all() and (rates > 0).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(0, 10**6), st.sampled_from(["pairs", "whole", "first"]))
def test_a_gradient_is_the_same_to_the_last_bit_whoever_else_is_in_the_cohort(d, seed, kind):
    """A product of matrices gives a row other bits with other rows beside it, or more of them."""
    rng = np.random.default_rng(seed)
    if kind == "pairs":
        records: Records = comparisons(units=9, labels=60, d=d, seed=seed)
        units, labels = 9, rng.choice([0.0, 0.5, 1.0], 60)
    else:
        records = rankings(first_only=kind == "first", sizes=(2, 13, 4), d=d)
        units, labels = 2, rng.choice([0.0, 1.0], len(records.one))
    made = problem(records)
    made.theta = rng.normal(size=d)
    together = made.gradients(np.arange(units), labels)
    some = np.flatnonzero(rng.random(units) < 0.5)
    assert np.array_equal(made.gradients(some, labels), together[some])
    for unit in range(units):
        assert np.array_equal(made.gradients(np.array([unit]), labels)[0], together[unit])


def test_what_overflows_counts_for_nothing_whatever_the_labels():
    """As NaN it would be told apart from all others, and with it who is in the cohort."""
    z = np.full((4, 2), [1e25, -1e25], np.float32)
    made = HeadProblem(
        z,
        ComparisonRecords.of(z, Rows(np.arange(4), np.arange(4), 4)),
        np.ones(4),
        np.ones(2),
        CLIP,
    )
    made.theta = np.array([1e25, 1e25])  # ∞ − ∞
    with np.errstate(all="ignore"):
        for labels in (np.zeros(4), np.ones(4)):
            assert not made.clipped_sum(np.arange(4), labels, CLIP).any()


def test_a_bound_by_record_would_not_bound_a_labeler():
    """The control: the same labels, each clipped by itself, move the sum further."""
    z = np.tile(np.array([[1.0, 0.0]], np.float32), (10, 1))
    together = ComparisonRecords.of(z, Rows(np.arange(10), np.zeros(10, int), 1))
    apart = ComparisonRecords.of(z, Rows(np.arange(10), np.arange(10), 10))
    moved = []
    for records, members in ((together, np.arange(1)), (apart, np.arange(10))):
        made = HeadProblem(z, records, np.ones(len(members)), np.ones(2), CLIP)
        one, other = (made.clipped_sum(members, np.full(10, y), CLIP) for y in (0.0, 1.0))
        moved.append(np.linalg.norm(one - other))
    assert moved[0] <= 2 * CLIP < moved[1]


def test_sums_are_whole_numbers_of_the_grid_whatever_the_order_of_labelers():
    made = problem(comparisons())
    labels = np.random.default_rng(0).choice([0.0, 1.0], 40)
    total = made.clipped_sum(np.arange(7), labels, CLIP)
    parts = sum(made.clipped_sum(np.array([unit]), labels, CLIP) for unit in range(7))
    assert np.array_equal(total, parts)
    noised = made.add_noise(total, 0.5, bytes(32))
    assert np.array_equal(noised, np.rint(noised * 2**40) / 2**40)


def test_noise_has_the_deviation_that_is_asked_for_and_a_smaller_one_is_seen():
    made = problem(comparisons(d=50))
    drawn = [made.add_noise(np.zeros(50), 0.7, step.to_bytes(32, "big")) for step in range(40)]
    ratio = float(np.mean(np.square(drawn))) / 0.7**2
    assert 0.9 < ratio < 1.1  # 2000 normals: fails less than once in 10^3, of one seed
    assert not 0.9 < ratio * 0.9**2 < 1.1


def test_a_step_as_far_as_a_ridge():
    """Without noise, on a quadratic loss, all steps together shrink as the posterior mean does."""
    records = comparisons(units=2000, labels=2000, d=3)
    weight = weights(records, "mean")
    h = records.curvature(weight) / np.count_nonzero(records.counts())
    rate = heads.rates(records, weight, np.full(3, 2.0), 0.05, 400)
    theta, gradient = np.zeros(3), np.array([1.0, -2.0, 0.5])
    for _ in range(400):
        theta -= rate * (h * theta - gradient)
    scatter = records.curvature(weight**2) / np.count_nonzero(records.counts()) ** 2
    ridge = 2.0 * (scatter + 0.05**2) / h
    assert theta == pytest.approx(gradient / (h + ridge), rel=0.01)


# Probabilities of a head that noisy steps have trained mean what they say.


PRICE = {"noise_multiplier": 5.5, "sampling_probability": 0.2, "steps": 40}


def world(units=300, labels=20, d=8):
    """Pairs, who compared them, and the log-odds by which everybody answers."""
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(900, d)) / np.sqrt(d)).astype(np.float32)
    rows = Rows(rng.integers(900, size=units * labels), np.repeat(np.arange(units), labels), units)
    true = x @ rng.normal(size=d)
    return x, rows, 2 * true / true.std()


def run(x, rows, agreement):
    prior = None if agreement is None else Prior(agreement, explained=(0.7, 0.7))
    seen = Featured("", None, None, x, rows)  # type: ignore[arg-type] - only of rankings are pairs asked
    return prepare_head_run(seen, rows, PRICE, "root", {}, prior)


@pytest.mark.parametrize("seed", range(2))
def test_scaled_margins_are_log_odds(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(keyring, "random_bytes", repeatable_bytes(seed))
    x, rows, true = world()
    labels = (np.random.default_rng(2).random(len(rows)) < 1 / (1 + np.exp(-true[rows.pair]))) * 1.0
    found = run(x, rows, 0.73)
    problem = found.problem()
    course = NoisyRun.from_price(PRICE, found.clip, rows.units)
    loop.train(problem, labels, course, Checkpoints(tmp_path, 999, bytes), lambda share: None)

    def loss(margin):
        return float(np.mean(np.logaddexp(0, margin) - margin / (1 + np.exp(-true))))

    as_it_is, scaled = loss(problem.margins()), loss(found.margins(problem))
    best = min(loss(scale * problem.margins()) for scale in np.arange(0.5, 4, 0.02))
    assert scaled - best < 0.3 * (as_it_is - best)
    assert 1.2 < found.scale < 4


def test_the_scale_is_public_and_repeatable():
    x, rows, _ = world(units=40)
    assert run(x, rows, 0.73).scale == run(x, rows, 0.73).scale
    assert run(x, rows, None).scale == 1.0
    assert run(x, rows, 0.85).scale != run(x, rows, 0.6).scale
