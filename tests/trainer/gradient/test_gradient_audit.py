"""The audit of user-wise DP-SGD: a right run keeps its claim, natural mistakes are found.

A right run breaks its claim in at most one audit in a million (FALSE_ALARM); a mistake is missed
less often than that too, as the margins below the bounds are many standard deviations wide.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelguard_trainer.gradient import loop
from labelguard_trainer.gradient.audit import Canaries, audit_uls, lower_bound, noised_sums
from labelguard_trainer.gradient.head_records import Comparisons
from labelguard_trainer.gradient.heads import HeadProblem
from labelguard_trainer.gradient.loop import Checkpoints, Course, threshold
from scipy.stats import binom

from labelguard.accounting import subsampled
from labelguard.audit import FALSE_ALARM, bounds
from labelguard.errors import PolicyError
from labelguard.mechanisms.statistic import Rows

CLAIM, DELTA = 1.0, 1e-9
CANARIES, RATE, STEPS = 3000, 0.02, 50


# The bound.


@pytest.mark.parametrize("right", [1, 100, 1000])
def test_guesses_that_are_all_right_prove_what_their_number_allows(right: int) -> None:
    """δ = 0: of randomized response at ε all are right with probability (1 + e^−ε)^−n."""
    found = bounds.epsilon_of_guesses(right, right, right, 0.0, 0.05)
    assert found == pytest.approx(max(-math.log(0.05 ** (-1 / right) - 1), 0), abs=1e-5)


def test_randomized_response_is_condemned_as_seldom_as_is_said() -> None:
    """Exactly: the probability, over its answers, that the bound exceeds its own ε."""
    epsilon, guesses, alpha = 0.8, 200, 0.02
    kept = 1 / (1 + math.exp(-epsilon))
    wrong = sum(
        binom.pmf(right, guesses, kept)
        for right in range(guesses + 1)
        if bounds.epsilon_of_guesses(right, guesses, 1000, 0.0, alpha) > epsilon
    )
    assert 0 < wrong <= alpha


def test_a_delta_takes_off_what_it_may_explain() -> None:
    none, some = (bounds.epsilon_of_guesses(280, 300, 3000, d, 1e-4) for d in (0.0, 1e-6))
    assert 0 < some < none
    assert bounds.epsilon_of_guesses(280, 300, 3000, 1e-2, 1e-4) == 0
    assert bounds.epsilon_of_guesses(150, 300, 3000, 0.0, 1e-4) == 0


# One run.


def course(canaries: int = CANARIES) -> Course:
    price = {
        "noise_multiplier": subsampled.calibrate(CLAIM, DELTA, RATE, STEPS),
        "sampling_probability": RATE,
        "steps": STEPS,
    }
    return Course.priced(price, 0.1, canaries)


def found_by() -> tuple[str, ...]:
    return audit_uls(CLAIM, DELTA).violated


def test_a_right_run_keeps_its_claim() -> None:
    result = audit_uls(CLAIM, DELTA)
    assert result.holds and result.mechanism == "uls"
    assert [check.name for check in result.checks] == ["sum", "order", "differences"]


def test_noise_that_is_far_too_small_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    noised = HeadProblem.noised

    def quieter(self: HeadProblem, total: Any, deviation: float, secret: bytes) -> Any:
        return noised(self, total, deviation / 8, secret)

    monkeypatch.setattr(HeadProblem, "noised", quieter)
    assert "sum" in found_by()


def test_no_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HeadProblem, "noised", lambda self, total, *_: total)
    result = audit_uls(CLAIM, DELTA)
    assert "sum" in result.violated and result.lower_bound > 3


@pytest.mark.slow
def test_noise_that_serves_all_steps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    noised = HeadProblem.noised

    def repeated(self: HeadProblem, total: Any, deviation: float, secret: bytes) -> Any:
        return noised(self, total, deviation, bytes(32))

    monkeypatch.setattr(HeadProblem, "noised", repeated)
    assert found_by() == ("differences",)


@pytest.mark.slow
def test_a_clip_of_each_record_in_place_of_each_labeler_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def by_record(self: HeadProblem, units: Any, labels: Any, clip: float) -> Any:
        starts, total = self._records.starts, np.zeros(len(self.theta))
        for unit in units:
            places = np.arange(starts[unit], starts[unit + 1])
            score = self._records.features[self._records.index[places]] @ self.theta
            residual = self._records.residuals(score, places, labels)
            part = residual * self._weight[unit]  # along a direction of length 1
            total[unit] = (part * np.minimum(1, clip / np.abs(part))).sum()
        return np.trunc(total / self._grid) * self._grid

    monkeypatch.setattr(HeadProblem, "clipped_sum", by_record)
    assert "sum" in found_by()


@pytest.mark.slow
def test_a_sampler_that_takes_labelers_in_their_order_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As loaders of data do, whose batches are accounted for as if they were drawn.

    A secret shuffle before that is beyond this attack: `test_cohorts` knows it by the sizes of
    cohorts, which do not vary.
    """
    steps = iter(range(STEPS))

    def in_order(secret: bytes, threshold: int, units: int) -> Any:
        return np.arange(next(steps) % round(1 / RATE), units, round(1 / RATE))

    monkeypatch.setattr(loop, "cohort", in_order)
    assert found_by() == ("order",)


