"""The price of Gaussian noise, against independent computations of the same numbers."""

import math
import sys
from decimal import Decimal, localcontext

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from dp_accounting.dp_event import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld.pld_privacy_accountant import PLDAccountant
from dp_accounting.privacy_accountant import NeighboringRelation
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from labelguard.accounting import gaussian
from labelguard.budget import pricing
from labelguard.budget.event_kind import Sampling
from labelguard.budget.policy import Allowance, Policy
from labelguard.errors import PolicyError

ADD_OR_REMOVE = NeighboringRelation.ADD_OR_REMOVE_ONE
REPLACE_ONE = NeighboringRelation.REPLACE_ONE
FINEST = 2.0**-40

noise_multipliers = st.floats(0.05, 1e4)
epsilons = st.floats(1e-3, 300)
deltas = st.floats(1e-15, 0.5)
counts = st.integers(1, 5000)


# --- references ----------------------------------------------------------------------------------


def pi_in_decimal():
    """π to the digits of the context, by Gauss and Legendre."""
    a, b, t, p = Decimal(1), 1 / Decimal(2).sqrt(), Decimal("0.25"), 1
    for _ in range(12):  # each step doubles the number of digits: 4096
        mean = (a + b) / 2
        a, b, t, p = mean, (a * b).sqrt(), t - p * (a - mean) ** 2, 2 * p
    return (a + b) ** 2 / (4 * t)


def normal_tail(x):
    """Φ(−x) = ½ − φ(x) · (x + x³/3 + x⁵/(3·5) + …)."""
    term = total = x
    odd = 1
    while abs(term) > abs(total).scaleb(-1200):
        odd += 2
        term *= x * x / odd
        total += term
    return Decimal("0.5") - total * (-x * x / 2).exp() / (2 * pi_in_decimal()).sqrt()


def delta_in_decimal(noise_multiplier, epsilon, releases):
    """Theorem 8 of Balle and Wang as it stands, in 1200 digits."""
    with localcontext(prec=1200):
        sigma, spent = Decimal(noise_multiplier) / Decimal(releases).sqrt(), Decimal(epsilon)
        upper = normal_tail(spent * sigma - 1 / (2 * sigma))
        return upper - spent.exp() * normal_tail(spent * sigma + 1 / (2 * sigma))


def hockey_stick(one, other, epsilon):
    return float(np.maximum(0, one - math.exp(epsilon) * other).sum())


def discrete_gaussian(scale):
    """Probabilities of −16·scale … 16·scale; less than 1e-55 is cut off."""
    x = np.arange(-16 * scale, 16 * scale + 1)
    weight = np.exp(-(x**2) / (2 * scale**2))
    return np.asarray(weight / weight.sum())


def shifted(probability, by):
    """The same distribution around `by`."""
    return np.concatenate([np.zeros(by), probability[: len(probability) - by]])


def by_accountant(event, releases, delta, relation):
    """ε of a privacy loss distribution, which rounds losses up to a grid of 1e-4."""
    accountant = PLDAccountant(relation)
    return float(accountant.compose(event, releases).get_epsilon(delta))


# --- measured vectors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "delta", "noise_multiplier"),
    [(0.5, 1e-6, 8.057618), (1, 1e-5, 3.730632), (3, 1e-5, 1.390593), (8, 1e-5, 0.600229)],
)
def test_calibration_gives_the_measured_noise(epsilon, delta, noise_multiplier):
    assert gaussian.calibrate(epsilon, delta) == pytest.approx(noise_multiplier, abs=5.1e-7)


def test_at_epsilon_zero_delta_is_the_total_variation_distance():
    assert gaussian.delta(1.0, 0.0) == pytest.approx(math.erf(1 / math.sqrt(8)), rel=1e-13)
    assert gaussian.delta(1e9, 0.0) == pytest.approx(1e-9 / math.sqrt(2 * math.pi), rel=1e-13)


# --- against independent computations ------------------------------------------------------------


