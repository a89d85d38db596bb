"""The price of randomized answers, against independent computations of the same numbers."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.privacy_accountant import NeighboringRelation
from hypothesis import given, settings
from hypothesis import strategies as st

from labelguard.accounting import ball, gaussian, mixture, subsampled
from labelguard.accounting import randomized_response as rr

REPLACE_ONE = NeighboringRelation.REPLACE_ONE
COIN_RANGE = 2**64

epsilon0s = st.floats(1e-4, 8)
epsilons = st.floats(1e-3, 20)
deltas = st.floats(1e-12, 0.5)
small_counts = st.integers(1, 300)


# --- references ----------------------------------------------------------------------------------


def transition(epsilon0):
    """Row: true label; column: answer."""
    return np.exp(epsilon0 * np.eye(2)) / (math.exp(epsilon0) + 1)


def delta_by_enumeration(k, epsilon0, epsilon):
    """The largest divergence over all pairs of vectors of k answers."""
    whole = np.ones((1, 1))
    for _ in range(k):
        whole = np.kron(whole, transition(epsilon0))
    gaps = np.maximum(0, whole[:, None, :] - math.exp(epsilon) * whole[None, :, :])
    return float(gaps.sum(axis=2).max())


def delta_by_composing_one_by_one(epsilon0, k, epsilon):
    """k single events, one after the other, each convolved in; every term is positive."""
    kept, changed = transition(epsilon0)[0]
    sums = np.ones(1)
    for _ in range(k):
        sums = np.convolve(sums, [changed, 0.0, kept])
    losses = np.arange(-k, k + 1) * epsilon0
    return float(np.sum(sums * -np.expm1(np.minimum(0, epsilon - losses))))


def delta_in_decimal(epsilon0, k, epsilon):
    """The closed form for two labels, term by term in 60 digits."""
    with localcontext(prec=60):
        step = Decimal(epsilon0).exp()
        probability = (step / (1 + step)) ** k
        excess = (Decimal(epsilon) - k * Decimal(epsilon0)).exp()
        total = Decimal(0)
        for flips in range(k + 1):
            if excess >= 1:
                break
            total += probability * (1 - excess)
            probability *= Decimal(k - flips) / (flips + 1) / step
            excess *= step * step
        return total


# --- measured vectors ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "delta", "k", "exact", "flip"),
    [
        (1, 1e-5, 1, 1.000014, 0.268939),
        (1, 1e-5, 50, 0.038818, 0.490297),
        (3, 1e-5, 10, 0.300256, 0.425495),
        (3, 1e-5, 50, 0.104592, 0.473876),
        (3, 1e-6, 500, 0.029058, 0.492736),
        (8, 1e-5, 1000, 0.052783, 0.486807),
    ],
)
def test_calibration_gives_the_measured_price(epsilon, delta, k, exact, flip):
    price = rr.calibrate(epsilon, delta, k)
    assert price == pytest.approx(exact, abs=5.1e-7)
    assert rr.flip_probability(price) == pytest.approx(flip, abs=5.1e-7)


@pytest.mark.parametrize(
    ("epsilon0", "k", "epsilon", "delta"),
    [(0.5, 10, 4, 5.519627e-03), (0.1, 50, 2, 1.021381e-03), (0.05, 200, 3, 5.875656e-06)],
)
def test_delta_is_the_measured_one(epsilon0, k, epsilon, delta):
    assert rr.delta(epsilon0, k, epsilon) == pytest.approx(delta, rel=1e-6)


# --- against independent computations ------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("epsilon0", [0.01, 0.7, 3.0])
def test_delta_is_that_of_the_worst_pair_of_label_vectors(epsilon0, k):
    for share in (0.0, 0.1, 0.4, 0.65, 0.99):
        epsilon = share * k * epsilon0
        expected = delta_by_enumeration(k, epsilon0, epsilon)
        assert rr.delta(epsilon0, k, epsilon) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("epsilon0", "k", "epsilon"),
    [(0.3, 1, 0.1), (0.5, 17, 3.0), (0.1, 150, 2.0), (0.02, 1500, 2.5), (2.0, 900, 1200.0)],
)
def test_k_events_cost_what_one_event_costs_k_times(epsilon0, k, epsilon):
    expected = delta_by_composing_one_by_one(epsilon0, k, epsilon)
    assert rr.delta(epsilon0, k, epsilon) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("epsilon0", "k", "epsilon", "margin"),
    [
        (1e-9, 3, 1e-10, 1e-12),
        (0.5, 10, 4.0, 1e-12),
        (0.1, 100, 0.0, 1e-12),
        (50.0, 40, 60.0, 1e-12),
        (45.0, 40, 1790.0, 1e-12),
        (0.01, 20_000, 6.0, 1e-9),
        (1e-3, 200_000, 2.0, 1e-8),
        (1.5, 200_000, 190_000.0, 1e-8),
    ],
)
def test_delta_is_never_below_the_truth(epsilon0, k, epsilon, margin):
    truth = delta_in_decimal(epsilon0, k, epsilon)
    found = Decimal(rr.delta(epsilon0, k, epsilon))
    assert truth * (1 - Decimal("1e-16")) <= found <= truth * (1 + Decimal(margin))


@pytest.mark.parametrize(
    ("epsilon0", "k", "epsilon"), [(1e-300, 10**6, 0.0), (1e-6, 10**6, 1e-3), (60.0, 10**6, 3.0)]
)
def test_delta_stays_a_probability_at_extremes(epsilon0, k, epsilon):
    assert 0 <= rr.delta(epsilon0, k, epsilon) <= 1
    assert rr.delta(epsilon0, k, k * epsilon0) == 0


def test_one_coin_has_the_textbook_delta():
    assert rr.delta(2.0, 1, 0.0) == pytest.approx(math.tanh(1.0), rel=1e-13)
    assert rr.delta(1e-12, 1, 0.0) == pytest.approx(0.5e-12, rel=1e-13)
    assert rr.delta(800.0, 1, 1.0) == 1


@pytest.mark.parametrize(("epsilon0", "k"), [(0.05, 200), (0.1, 50), (0.5, 10), (1.0, 64)])
def test_delta_agrees_with_a_privacy_loss_distribution(epsilon0, k):
    grid = 1e-4
    uniform = 2 / (math.exp(epsilon0) + 1)  # dp-accounting's p: how often the answer is of a coin
    composed = pld.from_randomized_response(
        uniform, 2, value_discretization_interval=grid
    ).self_compose(k)
    for share in (0.1, 0.3, 0.5, 0.8):
        epsilon = share * k * epsilon0
        rounded_up = composed.get_delta_for_epsilon(epsilon)
        # It rounds each of the k losses up to its grid, by less than one step.
        assert rr.delta(epsilon0, k, epsilon) <= rounded_up * (1 + 1e-9) + 1e-14
        assert rounded_up <= rr.delta(epsilon0, k, epsilon - k * grid) + 1e-9


# --- laws ----------------------------------------------------------------------------------------


@given(epsilon=epsilons, delta=deltas, k=small_counts)
@settings(deadline=None, max_examples=60)
def test_the_price_is_the_largest_that_keeps_delta(epsilon, delta, k):
    price = rr.calibrate(epsilon, delta, k)
    assert price >= np.nextafter(epsilon / k, 0)
    assert rr.delta(price, k, epsilon) <= delta
    assert rr.delta(price * (1 + 1e-11), k, epsilon) > delta * (1 - 1e-12)
    assert rr.epsilon(price, k, delta) <= epsilon * (1 + 1e-12)


@given(epsilon0=epsilon0s, k=small_counts, delta=deltas)
@settings(deadline=None, max_examples=60)
def test_epsilon_is_the_smallest_that_keeps_delta(epsilon0, k, delta):
    epsilon = rr.epsilon(epsilon0, k, delta)
    assert 0 <= epsilon <= k * epsilon0
    assert rr.delta(epsilon0, k, epsilon) <= delta
    if epsilon > 0:
        assert rr.delta(epsilon0, k, epsilon * (1 - 1e-9)) > delta


@given(epsilon=epsilons, k=st.integers(1, 10**6))
@settings(deadline=None)
def test_pure_privacy_divides_the_budget(epsilon, k):
    price = rr.calibrate(epsilon, 0.0, k)
    # As large as k times it stays at most ε, exactly.
    assert Fraction(price) * k <= Fraction(epsilon) < Fraction(np.nextafter(price, np.inf)) * k
    assert rr.delta(price, k, epsilon) == 0
    assert rr.epsilon(price, k, 0.0) == pytest.approx(epsilon, rel=1e-15)


# --- thresholds ----------------------------------------------------------------------------------


def is_ceiling(candidate, epsilon0):
    """Whether candidate = ⌈2^64/(e^epsilon0+1)⌉, by fractions from 120 decimal digits."""
    with localcontext(prec=120):
        power = Fraction(Decimal(epsilon0).exp())
    lower, upper = (
        COIN_RANGE / (power * (1 + sign * Fraction(1, 10**110)) + 1) for sign in (1, -1)
    )
    return candidate - 1 < lower and upper <= candidate


@pytest.mark.parametrize("epsilon0", [1e-18, 1e-9, 0.104592, 1.0, 8.0, 43.0, 44.3, 44.4, 80.0])
def test_a_threshold_is_exactly_the_ceiling(epsilon0):
    assert is_ceiling(rr.threshold(epsilon0), epsilon0)


@given(epsilon0=st.floats(1e-60, 60))
@settings(deadline=None)
def test_a_label_is_never_flipped_less_often_than_asked(epsilon0):
    flipped = rr.threshold(epsilon0)
    assert 1 <= flipped <= 2**63
    assert is_ceiling(flipped, epsilon0)


@given(epsilon0=st.floats(2e-19, 60))
@settings(deadline=None)
def test_the_realised_epsilon0_is_at_most_the_one_asked_for(epsilon0):
    realised = rr.epsilon0_of(rr.threshold(epsilon0))
    assert realised <= epsilon0 + 2 * math.ulp(epsilon0)
    if epsilon0 < 30:  # beyond, few coins flip and the grid of thresholds is coarse
        assert realised == pytest.approx(epsilon0, rel=1e-5, abs=1e-18)


def test_thresholds_at_the_ends_of_their_range():
    assert rr.threshold(0) == 2**63
    assert rr.threshold(5e-324) == 2**63
    assert rr.epsilon0_of(2**63) == 0
    assert rr.threshold(1e308) == 1
    assert rr.epsilon0_of(1) == pytest.approx(64 * math.log(2), rel=1e-15)


def test_a_label_is_flipped_with_the_odds_of_its_price():
    assert rr.flip_probability(0) == 0.5
    assert rr.flip_probability(800.0) == 0
    assert rr.flip_probability(math.log(3)) == pytest.approx(0.25, rel=1e-15)


# --- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("calibrate", "sampling"),
    [
        (rr.calibrate, (np.int8(100),)),
        (gaussian.calibrate, (np.int8(100),)),
        (ball.calibrate, (np.int8(100),)),
        (subsampled.calibrate, (np.float32(0.1), np.int8(20))),
        (mixture.calibrate, (np.float32(0.1), np.int8(20), np.int8(3))),
    ],
)
def test_numbers_of_little_precision_have_the_price_of_their_values(calibrate, sampling):
    given = (np.float32(1.1), np.float32(1e-5), *sampling)
    found = calibrate(*given)
    assert type(found) is float and found == calibrate(*(one.item() for one in given))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rr.delta(math.nan, 1, 1.0), "epsilon0 must be finite and >= 0, found nan"),
        (lambda: rr.delta(0.1, 1.5, 1.0), r"k must be an integer >= 1, found 1\.5"),
        (lambda: rr.delta(0.1, 1, -1.0), "epsilon must be finite and >= 0"),
        (lambda: rr.epsilon(0.1, 1, 1.0), r"delta must be in \[0, 1\), found 1\.0"),
        (lambda: rr.calibrate(0.0, 1e-5, 1), "epsilon must be finite and > 0"),
        (lambda: rr.calibrate(1.0, math.nan, 1), r"delta must be in \[0, 1\), found nan"),
        (lambda: rr.calibrate(1.0, 1e-5, 0), "k must be an integer >= 1"),
        (lambda: rr.threshold(math.inf), "epsilon0 must be finite"),
        (lambda: rr.epsilon0_of(0), "threshold must be an integer >= 1, found 0"),
        (lambda: rr.epsilon0_of(2**63 + 1), "threshold must be in"),
    ],
)
def test_an_error_says_what_was_expected_and_found(call, message):
    with pytest.raises(ValueError, match=message):
        call()
