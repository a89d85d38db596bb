"""What one coin costs under a policy: thresholds for every bound k."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labelguard.policy import Policy


def thresholds(policy: Policy, bounds: NDArray[np.int64]) -> dict[int, int]:
    """For each distinct bound k, the integer threshold ⌈γ·2^64⌉ of its coins."""
    from labelguard.accounting import randomized_response, ternary

    distinct = np.unique(bounds)
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
