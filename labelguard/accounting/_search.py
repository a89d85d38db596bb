"""Bisection, written once: where something that is false below and true above begins to hold."""

from __future__ import annotations

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
