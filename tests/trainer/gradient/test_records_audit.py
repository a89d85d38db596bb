"""The audit of runs on whole records: a right run keeps its claim, several updates at the price of
one are found.

One run with many canaries. Each is a made-up person with a canary prompt and a fair coin, by which
it is there or null. In the worst case, which is played here, the gradient of a canary that is there
has the clip norm, along a direction of its own, in every update of a cohort that it is in. So what
is seen of one canary is independent of all others, and each is a trial of its own: how often the
attacker's score lies above a threshold in either world bounds ε from below (Clopper and Pearson).
A right run breaks its claim in at most one audit in a million.
"""

import numpy as np
import pytest
from labelguard_trainer.gradient.loop import Checkpoints, NoisyRun, train

from labelguard.accounting import zero_out
from labelguard.analysis import audit_bounds as bounds
from labelguard.analysis.audit_bounds import FALSE_ALARM

CLAIM, DELTA = 1.0, 1e-4
CANARIES, RATE, STEPS, CLIP = 400_000, 0.2, 2, 0.5
# Shares of null canaries above the attacker's thresholds.
SHARES = (0.1, 0.03, 0.01, 0.003)


class CanaryPrompts:
    """A problem whose every coordinate is one canary's; it notes what the attacker sees."""

    def __init__(self, there):
        self.there, self.seen = there, []

    def clipped_sum(self, units, labels, clip):
        total = np.zeros(CANARIES)
        total[units] = clip * self.there[units]
        return total

    def add_noise(self, total, deviation, secret):
        generator = np.random.default_rng(np.frombuffer(secret, np.uint32))
        return total + generator.normal(0, deviation, CANARIES)

    def step(self, gradient):
        self.seen.append(gradient)

    def state(self):
        return {}


def prove(directory, *, updates, priced):
    """The ε that is proven of a run with so many updates of each cohort, priced as so many."""
    noise = zero_out.calibrate(CLAIM, DELTA, RATE, STEPS, priced)
    price = {"noise_multiplier": noise, "sampling_probability": RATE, "steps": STEPS}
    run = NoisyRun.from_price({**price, "updates": updates}, CLIP, CANARIES)
    there = np.random.default_rng().random(CANARIES) < 0.5
    problem = CanaryPrompts(there)
    checkpoints = Checkpoints(directory, STEPS + 1, lambda data: b"")
    train(problem, np.zeros(0), run, checkpoints, lambda share: None)
    seen = np.array(problem.seen).reshape(STEPS, updates, CANARIES).sum(1) * run.divisor / CLIP
    odds = np.exp(np.minimum((seen - updates / 2) / noise**2, 50))
    score = np.log1p(RATE * (odds - 1)).sum(0)
    return max(lower_bound(score[there], score[~there], share) for share in SHARES)


def lower_bound(there, null, share):
    """The ε that is proven by scores above a threshold that so many of the null canaries pass."""
    alpha = FALSE_ALARM / len(SHARES) / 2
    threshold = np.quantile(null[: len(null) // 2], 1 - share)
    rest = null[len(null) // 2 :]  # others than those that chose the threshold
    often = bounds.proportion((there > threshold).sum(), len(there), alpha)[0]
    seldom = bounds.proportion((rest > threshold).sum(), len(rest), alpha)[1]
    return max(0.0, float(np.log(max(float(often) - DELTA, 1e-300) / float(seldom))))


@pytest.mark.parametrize("updates", [1, 4])
def test_a_run_keeps_its_claim_when_its_updates_are_paid(updates, tmp_path):
    assert prove(tmp_path, updates=updates, priced=updates) <= CLAIM


def test_four_updates_at_the_price_of_one_are_found(tmp_path):
    assert prove(tmp_path, updates=4, priced=1) > CLAIM
