"""The time of day, in one place."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """UTC in ISO 8601, to the second. Informative only: no decision depends on a clock."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
