"""A command that is told to end (SIGTERM, SIGHUP) cleans up first, as it does at Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


class Stopped(SystemExit):
    """The process was told to end; `code` is what a shell says of the signal."""

    code: int


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Raise `Stopped` where these signals would end the process and leave raw labels on disk.

    Signals that are ignored (`nohup`) or handled already are left as they are. One is enough:
    another does not disturb the cleaning up.
    """
    told: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if not told:
            told.append(number)
            raise Stopped(128 + number)

    in_main = threading.current_thread() is threading.main_thread()
    ours = [one for one in _SIGNALS if in_main and signal.getsignal(one) is signal.SIG_DFL]
    for one in ours:
        signal.signal(one, stop)
    try:
        yield
    except BaseException:
        # An engine that is interrupted raises an error of its own instead.
        if told:
            raise Stopped(128 + told[0]) from None
        raise
    finally:
        if not told:  # else the process is about to end, and cleans up until then
            for one in ours:
                signal.signal(one, signal.SIG_DFL)
