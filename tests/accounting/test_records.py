"""Runs that draw single records: ELS by mixtures of Gaussians, and group privacy."""

import math

import dp_accounting
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm
from support.runs import accountant, one_step_of_records, subsampled_pld

from labelguard.accounting import example_level, group, mixture, subsampled

# --- mixtures of Gaussians -----------------------------------------------------------------------


@pytest.mark.quick("0.0-2.0-0.1-4", "0.2-3.0-0.9-3")
@pytest.mark.parametrize(
    ("sigma", "q", "records"),
    [
        (2.0, 0.1, 4),
        (3.0, 0.9, 3),
        pytest.param(1.0, 0.02, 8, marks=pytest.mark.slow),
        pytest.param(6.0, 0.3, 12, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("epsilon", [0.0, 0.2, 1.0])
def test_one_step_costs_what_quadrature_says_and_never_less(sigma, q, records, epsilon):
    truth = one_step_of_records(sigma, q, records, epsilon)
    found = mixture._zero_out_delta(sigma, q, 1, records, epsilon)
    assert truth - 1e-8 <= found <= truth * (1 + 1e-5) + 2e-8


def test_one_step_is_never_below_the_formula_at_the_point_where_the_loss_is_epsilon():
    """To 12 digits, which quadrature does not have."""
    sigma, q, records = 3.0, 0.9, 3
    counts = np.arange(records + 1)
    weights = binom.pmf(counts, records, q)
    for epsilon in (0.0, 0.2, 1.0):

        def loss(x):
            there = float(weights @ norm.pdf(x, counts, sigma))
            return math.log(there) - float(norm.logpdf(x, 0, sigma))

        above = brentq(lambda x, e=epsilon: loss(x) - e, -60, 60, xtol=1e-13)
        below = brentq(lambda x, e=epsilon: loss(x) + e, -60, 60, xtol=1e-13)
        removed = weights @ norm.sf(above, counts, sigma) - math.exp(epsilon) * norm.sf(
            above, 0, sigma
        )
        added = norm.cdf(below, 0, sigma) - math.exp(epsilon) * (
            weights @ norm.cdf(below, counts, sigma)
        )
        truth = max(float(removed), float(added))
        found = mixture._zero_out_delta(sigma, q, 1, records, epsilon)
        assert truth < found < truth + 1e-8


@pytest.mark.slow
def test_runs_cost_what_the_accountant_of_dp_accounting_says():
    sigma, q, records, steps = 4.0, 0.1, 3, 40
    counts = range(records + 1)
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
            sigma, counts, binom.pmf(counts, records, q)
        ),
        steps,
    )
    theirs = accountant(event, replaced=False)
    for epsilon in (0.3, 1.0, 2.0):
        coarser = theirs.get_delta(epsilon)
        found = mixture._zero_out_delta(sigma, q, steps, records, epsilon)
        assert coarser * 0.999 <= found <= coarser + 1e-10


def test_one_record_is_the_subsampled_gaussian_under_zero_out():
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(2.0)), 20
    )
    theirs = accountant(event, replaced=False).get_delta(1.0)
    assert mixture._zero_out_delta(2.0, 0.1, 20, 1, 1.0) == pytest.approx(theirs, rel=1e-3)


def test_drawing_every_record_moves_the_sum_by_all_of_them():
    """records/σ apart under zero-out: a Gaussian with noise multiplier σ/records."""
    from labelguard.accounting import gaussian

    found = mixture._zero_out_delta(24.0, 1.0, 5, 4, 0.5)
    assert found == pytest.approx(gaussian.delta(6.0, 0.5, 5), rel=1e-4)


def test_calibration_spends_half_of_epsilon_on_each_of_two_steps_of_zero_out():
    """Under `replace_labels`: (2a, (1 + e^a)·d) of (a, d); with a tenth less noise, refused."""
    epsilon, delta, q, steps, records = 2.0, 1e-5, 0.1, 30, 6
    found = mixture.calibrate(epsilon, delta, q, steps, records)
    assert (found * 2**20).is_integer()
    each = mixture._zero_out_delta(found, q, steps, records, epsilon / 2)
    assert each * (1 + math.exp(epsilon / 2)) == pytest.approx(delta, rel=1e-3)
    assert mixture.delta(found, q, steps, records, epsilon) <= delta
    assert mixture.delta(0.9 * found, q, steps, records, epsilon) > 1.5 * delta
    unconverted = mixture._zero_out_delta(found, q, steps, records, epsilon)
    assert unconverted < delta / 1000  # what a report without the conversion would claim


