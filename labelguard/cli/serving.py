"""Servers of commands: a socket, and an application on it until the process is told to end."""

from __future__ import annotations

import contextlib
import socket
from typing import Any

from labelguard.cli.terminal import StopSignal
from labelguard.errors import LabelguardError

BACKLOG = 2_048
_SHUTDOWN_SECONDS = 30


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises `LabelguardError` where the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, asyncio sends what it writes at once (TCP_NODELAY); else every
    # answer would wait 40 ms for an acknowledgment.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise LabelguardError(
            f"cannot listen on {host}, port {port}: {error.strerror}; name another: --host, --port"
        ) from None
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the URL of a socket that listens."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(application: Any, listener: socket.socket, **settings: Any) -> None:
    """Serve an ASGI application until SIGTERM or Ctrl-C; `settings` are further ones of uvicorn.

    What was accepted until then is answered. No log has a path or a query, which may hold anything.
    """
    import uvicorn

    config = uvicorn.Config(
        application,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
        **settings,
    )
    # Told to end, it ends well; the signal, which uvicorn raises once more, has done its work.
    with contextlib.suppress(StopSignal, KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
