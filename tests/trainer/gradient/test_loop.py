"""A run depends on exactly as many noised steps as were charged, however often it is killed."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from labelguard_trainer.gradient.loop import (
    COIN_RANGE,
    Checkpoints,
    NoisyRun,
    cohort,
    threshold,
    train,
)
from scipy.stats import binom
from support.deaths import Killed

from labelguard.errors import ProjectError

COURSE = NoisyRun(COIN_RANGE // 4, 23, 1.0, 0.5, 40)


def seal(data):
    return hashlib.sha256(data).digest()


class Noting:
    """A problem whose state is which noise it has seen, and how large its cohorts were."""

    def __init__(self, dies=None):
        self.seen, self.cohorts, self._dies = np.zeros(0), [], dies
        self.noise: list[float] = []

    def clipped_sum(self, units, labels, clip):
        assert clip == COURSE.clip
        self.cohorts.append(units)
        if len(self.cohorts) == self._dies:
            raise Killed
        return 0.0

    def add_noise(self, total, deviation, secret):
        assert deviation == pytest.approx(COURSE.noise_multiplier * COURSE.clip, rel=1e-5)
        self.noise.append(float(int.from_bytes(secret[:6], "big")))
        return total + self.noise[-1]

    def step(self, gradient):
        self.seen = np.append(self.seen, gradient * COURSE.divisor)

    def state(self):
        return {"seen": self.seen}

    def restore(self, state):
        self.seen = state["seen"]


def finished(*kills):
    """A run that was killed in these of its steps, one after the other, and then went on."""
    for dies in kills:
        with pytest.raises(Killed):
            run(Noting(dies))
    return run(Noting())


def run(problem):
    train(problem, np.zeros(0), COURSE, Checkpoints(Path(), 5, seal), lambda share: None)
    return problem


@pytest.mark.parametrize("kills", [(), (1,), (6,), (23,), (13, 7, 3), (23, 3, 3)])
def test_what_is_visible_depends_on_as_many_noised_steps_as_were_charged(kills):
    seen = finished(*kills).seen
    assert len(seen) == COURSE.steps
    assert len(set(seen)) == COURSE.steps, "noise served two steps"


def test_every_step_has_a_cohort_of_its_own_whose_size_divides_nothing():
    """23 cohorts of 40, each in with a quarter: two are equal once in a million runs."""
    run = finished()
    assert len({units.tobytes() for units in run.cohorts}) == COURSE.steps
    assert len({len(units) for units in run.cohorts}) > 1
    assert run.seen == pytest.approx(run.noise), "but by the public number"


def test_a_killed_run_goes_on_from_its_checkpoint_with_fresh_cohorts():
    with pytest.raises(Killed):
        run(first := Noting(14))
    second = finished()
    assert len(second.cohorts) == COURSE.steps - 10
    repeated = [
        np.array_equal(a, b) for a, b in zip(first.cohorts[10:], second.cohorts, strict=False)
    ]
    assert repeated and not any(repeated)
    assert np.array_equal(second.seen[:10], first.seen[:10])


def test_a_checkpoint_holds_nothing_of_labels_but_what_was_noised():
    finished(14)
    with np.load("checkpoint.npz") as file:
        assert set(file.files) == {"seen", "steps taken", "seal"}
    assert [path.name for path in Path().iterdir()] == ["checkpoint.npz"]


def test_a_damaged_checkpoint_is_named():
    finished(14)
    path = Path("checkpoint.npz")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ProjectError, match="begins the run anew"):
        finished()


def test_a_checkpoint_with_another_seal_is_not_gone_on_from():
    finished(14)
    with pytest.raises(ProjectError, match="of another run"):
        Checkpoints(Path(), 5, lambda data: bytes(32)).restore(Noting())
    assert Checkpoints(Path(), 5, seal).restore(Noting()) == 20


def test_progress_tells_no_step_by_itself():
    told: list[float] = []
    long = NoisyRun(COIN_RANGE // 4, 400, 1.0, 0.5, 40)
    problem = Noting()
    train(problem, np.zeros(0), long, Checkpoints(Path(), 400, seal), told.append)
    assert len(told) == 20 and told[-1] == 1.0


def test_a_sum_is_divided_by_a_public_number():
    priced = {"sampling_probability": 0.2, "steps": 9, "noise_multiplier": 2.0}
    course = NoisyRun.from_price(priced, 0.5, 50)
    assert course.divisor == pytest.approx(10)
    assert course.probability <= 0.2
    assert course.deviation >= 1.0


# Who is in a step: frequencies, independence, and the secret behind it.

UNITS, STEPS = 400, 500
# How often a test of frequencies may fail.
FAILURE = 1e-6


def secret(step):
    return step.to_bytes(32, "big")


def draw_cohorts(probability):
    """Who was in which step, (steps, units)."""
    found = np.zeros((STEPS, UNITS), bool)
    for step in range(STEPS):
        found[step, cohort(secret(step), threshold(probability), UNITS)] = True
    return found


def in_range(count, trials, probability):
    low, high = binom.ppf([FAILURE / 2, 1 - FAILURE / 2], trials, probability)
    return bool(low <= count <= high)


@pytest.mark.parametrize("probability", [0.02, 0.2, 0.5, 0.97])
def test_everybody_is_in_a_step_with_that_probability(probability):
    found = draw_cohorts(probability)
    assert in_range(int(found.sum()), found.size, probability)
    assert all(in_range(int(n), STEPS, probability) for n in found.sum(axis=0))
    # The control: frequencies a fifth off are seen.
    assert not in_range(int(found.sum()), found.size, probability * 0.8)


def test_coins_of_two_labelers_and_of_two_steps_are_independent():
    found = draw_cohorts(0.3)
    both = (found[:, ::2] & found[:, 1::2]).sum()
    assert in_range(int(both), found.size // 2, 0.09)
    after = (found[:-1] & found[1:]).sum()
    assert in_range(int(after), found[1:].size, 0.09)


def test_the_size_of_a_cohort_is_random_as_that_of_poisson_sampling_is():
    """A shuffled order, or a cohort of a fixed size, has no such variance, and another price."""
    sizes = draw_cohorts(0.2).sum(axis=1)
    assert 0.75 < sizes.var() / (UNITS * 0.2 * 0.8) < 1.3  # chi² of 499: fails once in 10^5


def test_a_cohort_is_that_of_its_secret():
    at = threshold(0.3)
    one, other = cohort(secret(1), at, UNITS), cohort(secret(2), at, UNITS)
    assert np.array_equal(one, cohort(secret(1), at, UNITS))
    assert not np.array_equal(one, other)
    assert (np.diff(one) > 0).all()


def test_more_is_never_sampled_than_is_paid_for():
    for probability in (1e-6, 0.1, 1 / 3, 0.2, 1.0):
        assert 0 < threshold(probability) <= probability * COIN_RANGE
    assert len(cohort(secret(0), threshold(1.0), UNITS)) == UNITS
