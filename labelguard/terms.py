"""The few words that all rooms share: what labels are called inside, and how numbers are said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LABEL_B, LABEL_A, LABEL_TIE, LABEL_SKIP = 0, 1, 2, 3
"""Canonical labels: the second side preferred, the first side preferred, a tie, none given."""


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 release, 2 releases, 3 journal entries."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("y") else f"{number:,} {noun}s"


def budget_of(values: Mapping[str, Any]) -> str:
    """`epsilon` and `delta` as people write them: ε = 3, δ = 1e-5."""
    delta = f"{values['delta']:g}".replace("e-0", "e-")
    return f"ε = {values['epsilon']:g}, δ = {delta}"
