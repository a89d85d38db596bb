"""What `--mechanism auto` chooses: the full forecast's choice, found with less work."""

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from labelguard.mechanisms.statistic import Rows
from labelguard.planner import outcomes, tuning
from labelguard.planner.outcomes import INDISTINCT
from labelguard.planner.prior import Prior
from labelguard.planner.trials import Worlds

DELTA = 1e-5


class Asked(NamedTuple):
    """Public: features of pairs, and who labels them."""

    x: NDArray[np.float32]
    rows: Rows


def asked(counts, pairs, *, ranked=0):
    """Labelers who label so many pairs each, or rankings of `ranked` responses."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((pairs, 24)) * np.geomspace(1, 0.1, 24)
    unit = np.repeat(np.arange(len(counts)), counts)
    rows = Rows(rng.integers(pairs, size=len(unit)), unit, len(counts))
    if ranked:
        per = ranked * (ranked - 1) // 2
        numbers, size = np.arange(len(unit)) // per, np.full(len(unit), ranked)
        rows = Rows(rows.pair, unit, len(counts), numbers, size)
    return Asked(x.astype(np.float32), rows)


def heavy_tailed(labelers):
    """A few labelers give hundreds of labels, most give few."""
    drawn = np.random.default_rng(1).lognormal(2, 1.3, labelers)
    return np.ceil(drawn).astype(np.int64)


SHAPES = {
    "few labelers, many labels": asked(np.full(12, 200), 800),
    "one label each": asked(np.full(1500, 1), 500),
    "heavy tails": asked(heavy_tailed(200), 600),
    "rankings": asked(np.full(120, 18), 500, ranked=4),
}


@pytest.mark.quick("few labelers, many labels-0.5", "heavy tails-0.5")
@pytest.mark.parametrize("epsilon", [0.5, 3.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_recommendation_is_what_the_full_forecast_says(shape, epsilon):
    x, rows = SHAPES[shape]
    found = tuning.recommend(x, rows, epsilon, DELTA)
    forecasts = tuning.forecast(x, rows, [epsilon], DELTA, growth=False)
    best = outcomes.best(forecasts, epsilon)
    assert (found.mechanism, found.fits) == (best.mechanism, best.released)
    assert found.max_labels_per_labeler == best.max_labels_per_labeler
    assert found.forecast.accuracy.mean == pytest.approx(best.accuracy.mean, abs=0.02)


@pytest.mark.parametrize("shape", SHAPES)
def test_props_is_never_more_accurate_than_the_labels_it_works_on(shape):
    forecasts = tuning.forecast(*SHAPES[shape], [0.5, 3.0, 16.0], DELTA, draws=6, growth=False)
    for one in forecasts:
        if one.mechanism == "props":
            [same] = [f for f in forecasts if f.mechanism == "rr" and _terms(f) == _terms(one)]
            assert one.accuracy.mean <= same.accuracy.mean + INDISTINCT / 4


def _terms(forecast):
    return forecast.epsilon, forecast.max_labels_per_labeler


def test_further_worlds_are_those_that_would_have_come_anyway():
    x, rows = SHAPES["rankings"]
    grown = Worlds.of(x, rows, Prior(), 2).more(5)
    at_once = Worlds.of(x, rows, Prior(), 5)
    for one, other in zip(grown.trials, at_once.trials, strict=True):
        np.testing.assert_array_equal(one.sums, other.sums)
