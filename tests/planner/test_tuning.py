"""What tuning chooses and forecasts, from public pairs and simulated labels only."""

import math
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelguard_trainer.gradient import loop
from labelguard_trainer.gradient.heads import (
    ComparisonRecords,
    HeadProblem,
    choose_clip_norm,
    rates,
)
from labelguard_trainer.gradient.loop import Checkpoints, NoisyRun
from support.asked import asked, features, heavy_tailed
from support.flips import coin, every_answer

from labelguard.accounting import ball, gaussian, subsampled
from labelguard.accounting.blocks import find_block
from labelguard.errors import InvalidLabels, PolicyError
from labelguard.keys import keyring
from labelguard.learning import heads
from labelguard.mechanisms.geometry import Shape, choose_basis, compute_spectrum
from labelguard.mechanisms.noise import Noise
from labelguard.mechanisms.statistic import Rows
from labelguard.planner import components, outcomes, trials, tuning
from labelguard.planner.components import COUNTS, Directions, make_noise_chooser
from labelguard.planner.flips import Flips, TriedBound
from labelguard.planner.outcomes import INDISTINCT, Forecast, Interval
from labelguard.planner.prior import Population, Prior, guess_explained_share
from labelguard.planner.trials import FlippedLabels, Worlds, derive_public_side

DELTA = 1e-5


def agreement(prior):
    """Measured agreement of two labelers on strict labels, and the share of ties."""
    pairs = 3000
    x = features(pairs)
    rows = Rows(np.tile(np.arange(pairs), 2), np.arange(2 * pairs), 2 * pairs)
    public = trials.derive_public_side(x, Rows(rows.pair[:pairs], rows.unit[:pairs], pairs))
    agree, ties = [], []
    for draw in Population(public.z, public.values, rows, prior).draws(6):
        product = np.prod(draw.half.reshape(2, pairs), axis=0)
        agree.append(float((product[product != 0] > 0).mean()))
        ties.append(float((draw.half == 0).mean()))
    return float(np.mean(agree)), float(np.mean(ties))


@pytest.mark.parametrize(("wanted", "tie_rate"), [(0.6, 0.0), (0.73, 0.15), (0.85, 0.3)])
def test_simulated_labelers_agree_and_tie_as_often_as_asked(wanted, tie_rate):
    # At least 8,000 strict meetings (standard error at most .0055) and calibration by 20,000
    # meetings a world (.0015): six standard errors are .035; false failures below 1e-8.
    found, ties = agreement(Prior(wanted, tie_rate=(tie_rate, tie_rate)))
    assert found == pytest.approx(wanted, abs=0.035)
    # 36,000 labels, standard error .0025, and of the calibration .0012.
    assert ties == pytest.approx(tie_rate, abs=0.018)


def test_the_test_of_agreement_tells_another_agreement_apart():
    found, ties = agreement(Prior(0.8, tie_rate=(0.2, 0.2)))
    assert abs(found - 0.73) > 0.035
    assert abs(ties - 0.15) > 0.018


def test_what_nobody_knows_is_spread_over_the_worlds():
    unknown = [Prior().describe_world(world, (0.1, 0.5)) for world in range(18)]
    agreement, explained, ties = np.array(unknown).T
    for values, low, high in ((agreement, 0.6, 0.85), (explained, 0.1, 0.5), (ties, 0.05, 0.35)):
        assert low <= values.min() < low + 0.3 * (high - low)
        assert high - 0.3 * (high - low) < values.max() <= high
        assert values.mean() == pytest.approx((low + high) / 2, abs=0.06 * (high - low))
    known = [Prior(0.7).describe_world(world, (0.1, 0.5)) for world in range(18)]
    assert {one[0] for one in known} == {0.7}
    assert [one[1:] for one in known] == [one[1:] for one in unknown]


def test_few_features_and_those_that_most_pairs_share_explain_less():
    z = features(300, 100)
    many = guess_explained_share(z)
    assert (
        guess_explained_share(z[:, :20])
        == guess_explained_share(np.repeat(z[:100], 3, axis=0))
        < many
    )


