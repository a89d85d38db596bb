"""The audit of user-wise DP-SGD: a right run keeps its claim, natural mistakes are found.

One run with many canaries (Steinke, Nasr and Jagielski 2023). Each canary is a made-up labeler with
a fair coin, by which all their labels are 1 or 0; their pairs lie along a direction of their own.
All of them are in ONE real run of `loop.train`, with the noise that (ε, δ) buys. The attacker sees
every noised sum, which the guarantee covers, and guesses the coins of the canaries they are surest
of. From how many they get right follows a lower bound on ε: a run that is (ε, δ)-private lets
nobody guess better than randomized response would. How far a bound may come is limited by the
number of canaries (3,000 guesses that are all right prove ε ≥ 5), and by Poisson sampling itself.

A right run breaks its claim in at most one audit in a million (FALSE_ALARM, by the union bound over
checks and shares); a mistake is missed less often than that too, as the margins below the bounds
are many standard deviations wide.
"""

import math

import numpy as np
import pytest
from labelguard_trainer.gradient import loop
from labelguard_trainer.gradient.heads import ComparisonRecords, HeadProblem
from labelguard_trainer.gradient.loop import Checkpoints, NoisyRun, threshold
from scipy.stats import binom
from support import bounds, world
from support.bounds import FALSE_ALARM, epsilon_of_guesses

from labelguard.accounting import subsampled
from labelguard.mechanisms.statistic import Rows

CLAIM, DELTA = 1.0, 1e-9
CANARIES, LABELS, RATE, STEPS = 3000, 8, 0.02, 50
# Shares of the canaries whose coins are guessed: those with the largest scores.
SHARES = (0.25, 0.1)
# Below the norm of any one record's gradient at the start, so that every bound is met.
CLIP = 0.1


# The bound.


@pytest.mark.parametrize("right", [1, 100, 1000])
def test_guesses_that_are_all_right_prove_what_their_number_allows(right):
    """δ = 0: of randomized response at ε all are right with probability (1 + e^−ε)^−n."""
    found = epsilon_of_guesses(right, right, right, 0.0, 0.05)
    assert found == pytest.approx(max(-math.log(0.05 ** (-1 / right) - 1), 0), abs=1e-5)


def test_randomized_response_is_condemned_as_seldom_as_is_said():
    """Exactly: the probability, over its answers, that the bound exceeds its own ε."""
    epsilon, guesses, alpha = 0.8, 200, 0.02
    kept = 1 / (1 + math.exp(-epsilon))
    wrong = sum(
        binom.pmf(right, guesses, kept)
        for right in range(guesses + 1)
        if epsilon_of_guesses(right, guesses, 1000, 0.0, alpha) > epsilon
    )
    assert 0 < wrong <= alpha


def test_a_delta_takes_off_what_it_may_explain():
    none, some = (epsilon_of_guesses(280, 300, 3000, d, 1e-4) for d in (0.0, 1e-6))
    assert 0 < some < none
    assert epsilon_of_guesses(280, 300, 3000, 1e-2, 1e-4) == 0
    assert epsilon_of_guesses(150, 300, 3000, 0.0, 1e-4) == 0


# One run.


class Watched(HeadProblem):
    """A head whose every coordinate is one canary's; it notes what the attacker sees."""

    def __init__(self):
        z, unit = np.eye(CANARIES, dtype=np.float32), np.repeat(np.arange(CANARIES), LABELS)
        records = ComparisonRecords.of(z, Rows(unit, unit, CANARIES))
        super().__init__(records, records.weigh_by_unit("root"), np.ones(CANARIES), CLIP)
        self.seen: list[np.ndarray] = []

    def step(self, gradient):
        self.seen.append(gradient)
        super().step(gradient)


def noised_sums(coins, directory):
    """What a run shows of canaries: its noised sums, in clip norms, (steps, canaries).

    A canary who is in a step moves their coordinate of it by 1, down if their coin is 1.
    """
    noise = subsampled.calibrate(CLAIM, DELTA, RATE, STEPS)
    price = {"noise_multiplier": noise, "sampling_probability": RATE, "steps": STEPS}
    course, problem = NoisyRun.from_price(price, CLIP, CANARIES), Watched()
    kept = Checkpoints(directory, STEPS + 1, lambda data: b"")  # none
    loop.train(problem, np.repeat(coins, LABELS).astype(float), course, kept, lambda share: None)
    return np.array(problem.seen) * (course.divisor / course.clip)


def lower_bound(score, coins, alpha):
    """The ε that guesses by `score` (canaries,) prove: above 0 a coin is guessed to be 0."""
    surest = np.argsort(-np.abs(score), kind="stable")
    right = (score > 0) != coins
    found = 0.0
    for share in SHARES:
        guessed = surest[: int(share * CANARIES)]
        sizes = int(right[guessed].sum()), len(guessed), CANARIES
        found = max(found, epsilon_of_guesses(*sizes, DELTA, alpha / len(SHARES)))
    return found


@pytest.fixture
def coins():
    return np.random.default_rng().random(CANARIES) < 0.5


@pytest.fixture
def proven(coins, tmp_path):
    """What one run proves of ε, by each way to score canaries.

    All noised sums added up (noise that is too small, clips that bound too little); the sums of the
    steps in which a canary would be, were labelers taken in their order; mean less median of all
    steps (noise that serves several).
    """
    every = round(1 / RATE)
    own = np.arange(STEPS)[:, None] % every == np.arange(CANARIES) % every

    def audit():
        seen = noised_sums(coins, tmp_path)
        scores = {"sum": seen.sum(axis=0), "order": (seen * own).sum(axis=0)}
        scores["differences"] = seen.mean(axis=0) - np.median(seen, axis=0)
        alpha = FALSE_ALARM / len(scores)
        return {name: lower_bound(score, coins, alpha) for name, score in scores.items()}

    return audit


