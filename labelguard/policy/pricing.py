"""What one place costs under a policy: the noise that every bound k buys, as stored integers."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from labelguard.errors import PolicyError
from labelguard.policy.policy import Policy, Priced

if TYPE_CHECKING:
    from labelguard.accounting.joint import Component

DISCRETISATION_SHARE = 2.0**-10
"""Of a statistic's δ, what is set aside for noise on a grid instead of continuous noise."""


def continuous_delta(policy: Policy) -> float:
    """The δ that continuous noise may spend: of one closing point, less what grids take."""
    share = DISCRETISATION_SHARE if "statistic" in policy.events else 0.0
    return policy.delta_at_points * (1 - share)


def prices(policy: Policy, event: Priced, bounds: NDArray[np.int64]) -> dict[int, int]:
    """The price of a place for each distinct bound k.

    Randomized response: the threshold ⌈γ·2^64⌉ of a coin. Statistic: the noise multiplier σ in
    units of 2^-40, rounded up. Raises `PolicyError` if nothing buys that little noise.
    """
    from labelguard.accounting import gaussian, randomized_response, ternary

    distinct, delta = np.unique(bounds), continuous_delta(policy)
    try:
        if len(policy.allowances) > 1:
            return {int(k): _joint(policy)[policy.events.index(event)] for k in distinct}
        if event == "statistic":
            return {
                int(k): gaussian.units(gaussian.calibrate(policy.epsilon, delta, int(k)))
                for k in distinct
            }
    except ValueError as error:
        raise PolicyError(str(error)) from None
    if policy.ties == "ternary":
        per_label = ternary.calibrate_many(policy.epsilon, delta, distinct)
        convert = ternary.threshold
    else:
        per_label = randomized_response.calibrate_many(policy.epsilon, delta, distinct)
        convert = randomized_response.threshold
    return {
        int(k): convert(float(epsilon0)) for k, epsilon0 in zip(distinct, per_label, strict=True)
    }


def component(policy: Policy, event: Priced, price: int, places: int) -> Component:
    """`places` events at a stored price, as the accountants know them."""
    from labelguard.accounting.joint import Coins, Gaussians, TernaryCoins

    if event == "statistic":
        return Gaussians(price, places)
    return (TernaryCoins if policy.ties == "ternary" else Coins)(price, places)


def flip_probability(policy: Policy, threshold: int) -> float:
    """The probability that a strict label was flipped, for a released strict label."""
    if policy.ties == "ternary":
        # Released ties are dropped: among released strict labels, r / (p + r).
        change = threshold / 2**64
        return (change / 2) / (1 - change / 2)
    return threshold / 2**64


@lru_cache
def _joint(policy: Policy) -> tuple[int, ...]:
    """The prices of all allowances together, in the policy's order."""
    from labelguard.accounting.joint import Gaussians, Share, calibrate

    shares = []
    for allowance in policy.allowances:
        assert allowance.places is not None  # see Policy
        ternary = allowance.event == "rr" and policy.ties == "ternary"
        kind = "ternary" if ternary else allowance.event
        shares.append(Share(kind, allowance.places, allowance.share))
    found = calibrate(policy.epsilon, continuous_delta(policy), shares)
    return tuple(part.units if isinstance(part, Gaussians) else part.threshold for part in found)
