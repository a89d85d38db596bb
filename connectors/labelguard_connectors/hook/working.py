"""The worker as a process: for one turn, or until it is told to end."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

from labelguard.cli.stopping import Stopped
from labelguard.project.opening import Where
from labelguard_connectors.hook import logs
from labelguard_connectors.hook.worker import Turn, Worker


def once(where: Where = None) -> Turn:
    """Do what is due now. Raises what `Worker` raises."""
    logs.configure()
    return Worker(where).turn()


def on(where: Where = None, *, attached: bool = False) -> Turn:
    """Work until SIGTERM, Ctrl-C or, `attached`, the end of standard input; what was done last.

    A release that is under way is stopped, and finished by the next worker at no further charge.
    """
    logs.configure()
    worker, ended = Worker(where), threading.Event()
    if attached:
        threading.Thread(target=_watch, daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        _note(number, ended)
    try:
        worker.run(ended)
    except (Stopped, KeyboardInterrupt):
        pass
    except Exception:
        if not ended.is_set():
            raise
    logs.logger().info("worker ended")
    return Turn()


def _note(number: int, ended: threading.Event) -> None:
    """Let `ended` know of a signal, whatever becomes of what its handler raises."""
    handler = signal.getsignal(number)

    def told(number: int, frame: FrameType | None) -> None:
        ended.set()
        if callable(handler):
            handler(number, frame)

    if callable(handler):
        signal.signal(number, told)


def _watch() -> None:
    """The server holds the other end open for as long as it lives."""
    # Not by sys.stdin: a thread that waits in it holds its lock, which the interpreter wants when
    # it ends.
    while os.read(0, 4_096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
