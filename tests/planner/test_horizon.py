"""How many releases a policy is made for, and what it allows then."""

from __future__ import annotations

import numpy as np
import pytest

from labelguard.accounting import gaussian, randomized_response
from labelguard.budget.request import Horizon
from labelguard.errors import PolicyError
from labelguard.mechanisms.statistic import Rows
from labelguard.planner import flips, tuning
from labelguard.planner.flips import Flips
from labelguard.planner.outcomes import Sizing
from labelguard.planner.trials import public_side


@pytest.mark.parametrize(
    ("every", "length", "releases"),
    [
        *(("daily", "1y", 365), ("daily", "90d", 90), ("daily", "2w", 14)),
        *(("weekly", "1y", 52), ("weekly", "26w", 26), ("weekly", "6m", 26), ("weekly", "7d", 1)),
        *(("monthly", "1y", 12), ("monthly", "90d", 3), ("monthly", "26w", 6)),
    ],
)
def test_a_horizon_counts_releases(every, length, releases):
    horizon = Horizon.parse(every, length)
    assert horizon and horizon.releases == releases
    assert Horizon.parse(None, None) is None


@pytest.mark.parametrize(
    ("every", "length", "message"),
    [
        ("weekly", None, "together"),
        (None, "1y", "together"),
        ("hourly", "1y", "recurring"),
        ("weekly", "0d", "--for expects"),
        ("monthly", "2w", "too short for one monthly release"),
    ],
)
def test_a_horizon_that_says_nothing_is_refused(every, length, message):
    with pytest.raises(PolicyError, match=message):
        Horizon.parse(every, length)


def rows(counts):
    unit = np.repeat(np.arange(len(counts)), counts)
    return Rows(np.random.default_rng(0).integers(60, size=len(unit)), unit, len(counts))


X = np.random.default_rng(1).standard_normal((60, 5)).astype(np.float32)
MANY = [4] * 60 + [40]


def test_a_bound_for_several_periods_is_spent_evenly_and_priced_whole():
    found = Flips.of(public_side(X, rows(MANY)), 3.0, 1e-5, 48, periods=12)
    assert found.released.tolist() == [4.0] * 61
    price = randomized_response.calibrate(3.0, 1e-5, 48)
    assert found.every == pytest.approx(randomized_response.flip_probability(price))


def test_bounds_for_several_periods_are_of_projected_labels():
    counts = np.array(MANY)
    assert flips.bounds_for(counts, 1) == flips.BOUNDS
    assert flips.bounds_for(counts, 12) == (512, 64, 12, 24, 48, 96, 192, 384)


def test_a_statistic_for_several_periods_has_the_noise_of_as_many_releases():
    once, often = (tuning.recommend(X, rows(MANY), 1.0, 1e-5, periods=n) for n in (1, 12))
    assert (once.mechanism, once.releases, once.fits) == ("statistic", 1, 1.0)
    assert (often.mechanism, often.releases, often.periods) == ("statistic", 12, 12)
    assert often.forecast.accuracy.mean < once.forecast.accuracy.mean
    alone = [f for f in _forecasts(12) if f.mechanism == "statistic"]
    assert alone[0].accuracy.mean == pytest.approx(often.forecast.accuracy.mean, abs=0.03)
    assert gaussian.calibrate(1.0, 1e-5, 12) > 3 * gaussian.calibrate(1.0, 1e-5)


def _forecasts(periods):
    return tuning.forecast(X, rows(MANY), [1.0], 1e-5, draws=6, growth=False, periods=periods)


def test_randomized_response_for_several_periods_allows_one_number_for_all():
    every, best = [f for f in _forecasts(12) if f.mechanism == "rr"]
    assert every.max_labels_per_labeler == 512 and every.released == 1
    assert best.max_labels_per_labeler is not None and best.max_labels_per_labeler < 512
    sized = Sizing.of(best, 12)
    assert sized.releases is None and sized.max_labels_per_labeler == best.max_labels_per_labeler
    kept = np.minimum(MANY, best.max_labels_per_labeler / 12).sum()
    assert sized.fits == pytest.approx(kept / sum(MANY))
