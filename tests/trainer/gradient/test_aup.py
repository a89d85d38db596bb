"""Adaptive user-level private SGD: its score moves by 2 at most, outliers go, and it halts."""

import numpy as np
import pytest
from labelguard_trainer.gradient import aup
from labelguard_trainer.gradient.aup import AupRun
from labelguard_trainer.gradient.heads import ComparisonRecords, HeadProblem
from labelguard_trainer.gradient.loop import COIN_RANGE
from support import world

from labelguard.mechanisms.statistic import Rows


def cohort(members, seed):
    """Most close together, some far away."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random((members, 1)) < 0.2, 3.0, 0.1) * rng.normal(size=(members, 2))


@pytest.mark.parametrize("seed", range(30))
def test_one_labeler_moves_the_score_by_two_at_most(seed):
    rng = np.random.default_rng(seed)
    gradients = cohort(int(rng.integers(2, 40)), seed)
    other = gradients.copy()
    other[0] = rng.choice([-9.0, 0.0, 9.0], 2)
    moved = aup.concentration(gradients, 0.5) - aup.concentration(other, 0.5)
    assert abs(moved) <= 2
    without = aup.concentration(gradients[1:], 0.5) - 4 * (len(gradients) - 1) / 5
    with_them = aup.concentration(gradients, 0.5) - 4 * len(gradients) / 5
    assert abs(with_them - without) <= 2


def test_divided_by_the_expected_size_a_score_moves_by_more():
    """The control, as published: a cohort that turns out twice as large as expected."""
    expected, members = 10, 20
    together = np.zeros((members, 2))
    apart = together.copy()
    apart[0] = 9.0
    published = (
        members
        / expected
        * np.array([aup.concentration(together, 0.5), aup.concentration(apart, 0.5)])
    )
    assert published[0] - published[1] > 3.5


def test_outliers_are_left_out_and_those_in_between_by_coin():
    gradients = np.zeros((12, 2))
    gradients[9:] = [[9.0, 0], [0, 9.0], [-9.0, 0]]
    assert (
        aup.select_inliers(gradients, 0.5, np.full(12, 0.999)).tolist() == [True] * 9 + [False] * 3
    )
    gradients[7:9] = [[0, -9.0], [7.0, 7.0]]  # seven of twelve lie close together: p = 1/2
    assert aup.select_inliers(gradients, 0.5, np.full(12, 0.49))[:7].all()
    assert not aup.select_inliers(gradients, 0.5, np.full(12, 0.51)).any()
    assert not aup.select_inliers(np.zeros((0, 2)), 0.5, np.zeros(0)).any()


def test_noise_is_that_of_line_15():
    course = AupRun(COIN_RANGE // 5, 100, 3.0, 0.7, 500, 2.0, 1e-5)
    log = 2.0 + np.log(100 / 1e-5)
    assert course.deviation**2 == pytest.approx(8 * 0.7**2 * log * 3.0**2 / 100**2)


def run(distance, epsilon, steps=30):
    """200 labelers who agree, and how many steps they were good for."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(400, 3)).astype(np.float32)
    rows = Rows(rng.integers(400, size=4000), np.repeat(np.arange(200), 20), 200)
    records = ComparisonRecords.of(z, rows)
    labels = (z[rows.pair] @ np.array([1.0, -1.0, 0.5]) > 0).astype(float)
    problem = HeadProblem(records, np.full(200, 1 / 20), np.full(3, 0.5), 0.5)
    course = AupRun(COIN_RANGE // 2, steps, 0.05, distance, 200, epsilon, 1e-5)
    return aup.train(problem, labels, course, lambda share: None), problem


def test_it_learns_while_cohorts_are_concentrated_and_halts_when_they_are_not():
    done, problem = run(2.0, 20.0)
    assert done == 30
    direction = problem.theta / np.linalg.norm(problem.theta)
    assert direction @ np.array([1.0, -1.0, 0.5]) / 1.5 > 0.8
    halted, stopped = run(1e-3, 20.0)
    assert halted == 0 and not stopped.theta.any()


def test_the_mean_is_of_iterates_before_their_steps(monkeypatch):
    """Line 21: of one step it is where the run began, of two the middle of the first step."""
    taken = world.note_calls(monkeypatch, HeadProblem, "step", lambda problem, _: problem.theta)
    done, problem = run(2.0, 20.0, steps=3)
    assert done == 3 and not taken[0].any() and taken[1].any()
    assert problem.theta == pytest.approx(np.mean(taken, axis=0))
    assert not run(2.0, 20.0, steps=1)[1].theta.any()


@pytest.mark.parametrize("scale", [1e-40, 1e-23, 1e-12, 1.0, 1e15, 1e30])
def test_who_is_near_is_the_same_at_every_scale(scale):
    """In squares all were near each other below a distance of 1e-6, whatever theirs was."""
    gradients = cohort(30, 0)
    near = aup.concentration(gradients, 0.5)
    assert near < 30
    scaled = (gradients * scale).astype(np.float32 if scale > 1e-38 else np.float64)
    assert aup.concentration(scaled, 0.5 * scale) == near
    scaled[3] = np.nan
    assert not aup.select_inliers(scaled, 0.5 * scale, np.full(30, 0.5))[3]


def test_threshold_and_every_score_have_laplace_noise(monkeypatch):
    """Of scales 2Δ/ε₁ and 4Δ/ε₁, Δ = 2 and ε₁ = ε/2; that of a score may end the run."""
    scales: list[float] = []

    def drawn(scale):
        scales.append(scale)
        return -1e9 if len(scales) == 4 else 0.0

    monkeypatch.setattr(aup, "_draw_laplace", drawn)
    assert run(2.0, 20.0)[0] == 2
    assert scales == pytest.approx([0.4, 0.8, 0.8, 0.8])


def test_whether_it_halts_is_itself_noisy():
    """At a small ε AboveThreshold's noise is far larger than the score of 100 labelers."""
    done = {run(1e-3, 0.01, steps=3)[0] for _ in range(40)}
    assert max(done) > 0  # a coin each time, about: all 40 at 0 has a probability below 1e-6
