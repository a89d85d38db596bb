"""The scale that makes a head's probabilities mean what they say: public, and worth having."""

from dataclasses import replace

import numpy as np
import pytest
from support import asked as asking

from labelguard.accounting import gaussian
from labelguard.learning.heads import fit_statistic
from labelguard.mechanisms import statistic
from labelguard.mechanisms.geometry import Basis, Shape, choose_basis, compute_spectrum
from labelguard.mechanisms.statistic import Bounds, Rows
from labelguard.planner import calibration
from labelguard.planner.calibration import calibrate_head
from labelguard.planner.prior import Population, Prior
from labelguard.text import LABEL_A, LABEL_B, LABEL_TIE

PAIRS = 300
PRIOR = Prior(0.73, explained=(0.7, 0.7), tie_rate=(0.15, 0.15))
WORLDS = 12  # a quarter of what a release takes


def asked(labelers=60, each=40):
    """Every labeler labels as many pairs."""
    return asking.asked(labelers, each, PAIRS, seed=1)


class Release:
    """A release of six components with Gaussian noise of 2 sensitivities."""

    def __init__(self, rows, shape=None, d=12):
        self.x, self.rows = asking.features(PAIRS, d, least=0.3), rows
        self.shape = shape or Shape(components=6)
        counts = np.bincount(rows.pair, minlength=PAIRS)
        self.basis: Basis = choose_basis(compute_spectrum(self.x, counts), self.shape)
        self.z = self.basis.coordinates(self.x)
        self.bounds: Bounds = statistic.compute_bounds(self.z, rows, self.shape.clip_quantile)
        self.noise = 2 * self.bounds.sensitivity

    def calibrated(self, noise=None, **options):
        noise = self.noise if noise is None else noise
        options = {"worlds": WORLDS, "prior": PRIOR} | options
        return calibrate_head(
            self.x, self.rows, self.basis, self.shape, self.bounds, noise, **options
        )

    def margins(self, draw, rng):
        """What a head of one world's labels says, by the mechanism's own code."""
        labels = np.where(draw.half == 0, LABEL_TIE, np.where(draw.half > 0, LABEL_A, LABEL_B))
        step = self.bounds.clip * 1e-6
        total = statistic.clip_and_sum_labels(self.z, self.rows, labels, self.bounds, step) * step
        total = total + self.noise * rng.standard_normal(len(total))
        weight = statistic.sum_pair_weights(self.rows, self.bounds, PAIRS)
        penalty = self.shape.ridge * self.basis.metric**2
        ridge = statistic.compute_noise_aware_ridge(self.z, weight, penalty, self.noise)
        return self.z @ fit_statistic(self.z, weight, total, ridge)


def worlds(release, seed, number=6, prior=PRIOR):
    """Margins, and E[label − ½] and P(no tie) of fresh labelers, in worlds of another seed."""
    axes = compute_spectrum(release.x)
    z = release.x @ axes.axes.astype(np.float32)
    rng = np.random.default_rng(seed)
    draws = Population(z, axes.values, release.rows, replace(prior, seed=seed)).draws(number)
    return [(release.margins(draw, rng), draw.gain, draw.strict) for draw in draws]


def calibration_error(scale, found):
    """Mean gap between a probability and what it is about, in ten bins, of exact chances."""
    margin, gain, strict = (np.concatenate(part) for part in zip(*found, strict=True))
    order = np.argsort(margin)
    said = 1 / (1 + np.exp(-scale * margin))
    gaps = [abs(((said - 0.5) * strict - gain)[part].sum()) for part in np.array_split(order, 10)]
    return float(np.sum(gaps) / strict.sum())


def test_probabilities_of_a_scaled_head_mean_what_they_say():
    release = Release(asked())
    scale = release.calibrated()
    found = worlds(release, seed=7)
    raw, scaled = calibration_error(1.0, found), calibration_error(scale, found)
    assert raw > 0.06  # the negative control: as it is fitted a head is too timid
    assert scaled < raw / 2
    assert scale > 1.3


def test_ball_noise_of_the_same_deviation_needs_about_the_same_scale():
    release = Release(asked())
    one, other = (release.calibrated(kind=kind) for kind in ("gaussian", "ball"))
    assert one == pytest.approx(other, abs=0.35)
    assert one != other


def test_the_order_of_rows_changes_nothing():
    release = Release(asked())
    rows, other = release.rows, np.random.default_rng(3).permutation(len(release.rows))
    shuffled = replace(rows, pair=rows.pair[other], unit=rows.unit[other])
    plain, release.rows = release.calibrated(), shuffled
    assert release.calibrated() == plain
    assert release.calibrated() != release.calibrated(prior=replace(PRIOR, seed=1))


