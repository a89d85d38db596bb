"""Numbers of the accountants: checks of arguments, and searches for where a bound begins."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable
from typing import SupportsIndex, TypeAlias


def positive(**values: float) -> None:
    """Raise ValueError unless every value is finite and above 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be finite and > 0, found {value!r}")


def nonnegative(**values: float) -> None:
    """Raise ValueError unless every value is finite and at least 0."""
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be finite and >= 0, found {value!r}")


def within(low: float, high: float, **values: float) -> None:
    """Raise ValueError unless every value is in [low, high]."""
    for name, value in values.items():
        if not low <= value <= high:
            raise ValueError(f"{name} must be in [{low}, {high}], found {value!r}")


def delta_below_one(delta: float) -> None:
    """Raise ValueError unless delta is in [0, 1); at delta = 1 any release would be allowed."""
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be in [0, 1), found {delta!r}")


def at_least_one(**values: SupportsIndex) -> None:
    """Raise ValueError unless every value is an integer of at least 1."""
    for name, value in values.items():
        try:
            whole = operator.index(value)
        except TypeError:
            raise ValueError(f"{name} must be an integer >= 1, found {value!r}") from None
        if whole < 1:
            raise ValueError(f"{name} must be an integer >= 1, found {whole}")


# The spacing of floats at 1: one correctly rounded operation errs by half of it, relative.
ROUNDING = sys.float_info.epsilon

# Noise multipliers of runs are multiples of 1/PER_ONE.
PER_ONE = 2**20

# δ, at most 1, at a noise multiplier in which it falls; roughly, and quickly, if the second
# argument is true.
Price: TypeAlias = Callable[[float, bool], float]

_MOST_NOISE = 2.0**23
_NEAR = 2e-5  # of ln δ: how far below the target it may be


def bisect(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the upper end of a bisection in (low, high], to 2 units of rounding; `high` holds."""
    while high - low > 2 * ROUNDING * high:
        middle = low + (high - low) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def smallest_epsilon(delta_of: Callable[[float], float], high: float, delta: float) -> float:
    """Return the upper end of a bisection for the ε at which a falling δ(ε) reaches `delta`.

    `high` is enough, and the least that is for delta = 0.
    """
    if delta == 0:
        return high
    if delta_of(0.0) <= delta:
        return 0.0
    return bisect(lambda middle: delta_of(middle) <= delta, 0.0, high)


def smallest_whole(holds: Callable[[int], bool], low: int, high: int) -> int:
    """Return the smallest whole number in (low, high] that holds; `high` does, `low` does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def find_crossing(excess: Callable[[float], float], low: float, high: float, width: float) -> float:
    """Return where a falling function, above 0 at `low` only, stops being above 0.

    The upper end, at which it is not above 0, of an interval of at most that width; by regula falsi
    (Illinois), for functions that cost too much to bisect.
    """
    above, below = excess(low), excess(high)
    stayed = 0
    while high - low > width:
        middle = high - below * (high - low) / (below - above) if above > below else low
        middle = min(max(middle, low + width / 2), high - width / 2)
        value = excess(middle)
        # The end that stays counts half the second time, or it would stay for ever.
        if value > 0:
            low, above, below = middle, value, below / 2 if stayed > 0 else below
            stayed = 1
        else:
            high, below, above = middle, value, above / 2 if stayed < 0 else above
            stayed = -1
    return high


def largest_whole(excess: Callable[[int], float], low: int, high: int) -> int:
    """Return the last whole number at which a rising function is not above 0.

    It is not above 0 at `low`, and above 0 at `high`.
    """
    steps_back = find_crossing(
        lambda back: excess(high - math.floor(back)), 0.0, float(high - low), 1.0
    )
    return high - math.floor(steps_back)


def find_noise_multiplier(price: Price, delta: float, guess: float) -> float:
    """Return the noise multiplier, a multiple of 1/PER_ONE rounded up, at which the price is
    `delta`.

    The price at the result, not the rough one, is at most `delta`, and 2e-5 below it, relative, or
    what rounding up leaves. Where a price overflows, its noise is taken to give everything away.

    Raises ValueError where no noise multiplier below 2^23 is enough.
    """

    def cap_price(noise_multiplier: float, coarse: bool) -> float:
        try:
            return price(noise_multiplier, coarse)
        except OverflowError:  # e to the power of a loss
            return 1.0

    def excess(logarithm: float, coarse: bool) -> float:
        return math.log(cap_price(math.exp(logarithm), coarse) / delta)

    low = high = math.log(guess)
    step = 0.1
    if excess(low, True) > 0:
        while excess(high := high + step, True) > 0:
            low, step = high, 2 * step
            if high > math.log(_MOST_NOISE):
                raise ValueError(
                    f"no noise multiplier below 2^23 reaches delta = {delta!r}; "
                    "expected a larger delta, or fewer steps"
                )
    else:
        while excess(low := low - step, True) <= 0:
            high, step = low, 2 * step
    about = find_crossing(lambda at: excess(at, True), low, high, 1e-4)
    slope = min(-1.0, (excess(about + 0.01, True) - excess(about - 0.01, True)) / 0.02)
    return _refine_multiplier(cap_price, delta, round(math.exp(about) * PER_ONE), slope)


def _refine_multiplier(price: Price, delta: float, whole: int, slope: float) -> float:
    """Return `find_noise_multiplier` from a whole number of 1/PER_ONE near it.

    It is Newton's method within brackets.
    """
    fails, holds = 0, math.inf
    while True:
        value = price(whole / PER_ONE, False)
        if _is_tight(value, delta, whole / PER_ONE):
            return whole / PER_ONE
        if value > delta:
            fails = whole
        else:
            holds = whole
        if holds - fails <= max(1.0, 1e-6 * fails):  # the price jumps where its grid changes
            return holds / PER_ONE
        step = (_NEAR / 2 + math.log(value / delta)) / slope
        whole = math.ceil(whole * math.exp(-step) if abs(step) < 1 else whole * 2)
        if not fails < whole < holds:
            whole = int(fails + holds) // 2 if holds < math.inf else 2 * fails


def _is_tight(value: float, delta: float, noise_multiplier: float) -> bool:
    """Return True for a price that is at most `delta`, and below it by rounding only."""
    # ln δ moves by some 2·ln(1/δ) or less for a relative change of the noise multiplier.
    left = _NEAR - 4 * math.log(delta) / (noise_multiplier * PER_ONE)
    return delta * math.exp(-left) <= value <= delta
