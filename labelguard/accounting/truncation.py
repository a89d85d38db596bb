"""The cost of the largest value that normal noise of a language model can have.

Its normals are made in pairs, from a uniform number U that gives a radius √(−2 ln U) and one that
gives an angle. U is never below 2^-BITS, so that pairs beyond √(2·BITS·ln 2) deviations, which have
a probability of 2^-BITS, are not drawn: noise in d coordinates and T steps is at a total variation
distance of at most η = ⌈d/2⌉·T·2^-BITS from that without an end. Under either of two neighbours, so
that (ε, δ) becomes (ε, δ + (1 + e^ε)·η).

It covers the tail, and nothing else: that numbers in floating point are discrete is covered by no
guarantee.
"""

from __future__ import annotations

import math

from labelguard.accounting import _validate

# U is at least 2^-BITS: 192 bits, and a half.
BITS = 193

# For models of so many parameters runs are priced; a larger one is refused.
MOST_COORDINATES = 2**40


def delta(coordinates: int, epsilon: float) -> float:
    """Return (1 + e^ε)·⌈coordinates/2⌉·2^-BITS, rounded up, at most 1.

    `coordinates` are d·T, those of all steps together. Raises ValueError unless coordinates is an
    integer >= 1 and epsilon finite and >= 0.
    """
    _validate.at_least_one(coordinates=coordinates)
    _validate.nonnegative(epsilon=epsilon)
    pairs = -(-coordinates // 2)
    apart = math.ldexp(float(pairs), -BITS)
    return min(1.0, (1 + math.exp(min(epsilon, 700.0))) * apart * (1 + 2.0**-48))
