"""What a mechanism gives, whatever it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.text import LABEL_A, LABEL_B
from utility.datasets import Labels, Problem

NOT_RELEASED = 255


@dataclass(frozen=True)
class Outcome:
    """`margins` (pairs,) of the head; `released` (n,), 0 or 1 or `NOT_RELEASED`, for each training
    row; `details` go into the record."""

    margins: NDArray[np.float64]
    released: Labels
    details: dict[str, Any] = field(default_factory=dict)


Mechanism: TypeAlias = Callable[[Problem, float, float, int], Outcome]


def by_teacher(
    problem: Problem, margins: NDArray[np.float64], details: dict[str, Any] | None = None
) -> Outcome:
    """The head labels every row."""
    labels = np.where(margins > 0, LABEL_A, LABEL_B).astype(np.uint8)
    return Outcome(margins, labels[problem.rows.pair], details or {})
