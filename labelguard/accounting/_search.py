"""Searches, written once: where something that is false below and true above begins to hold."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

ROUNDING = sys.float_info.epsilon
"""The spacing of floats at 1: one correctly rounded operation errs by half of it, relative."""


def smallest(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The upper end of a bisection in (low, high], to two units of rounding; `high` holds."""
    while high - low > 2 * ROUNDING * high:
        middle = low + (high - low) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def smallest_whole(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest whole number in (low, high] that holds; `high` does, `low` does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def crossing(excess: Callable[[float], float], low: float, high: float, width: float) -> float:
    """Where a falling function, above 0 at `low` and not at `high`, stops being above 0.

    The upper end, at which it is not above 0, of an interval of at most that width; by regula falsi
    (Illinois), for functions that cost too much to bisect.
    """
    above, below = excess(low), excess(high)
    stayed = 0
    while high - low > width:
        middle = high - below * (high - low) / (below - above) if above > below else low
        middle = min(max(middle, low + width / 2), high - width / 2)
        found = excess(middle)
        # The end that stays counts half the second time, or it would stay for ever.
        if found > 0:
            low, above, below = middle, found, below / 2 if stayed > 0 else below
            stayed = 1
        else:
            high, below, above = middle, found, above / 2 if stayed < 0 else above
            stayed = -1
    return high


def largest_whole(excess: Callable[[int], float], low: int, high: int) -> int:
    """The last whole number at which a rising function is not above 0: it is so at `low`, and above
    0 at `high`.
    """
    found = crossing(lambda back: excess(high - math.floor(back)), 0.0, float(high - low), 1.0)
    return high - math.floor(found)
