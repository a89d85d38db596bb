"""How deep JSON is nested. What is too deep for the reader of files would stop every release."""

from __future__ import annotations

from typing import Any

LABEL, TASK = 8, 100
"""The most levels that a label has, and a task; the reader takes 128 with what is around them."""


def within(value: Any, levels: int) -> bool:
    """Whether parsed JSON has at most so many levels of objects and lists."""
    found = [value]
    for _ in range(levels + 1):
        inner = [one for one in found if isinstance(one, dict | list)]
        if not inner:
            return True
        found = [own for one in inner for own in (one.values() if isinstance(one, dict) else one)]
    return False
