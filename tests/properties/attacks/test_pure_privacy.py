"""At δ = 0 the parts of ε never add up to more than ε, not even by a rounding error."""

import decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labelguard.accounting import randomized_response

EPSILONS = st.floats(0.01, 50)
COUNTS = st.integers(1, 100_000)


@given(EPSILONS, COUNTS)
def test_k_shares_of_epsilon_are_at_most_epsilon(epsilon, k):
    share = randomized_response.calibrate(epsilon, 0.0, k)
    assert k * Fraction(share) <= Fraction(epsilon)
    assert k * Fraction(share) >= Fraction(epsilon) * (1 - Fraction(1, 2**51))


@pytest.mark.parametrize(("epsilon", "k"), [(1.0, 5), (1.0, 50), (1.0, 135)])
def test_where_division_rounds_up_the_share_is_stepped_down(epsilon, k):
    assert k * Fraction(epsilon / k) > Fraction(epsilon)
    assert k * Fraction(randomized_response.calibrate(epsilon, 0.0, k)) <= Fraction(epsilon)


@given(st.floats(0.01, 40), st.integers(1, 500))
def test_what_the_coins_realise_is_at_most_epsilon(epsilon, k):
    threshold = randomized_response.threshold(randomized_response.calibrate(epsilon, 0.0, k))
    with decimal.localcontext(prec=60):
        realised = (decimal.Decimal(2**64 - threshold) / threshold).ln()
        assert k * realised <= decimal.Decimal(epsilon)
