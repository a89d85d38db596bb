"""Runs on whole records under zero_out: exact where a formula exists, and never below."""

import math

import dp_accounting as dp
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from labelguard.accounting import joint, subsampled, zero_out
from labelguard.accounting.joint import Gaussians, WholeRecords


def one_step(noise, q, epsilon):
    """δ of (1−q)N(0, σ²) + qN(1, σ²) against N(0, σ²), in closed form: the worse of both orders."""
    place = noise**2 * math.log(math.expm1(epsilon) / q + 1) + 0.5
    drawn, not_drawn = norm.sf((place - 1) / noise), norm.sf(place / noise)
    return q * drawn + (1 - q) * not_drawn - math.exp(epsilon) * not_drawn


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(st.floats(0.5, 5), st.floats(0.01, 0.9), st.floats(0.05, 3))
def test_one_step_costs_what_the_formula_says_and_never_less(noise, q, epsilon):
    exact = one_step(noise, q, epsilon)
    found = zero_out.delta(noise, q, 1, 1, epsilon)
    assert exact <= found <= exact * 1.001 + 1e-9


def test_steps_cost_what_another_accountant_says():
    noise = zero_out.calibrate(4.0, 1e-5, 0.2, 50, 1)
    other = PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    step = dp.PoissonSampledDpEvent(0.2, dp.GaussianDpEvent(noise))
    other.compose(dp.SelfComposedDpEvent(step, 50))
    assert other.get_epsilon(1e-5) == pytest.approx(4.0, abs=1e-4)
    assert noise == pytest.approx(1.81165, abs=1e-4)


@pytest.mark.quick("4")
@pytest.mark.parametrize("updates", [2, 4, 9])
def test_updates_of_one_cohort_cost_one_gaussian_that_is_sampled_then(updates):
    single = zero_out.epsilon(2.0, 0.1, 20, 1, 1e-5)
    together = zero_out.epsilon(2.0 * math.sqrt(updates), 0.1, 20, updates, 1e-5)
    assert single == pytest.approx(together, rel=1e-6)
    independent = zero_out.epsilon(2.0, 0.1, 20 * updates, 1, 1e-5)
    assert zero_out.epsilon(2.0, 0.1, 20, updates, 1e-5) > independent, "looks at one cohort"


@pytest.mark.parametrize("count", [2, 3])
def test_stages_of_one_person_cost_what_one_long_stage_costs(count):
    several = WholeRecords(3.0, 0.1, 20, 2, count)
    assert several.epsilon(1e-5) == WholeRecords(3.0, 0.1, 20 * count, 2, 1).epsilon(1e-5)
    assert joint.epsilon([WholeRecords(3.0, 0.1, 20, 2, 1)] * count, 1e-5) == several.epsilon(1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("q", "updates"), [(0.05, 1), (0.3, 4), (1.0, 2)])
def test_calibrated_noise_is_enough_and_not_much_more(q, updates):
    noise = zero_out.calibrate(3.0, 1e-6, q, 30, updates)
    assert zero_out.delta(noise, q, 30, updates, 3.0) <= 1e-6
    assert zero_out.delta(noise * 0.999, q, 30, updates, 3.0) > 1e-6


def test_null_records_take_less_noise_than_replaced_labels_do():
    assert zero_out.calibrate(4.0, 1e-5, 0.2, 50, 1) < subsampled.calibrate(4.0, 1e-5, 0.2, 50)


def test_whole_records_have_no_price_beside_anything_else():
    records = WholeRecords(3.0, 0.1, 20, 1, 1)
    for other in (Gaussians(3.0, 1), WholeRecords(4.0, 0.1, 20, 1, 1)):
        with pytest.raises(ValueError, match="no price together"):
            joint.delta([records, other], 1.0)


@pytest.mark.parametrize(
    "terms", [(0.0, 0.1, 5, 1), (1.0, 0.0, 5, 1), (1.0, 0.1, 0, 1), (1.0, 0.1, 5, 0)]
)
def test_numbers_that_no_run_has_are_refused(terms):
    with pytest.raises(ValueError):
        zero_out.delta(*terms, 1.0)


@pytest.mark.parametrize(("q", "delta"), [(1e-6, 1e-5), (1e-3, 0.5), (1e-4, 2e-3)])
def test_noise_is_not_looked_for_where_delta_covers_whoever_is_drawn(q, delta):
    """The search ended in an OverflowError; who is drawn would be given away."""
    with pytest.raises(ValueError, match="take no noise"):
        zero_out.calibrate(4, delta, q, 10, 1)