def test_an_unknown_agreement_widens_a_forecast():
    x, rows = features(400, 20), asked(200, 20, 400)
    known, unknown = (
        tuning.forecast(x, rows, [3.0], DELTA, prior, growth=False)[1].accuracy
        for prior in (Prior(0.725), Prior())
    )
    assert unknown.high - unknown.low > known.high - known.low
    assert unknown.mean == pytest.approx(known.mean, abs=0.02)


def test_without_noise_a_statistic_is_as_good_as_raw_labels():
    plain, statistic, *_ = tuning.forecast(
        features(600), asked(100, 20, 600), [500.0], DELTA, growth=False
    )
    assert (plain.mechanism, statistic.mechanism) == ("non-private", "statistic")
    assert statistic.accuracy.mean == pytest.approx(plain.accuracy.mean, abs=0.005)


@pytest.fixture(scope="module")
def forecasts():
    """Forecasts at two budgets, with growth."""
    return tuning.forecast(features(600), asked(80, 25, 600), [1.0, 8.0], DELTA)


def test_a_forecast_names_every_mechanism_and_its_public_parameters(forecasts):
    assert [(f.mechanism, f.epsilon) for f in forecasts] == [
        ("non-private", None),
        *((m, e) for e in (1.0, 8.0) for m in ("statistic", "rr", "rr", "rr", "props", "uls")),
    ]
    for f in forecasts:
        assert (f.shape is not None) == (f.mechanism in ("statistic", "uls"))
        assert (f.flip_probability is not None) == (f.mechanism in ("rr", "props"))
        for interval in (f.accuracy, f.label_error):
            assert 0 <= interval.low <= interval.mean <= interval.high <= 1


def test_a_larger_budget_and_more_labelers_promise_more(forecasts):
    plain = forecasts[0].accuracy.mean
    for mechanism in tuning.MECHANISMS:
        tight, loose = (
            [f for f in forecasts if (f.mechanism, f.epsilon) == (mechanism, epsilon)][-1]
            for epsilon in (1.0, 8.0)
        )
        assert tight.accuracy.mean < loose.accuracy.mean <= plain
        assert tight.twice_labelers is not None
        assert tight.twice_labelers > tight.accuracy.mean


def test_a_sample_of_labelers_forecasts_like_all_of_them(monkeypatch):
    """Noise is scaled with the sample: as many labelers by themselves are forecast worse."""
    x, rows = features(500), asked(900, 5, 500)

    def accuracy(rows):
        found = tuning.forecast(x, rows, [0.5], DELTA, bounds=(1,), growth=False)
        return found[1].accuracy.mean

    everyone, alone = accuracy(rows), accuracy(asked(300, 5, 500))
    monkeypatch.setattr(trials, "_MOST_UNITS", 300)
    assert abs(accuracy(rows) - everyone) < (everyone - alone) / 2


def test_linear_heads_of_trials_decide_like_fitted_heads():
    x, rows = features(400, 20), asked(200, 10, 400)
    public = trials.derive_public_side(x, rows)
    size, ridge = public.sizes[-1], public.ridges[2]
    place = len(public.sizes) * len(public.ridges) - len(public.ridges) + 2
    population = Population(public.z, public.values, public.rows, Prior())
    for trial, draw in zip(public.trials(Prior(), 3), population.draws(3), strict=True):
        z = public.z[:, :size]
        seen = z[public.rows.pair]
        fitted = heads.fit_statistic(seen, 1.0, heads.label_statistic(seen, draw.half + 0.5), ridge)
        linear = trial.plain_heads().mean[place, :size]
        assert np.mean((z @ fitted > 0) == (z @ linear > 0)) > 0.97