def test_replacing_the_labels_of_a_labeler_stays_within_the_conversion():
    """One record drawn in one of two directions, priced under both adjacencies."""
    for epsilon in (0.5, 1.0, 3.0):
        replaced = subsampled.delta(2.0, 0.1, 20, epsilon)
        assert replaced <= mixture.delta(2.0, 0.1, 20, 1, epsilon)


# --- group privacy -------------------------------------------------------------------------------


def test_group_privacy_is_one_record_after_the_other():
    sigma, q, steps, records, epsilon = 9.0, 0.1, 30, 5, 2.0
    each = epsilon / records
    one = subsampled_pld(sigma, q, steps).get_delta_for_epsilon(each)
    chain = one * float(np.sum(np.exp(each * np.arange(records))))
    assert group.delta(sigma, q, steps, records, epsilon) == pytest.approx(chain, rel=5e-3)
    assert group.delta(sigma, q, steps, 1, epsilon) == pytest.approx(
        subsampled.delta(sigma, q, steps, epsilon)
    )


@pytest.mark.slow
def test_noise_for_a_group_is_just_enough():
    epsilon, delta, q, steps, records = 2.0, 1e-5, 0.1, 30, 5
    found = group.calibrate(epsilon, delta, q, steps, records)
    assert group.delta(found, q, steps, records, epsilon) <= delta
    assert group.delta(0.9 * found, q, steps, records, epsilon) > 1.5 * delta
    # Taking the price of one record for that of a labeler would ask for far less noise.
    assert found > 3 * subsampled.calibrate(epsilon, delta, q, steps)
    assert group.delta(0.5, q, steps, 1000, epsilon) == 1


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("accountant", [mixture, group])
def test_numbers_that_no_run_has_are_refused(accountant):
    with pytest.raises(ValueError, match="records must be an integer >= 1"):
        accountant.delta(1.0, 0.1, 10, 0, 1.0)
    with pytest.raises(ValueError, match="epsilon must be finite and >= 0"):
        accountant.delta(1.0, 0.1, 10, 3, -1.0)
    with pytest.raises(ValueError, match="Gaussian noise gives no pure privacy"):
        accountant.calibrate(1.0, 0.0, 0.1, 10, 3)


# --- the smaller of both -------------------------------------------------------------------------

# σ by mixtures and by group privacy, of (ε, q, T, G) at δ = 1e-5, from independent code.
VECTORS = {
    (8.0, 0.01, 500, 2): (0.970, 0.794),
    (8.0, 0.05, 100, 8): (5.350, 5.201),
    (3.0, 0.02, 250, 8): (7.299, 7.176),
    (1.0, 0.05, 100, 8): (30.09, 29.94),
}


@pytest.mark.quick("run1")
@pytest.mark.parametrize("run", VECTORS)
def test_a_run_is_priced_by_the_smaller_of_two_bounds(run):
    (epsilon, *sampling), (by_mixture, by_group) = run, VECTORS[run]
    found = example_level.calibrate(epsilon, 1e-5, *sampling)
    assert found == pytest.approx(by_group, rel=2e-3)
    assert example_level.delta(found, *sampling, epsilon) <= 1e-5
    assert mixture.delta(found, *sampling, epsilon) > 1e-5, "by mixtures alone it costs more"
    assert mixture.delta(by_mixture * 1.002, *sampling, epsilon) <= 1e-5
    assert mixture.delta(by_mixture * 0.998, *sampling, epsilon) > 1e-5
    assert example_level.delta(0.9 * found, *sampling, epsilon) > 1.5e-5


@pytest.mark.slow
def test_where_group_privacy_leaves_nothing_of_delta_mixtures_price_a_run():
    run = (20.0, 1e-5, 0.05, 20, 16)
    with pytest.raises(ValueError, match="larger delta"):
        group.calibrate(*run)
    assert example_level.calibrate(*run) == mixture.calibrate(*run)