@pytest.mark.quick(
    "3.730632-1.0-1-1e-13",
    "1.0-0.0-1-1e-13",
    "0.05-600.0-1-1e-11",
    "0.24-0.02-1-1e-12",
    "1000000.0-3.6e-05-1-1e-11",
)
@pytest.mark.parametrize(
    ("noise_multiplier", "epsilon", "releases", "margin"),
    [
        (3.730632, 1.0, 1, 1e-13),
        (0.600229, 8.0, 1, 1e-13),
        (1.0, 0.0, 1, 1e-13),
        (1.0, 37.0, 1, 1e-11),
        (0.1, 300.0, 1, 1e-11),
        (0.05, 600.0, 1, 1e-11),
        (0.05, 190.0, 1, 1e-12),
        (0.5, 1.99, 1, 1e-13),
        (0.24, 0.02, 1, 1e-12),
        (0.51, 0.0, 1, 1e-13),
        (1e6, 1e-6, 1, 1e-13),
        (1e6, 3.6e-5, 1, 1e-11),
        (50.0, 3.0, 700, 1e-12),
        (1e3, 0.5, 30_000, 1e-12),
    ],
)
def test_delta_is_never_below_the_truth(noise_multiplier, epsilon, releases, margin):
    truth = delta_in_decimal(noise_multiplier, epsilon, releases)
    assert truth > Decimal("1e-305")
    found = Decimal(gaussian.delta(noise_multiplier, epsilon, releases))
    assert truth <= found <= truth * (1 + Decimal(margin))


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0, 8.0, 30.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
def test_dp_accounting_finds_the_same_noise_and_the_same_epsilon(epsilon, delta):
    noise = gaussian.calibrate(epsilon, delta)
    assert noise == pytest.approx(gaussian_mechanism.get_sigma_gaussian(epsilon, delta), rel=1e-9)
    expected = gaussian_mechanism.get_epsilon_gaussian(noise, delta)
    assert gaussian.epsilon(noise, delta) == pytest.approx(expected, rel=1e-9)


@pytest.mark.quick("1.0-1")
@pytest.mark.parametrize(("noise_multiplier", "releases"), [(1.0, 1), (3.0, 12), (20.0, 200)])
def test_the_sensitivity_is_that_of_a_replacement_and_is_not_doubled(noise_multiplier, releases):
    """The same price as dp-accounting's add-or-remove relation at the same sensitivity.

    Under REPLACE_ONE its PLD accountant takes the sensitivity to be that of a removal and doubles
    it, so that an event of twice the noise has our price; its RDP accountant does not double.
    """
    delta = 1e-6
    ours = gaussian.epsilon(noise_multiplier, delta, releases)
    event, twice = GaussianDpEvent(noise_multiplier), GaussianDpEvent(2 * noise_multiplier)
    same = by_accountant(event, releases, delta, ADD_OR_REMOVE)
    assert ours <= same * (1 + 1e-9) and same <= ours + 2e-4 * releases
    replaced = by_accountant(twice, releases, delta, REPLACE_ONE)
    assert replaced == pytest.approx(same, rel=1e-6)
    assert by_accountant(event, releases, delta, REPLACE_ONE) > 1.5 * ours
    rdp = RdpAccountant(neighboring_relation=REPLACE_ONE).compose(event, releases)
    assert ours <= rdp.get_epsilon(delta) <= 1.5 * ours


@pytest.mark.quick("2-PLDAccountant", "25-RdpAccountant")
@pytest.mark.parametrize("accountant", [PLDAccountant, RdpAccountant])
@pytest.mark.parametrize("releases", [2, 25])
def test_n_events_cost_what_one_event_costs_n_times(accountant, releases):
    event, delta = GaussianDpEvent(4.0), 1e-6
    one_by_one = accountant(neighboring_relation=ADD_OR_REMOVE)
    for _ in range(releases):
        one_by_one.compose(event)
    counted = accountant(neighboring_relation=ADD_OR_REMOVE).compose(event, releases)
    nested = accountant(neighboring_relation=ADD_OR_REMOVE)
    nested.compose(SelfComposedDpEvent(event, releases))
    expected = one_by_one.get_epsilon(delta)
    assert counted.get_epsilon(delta) == pytest.approx(expected, rel=1e-3)
    assert nested.get_epsilon(delta) == pytest.approx(expected, rel=1e-3)
    assert gaussian.epsilon(4.0, delta, releases) <= expected
    if accountant is PLDAccountant:
        assert expected <= gaussian.epsilon(4.0, delta, releases) + 2e-4 * releases


# --- laws ----------------------------------------------------------------------------------------


@given(epsilon=epsilons, delta=deltas, releases=counts)
@settings(deadline=None, max_examples=60)
def test_the_noise_is_the_least_that_keeps_delta(epsilon, delta, releases):
    noise = gaussian.calibrate(epsilon, delta, releases)
    assert gaussian.delta(noise, epsilon, releases) <= delta
    less = min(noise * (1 - 1e-9), noise - FINEST)
    assert gaussian.delta(less, epsilon, releases) > delta
    assert gaussian.epsilon(noise, delta, releases) <= epsilon * (1 + 1e-12)


@given(noise=noise_multipliers, delta=deltas, releases=counts)
@settings(deadline=None, max_examples=60)
def test_epsilon_is_the_smallest_that_keeps_delta(noise, delta, releases):
    epsilon = gaussian.epsilon(noise, delta, releases)
    assert gaussian.delta(noise, epsilon, releases) <= delta
    if epsilon > 0:
        assert gaussian.delta(noise, epsilon * (1 - 1e-9), releases) > delta
        assert gaussian.calibrate(epsilon, delta, releases) == pytest.approx(
            noise, rel=1e-9, abs=2 * FINEST
        )


