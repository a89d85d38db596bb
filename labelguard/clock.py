"""The time of day, in one place."""

from __future__ import annotations

from datetime import UTC, datetime

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def now() -> str:
    """Return UTC in ISO 8601, to the second. No charge and no release depends on it."""
    return format_time(datetime.now(UTC))


def format_time(time: datetime) -> str:
    """Return a time of UTC as `now` tells it."""
    return time.strftime(_FORMAT)


def parse_time(time: str) -> datetime:
    """Return the time that `format_time` wrote."""
    return datetime.strptime(time, _FORMAT).replace(tzinfo=UTC)
