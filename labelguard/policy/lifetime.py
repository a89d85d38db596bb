"""What all policies of a project cost together: the price of a labeler's whole life in it.

Policies follow one another. Each costs its full price, used or not: crediting what was left at a
moment chosen after seeing releases is unsound. The sum of prices holds however the later policies
were chosen (docs/guarantees.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from labelguard.terms import Budgeted


@dataclass(frozen=True)
class Total:
    """ε and δ of a labeler over several policies, however the later ones were chosen."""

    epsilon: float
    """the sum of ε"""
    delta: float
    """the sum of δ"""


def total(budgets: Iterable[Budgeted]) -> Total:
    """Return what a labeler loses to policies in force one after another, or to several projects.

    Adaptive basic composition: the sums of ε and of δ.
    """
    each = list(budgets)
    delta = _sum(one.delta for one in each)
    return Total(_sum(one.epsilon for one in each), min(1.0, delta))


def _sum(values: Iterable[float]) -> float:
    """The sum of numbers as they are written: ten times 1e-5 are 1e-4, and not a little more."""
    return float(sum(Fraction(repr(float(value))) for value in values))
