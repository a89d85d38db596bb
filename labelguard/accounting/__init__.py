"""What the releases about one labeler cost, exactly, and the noise that a budget allows.

One module a mechanism, with the same names for the same things (`delta`, `epsilon`, `calibrate`):
`randomized_response` for labels in {0, 1}, `ternary` for labels in {0, ½, 1} and `gaussian` for
sums with (discrete) Gaussian noise. All are priced by closed forms of their k-fold composition,
never by a general-purpose accountant: dp-accounting's `PLDAccountant` ignores the count of a
`RandomizedResponseDpEvent` (0.6.0) and so returns almost no noise, and its REPLACE_ONE relation
doubles the sensitivity of a Gaussian.

`joint` prices all of them together, exactly, and `upper_bounds` holds what other composition
theorems say of the same releases.

Importing this package loads the standard library and numpy only.
"""

from labelguard.accounting import gaussian, joint, randomized_response, ternary, upper_bounds
from labelguard.accounting.randomized_response import Composition

__all__ = [
    "Composition",
    "gaussian",
    "joint",
    "randomized_response",
    "ternary",
    "upper_bounds",
]
