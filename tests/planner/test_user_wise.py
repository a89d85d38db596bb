"""The forecast of user-wise DP-SGD is what its own runs give, at the price of real ones."""

from dataclasses import replace
from pathlib import Path

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
from support.asked import features, heavy_tailed

from labelguard.accounting import gaussian, subsampled
from labelguard.keys import keyring
from labelguard.mechanisms.geometry import choose_basis, compute_spectrum
from labelguard.mechanisms.noise import Noise
from labelguard.planner import outcomes
from labelguard.planner.outcomes import INDISTINCT, Forecast, Interval
from labelguard.planner.prior import Population, Prior
from labelguard.planner.trials import Worlds

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