def test_scores_are_those_of_realised_noise():
    x, rows = features(300, 10), asked(60, 10, 300)
    public = trials.derive_public_side(x, rows)
    [trial] = public.trials(Prior(), 1)
    one = trial.statistic_head(Shape(10), Noise("gaussian", 3.7))
    noise = np.random.default_rng(0).standard_normal((20_000, one.mean.shape[1]))
    drawn = trials.Heads(one.mean + np.sqrt(one.variance) * noise, np.zeros_like(noise))
    # Accuracies lie within [0, 1]: the standard error of 20,000 is at most .0036 (five: .018).
    compute = trial.compute_accuracy_and_error
    for expected, realised in zip(compute(one), compute(drawn), strict=True):
        assert expected[0] == pytest.approx(realised.mean(), abs=0.018)


def test_few_labels_answered_more_truly_teach_more_where_labelers_are_many():
    worlds = trials.Worlds.of(features(400), asked(1500, 20, 400), Prior(), 3)

    def accuracy(epsilon, bound):
        return TriedBound.of(
            worlds,
            Flips.of(worlds.public.counts, worlds.public.sampled_counts, epsilon, DELTA, bound),
        ).accuracy.mean()

    assert accuracy(1.0, 1) > accuracy(1.0, None) + 0.002
    assert accuracy(3.0, 3) > accuracy(3.0, 1) + 0.002


