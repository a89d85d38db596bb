"""How many labels of a unit a release may use: the bound k, and how it is rounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from labelguard.policy import events
from labelguard.policy.policy import Policy

SMALLEST_BOUND = 8
"""Smallest k of a labeler whose bound is rounded."""


def rounded_bound(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts rounded up to 8, 16, 32, …, so that prices do not single a labeler out."""
    # 2^e for the smallest e with count <= 2^e; exact, unlike a logarithm.
    exponents = np.frexp((np.maximum(counts, SMALLEST_BOUND) - 1).astype(np.float64))[1]
    return np.left_shift(1, exponents.astype(np.int64))


@dataclass(frozen=True)
class Bound:
    """How many uses units who are new are allowed, and what is one.

    `allowed` for everybody, or None: a labeler's labels rounded up to 8, 16, 32, …; `per_label`:
    every label is a use, else a release is one for all labels of a unit. `contents` as units are
    never exhausted: what is beyond their allowance is left out. `once`: a content that was
    released takes no further labels, because nothing tells these from those released.
    """

    allowed: int | None
    per_label: bool = True
    contents: bool = False
    once: bool = False

    @classmethod
    def of(cls, policy: Policy, event: str, *, named: bool) -> Self:
        """The bound that a policy sets for one kind of event.

        `named`: rows of the input have a labeler or a record id, which tells them apart.
        """
        return cls(
            policy.allowance(event).allowed,
            per_label=events.kind(event).per_label,
            contents=policy.unit == "item",
            once=not named,
        )