def test_a_right_run_keeps_its_claim(proven):
    assert max(proven().values()) <= CLAIM


def test_noise_that_is_far_too_small_is_found(proven, monkeypatch):
    noised = HeadProblem.add_noise

    def quieter(self, total, deviation, secret):
        return noised(self, total, deviation / 8, secret)

    monkeypatch.setattr(HeadProblem, "add_noise", quieter)
    assert proven()["sum"] > CLAIM


def test_no_noise_is_found(proven, monkeypatch):
    monkeypatch.setattr(HeadProblem, "add_noise", lambda self, total, *_: total)
    assert proven()["sum"] > 3


@pytest.mark.slow
def test_noise_that_serves_all_steps_is_found(proven, monkeypatch):
    noised = HeadProblem.add_noise

    def repeated(self, total, deviation, secret):
        return noised(self, total, deviation, bytes(32))

    monkeypatch.setattr(HeadProblem, "add_noise", repeated)
    assert [name for name, bound in proven().items() if bound > CLAIM] == ["differences"]


@pytest.mark.slow
def test_a_clip_of_each_record_in_place_of_each_labeler_is_found(proven, monkeypatch):
    def by_record(self, units, labels, clip):
        starts, total = self._records.starts, np.zeros(len(self.theta))
        for unit in units:
            places = np.arange(starts[unit], starts[unit + 1])
            score = self._records.features[self._records.index[places]] @ self.theta
            residual = self._records.residuals(score, places, labels)
            part = residual * self._weight[unit]  # along a direction of length 1
            total[unit] = (part * np.minimum(1, clip / np.abs(part))).sum()
        return np.trunc(total / self._grid) * self._grid

    monkeypatch.setattr(HeadProblem, "clipped_sum", by_record)
    assert proven()["sum"] > CLAIM


@pytest.mark.slow
def test_a_sampler_that_takes_labelers_in_their_order_is_found(proven, monkeypatch):
    """As loaders of data do, whose batches are accounted for as if they were drawn.

    A secret shuffle before that is beyond this attack: `test_loop` knows it by the sizes of
    cohorts, which do not vary.
    """
    steps = iter(range(STEPS))

    def in_order(secret, threshold, units):
        return np.arange(next(steps) % round(1 / RATE), units, round(1 / RATE))

    monkeypatch.setattr(loop, "cohort", in_order)
    assert [name for name, bound in proven().items() if bound > CLAIM] == ["order"]


@pytest.mark.slow
def test_the_public_part_summed_over_the_secret_cohort_gives_the_cohort_away(
    coins, tmp_path, monkeypatch
):
    """(σ(z) − ½)∇z needs no label, but whose it is that is summed is the secret of sampling."""

    def public_part(problem, units, labels, clip):
        return problem.gradients(units, np.full_like(labels, 0.5)).sum(axis=0)

    seen = world.note_calls(monkeypatch, HeadProblem, "clipped_sum", public_part)
    sums = noised_sums(coins, tmp_path)
    alone = lower_bound(sums.sum(axis=0), coins, FALSE_ALARM)
    found = lower_bound((sums * (np.array(seen) != 0)).sum(axis=0), coins, FALSE_ALARM)
    assert alone <= CLAIM < found


# Many small runs, for what one run with many canaries cannot show.

RUNS, OFTEN, ALPHA = 1500, 0.1, 1e-6


def runs_of_one(label, course, patch, directory):
    """The noised sums of runs of one step with one labeler, in clip norms; who was in them."""
    members: list[int] = []
    cohort = loop.cohort

    def counting(*given):
        found = cohort(*given)
        members.append(len(found))
        return found

    z, rows = np.ones((1, 1), np.float32), Rows(np.zeros(1, int), np.zeros(1, int), 1)
    records, sums = ComparisonRecords.of(z, rows), []
    kept = Checkpoints(directory, 2, lambda data: b"")
    with patch.context() as patched:
        patched.setattr(loop, "cohort", counting)
        for _ in range(RUNS):
            problem = HeadProblem(records, np.ones(1), np.ones(1), course.clip)
            loop.train(problem, np.array([label]), course, kept, lambda share: None)
            sums.append(-problem.theta[0] * course.divisor / course.clip)
    return np.array(sums), np.array(members)


@pytest.mark.slow
def test_sizes_of_cohorts_that_are_published_give_a_lone_labeler_away(tmp_path, monkeypatch):
    """A mean over the cohort beside the sum tells its size, and so whether one was there.

    That has the same probability q for either label, so what is left must be (ε, δ/q)-private. By
    two samples of a normal law; without the sizes by events, of any law.
    """
    noise = subsampled.calibrate(CLAIM, 1e-5, OFTEN, 1)
    course = NoisyRun(threshold(OFTEN), 1, noise, 0.1, 1)
    found = [runs_of_one(label, course, monkeypatch, tmp_path) for label in (0.0, 1.0)]
    above = [(sums[:, None] > np.linspace(-3, 3, 7) * noise).sum(axis=0) for sums, _ in found]
    assert bounds.epsilon_of_events(*above, RUNS, 1e-5, ALPHA) <= CLAIM
    there = [sums[members == 1] for sums, members in found]
    assert bounds.epsilon_of_means(*there, 1e-5 / OFTEN, ALPHA) > CLAIM
    absent = [sums[members == 0] for sums, members in found]
    assert bounds.epsilon_of_means(*absent, 1e-5, ALPHA) <= CLAIM, "the control"