def test_a_forecast_says_the_shape_and_the_noise_that_a_release_would_have():
    x, rows = np.repeat(features(200, 3), 2, axis=1), asked(40, 10, 200)
    for periods in (1, 4):
        found = tuning.forecast(x, rows, [1.0], DELTA, draws=3, growth=False, periods=periods)[1]
        noises = components.make_noise_chooser(1.0, DELTA, periods)
        assert found.shape == components.Directions.of_features(x, rows).choose_shape(noises)
        assert found.shape.components <= 3  # the rank of the features
        assert found.noise == noises(found.shape.components)
        assert found.noise.kind == ("ball" if periods == 1 else "gaussian")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agreement": 0.5}, "agreement"),
        ({"agreement": math.nan}, "agreement"),
        ({"explained": (0.0, 0.5)}, "explained"),
        ({"tie_rate": (0.1, 0.95)}, "tie-rate"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_prior_outside_its_range_is_refused(options, message):
    with pytest.raises(PolicyError, match=message):
        Prior(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("epsilons", "delta", "message"),
    [
        ([], 1e-5, "at least one epsilon"),
        ([1, 0], 1e-5, "epsilon must be finite and above 0, found 0"),
        ([math.inf], 1e-5, "epsilon must be finite"),
        ([1], 0, "delta must be at least 1e-300 and below 1, found 0"),
    ],
)
def test_a_budget_that_no_mechanism_has_is_refused(epsilons, delta, message):
    with pytest.raises(PolicyError, match=message):
        tuning.forecast(features(10), asked(2, 3, 10), epsilons, delta)


def test_the_same_seed_gives_the_same_forecast():
    x, rows = features(200, 8), asked(20, 10, 200)
    one, same, other = (
        tuning.forecast(x, rows, [1.0], DELTA, Prior(seed=seed), draws=3) for seed in (1, 1, 2)
    )
    assert one == same != other


def test_pairs_without_features_or_labels_are_refused():
    with pytest.raises(InvalidLabels, match="equal features"):
        tuning.forecast(np.zeros((5, 3), np.float32), asked(2, 3, 5), [1.0], DELTA)
    with pytest.raises(InvalidLabels, match="no labeled pair"):
        tuning.forecast(features(5), asked(2, 0, 5), [1.0], DELTA)


@pytest.mark.parametrize("periods", [1, 4])
def test_without_features_randomized_response_is_forecast_as_with_them_but_for_accuracy(periods):
    x, rows = features(60), asked(labelers=30, each=8, pairs=60)
    options: dict[str, Any] = {"draws": 2, "growth": False, "periods": periods}
    every = tuning.forecast(x, rows, (1.0, 3.0), DELTA, **options)
    alone = tuning.forecast(x[:, :0], rows, (1.0, 3.0), DELTA, **options)
    coin = Interval(0.5, 0.5, 0.5)
    same = [replace(one, accuracy=coin) for one in every if one.mechanism == "rr"]
    assert list(alone) == same and len(alone) == 6


# What `--mechanism auto` chooses: the full forecast's choice, found with less work.

FOURS = {"ranking": np.arange(120 * 18) // 6, "size": np.full(120 * 18, 4)}
# Public: features of pairs, and who labels them.
SHAPES = {
    "few labelers, many labels": (features(800, 24), asked(12, 200, 800)),
    "one label each": (features(500, 24), asked(1500, 1, 500)),
    "heavy tails": (features(600, 24), heavy_tailed(200, 600)),
    "rankings": (features(500, 24), replace(asked(120, 18, 500), **FOURS)),
}


@pytest.mark.quick("few labelers, many labels-0.5", "heavy tails-0.5")
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_recommendation_is_what_the_full_forecast_says(shape, epsilon):
    x, rows = SHAPES[shape]
    found = tuning.recommend(x, rows, epsilon, DELTA)
    forecasts = tuning.forecast(x, rows, [epsilon], DELTA, growth=False)
    best = outcomes.find_best_excluding_uls(forecasts, epsilon)
    assert (found.mechanism, found.released) == (best.mechanism, best.released)
    assert found.max_labels_per_labeler == best.max_labels_per_labeler
    assert found.accuracy.mean == pytest.approx(best.accuracy.mean, abs=0.02)


@pytest.mark.parametrize("shape", SHAPES)
def test_props_is_never_more_accurate_than_the_labels_it_works_on(shape):
    forecasts = tuning.forecast(*SHAPES[shape], [0.5, 3.0, 16.0], DELTA, draws=6, growth=False)
    for one in forecasts:
        if one.mechanism == "props":
            most, epsilon = one.max_labels_per_labeler, one.epsilon
            own = [f for f in forecasts if (f.mechanism, f.epsilon) == ("rr", epsilon)]
            [same] = [f for f in own if f.max_labels_per_labeler == most]
            assert one.accuracy.mean <= same.accuracy.mean + INDISTINCT / 4


def test_further_worlds_are_those_that_would_have_come_anyway():
    x, rows = SHAPES["rankings"]
    grown = Worlds.of(x, rows, Prior(), 2).extend_to(5)
    at_once = Worlds.of(x, rows, Prior(), 5)
    for one, other in zip(grown.trials, at_once.trials, strict=True):
        np.testing.assert_array_equal(one.sums, other.sums)


# The forecast of user-wise DP-SGD is what its own runs give, at the price of real ones.

DELTA, PROBABILITY, STEPS, WORLDS, REPEATED = 1e-5, 0.2, 100, 9, 2


def measured(worlds, x, rows, epsilon):
    """Mean accuracy of real runs in the worlds of a forecast."""
    multiplier = subsampled.calibrate(epsilon, DELTA, PROBABILITY, STEPS)
    mean = multiplier / (2 * PROBABILITY * STEPS**0.5)  # of the noise of all steps, as a release's
    shape = worlds.public.directions.choose_shape(lambda _: Noise("gaussian", mean))
    axes = choose_basis(compute_spectrum(x, np.bincount(rows.pair, minlength=len(x))), shape)
    z = axes.coordinates(x)
    records = ComparisonRecords.of(z, rows)
    weight = records.weigh_by_unit("root")
    clip = choose_clip_norm(records, weight)
    price = {"noise_multiplier": multiplier, "sampling_probability": PROBABILITY, "steps": STEPS}
    course = NoisyRun.from_price(price, clip, rows.units)
    spread = 2 * mean * clip / rows.units
    rate = rates(records, weight, shape.ridge * axes.metric**2, spread, STEPS)
    public, found = worlds.public, []
    draws = Population(public.z, public.values, public.rows, worlds.prior).draws(WORLDS)
    for trial, draw in zip(worlds.trials, draws, strict=True):
        labels = np.empty(len(rows))
        labels[np.argsort(rows.unit, kind="stable")] = draw.half + 0.5
        for _ in range(REPEATED):
            problem = HeadProblem(records, weight, rate, clip)
            nowhere = Checkpoints(Path("nowhere"), STEPS, bytes)
            loop.train(problem, labels, course, nowhere, lambda share: None)
            found.append(trial.accuracy(problem.margins()))
    return float(np.mean(found))


@pytest.mark.slow
@pytest.mark.quick("1.0")
@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_a_forecast_is_what_runs_of_user_wise_dp_sgd_give(epsilon, monkeypatch):
    """Within .01, with secrets from a seed: nothing here is left to chance."""
    monkeypatch.setattr(keyring, "random_bytes", np.random.default_rng(2).bytes)
    x, rows = features(600), heavy_tailed(200, 600)
    worlds = Worlds.of(x, rows, Prior(), WORLDS)
    noise = Noise("gaussian", gaussian.calibrate(epsilon, DELTA))
    shape = worlds.public.directions.choose_shape(lambda _: noise)
    forecast = worlds.user_wise(epsilon, noise, shape).accuracy.mean
    assert forecast == pytest.approx(measured(worlds, x, rows, epsilon), abs=0.01)
    # The test would tell: noise that is wrong by a factor of four is another forecast.
    wrong = replace(noise, scale=noise.scale * 4)
    assert worlds.user_wise(epsilon, wrong, shape).accuracy.mean < forecast - 0.01


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0, 8.0])
def test_the_mean_noise_of_a_run_is_that_of_one_release(epsilon):
    run = subsampled.calibrate(epsilon, DELTA, PROBABILITY, STEPS)
    mean = run / (2 * PROBABILITY * STEPS**0.5)
    assert mean == pytest.approx(gaussian.calibrate(epsilon, DELTA), rel=0.02)