@pytest.mark.slow
def test_the_public_part_summed_over_the_secret_cohort_gives_the_cohort_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """(σ(z) − ½)∇z needs no label, but whose it is that is summed is the secret of sampling."""
    seen: list[np.ndarray] = []
    clipped_sum = HeadProblem.clipped_sum

    def without_public_part(self: HeadProblem, units: Any, labels: Any, clip: float) -> Any:
        seen.append(self.gradients(units, np.full_like(labels, 0.5)).sum(axis=0))
        return clipped_sum(self, units, labels, clip)

    monkeypatch.setattr(HeadProblem, "clipped_sum", without_public_part)
    canaries = Canaries.tossed(CANARIES, 8)
    sums = noised_sums(canaries, course())
    alone, _ = lower_bound(sums.sum(axis=0), canaries, DELTA, FALSE_ALARM)
    found, _ = lower_bound((sums * (np.array(seen) != 0)).sum(axis=0), canaries, DELTA, FALSE_ALARM)
    assert alone <= CLAIM < found


def test_a_delta_that_one_run_cannot_tell_from_chance_is_refused() -> None:
    with pytest.raises(PolicyError, match="canaries times delta"):
        audit_uls(1.0, 1e-5)


# Many small runs, for what one run with many canaries cannot show.

RUNS, OFTEN, ALPHA = 1500, 0.1, 1e-6


def runs_of_one(
    label: float, course: Course, patch: pytest.MonkeyPatch, directory: Path
) -> tuple[np.ndarray, np.ndarray]:
    """The noised sums of runs of one step with one labeler, in clip norms; who was in them."""
    members: list[int] = []
    cohort = loop.cohort

    def counting(*given: Any) -> Any:
        found = cohort(*given)
        members.append(len(found))
        return found

    z, rows = np.ones((1, 1), np.float32), Rows(np.zeros(1, int), np.zeros(1, int), 1)
    records, sums = Comparisons.of(z, rows), []
    kept = Checkpoints(directory, 2, lambda data: b"")
    with patch.context() as patched:
        patched.setattr(loop, "cohort", counting)
        for _ in range(RUNS):
            problem = HeadProblem(z, records, np.ones(1), np.ones(1), course.clip)
            loop.train(problem, np.array([label]), course, kept, lambda share: None)
            sums.append(-problem.theta[0] * course.divisor / course.clip)
    return np.array(sums), np.array(members)


@pytest.mark.slow
def test_sizes_of_cohorts_that_are_published_give_a_lone_labeler_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mean over the cohort beside the sum tells its size, and so whether one was there.

    That has the same probability q for either label, so what is left must be (ε, δ/q)-private. By
    two samples of a normal law; without the sizes by events, of any law.
    """
    noise = subsampled.calibrate(CLAIM, 1e-5, OFTEN, 1)
    course = Course(threshold(OFTEN), 1, noise, 0.1, 1)
    found = [runs_of_one(label, course, monkeypatch, tmp_path) for label in (0.0, 1.0)]
    above = [(sums[:, None] > np.linspace(-3, 3, 7) * noise).sum(axis=0) for sums, _ in found]
    assert bounds.epsilon_of_events(*above, RUNS, 1e-5, ALPHA) <= CLAIM
    there = [sums[members == 1] for sums, members in found]
    assert bounds.epsilon_of_means(*there, 1e-5 / OFTEN, ALPHA) > CLAIM
    absent = [sums[members == 0] for sums, members in found]
    assert bounds.epsilon_of_means(*absent, 1e-5, ALPHA) <= CLAIM, "the control"
