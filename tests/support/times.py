"""Another time of day, for simulated weeks."""

import contextlib
from datetime import UTC
from unittest import mock

from labelguard import clock


@contextlib.contextmanager
def simulate_time(when):
    """It is `when`, a time with its zone, within this context."""
    with mock.patch.object(clock, "now", lambda: clock.format_time(when.astimezone(UTC))):
        yield
