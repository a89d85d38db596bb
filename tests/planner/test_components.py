"""The number of components, in closed form: what it weighs, and that simulations agree."""

import math

import numpy as np
import pytest
from support import asked as asking
from support.asked import asked

from labelguard.accounting import ball, gaussian
from labelguard.mechanisms.geometry import Shape
from labelguard.mechanisms.noise import Noise
from labelguard.mechanisms.statistic import Rows
from labelguard.planner.components import COUNTS, Directions, make_noise_chooser
from labelguard.planner.prior import Prior
from labelguard.planner.trials import Worlds

DELTA = 1e-5


def features(pairs, d=40):
    """Pairs of mean square norm 1."""
    x = asking.features(pairs, d).astype(np.float64)
    return (x / math.sqrt(float((x**2).sum(axis=1).mean()))).astype(np.float32)


def test_gains_are_those_of_the_formula():
    """Written anew, labeler by labeler, from the formula alone."""
    x, noise = features(60, 7), Noise("gaussian", 3.7)
    rng = np.random.default_rng(1)
    rows = Rows(rng.integers(60, size=300), rng.choice(9, 300, p=np.arange(1, 10) / 45), 9)
    values, axes = np.linalg.eigh(sum(np.outer(x[p], x[p]) for p in rows.pair) / 4)
    values, axes = values[::-1], axes[:, ::-1]
    z = x @ axes
    metric = (values[:4] / values[0] + 1e-3) ** -0.5
    norms = [
        0.5 * math.sqrt(sum(np.sum((z[p, :4] * metric) ** 2) for p in rows.pair[rows.unit == u]))
        for u in range(9)
    ]
    clip = float(np.median(norms))
    weight = [min(1.0, clip / norm) for norm in norms]
    labelers = sum(w * b**2 for w, b in zip(weight, norms, strict=True)) / clip**2
    h = sum(weight[u] * z[p] ** 2 / 4 for u, p in zip(rows.unit.tolist(), rows.pair, strict=True))
    square = np.mean(np.sum(x[rows.pair] ** 2, axis=1))
    ridge = float(f"{square:.2g}")
    assert Directions.of_features(x, rows).ridge == ridge
    found = Directions.of_features(x, rows).gains(lambda _: noise)
    assert list(found) == [2, 3, 4, 5, 6, 7]
    # Few features explain .3 of what two labelers who agree in 72.5 of 100 answers share.
    share = 0.3 * math.sin(0.225 * math.pi)
    prior = np.sqrt(values) * values.sum() / (values**1.5).sum()
    prior *= math.pi**2 / 3 * share / (1 - share) / square
    for k, gain in found.items():
        e, r = (prior * h)[:k], 4 * k * noise.scale**2 / labelers
        assert gain == pytest.approx(sum(e**2 / (e + 1 + r)), rel=1e-4)


def test_less_noise_never_asks_for_fewer_components():
    found = Directions.of_features(features(600), asked(50, 20, 600))
    chosen = [
        found.best_component_count(make_noise_chooser(epsilon, DELTA))
        for epsilon in (0.1, 0.5, 1, 3, 8, 30)
    ]
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[-1]


@pytest.mark.quick("0.5-20", "3.0-20")
@pytest.mark.parametrize("labelers", [20, 50, 200, 2000])
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
def test_simulated_worlds_have_no_much_better_number(labelers, epsilon):
    """Of what is learnt at best, .5 to the accuracy of the best number, a tenth at most is lost."""
    x, rows = features(500), asked(labelers, 20, 500)
    worlds, noises = Worlds.of(x, rows, Prior(), 12), make_noise_chooser(epsilon, DELTA)
    right = {
        count: worlds.accuracies(
            lambda trial, count=count: trial.statistic_head(Shape(count), noises(count))
        ).mean()
        for count in sorted({min(count, 40) for count in COUNTS})
    }
    own = right[Directions.of_features(x, rows).best_component_count(noises)]
    assert own - 0.5 > 0.9 * (max(right.values()) - 0.5)
    # The comparison can fail: the worst number loses more.
    assert min(right.values()) - 0.5 < 0.9 * (max(right.values()) - 0.5)


def test_ball_noise_is_taken_where_it_is_smaller_and_for_one_release_only():
    for epsilon in (0.5, 1.0, 3.0):
        once, often = make_noise_chooser(epsilon, DELTA), make_noise_chooser(epsilon, DELTA, 12)
        sigma = gaussian.calibrate(epsilon, DELTA)
        for count in (1, 2, 4, 8, 16, 32, 64):
            spread = ball.calibrate(epsilon, DELTA, count) * math.sqrt(count + 1)
            assert once(count).deviation(count) == min(spread, sigma)
            assert (once(count).kind == "ball") == (spread < sigma)
            assert often(count) == Noise("gaussian", gaussian.calibrate(epsilon, DELTA, 12))


def test_the_order_of_rows_and_of_pairs_is_of_no_consequence():
    x, rows = features(300, 12), asked(40, 10, 300)
    order = np.random.default_rng(2).permutation(len(rows))
    shuffled = Rows(rows.pair[order], rows.unit[order], rows.units)
    one, other = (Directions.of_features(x, each) for each in (rows, shuffled))
    np.testing.assert_allclose(one.expected, other.expected, rtol=1e-9)
    assert one.labelers == pytest.approx(other.labelers, rel=1e-12)


def test_the_scale_of_noise_and_not_its_shape_decides_under_a_policy():
    found = Directions.of_features(features(600), asked(50, 20, 600))
    least = make_noise_chooser(1, DELTA)(4)
    assert least.kind == "ball"
    assert found.best_component_count(lambda _: least) >= 4  # fewer would have the noise of four


def test_rankings_and_choices_are_weighed_as_a_release_weighs_them():
    x, rows = features(120, 6), asked(30, 12, 120)
    size = np.full(len(rows), 4)
    ranking = np.arange(len(rows)) // 6
    ranked = Rows(rows.pair, rows.unit, rows.units, ranking, size)
    chosen = Rows(rows.pair, rows.unit, rows.units, None, size, choices=True)
    plain, of_rankings, of_choices = (
        Directions.of_features(x, each) for each in (rows, ranked, chosen)
    )
    assert np.all(of_rankings.expected < plain.expected)  # pairs of a ranking weigh a third
    assert np.all(of_choices.expected < of_rankings.expected)  # half of them says something
