"""Runs of user-wise DP-SGD: measured values, dp-accounting, quadrature, and controls."""

import math

import dp_accounting
import numpy as np
import pytest
from support.runs import accountant, one_step_of_users, subsampled_pld

from labelguard.accounting import gaussian, losses, subsampled

# σ, q, T
RUN = (2.0, 0.1, 60)


# --- known values --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "delta", "q", "steps", "noise_multiplier"),
    [
        pytest.param(3, 1e-5, 0.02, 250, 0.98, marks=pytest.mark.slow),
        (1, 1e-5, 0.2, 100, 14.92),
        pytest.param(8, 1e-5, 0.02, 250, 0.625, marks=pytest.mark.slow),
    ],
)
def test_noise_is_the_measured_one_and_a_tenth_less_is_refused(
    epsilon, delta, q, steps, noise_multiplier
):
    found = subsampled.calibrate(epsilon, delta, q, steps)
    assert found == pytest.approx(noise_multiplier, rel=0.01)
    assert (found * 2**20).is_integer()
    assert subsampled.delta(found, q, steps, epsilon) <= delta
    assert subsampled.delta(found * (1 - 1e-4), q, steps, epsilon) > delta
    assert subsampled.delta(0.9 * found, q, steps, epsilon) > 1.5 * delta
    assert subsampled.epsilon(found, q, steps, delta) <= epsilon


def test_the_relation_that_dp_accounting_defaults_to_would_pass_for_half_the_noise():
    from dp_accounting.pld import privacy_loss_distribution as pld

    added = pld.from_gaussian_mechanism(
        RUN[0], sampling_prob=RUN[1], value_discretization_interval=1e-3
    ).self_compose(RUN[2])
    understated = added.get_epsilon_for_delta(1e-5)
    assert subsampled.epsilon(*RUN, 1e-5) > 1.3 * understated
    assert subsampled.delta(*RUN, understated) > 20 * 1e-5


# --- against independent computations ------------------------------------------------------------


@pytest.mark.quick("0.0-1.0-0.05", "0.3-1.0-0.05", "1.5-1.0-0.05")
@pytest.mark.parametrize(("sigma", "q"), [(1.0, 0.05), (3.0, 0.5), (0.6, 0.01)])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.5])
def test_one_step_costs_what_quadrature_says_and_never_less(sigma, q, epsilon):
    truth = one_step_of_users(sigma, q, epsilon)
    found = subsampled.delta(sigma, q, 1, epsilon)
    # Quadrature errs by less than 1e-8; chords lie above the curve.
    assert truth - 1e-8 <= found <= truth * (1 + 1e-5) + 2e-8


@pytest.mark.parametrize("steps", [2, 37])
def test_runs_cost_what_the_accountant_of_dp_accounting_says(steps):
    event = dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(0.1, dp_accounting.GaussianDpEvent(1.5)), steps
    )
    theirs = accountant(event, replaced=True)
    for epsilon in (0.5, 2.0):
        coarser = theirs.get_delta(epsilon)
        assert coarser * 0.99 <= subsampled.delta(1.5, 0.1, steps, epsilon) <= coarser + 1e-10
    assert subsampled.epsilon(1.5, 0.1, steps, 1e-5) == pytest.approx(
        theirs.get_epsilon(1e-5), rel=3e-3
    )


@pytest.mark.slow
def test_two_steps_cost_what_simulation_says():
    """A false failure: 1 in 10^9 (6 standard errors)."""
    generator = np.random.default_rng(11)
    sigma, q, epsilon, n = 1.0, 0.3, 1.0, 100_000
    drawn = generator.random((n, 2)) < q
    x = generator.normal(size=(n, 2)) * sigma + drawn

    def density(to):
        return (1 - q) * np.exp(-(x**2) / 2 / sigma**2) + q * np.exp(
            -((x - to) ** 2) / 2 / sigma**2
        )

    loss = np.log(density(1.0) / density(-1.0)).sum(axis=1)
    parts = np.maximum(0.0, -np.expm1(epsilon - loss))
    error = parts.std() / math.sqrt(n)
    found = subsampled.delta(sigma, q, 2, epsilon)
    assert abs(found - parts.mean()) < 6 * error
    assert abs(subsampled.delta(0.8 * sigma, q, 2, epsilon) - parts.mean()) > 6 * error


