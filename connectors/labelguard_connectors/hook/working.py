"""The worker as a process: for one turn, or until it is told to end."""

from __future__ import annotations

import os
import signal
import sys
import threading

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
    try:
        worker.run(ended)
    except (Stopped, KeyboardInterrupt):
        logs.logger().info("worker ended")
    return Turn()


def _watch() -> None:
    """The server holds the other end open for as long as it lives."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
