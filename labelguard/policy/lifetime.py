"""What all policies of a project cost together: the price of a labeler's whole life in it.

Policies follow one another. Each costs its full price, used or not: crediting what was left at a
moment chosen after seeing releases is unsound, unless the policy had closing points, fixed and
priced when it was made. The sum of prices holds however the later policies were chosen
(docs/guarantees.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from labelguard.policy.policy import Policy


@dataclass(frozen=True)
class Chapter:
    """A policy that was in force, with its quote; `point` where it was closed, None at full."""

    name: str
    policy: Policy
    quote: dict[str, Any]
    point: int | None = None

    @property
    def epsilon(self) -> float:
        """What it costs: ε of its closing point, or of the whole policy."""
        if self.point is None:
            return self.policy.epsilon
        return float(self.quote["points"][self.point - 1]["epsilon"])


@dataclass(frozen=True)
class Total:
    """ε and δ of a labeler over several policies, however the later ones were chosen."""

    epsilon: float
    """the sum of ε"""
    delta: float
    """the sum of δ"""


def total(chapters: Sequence[Chapter]) -> Total:
    """The price of policies that were in force one after another.

    Adaptive basic composition: the sums of ε and δ (closing points keep the δ of their policy).
    """
    return added([Total(chapter.epsilon, chapter.policy.delta) for chapter in chapters])


def added(totals: Sequence[Total]) -> Total:
    """What a labeler loses to several of them: ε adds, and so does δ."""
    delta = _sum(total.delta for total in totals)
    return Total(_sum(total.epsilon for total in totals), min(1.0, delta))


def _sum(values: Iterable[float]) -> float:
    """The sum of numbers as they are written: ten times 1e-5 are 1e-4, and not a little more."""
    return float(sum(Fraction(repr(float(value))) for value in values))
