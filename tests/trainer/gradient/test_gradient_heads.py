"""Heads: their gradients, clipped by labeler, on a grid; and how far they go."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labelguard_trainer.gradient import heads, loop
from labelguard_trainer.gradient.heads import ComparisonRecords, HeadProblem, prepare_head_run
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


def problem(records):
    d = records.features.shape[1]
    return HeadProblem(records, records.weigh_by_unit("root"), np.ones(d), CLIP)


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
    made = HeadProblem(records, np.ones(200), np.ones(d), CLIP)
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
    weight = records.weigh_by_unit("root")
    if not records.expected_squared_norms().any():
        return  # refused: nothing differs
    clip = heads.choose_clip_norm(records, weight)
    made = HeadProblem(records, weight, np.ones(d), clip)
    with np.errstate(all="ignore"):
        sums = [made.clipped_sum(np.arange(3), np.full(30, y), clip) for y in (0.0, 1.0)]
        alone = made.clipped_sum(np.array([0]), np.ones(30), clip)
    assert np.linalg.norm(alone / clip) <= 1
    assert np.linalg.norm((sums[0] - sums[1]) / clip) <= 2 * 3


@pytest.mark.parametrize("scale", [1e-40, 1e-23, 1e-10, 1e10, 1e19, 1e30])
def test_energy_and_curvature_neither_vanish_nor_overflow(scale):
    """In single precision both were 0 below 2.6e-23, and infinite above 1.8e19."""
    records = comparisons()
    weight = records.weigh_by_unit("root")
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
@given(st.integers(1, 90), st.integers(0, 10**6))
def test_a_gradient_is_the_same_to_the_last_bit_whoever_else_is_in_the_cohort(d, seed):
    """A product of matrices gives a row other bits with other rows beside it, or more of them."""
    rng = np.random.default_rng(seed)
    units, labels = 9, rng.choice([0.0, 0.5, 1.0], 60)
    made = problem(comparisons(units=9, labels=60, d=d, seed=seed))
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
        made = HeadProblem(records, np.ones(len(members)), np.ones(2), CLIP)
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
    weight = records.weigh_by_unit("mean")
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
    seen = Featured("", None, None, x, rows)  # type: ignore[arg-type] - nothing else is asked
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

    as_it_is, scaled = loss(problem.margins()), loss(found.predict_log_odds(problem))
    best = min(loss(scale * problem.margins()) for scale in np.arange(0.5, 4, 0.02))
    assert scaled - best < 0.3 * (as_it_is - best)
    assert 1.2 < found.scale < 4


def test_the_scale_is_public_and_repeatable():
    x, rows, _ = world(units=40)
    assert run(x, rows, 0.73).scale == run(x, rows, 0.73).scale
    assert run(x, rows, None).scale == 1.0
    assert run(x, rows, 0.85).scale != run(x, rows, 0.6).scale