def forecast(mechanism, accuracy):
    interval = Interval(accuracy, accuracy, accuracy)
    return Forecast(mechanism, 1.0, interval, interval)


def test_a_run_is_recommended_only_where_it_is_clearly_better_and_never_automatic():
    statistic, rr = forecast("statistic", 0.7), forecast("rr", 0.65)
    for gain, wanted in ((INDISTINCT / 2, "statistic"), (2 * INDISTINCT, "uls")):
        every = [statistic, forecast("uls", 0.7 + gain), rr]
        assert outcomes.find_best_including_uls(every, 1.0).mechanism == wanted
        assert outcomes.find_best_excluding_uls(every, 1.0).mechanism == "statistic"
    better = [forecast("rr", 0.75), statistic, forecast("uls", 0.76)]
    assert outcomes.find_best_including_uls(better, 1.0).mechanism == "rr"


# The number of components, in closed form: what it weighs, and that simulations agree.


def scale_features(pairs, d=40):
    """Pairs of mean square norm 1."""
    x = features(pairs, d).astype(np.float64)
    return (x / math.sqrt(float((x**2).sum(axis=1).mean()))).astype(np.float32)


def test_gains_are_those_of_the_formula():
    """Written anew, labeler by labeler, from the formula alone."""
    x, noise = scale_features(60, 7), Noise("gaussian", 3.7)
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
    found = Directions.of_features(scale_features(600), asked(50, 20, 600))
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
    x, rows = scale_features(500), asked(labelers, 20, 500)
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
    x, rows = scale_features(300, 12), asked(40, 10, 300)
    order = np.random.default_rng(2).permutation(len(rows))
    shuffled = Rows(rows.pair[order], rows.unit[order], rows.units)
    one, other = (Directions.of_features(x, each) for each in (rows, shuffled))
    np.testing.assert_allclose(one.expected, other.expected, rtol=1e-9)
    assert one.labelers == pytest.approx(other.labelers, rel=1e-12)


def test_the_scale_of_noise_and_not_its_shape_decides_under_a_policy():
    found = Directions.of_features(scale_features(600), asked(50, 20, 600))
    least = make_noise_chooser(1, DELTA)(4)
    assert least.kind == "ball"
    assert found.best_component_count(lambda _: least) >= 4  # fewer would have the noise of four


