"""What `--mechanism auto` chooses: the full forecast's choice, found with less work."""

from dataclasses import replace

import numpy as np
import pytest
from support.asked import asked, features, heavy_tailed

from labelguard.planner import outcomes, tuning
from labelguard.planner.outcomes import INDISTINCT
from labelguard.planner.prior import Prior
from labelguard.planner.trials import Worlds

DELTA = 1e-5


FOURS = {"ranking": np.arange(120 * 18) // 6, "size": np.full(120 * 18, 4)}
SHAPES = {
    "few labelers, many labels": (features(800, 24), asked(12, 200, 800)),
    "one label each": (features(500, 24), asked(1500, 1, 500)),
    "heavy tails": (features(600, 24), heavy_tailed(200, 600)),
    "rankings": (features(500, 24), replace(asked(120, 18, 500), **FOURS)),
}
"""Public: features of pairs, and who labels them."""


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
