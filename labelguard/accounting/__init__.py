"""What k randomized answers of one labeler cost, exactly, and the noise that a budget allows.

Two mechanisms, one module each, with the same function names: `randomized_response` for labels
in {0, 1} and `ternary` for labels in {0, ½, 1}. Both are priced by closed forms of their k-fold
composition, never by a general-purpose accountant: dp-accounting's `PLDAccountant` ignores the
count of a `RandomizedResponseDpEvent` (0.6.0) and so returns almost no noise.

Importing this package loads the standard library and numpy only.
"""

from labelguard.accounting import randomized_response, ternary
from labelguard.accounting.randomized_response import Composition

__all__ = ["Composition", "randomized_response", "ternary"]