def test_no_privacy_loss_costs_nothing():
    assert gaussian.epsilon(1e12, 1e-5) == 0


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 50.0, 700.0])
def test_the_least_delta_can_be_calibrated(epsilon):
    noise = gaussian.calibrate(epsilon, gaussian.SMALLEST_DELTA, 3)
    assert gaussian.delta(noise, epsilon, 3) <= gaussian.SMALLEST_DELTA
    assert gaussian.delta(noise * (1 - 1e-9), epsilon, 3) > gaussian.SMALLEST_DELTA


def test_delta_stays_a_probability_at_extremes():
    assert gaussian.delta(1e-200, 1.0) == 1
    assert gaussian.delta(5e-324, 0.0) == 1
    assert gaussian.delta(1e300, 1e10) == sys.float_info.min
    assert gaussian.epsilon(1e-200, 1e-5) == math.inf


# --- noise on a grid -----------------------------------------------------------------------------


def rounded_normal(scale):
    """Probabilities of the cells around −16·scale … 16·scale; less than 1e-55 is cut off."""
    edges = np.arange(-16 * scale, 16 * scale + 2) - 0.5
    above = np.array([math.erfc(edge / scale / math.sqrt(2)) / 2 for edge in edges])
    return -np.diff(above)


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.3, 0.52, 1.0, 3.0])
@pytest.mark.parametrize("dimension", [1, 2])
def test_rounded_noise_costs_at_most_continuous_noise(dimension, epsilon):
    """By enumeration: every coordinate moves by `shift` steps of a grid that is very coarse."""
    scale, shift = 8, 8
    one = rounded_normal(scale)
    other = shifted(one, shift)
    if dimension == 2:
        one, other = np.outer(one, one), np.outer(other, other)
    price = gaussian.delta(scale / shift / math.sqrt(dimension), epsilon)
    assert hockey_stick(one, other, epsilon) <= price * (1 + 1e-9)


def test_noise_that_is_discrete_and_not_rounded_would_cost_more():
    one = discrete_gaussian(16)
    assert hockey_stick(shifted(one, 16), one, 0.52) > gaussian.delta(1.0, 0.52) * (1 + 1e-5)


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gaussian.delta(0.0, 1.0), "noise_multiplier must be finite and > 0"),
        (lambda: gaussian.delta(1.0, math.nan), "epsilon must be finite and >= 0"),
        (lambda: gaussian.delta(1.0, 1.0, 1.5), "releases must be an integer >= 1, found 1.5"),  # type: ignore[arg-type]
        (lambda: gaussian.epsilon(1.0, 1.0), r"delta must be in \[0, 1\), found 1.0"),
        (lambda: gaussian.epsilon(1.0, 0.0), "no pure privacy.*found 0.0"),
        (lambda: gaussian.calibrate(0.0, 1e-5), "epsilon must be finite and > 0"),
        (lambda: gaussian.calibrate(1.0, 1e-301), "delta must be at least 1e-300"),
        (lambda: gaussian.calibrate(1.0, 1e-5, -1), "releases must be an integer >= 1"),
    ],
)
def test_an_argument_that_is_no_price_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# What is left out beyond the largest normal that a language model's noise can be.


def test_drawn_from_192_bits_they_cost_nothing_that_could_be_seen():
    found = gaussian.delta_of_truncation(gaussian.MOST_COORDINATES * 100_000, 8.0)
    exact = (1 + math.exp(8)) * 2**39 * 100_000 * 2.0**-193
    assert exact <= found <= exact * (1 + 1e-12) < 1e-30


def test_an_odd_coordinate_is_drawn_with_another_that_nobody_sees():
    one, two, three = (gaussian.delta_of_truncation(number, 1.0) for number in (1, 2, 3))
    assert 0 < one == two < three


@pytest.mark.parametrize(("coordinates", "epsilon"), [(0, 1.0), (-1, 1.0), (1.5, 1.0), (1, -1.0)])
def test_what_is_no_number_of_coordinates_is_refused(coordinates, epsilon):
    with pytest.raises(ValueError, match=r"coordinates|epsilon"):
        gaussian.delta_of_truncation(coordinates, epsilon)


def test_a_price_takes_it_off_delta_and_is_refused_where_it_is_more(monkeypatch):
    allowance = Allowance("uls", 1, sampling=Sampling(1.0, 100))
    policy = Policy(epsilon=3.0, delta=1e-5, ties="zero", allowances=(allowance,))
    assert 0 < 1e-5 - pricing.delta_for_continuous_noise(policy) < 1e-20
    monkeypatch.setattr(gaussian, "BITS", 54)
    monkeypatch.setattr(gaussian, "MOST_COORDINATES", 10**7)
    assert 1e-5 - pricing.delta_for_continuous_noise(policy) == pytest.approx(5.85e-7, rel=1e-2)
    monkeypatch.setattr(gaussian, "MOST_COORDINATES", 10**9)
    with pytest.raises(PolicyError, match="more than half"):
        pricing.compute_prices(policy, "uls")
