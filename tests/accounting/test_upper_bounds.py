"""The exact joint price lies below what other theorems say of the same events."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from support import upper_bounds
from support.components import choices_of_three, coins, deltas, gaussians, products

from labelguard.accounting import gaussian, joint
from labelguard.accounting import randomized_response as rr
from labelguard.accounting.joint import BinaryAnswers, Component


@given(products, deltas)
@settings(max_examples=80, deadline=None)
def test_no_upper_bound_is_below_the_exact_price(product: list[Component], delta: float) -> None:
    exact = joint.epsilon(product, delta) * (1 - 1e-9)
    assert exact <= upper_bounds.rdp(product, delta)
    assert exact <= upper_bounds.basic(product, delta)
    assert exact <= joint.pure_epsilon(product)


def test_the_rdp_bound_is_the_zcdp_bound_for_gaussians_and_below_pure_for_coins() -> None:
    for noise_multiplier, releases, delta in ((4.0, 6, 1e-5), (0.3, 1, 1e-100), (300.0, 2, 1e-2)):
        rho = releases / 2 / noise_multiplier**2
        excess = np.geomspace(1e-4, 1e8, 400_001)
        order = 1 + excess
        at_orders = rho * order + np.log(1 / (delta * order)) / excess + np.log(excess / order)
        found = upper_bounds.rdp([gaussians(noise_multiplier, releases)], delta)
        assert found == pytest.approx(max(0.0, float(at_orders.min())), rel=1e-4, abs=1e-12)
        assert found <= (rho + 2 * math.sqrt(-rho * math.log(delta))) * (1 + 1e-4)
        assert gaussian.epsilon(noise_multiplier, delta, releases) <= found * (1 + 1e-12)
    for product in ([coins(0.1, 50)], [choices_of_three(0.1, 50)], [coins(9.0, 50)]):
        exact = joint.epsilon(product, 1e-5)
        assert exact <= upper_bounds.rdp(product, 1e-5) <= 1.25 * exact


@pytest.mark.parametrize("make", [coins, choices_of_three])
@pytest.mark.parametrize("epsilon0", [1e-3, 0.5, 20.0])
@pytest.mark.parametrize("order", [1.5, 3.0, 40.0])
def test_renyi_divergences_of_coins_are_those_of_their_answers(
    make: Any, epsilon0: float, order: float
) -> None:
    mp = pytest.importorskip("mpmath").mp.clone()
    mp.dps = 60
    coin = make(epsilon0, 1)
    others = 1 if isinstance(coin, BinaryAnswers) else 2
    rare = 1 / (mp.exp(mp.mpf(coin.epsilon0)) + others)
    kept = 1 - others * rare
    moment = kept**order * rare ** (1 - order) + rare**order * kept ** (1 - order)
    moment += rare * (others - 1)
    at_orders = np.interp(order - 1, upper_bounds._EXCESSES, upper_bounds._divergence(coin))
    assert float(at_orders) == pytest.approx(float(mp.log(moment) / (order - 1)), rel=1e-4)


def test_basic_adds_exact_prices_at_equal_shares_of_delta() -> None:
    product: list[Component] = [coins(0.1, 50), gaussians(4.0, 6)]
    apart = rr.epsilon(0.1, 50, 5e-6) + gaussian.epsilon(4.0, 5e-6, 6)
    assert upper_bounds.basic(product, 1e-5) == pytest.approx(apart)
