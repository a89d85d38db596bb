"""The difference of two heads by an evaluation: unbiased, and its standard error is large enough.

Labels are simulated, the statistic is drawn by the code of a release. A coverage is that of 95%
intervals over DRAWS draws; SLACK is five standard errors of it, so that a test fails falsely less
than once in 10^6, and a standard error that is a fifth too small fails.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri

from labelguard.keys import keyring
from labelguard.mechanisms import statistic
from labelguard.mechanisms.geometry import Basis, Shape
from labelguard.mechanisms.noise import NONCE_BYTES, Noise, ReleasedNoise
from labelguard.mechanisms.statistic import Bounds, Rows
from labelguard.release.evaluation import Evaluation
from labelguard.release.head import Coordinates, Head, Window
from labelguard.text import LABEL_A

DRAWS, QUANTILE, NOMINAL = 3000, 1.959964, 0.95
SLACK = 5 * np.sqrt(NOMINAL * (1 - NOMINAL) / DRAWS)
D = 3
COORDINATES = Coordinates("length", "length", {}, Shape(D), Basis(np.eye(D), np.ones(D)))

Floats = NDArray[np.float64]
Labels = NDArray[np.uint8]


def head(*coefficients):
    return Head(**vars(COORDINATES), coefficients=np.array(coefficients))


NEW, OLD = head(0.9, -0.4, 0.2), head(0.1, 0.3, 0.0)
STEP = NEW.coefficients - OLD.coefficients
BALL = ReleasedNoise("ball", 300.0)


@dataclass(frozen=True)
class World:
    """Public pairs of 40 labelers, ten each, and how they are labeled."""

    z: NDArray[np.float32]
    rows: Rows
    draw: Callable[[np.random.Generator], Labels]
    mean: Floats
    """probability of the first side, a row"""

    def bounds(self):
        """Nobody is clipped, so that nothing is biased."""
        return Bounds(1e4, np.ones(self.rows.units), 1e4)

    def evaluation(self, rng, noise):
        """What would be released; `noise` is its standard deviation."""
        bounds = self.bounds()
        grid = statistic.Grid(2.0**-20, round(noise * 2**20), "gaussian", D)
        total = statistic.clip_and_sum_labels(self.z, self.rows, self.draw(rng), bounds, grid.step)
        noisy = statistic.add_noise(total, grid, keyring.random_bytes(NONCE_BYTES)) * grid.step
        weight = statistic.sum_pair_weights(self.rows, bounds, len(self.z))
        bound = statistic.bound_sampling_covariance(self.z, self.rows, bounds)
        window = Window(noisy, noise, self.z, weight, bounds.clip, bounds.sensitivity, None, bound)
        return Evaluation.of_windows(COORDINATES, [window])

    def truth(self):
        """The expected difference per label."""
        likelihood = [self._likelihood(one.coefficients) for one in (NEW, OLD)]
        return (likelihood[0] - likelihood[1]) / len(self.rows)

    def _likelihood(self, theta):
        margin = self.z[self.rows.pair].astype(np.float64) @ theta
        return float(((self.mean - 0.5) * margin - np.log(2 * np.cosh(margin / 2))).sum())


def _public(rng):
    z = rng.normal(size=(150, D)).astype(np.float32)
    pair = np.concatenate([rng.choice(len(z), 10, replace=False) for _ in range(40)])
    return z, Rows(pair, np.repeat(np.arange(40), 10), 40)


def independent():
    """Every label is a coin of its own."""
    z, rows = _public(np.random.default_rng(0))
    mean = 1 / (1 + np.exp(-z[rows.pair] @ np.array([1.0, -0.5, 0.0])))
    return World(z, rows, lambda rng: (rng.random(len(rows)) < mean).astype(np.uint8), mean)


def tastes():
    """Labelers differ in what they like, so that the labels of one hang together; some tie."""
    z, rows = _public(np.random.default_rng(0))
    margin = z[rows.pair]

    def draw(rng):
        taste = rng.normal(size=(rows.units, D)) * 3
        sure = 1 / (1 + np.exp(-np.einsum("ij,ij->i", margin, taste[rows.unit])))
        labels = (rng.random(len(rows)) < sure).astype(np.uint8)
        return np.where(rng.random(len(rows)) < 0.1, 2, labels).astype(np.uint8)

    return World(z, rows, draw, np.full(len(rows), 0.5))


def worst():
    """A labeler says with one voice what the new head would, or always the reverse."""
    z, rows = _public(np.random.default_rng(0))
    along = z.astype(np.float64) @ STEP
    z = (np.sign(along)[:, None] * STEP / (STEP @ STEP)).astype(np.float32)  # all of one length
    own = np.sign(along[rows.pair]) > 0

    def draw(rng):
        voice = rng.random(rows.units) < 0.5
        return (own == voice[rows.unit]).astype(np.uint8)

    return World(z, rows, draw, np.full(len(rows), 0.5))


def judge(world, noise, claimed=1.0):
    """Differences from many draws, and their standard errors as if the noise were `claimed` of
    what it is.
    """
    rng = np.random.default_rng(1)
    found = []
    for _ in range(DRAWS):
        evaluation = world.evaluation(rng, noise)
        found.append(
            replace(evaluation, noises=(ReleasedNoise("gaussian", claimed * noise),)).difference(
                NEW, OLD
            )
        )
    values, errors = np.array(found).T
    return values, errors


def coverage(values, errors, truth):
    return float((np.abs(values - truth) <= QUANTILE * errors).mean())


@pytest.mark.quick("own")
@pytest.mark.parametrize("world", [independent(), tastes(), worst()], ids=["own", "taste", "worst"])
def test_the_difference_is_unbiased_and_covered(world):
    values, errors = judge(world, noise=6.0)
    truth = world.truth()
    assert abs(values.mean() - truth) < 5 * values.std() / np.sqrt(DRAWS)
    assert coverage(values, errors, truth) > NOMINAL - SLACK
    assert (errors == errors[0]).all()  # no label moves it


@pytest.mark.slow
def test_the_worst_labelers_reach_the_bound_so_that_less_would_not_do():
    """Without noise: the clustered bound is the true standard error."""
    world = worst()
    values, errors = judge(world, noise=1e-3)
    assert values.std() == pytest.approx(errors[0], rel=0.08)
    assert coverage(values, 0.8 * errors, world.truth()) < NOMINAL - SLACK


@pytest.mark.quick("0.7")
@pytest.mark.parametrize("claimed", [0.7, 0.85])
def test_claiming_too_little_noise_is_found_out(claimed):
    world = independent()
    values, errors = judge(world, noise=200.0, claimed=claimed)
    assert coverage(values, errors, world.truth()) < NOMINAL - SLACK


@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_what_a_gate_subtracts_is_exceeded_as_often_as_it_says(confidence):
    """Ball noise, far above what labels scatter by; five standard errors of 200,000 draws. A normal
    quantile, the negative control, is exceeded 1.5 times as often at .99.
    """
    made = replace(worst().evaluation(np.random.default_rng(0), 1.0), noises=(BALL,))
    drawn = BALL.draws(D, np.random.default_rng(1), 200_000) @ STEP / made.label_weight
    allowed = 5 * np.sqrt(confidence * (1 - confidence) / len(drawn))
    reach, error = made.compute_error_margin(NEW, OLD, confidence), made.difference(NEW, OLD)[1]
    assert abs((drawn > reach).mean() - (1 - confidence)) < allowed
    normal = (drawn > ndtri(confidence) * error).mean()
    assert confidence < 0.99 or normal > 1.3 * (1 - confidence) + allowed


def test_the_bound_is_that_of_its_definition():
    """Σ_u (m_u/4) Σ_j w² z zᵀ, and above the clustered variance in every direction."""
    z, rows = _public(np.random.default_rng(3))
    bounds = statistic.compute_bounds(z, rows, 0.5)
    found = statistic.bound_sampling_covariance(z, rows, bounds)
    own = z[rows.pair].astype(np.float64)
    weight = bounds.weight[rows.unit]
    expected = np.einsum("n,ni,nj->ij", 10 / 4 * weight**2, own, own)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    for d in np.random.default_rng(4).normal(size=(20, D)):
        spread = np.bincount(rows.unit, weight * np.abs(own @ d)) / 2
        assert (spread**2).sum() <= d @ found @ d


def _agreeing(bounds):
    """Labelers of one mind, 5 to 80 labels each: the head that they go by, less a timid one.

    Estimates of many draws, their standard error, and the truth under the same weights.
    """
    rng = np.random.default_rng(6)
    z = rng.normal(size=(200, D)).astype(np.float32)
    counts = rng.integers(5, 80, 60)
    rows = Rows(rng.integers(0, 200, counts.sum()), np.repeat(np.arange(60), counts), 60)
    right, timid = head(1.5, -0.8, 0.4), head(0.3, -0.16, 0.08)
    mean = 1 / (1 + np.exp(-z[rows.pair].astype(np.float64) @ right.coefficients))
    found = bounds(z, rows)
    grid = statistic.choose_grid(found, D, Noise("gaussian", 0.5))
    weight = statistic.sum_pair_weights(rows, found, len(z))
    bound, estimates, error = statistic.bound_sampling_covariance(z, rows, found), [], 0.0
    for _ in range(300):
        labels = np.where(rng.random(len(rows)) < mean, LABEL_A, 1 - LABEL_A).astype(np.uint8)
        total = statistic.clip_and_sum_labels(z, rows, labels, found, grid.step)
        noisy = statistic.add_noise(total, grid, keyring.random_bytes(NONCE_BYTES)) * grid.step
        noise = grid.scale * grid.step
        window = Window(noisy, noise, z, weight, found.clip, found.sensitivity, None, bound)
        estimate, error = Evaluation.of_windows(COORDINATES, [window]).difference(right, timid)
        estimates.append(estimate)
    own = found.weight[rows.unit] / found.weight[rows.unit].sum()
    truth = 0.0
    for one, sign in ((right, 1), (timid, -1)):
        margin = z[rows.pair].astype(np.float64) @ one.coefficients
        truth += sign * float(own @ ((mean - 0.5) * margin - np.logaddexp(margin / 2, -margin / 2)))
    return np.array(estimates), error, truth


def test_a_head_that_is_rightly_sure_is_not_taken_for_worse_than_a_timid_one():
    estimates, error, truth = _agreeing(statistic.compute_unclipped_bounds)
    assert truth > 0.03
    assert abs(estimates.mean() - truth) < 5 * estimates.std() / np.sqrt(len(estimates))
    assert coverage(estimates, np.full(300, error), truth) > NOMINAL - 5 * np.sqrt(0.05 / 300)


def test_clipping_those_who_agree_would_take_it_for_worse():
    """The bounds of a teacher, which may be biased: the timid head wins, surely and wrongly."""
    estimates, error, truth = _agreeing(lambda z, rows: statistic.compute_bounds(z, rows, 0.5))
    assert truth > 0.03 and (estimates < truth - 1.96 * error).all()


def test_no_labels_at_all_are_clipped():
    """Not even those that lie along the direction in which a labeler's pairs lie most."""
    rng = np.random.default_rng(8)
    z = (rng.normal(size=(80, D)) * [3, 1, 0.2]).astype(np.float32)
    rows = Rows(rng.integers(0, 80, 900), rng.integers(0, 30, 900), 30)
    found = statistic.compute_unclipped_bounds(z, rows)
    for half in (np.sign(z[rows.pair] @ rng.normal(size=D)) / 2 for _ in range(50)):
        for units, part in statistic.sum_by_labeler(z, rows, half):
            norm = np.linalg.norm(part * found.weight[units, None], axis=1)
            assert (norm <= found.clip).all()
    assert found.sensitivity == 2 * found.clip
