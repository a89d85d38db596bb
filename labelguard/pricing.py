"""What one place costs under a policy: the noise that every bound k buys, as stored integers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labelguard.errors import PolicyError
from labelguard.policy import Policy

DISCRETISATION_SHARE = 2.0**-10
"""Of a statistic's δ, what is set aside for noise on a grid instead of continuous noise."""


def prices(policy: Policy, bounds: NDArray[np.int64]) -> dict[int, int]:
    """The price of a place for each distinct bound k.

    Randomized response: the threshold ⌈γ·2^64⌉ of a coin. Statistic: the noise multiplier σ in
    units of 2^-40, rounded up.
    """
    from labelguard.accounting import gaussian, randomized_response, ternary

    distinct = np.unique(bounds)
    if policy.mechanism == "statistic":
        delta = policy.delta * (1 - DISCRETISATION_SHARE)
        try:
            return {
                int(k): gaussian.units(gaussian.calibrate(policy.epsilon, delta, int(k)))
                for k in distinct
            }
        except ValueError as error:
            raise PolicyError(str(error)) from None
    if policy.ties == "ternary":
        per_label = ternary.calibrate_many(policy.epsilon, policy.delta, distinct)
        convert = ternary.threshold
    else:
        per_label = randomized_response.calibrate_many(
            policy.epsilon, policy.delta, distinct, policy.composition
        )
        convert = randomized_response.threshold
    return {
        int(k): convert(float(epsilon0)) for k, epsilon0 in zip(distinct, per_label, strict=True)
    }


def flip_probability(policy: Policy, threshold: int) -> float:
    """The probability that a strict label was flipped, for a released strict label."""
    if policy.ties == "ternary":
        # Released ties are dropped: among released strict labels, r / (p + r).
        change = threshold / 2**64
        return (change / 2) / (1 - change / 2)
    return threshold / 2**64
