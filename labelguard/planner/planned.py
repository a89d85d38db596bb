"""What is planned, as plain data: by `forecast`, for pictures, pages and JSON."""

from __future__ import annotations

from dataclasses import dataclass

from labelguard.planner.advice import Recommendation, Worth
from labelguard.planner.outcomes import Forecast

__all__ = ["PlanCounts", "Planned"]


@dataclass(frozen=True)
class PlanCounts:
    """What an input holds."""

    labelers: int
    """units in it"""
    labels: int
    """its labels"""
    pairs: int
    """distinct pairs"""


@dataclass(frozen=True)
class Planned:
    """Forecasts of every mechanism and ε, and what follows from them."""

    adjacency: str
    """which neighbours a guarantee is about"""
    delta: float
    """δ of each unit"""
    features: str
    """what heads learn from"""
    agreement: float
    """how often two labelers were taken to agree on a strict label"""
    unit: str
    """what is protected as a whole"""
    periods: int
    """how many releases like this one the budget is for"""
    counts: PlanCounts
    """what the input holds"""
    forecasts: tuple[Forecast, ...]
    """first a head without privacy, then every mechanism at every ε"""
    recommended: tuple[Recommendation, ...]
    """what to do at every ε, from the least on"""
    epsilon: float | None
    """the ε of them to choose: 3 or less where that serves, and the least at which more of it gains
    less than 1 of 100 answers; null: nothing is recommended"""
    worth: Worth
    """from where on a release is worth it at all"""
    notes: tuple[str, ...]
    """what to know about the input, and what would help"""

    @property
    def choice(self) -> Recommendation | None:
        """What is recommended at the ε to choose; None where nothing is."""
        return next((one for one in self.recommended if one.epsilon == self.epsilon), None)
