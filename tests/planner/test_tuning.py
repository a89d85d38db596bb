"""What tuning chooses and forecasts, from public pairs and simulated labels only."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.asked import asked, features

from labelguard.errors import InvalidLabels, PolicyError
from labelguard.learning import heads
from labelguard.mechanisms.geometry import Shape
from labelguard.mechanisms.noise import Noise
from labelguard.mechanisms.statistic import Rows
from labelguard.planner import components, trials, tuning
from labelguard.planner.flips import Flips, TriedBound
from labelguard.planner.outcomes import Interval
from labelguard.planner.prior import Population, Prior, guess_explained_share

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
