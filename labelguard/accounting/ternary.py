"""Ternary randomized response on a label that may be a tie: the exact cost of k answers.

One label in {0, ½, 1} is kept with probability p = e^ε0/(e^ε0+2) and otherwise becomes one of
the two other values, each with probability r = 1/(e^ε0+2): `kary` with K = 3, whose accountant
these functions are. Its thresholds are even, and the parity of a coin below one chooses between
the two other values.
"""

from __future__ import annotations

from labelguard.accounting.kary import KAry

__all__ = [
    "calibrate",
    "delta",
    "epsilon",
    "epsilon0_of",
    "threshold",
]

TERNARY = KAry(3)

calibrate = TERNARY.calibrate
delta = TERNARY.delta
epsilon = TERNARY.epsilon
epsilon0_of = TERNARY.epsilon0_of
threshold = TERNARY.threshold