def test_drawing_everybody_is_the_gaussian_mechanism_in_closed_form():
    """Half the noise multiplier: a labeler's vector moves by up to two clip norms."""
    assert subsampled.delta(8.0, 1.0, 10, 1.0) == gaussian.delta(4.0, 1.0, 10)
    assert subsampled.epsilon(8.0, 1.0, 10, 1e-5) == gaussian.epsilon(4.0, 1e-5, 10)
    found = subsampled.calibrate(1.0, 1e-5, 1.0, 10)
    assert 0 <= found - 2 * gaussian.calibrate(1.0, 1e-5, 10) < 2**-20
    near = subsampled.delta(8.0, 1 - 1e-9, 10, 1.0)
    assert near == pytest.approx(gaussian.delta(4.0, 1.0, 10), rel=1e-4)


@pytest.mark.slow
def test_a_finer_grid_of_dp_accounting_lowers_the_price_by_next_to_nothing():
    """It errs upward: the finer, the lower, until the margin for rounding is what is left."""
    run = (4.0, 0.2, 30)
    fine = subsampled_pld(*run, interval=2.0**-15)
    for epsilon in (0.5, 2.0):
        found = subsampled.delta(*run, epsilon)
        finer = fine.get_delta_for_epsilon(epsilon)
        assert finer < found <= finer * (1 + 1e-4) + 1e-9


def test_the_margin_is_far_above_what_transforms_err_by():
    """The same composition by repeated direct sums of positive numbers, which do not cancel."""
    sigma, q, steps = 2.0, 0.1, 16
    step = subsampled_pld(sigma, q, 1, interval=2.0**-7)
    pmf = step._pmf_remove.to_dense_pmf()
    direct = probabilities = np.asarray(pmf._probs)
    for _ in range(steps - 1):
        direct = np.convolve(direct, probabilities)
    values = 2.0**-7 * (np.arange(direct.size) + steps * pmf._lower_loss)
    found = losses.compose_steps(pmf, steps)
    margin = 16 * steps * 2.0**-53 * math.sqrt(found.probabilities.size)
    assert found.infinite > margin
    for epsilon in (0.1, 0.5, 1.0, 2.0):
        exact = float(np.maximum(0.0, -np.expm1(epsilon - values)) @ direct)
        assert exact < found.delta(epsilon) < exact + 8 * margin + 1e-14


# --- how prices behave ---------------------------------------------------------------------------


def test_epsilon_is_the_inverse_of_delta():
    for delta in (1e-3, 1e-6):
        epsilon = subsampled.epsilon(*RUN, delta)
        assert subsampled.delta(*RUN, epsilon) <= delta
        assert subsampled.delta(*RUN, epsilon * (1 - 1e-6)) > delta
    assert subsampled.epsilon(1e4, 0.05, 1, 0.1) == 0
    assert subsampled.epsilon(*RUN, 1e-14) == math.inf  # below the margin


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 0.1, 10), "noise_multiplier must be finite and > 0"),
        ((1.0, 0.0, 10), "sampling_probability must be finite and > 0"),
        ((1.0, 1.1, 10), r"sampling_probability must be in \[0, 1\]"),
        ((1.0, 0.1, 0), "steps must be an integer >= 1"),
        ((1.0, 0.1, 2.5), "steps must be an integer >= 1"),
    ],
)
def test_numbers_that_no_run_has_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        subsampled.delta(*arguments, 1.0)
    with pytest.raises(ValueError, match=message):
        subsampled.epsilon(*arguments, 1e-5)


@pytest.mark.quick("1e-05-1e-05-1")
@pytest.mark.parametrize(("q", "delta", "steps"), [(1e-6, 1e-5, 5), (1e-5, 1e-5, 1), (0.1, 0.3, 3)])
def test_noise_is_not_looked_for_where_delta_covers_whoever_is_drawn(q, delta, steps):
    """The search ended in an OverflowError; who is drawn would be given away."""
    with pytest.raises(ValueError, match="take no noise"):
        subsampled.calibrate(1.0, delta, q, steps)
    assert subsampled.calibrate(1.0, delta / 4, q, steps) > 0


def test_pure_privacy_is_refused():
    with pytest.raises(ValueError, match="Gaussian noise gives no pure privacy"):
        subsampled.calibrate(1.0, 0.0, 0.1, 10)
