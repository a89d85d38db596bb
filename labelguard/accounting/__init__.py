"""What the releases about one labeler cost, exactly, and the noise that a budget allows.

One module a mechanism, with the same names for the same things (`delta`, `epsilon`, `calibrate`):
`randomized_response` for labels in {0, 1}, `ternary` for labels in {0, ½, 1}, `kary` for choices
among K options, `gaussian` for sums with Gaussian noise and `ball` for one sum with ball noise.
All are priced by closed forms of their k-fold composition, never by a general-purpose accountant:
dp-accounting's `PLDAccountant` ignores the count of a `RandomizedResponseDpEvent` (0.6.0) and so
returns almost no noise, and its REPLACE_ONE relation doubles the sensitivity of a Gaussian.

Gradient methods have no closed form: `subsampled` (runs of user-wise DP-SGD), `mixture` (of single
records) and `group` (the baseline of these) stand on the privacy loss distributions of
dp-accounting, which err upward.

`joint` prices all of them together, and `upper_bounds` holds what other composition theorems say of
the same releases.

Importing this package loads the standard library and numpy only.
"""

from labelguard.accounting import (
    ball,
    gaussian,
    group,
    joint,
    kary,
    mixture,
    randomized_response,
    subsampled,
    ternary,
    upper_bounds,
)
from labelguard.accounting.randomized_response import Composition

__all__ = [
    "Composition",
    "ball",
    "gaussian",
    "group",
    "joint",
    "kary",
    "mixture",
    "randomized_response",
    "subsampled",
    "ternary",
    "upper_bounds",
]