def test_a_scale_neither_turns_a_head_round_nor_explodes():
    release = Release(asked())
    loud = release.calibrated(noise=300 * release.noise)
    assert calibration.SMALLEST <= loud <= calibration.LARGEST
    margin, gain, strict = np.ones(4), np.full(4, 0.2), np.ones(4)
    assert calibration.find_best_scale(margin, -gain, strict) == calibration.SMALLEST
    assert calibration.find_best_scale(margin, gain, 0.4 * strict) == calibration.LARGEST
    # At σ(c) = .7: log(.7/.3).
    assert calibration.find_best_scale(margin, gain, strict) == pytest.approx(
        np.log(7 / 3), abs=1e-3
    )


def few(epsilon):
    """50 labelers, 16 components, and the Gaussian noise of (ε, 1e-5)."""
    release = Release(asked(labelers=50), Shape(components=16), d=32)
    release.noise = gaussian.calibrate(epsilon, 1e-5) * release.bounds.sensitivity
    return release


@pytest.mark.quick("gaussian")
@pytest.mark.parametrize("kind", ["gaussian", "ball"])
def test_noise_makes_heads_too_bold_where_labelers_are_few(kind):
    """The less labelers agree and the smaller ε is, the more of a margin is noise."""
    priors = [replace(PRIOR, agreement=one) for one in (0.55, 0.65, 0.8)]
    by_epsilon = [
        [few(epsilon).calibrated(kind=kind, prior=prior, worlds=15) for prior in priors]
        for epsilon in (0.5, 1.0)
    ]
    smaller, larger = map(np.array, by_epsilon)
    assert (np.diff([smaller, larger]) > 0.1).all()
    assert (larger > smaller + 0.08).all()
    assert larger[0] < 0.6 and smaller[0] < 0.35


def test_a_scale_of_at_least_one_would_leave_bold_heads_bold():
    """Sure of .70 where .55 are right, in worlds of another seed: what a bound of 1 did."""
    prior = replace(PRIOR, agreement=0.6)
    release = few(0.5)
    scale = release.calibrated(prior=prior)
    found = worlds(release, seed=7, prior=prior)
    bound, scaled = calibration_error(1.0, found), calibration_error(scale, found)
    assert scale < 0.5
    assert bound > 0.08
    assert scaled < bound / 2


def test_a_window_that_stands_for_two_is_like_twice_the_labelers():
    rows = asked()
    twice = Rows(np.tile(rows.pair, 2), np.concatenate([rows.unit, rows.unit + 60]), 120)
    one, both = Release(rows), Release(twice)
    stands = one.calibrated(noise=both.noise, windows=2.0, worlds=24)
    assert stands == pytest.approx(both.calibrated(worlds=24), abs=0.15)
    assert abs(one.calibrated(noise=both.noise * 2, worlds=24) - stands) > 0.15


def test_some_of_many_labelers_stand_for_all(monkeypatch):
    release = Release(asked(labelers=240))
    whole = release.calibrated(worlds=30)
    monkeypatch.setattr(calibration, "_MOST_ROWS", 3000)
    assert release.calibrated(worlds=30) == pytest.approx(whole, abs=0.2)


def test_choices_of_two_are_comparisons():
    release = Release(asked())
    plain, rows = release.calibrated(), release.rows
    release.rows = replace(rows, size=np.full(len(rows), 2), choices=True)
    assert release.calibrated() == plain


def test_a_head_of_choices_is_scaled_by_its_pairs():
    sets, size, rng = 600, 4, np.random.default_rng(5)
    phi = rng.standard_normal((sets, size, 3))
    utility = 1.2 * phi[..., 0] + rng.standard_normal((sets, size))
    best = (utility + rng.gumbel(size=(sets, size))).argmax(axis=1)[:, None]
    one, other = np.triu_indices(size, 1)
    x = (phi[:, one] - phi[:, other]).reshape(-1, 3).astype(np.float32)
    unit = np.arange(sets) // 10
    rows = Rows(np.arange(len(x)), np.repeat(unit, len(one)), 60, None, np.full(len(x), size), True)
    shape = Shape(components=3)
    axes = choose_basis(compute_spectrum(x), shape)
    z = axes.coordinates(x)
    bounds = statistic.compute_bounds(z, rows, shape.clip_quantile)
    labels = np.where(best == one, LABEL_A, np.where(best == other, LABEL_B, LABEL_TIE))
    step = 1e-9
    total = step * statistic.clip_and_sum_labels(z, rows, labels.reshape(-1), bounds, step)
    weight = statistic.sum_pair_weights(rows, bounds, len(z))
    theta = fit_statistic(z, weight, total, shape.ridge * axes.metric**2)
    gap = (utility[:, one] - utility[:, other]).reshape(-1)
    margin, right = z @ theta, 1 / (1 + np.exp(-gap))
    found = [(margin, right - 0.5, np.ones(len(margin)))]
    scale = calibrate_head(x, rows, axes, shape, bounds, 0.0, prior=PRIOR, worlds=WORLDS)
    assert calibration_error(scale, found) < 0.7 * calibration_error(1.0, found)
