"""How many releases a policy is made for, and what it allows then."""

import numpy as np
import pytest

from labelguard.accounting import gaussian
from labelguard.accounting import randomized_response as rr
from labelguard.accounting.blocks import MOST_LABELS, find_block
from labelguard.budget.request import Horizon
from labelguard.errors import PolicyError
from labelguard.mechanisms.statistic import Rows
from labelguard.planner import flips, tuning
from labelguard.planner.flips import Flips
from labelguard.planner.trials import derive_public_side


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
PUBLIC = derive_public_side(X, rows(MANY))


def threshold(epsilon, uses):
    return rr.threshold(rr.calibrate(epsilon, 1e-5, uses))


def test_coins_for_several_periods_are_spent_evenly_and_priced_whole():
    assert flips.choose_blocks(np.array(MANY), 52, 3.0, 1e-5) == (208, 1)
    found = Flips.of(PUBLIC.counts, PUBLIC.sampled_counts, 3.0, 1e-5, None, periods=52)
    assert (found.uses, found.block) == (208, 1)
    assert found.released.tolist() == [4.0] * 61  # the rest of the one with 40 has no use left
    gamma = find_block(threshold(3.0, 208), 1).flip_probability
    assert found.every == pytest.approx(np.full(61, gamma))


def test_blocks_for_several_periods_hold_all_labels_of_each():
    found = Flips.of(PUBLIC.counts, PUBLIC.sampled_counts, 3.0, 1e-5, None, periods=2)
    assert (found.uses, found.block) == (2, MOST_LABELS)
    assert found.released.tolist() == MANY
    gammas = [find_block(threshold(3.0, 2), m).flip_probability for m in MANY]
    assert found.every == pytest.approx(gammas)


@pytest.mark.parametrize(("epsilon", "last"), [(1.0, 8), (3.0, 11), (8.0, 14)])
def test_blocks_are_chosen_for_few_releases_and_coins_for_many(epsilon, last):
    """The break-even of 50 labels a release, as `Σ (1 − 2γ)²` says."""
    counts = np.full(10, 50)
    for periods in (1, 2, last):
        assert flips.choose_blocks(counts, periods, epsilon, 1e-5) == (periods, MOST_LABELS)
    for periods in (last + 1, 52):
        assert flips.choose_blocks(counts, periods, epsilon, 1e-5) == (50 * periods, 1)


def test_blocks_need_a_label_and_a_period():
    for counts, periods in (([0, 0], 1), ([], 1), ([3], 0)):
        with pytest.raises(ValueError, match="at least one"):
            flips.choose_blocks(np.array(counts, np.int64), periods, 1.0, 1e-5)


def test_a_labeler_with_more_labels_than_a_block_holds_gets_one_block():
    public = derive_public_side(X, rows([20_000, 3, 0]))
    found = Flips.of(public.counts, public.sampled_counts, 1.0, 1e-5, None)
    assert found.released.tolist() == [16_384, 3]


def test_bounds_that_nobody_exceeds_are_not_tried():
    assert flips.list_bounds_to_try(np.array([3, 4, 0])) == (None, 1, 3)
    assert flips.list_bounds_to_try(np.array([3, 2])) == (None, 1)
    assert flips.list_bounds_to_try(np.array([1])) == (None,)


def test_a_statistic_for_several_periods_has_the_noise_of_as_many_releases():
    once, often = (tuning.recommend(X, rows(MANY), 1.0, 1e-5, periods=n) for n in (1, 12))
    assert (once.mechanism, once.released) == ("statistic", 1.0)
    assert often.mechanism == "statistic" and often.accuracy.mean < once.accuracy.mean
    alone = [f for f in _forecasts(12) if f.mechanism == "statistic"]
    assert alone[0].accuracy.mean == pytest.approx(often.accuracy.mean, abs=0.03)
    assert gaussian.calibrate(1.0, 1e-5, 12) > 3 * gaussian.calibrate(1.0, 1e-5)


def _forecasts(periods):
    return tuning.forecast(X, rows(MANY), [1.0], 1e-5, draws=6, growth=False, periods=periods)


def test_a_policy_for_several_periods_has_the_uses_of_its_blocks_or_coins():
    for periods, wanted in ((2, (2, MOST_LABELS)), (52, (208, 1))):
        every, one, three = [f for f in _forecasts(periods) if f.mechanism == "rr"]
        bounds = [each.max_labels_per_labeler for each in (every, one, three)]
        assert bounds == [None, 1, 3]
        assert (every.uses, every.block) == wanted
        assert every.released == pytest.approx(1 if periods == 2 else 4 * 61 / sum(MANY))
        assert one.released == pytest.approx(61 / sum(MANY))
