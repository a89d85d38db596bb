"""The time of day, in one place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime

_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_simulated: ContextVar[datetime | None] = ContextVar("labelguard.clock", default=None)


def now() -> str:
    """UTC in ISO 8601, to the second. No charge and no release depends on it."""
    return format_time(_simulated.get() or datetime.now(UTC))


def format_time(time: datetime) -> str:
    """A time of UTC as `now` tells it."""
    return time.strftime(_FORMAT)


def parse_time(time: str) -> datetime:
    """Return the time that `format_time` wrote."""
    return datetime.strptime(time, _FORMAT).replace(tzinfo=UTC)


@contextlib.contextmanager
def simulate_time(when: datetime) -> Iterator[None]:
    """It is `when`, a time with its zone, within this context: for simulated weeks."""
    token = _simulated.set(when.astimezone(UTC))
    try:
        yield
    finally:
        _simulated.reset(token)
