"""What was probably meant by a name that is none."""

from __future__ import annotations

from collections.abc import Iterable


def closest(name: str, candidates: Iterable[str]) -> str:
    """The candidate that was probably meant, as a message says it; empty if none is near."""
    from difflib import get_close_matches

    matches = get_close_matches(name, list(candidates), 1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
