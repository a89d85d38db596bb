"""The price of two labelers together, where all labels of both may change.

Two who act as one, or one person with two ids, are protected by less than one alone:

* blocks of randomized labels: 2k of them, with the exact price of the accountants of one labeler;
* Gaussian releases: they move a sum by 2Δ, so the price at σ/2. Where they are not in the same
  releases, it is less: Σ (a_i + b_i)² <= 4R for a_i, b_i in {0, 1} that sum to R each;
* anything else, alone or jointly, in two steps of one labeler each, `epsilon_by_two_steps`.

A ball release moves by 2Δ too, of which `ball.epsilon(s/2, δ, d)` is the exact price, but only if
both are in the same one. Two in different releases have two losses, and who was in which may depend
on earlier releases. So within a policy balls take two steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from labelguard.accounting import joint
from labelguard.accounting.components import (
    Component,
    Gaussians,
    RandomizedBlocks,
    Unproven,
    WholeRecords,
)

_SHARES = (0.5, 0.9, 0.99)
_PURE = 1 + 2.0**-40


def epsilon_by_two_steps(components: Sequence[Component], delta: float) -> float:
    """Return an ε at which two labelers are (ε, delta)-private under everything the components
    allow.

    With δ(·) the joint price of one: δ₂(a + b) <= δ(a) + e^a · δ(b) for all a, b >= 0, since
    P(S) <= e^a Q(S) + δ(a) and Q(S) <= e^b R(S) + δ(b). The best of some splits of delta, and of
    twice the largest loss. Infinite where no price is that small.
    """
    pure = joint.pure_epsilon(components)
    best = 2 * pure * _PURE
    for share in _SHARES:
        first = min(joint.epsilon(components, share * delta), pure)
        if math.isfinite(first):
            rest = (1 - share) * delta * math.exp(-first)
            try:
                best = min(best, first + joint.epsilon(components, rest))
            except ValueError:  # smaller than what Gaussians are priced for
                continue
    return best


def epsilon(components: Sequence[Component], delta: float) -> float | None:
    """Return the smallest known ε at which two labelers together are (ε, delta)-private; None if
    none is.

    Exact for blocks and Gaussian releases, alone and jointly; two steps otherwise. Of runs whose
    guarantee is unproven nothing is known.
    """
    epsilon_of_two = _epsilon(tuple(components), float(delta))
    return epsilon_of_two if math.isfinite(epsilon_of_two) else None


@lru_cache(maxsize=256)
def _epsilon(components: tuple[Component, ...], delta: float) -> float:
    if any(isinstance(one, Unproven | WholeRecords) for one in components):
        return math.inf
    doubled: list[Component] = []
    for one in components:
        if isinstance(one, RandomizedBlocks):
            doubled.append(replace(one, count=2 * one.count))
        elif isinstance(one, Gaussians):
            doubled.append(replace(one, noise_multiplier=one.noise_multiplier / 2))
        else:
            return epsilon_by_two_steps(components, delta)
    return joint.epsilon(doubled, delta)
