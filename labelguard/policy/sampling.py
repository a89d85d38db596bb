"""How a training run samples labelers or labels, step by step: part of what it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from labelguard.errors import PolicyError

MOST_STEPS = 100_000
MOST_RECORDS = 10_000


@dataclass(frozen=True)
class Sampling:
    """Poisson sampling: in each of `steps` steps everybody, or every label, is in by themselves."""

    probability: float
    """with which a labeler (uls, aup) or a label (els, els-group) is in a step"""
    steps: int
    """number of steps of a run"""
    records: int | None = None
    """els, els-group: labels of a labeler that are in a run at most"""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.probability) and 1e-6 <= self.probability <= 1):
            raise PolicyError(f"q must be in [1e-6, 1], found {self.probability}")
        for name, value, most in (
            ("steps", self.steps, MOST_STEPS),
            ("records", self.records, MOST_RECORDS),
        ):
            if value is not None and not 1 <= value <= most:
                raise PolicyError(f"{name} must be between 1 and {most:,}, found {value}")
