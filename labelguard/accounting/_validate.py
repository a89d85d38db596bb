"""Argument checks of the accountants: each error says what was expected, and the value."""

from __future__ import annotations

import math
import operator
from typing import SupportsIndex


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
