"""`labelguard serve`: the server on a socket, and the worker beside it, until told to end."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import uvicorn

from labelguard.cli.terminal import StopSignal
from labelguard.errors import ConnectorError
from labelguard.project import attempts
from labelguard.project.opening import OpenProject, Where
from labelguard_connectors.hook import app, limits, logs
from labelguard_connectors.hook.delivery import Hook
from labelguard_connectors.hook.limits import Limits
from labelguard_connectors.hook.schedule import Schedule
from labelguard_connectors.hook.serving import Endpoints

HOST, PORT = "127.0.0.1", 8410
_BACKLOG = 2_048
_SHUTDOWN_SECONDS = 30
_SWITCH_SECONDS = 0.0005
_WORKER_SECONDS = 60
# How long to wait before a worker that ended is started again: at first, and at most.
_RESTART_SECONDS = (1, 300)


@dataclass(frozen=True)
class ServerSummary:
    """Counts of a server that has ended."""

    # where it listened
    address: str
    # the connectors that it served
    connectors: Sequence[str]
    # deliveries that were answered with 200
    deliveries: int
    # events that were stored for the first time
    events: int


def serve(
    where: Where = None,
    *,
    host: str = HOST,
    port: int = PORT,
    worker: Sequence[str] = (),
    bounds: Limits | None = None,
) -> ServerSummary:
    """Serve a project's hook until SIGTERM or Ctrl-C; what was accepted until then is stored.

    `worker` is the command of the worker, if one is to run beside it. Raises `ConnectorError` where
    the address cannot be had, or no connector can be served, and what the worker would raise.
    """
    # Else the thread that writes waits 5 ms for the interpreter whenever it comes back to it.
    sys.setswitchinterval(_SWITCH_SECONDS)
    bounds = bounds or Limits()
    opened = OpenProject.open(where)
    endpoints = Endpoints.of(opened.project)
    if worker:  # what it would refuse is an error now, for whoever starts the server
        Schedule.of(opened.project.hook).describe(opened.project)
    logs.configure()
    log = logs.logger()
    with (
        contextlib.closing(opened.answers.inbox()) as inbox,
        contextlib.closing(_listen(host, port)) as listener,
    ):
        hook = Hook(endpoints.served, inbox, bounds, partial(attempts.read, opened.project))
        address = _address(listener)
        for name, why in endpoints.left_out.items():
            log.warning("not served", connector=name, why=why)
        log.info("serving", address=address, connectors=sorted(endpoints.served))
        if not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
            log.warning("not loopback", why="deliveries are unencrypted; put TLS in front of it")
        with _run_beside(worker) if worker else contextlib.nullcontext():
            _run(hook, listener, bounds)
        log.info("ended", address=address)
        return ServerSummary(address, sorted(endpoints.served), *hook.metrics.totals())


def _run(hook: Hook, listener: socket.socket, bounds: Limits) -> None:
    config = uvicorn.Config(
        app.application(hook),
        http=limits.protocol(bounds, bounds.within_files()),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,  # a path or a query may hold anything
        server_header=False,
        proxy_headers=True,
        forwarded_allow_ips="127.0.0.1,::1",
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    # Told to end, it ends well; the signal, which uvicorn raises once more, has done its work.
    with contextlib.suppress(StopSignal, KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With its protocol named, asyncio sends what it writes at once (TCP_NODELAY); else every
    # answer would wait 40 ms for an acknowledgment.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConnectorError(
            f"cannot listen on {host}, port {port}: {error.strerror}; name another: --host, --port"
        ) from None
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@contextlib.contextmanager
def _run_beside(command: Sequence[str]) -> Iterator[None]:
    """Keep a worker running meanwhile: it ends with this process, however this ends."""
    ended = threading.Event()
    keeper = threading.Thread(target=_keep_running, args=(command, ended), name="labelguard-worker")
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()


def _keep_running(command: Sequence[str], ended: threading.Event) -> None:
    log = logs.logger()
    pause, most = _RESTART_SECONDS
    while not ended.is_set():
        # The worker ends when its standard input does, which this process alone holds open.
        # Ctrl-C is for the server, which tells it.
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=sys.stderr, start_new_session=True
        ) as worker:
            while not ended.wait(0.2) and worker.poll() is None:
                pass
            if ended.is_set():
                worker.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.wait(_WORKER_SECONDS)
                worker.kill()
                return
        log.error("worker ended", code=worker.returncode, again_in_seconds=pause)
        ended.wait(pause)
        pause = min(pause * 2, most)
