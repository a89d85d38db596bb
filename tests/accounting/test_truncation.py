"""What is left out beyond the largest normal that a language model's noise can be."""

from __future__ import annotations

import math

import numpy as np
import pytest

from labelguard.accounting import truncation
from labelguard.budget import pricing
from labelguard.budget.event_kind import Sampling
from labelguard.budget.policy import Allowance, Policy
from labelguard.errors import PolicyError


def test_drawn_from_192_bits_they_cost_nothing_that_could_be_seen() -> None:
    found = truncation.delta(truncation.MOST_COORDINATES * 100_000, 8.0)
    exact = (1 + math.exp(8)) * 2**39 * 100_000 * 2.0**-193
    assert exact <= found <= exact * (1 + 1e-12) < 1e-30


def test_an_odd_coordinate_is_drawn_with_another_that_nobody_sees() -> None:
    assert 0 < truncation.delta(1, 1.0) == truncation.delta(2, 1.0) < truncation.delta(3, 1.0)


@pytest.mark.parametrize(("coordinates", "epsilon"), [(0, 1.0), (-1, 1.0), (1.5, 1.0), (1, -1.0)])
def test_what_is_no_number_of_coordinates_is_refused(coordinates: int, epsilon: float) -> None:
    with pytest.raises(ValueError, match=r"coordinates|epsilon"):
        truncation.delta(coordinates, epsilon)


def test_a_price_takes_it_off_delta_and_is_refused_where_it_is_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allowance = Allowance("uls", 1, sampling=Sampling(1.0, 100))
    policy = Policy(epsilon=3.0, delta=1e-5, ties="zero", allowances=(allowance,))
    assert 0 < 1e-5 - pricing.continuous_delta(policy) < 1e-20
    monkeypatch.setattr(truncation, "BITS", 54)
    monkeypatch.setattr(truncation, "MOST_COORDINATES", 10**7)
    assert 1e-5 - pricing.continuous_delta(policy) == pytest.approx(5.85e-7, rel=1e-2)
    monkeypatch.setattr(truncation, "MOST_COORDINATES", 10**9)
    with pytest.raises(PolicyError, match="more than half"):
        pricing.prices(policy, "uls", np.array([1]))