def test_rankings_and_choices_are_weighed_as_a_release_weighs_them():
    x, rows = scale_features(120, 6), asked(30, 12, 120)
    size = np.full(len(rows), 4)
    ranking = np.arange(len(rows)) // 6
    ranked = Rows(rows.pair, rows.unit, rows.units, ranking, size)
    chosen = Rows(rows.pair, rows.unit, rows.units, None, size, choices=True)
    plain, of_rankings, of_choices = (
        Directions.of_features(x, each) for each in (rows, ranked, chosen)
    )
    assert np.all(of_rankings.expected < plain.expected)  # pairs of a ranking weigh a third
    assert np.all(of_choices.expected < of_rankings.expected)  # half of them says something


# Flips in simulated worlds: their variance is that of joint flips, by enumeration.


def variance(values, probability):
    return probability @ values**2 - (probability @ values) ** 2


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
@pytest.mark.parametrize("labels", [(4, 4, 4), (5, 3, 3), (4, 4, 2), (1, 1, 1)])
def test_a_labelers_sum_varies_in_trials_as_joint_flips_do(labels, epsilon):
    given, released, size = labels
    rng = np.random.default_rng(given)
    half = rng.standard_normal(given)
    vectors, probability = every_answer(coin(epsilon), size)
    sums, chances = [], []
    kept = list(combinations(range(given), released))
    for rows in kept:
        firsts = list(combinations(rows, size)) if size < released else [rows]
        for first in firsts:
            second = [row for row in rows if row not in first]
            for (s, p), (t, q) in product(
                zip(vectors, probability, strict=True),
                zip(vectors, probability, strict=True) if second else [(np.ones(0), 1.0)],
            ):
                sums.append(half[list(first)] @ s + half[second] @ t)
                chances.append(p * q / len(kept) / len(firsts))
    one = find_block(coin(epsilon), size)
    found = FlippedLabels.of(
        np.array([one.mean_sign]),
        np.array([one.mean_sign_product]),
        *(np.array([each]) for each in (size, float(released), given)),
    )
    alone = found.share - (found.share * found.signal) ** 2 - found.together
    of_sum = alone * (half @ half) + found.together * half.sum() ** 2
    assert of_sum == pytest.approx([variance(np.array(sums), np.array(chances))])


def test_heads_from_joint_flips_are_noisier_than_from_as_many_coins_with_that_probability():
    x = np.random.default_rng(0).standard_normal((30, 3)).astype(np.float32)
    rows = Rows(np.arange(30) % 15, np.repeat(np.arange(15), 2), 15)
    public = derive_public_side(x, rows)
    [trial] = public.trials(Prior(tie_rate=(0.0, 0.0)), 1)
    joint = Flips.of(public.counts, public.sampled_counts, 1.0, 0.0, None).sampled
    coins = FlippedLabels(joint.signal, joint.share, np.zeros(15))
    together, apart = trial.flipped_heads(joint), trial.flipped_heads(coins)
    np.testing.assert_array_equal(together.mean, apart.mean)
    weight = joint.signal**2 @ (joint.together[:, None] * (trial.sums**2 - public.energy))
    size, ridge = public.sizes[-1], public.ridges[0]
    shrunk = 1 / (joint.signal**2 @ public.energy + ridge)
    place = len(public.sizes) * len(public.ridges) - len(public.ridges)
    gap = together.variance[place] - apart.variance[place]
    np.testing.assert_allclose(gap[:size], (weight * shrunk**2)[:size], rtol=1e-3, atol=1e-6)


def test_one_of_two_stages_has_the_labels_of_every_other_labeler():
    labels = FlippedLabels(np.array([0.5, 0.6, 0.7]), np.ones(3), np.full(3, 0.1))
    half = labels.drop_every_second_labeler()
    assert half.share.tolist() == [1, 0, 1]
    assert half.together.tolist() == [0.1, 0, 0.1]
