"""`labelguard serve`: the server on a socket, and the worker beside it, until told to end."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from labelguard.answers.connector import read_secret
from labelguard.cli import terminal
from labelguard.errors import ConnectorError, PolicyError
from labelguard.project.opening import OpenProject, Where
from labelguard.project.project import STATE
from labelguard_connectors.hook import app, limits, logs
from labelguard_connectors.hook.delivery import Hook
from labelguard_connectors.hook.limits import Limits
from labelguard_connectors.hook.schedule import Schedule
from labelguard_connectors.hook.served import ServedProject
from labelguard_connectors.hook.serving import Endpoints

_SWITCH_SECONDS = 0.0005
_WORKER_SECONDS = 60
# How long to wait before a worker that ended is started again: at first, and at most.
_RESTART_SECONDS = (1, 300)
# How long one has to run to count as running, after another ended.
_STEADY_SECONDS = 60
# Whoever asks how the server is must give it, where it is set.
_TOKEN, _SAFE_TOKEN = "LABELGUARD_STATUS_TOKEN", re.compile(r"[!-~]{16,}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


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
    *places: Where,
    host: str = "127.0.0.1",
    port: int = 8410,
    worker: Sequence[str] = (),
    bounds: Limits | None = None,
) -> ServerSummary:
    """Serve the hook of a project, or of several, until SIGTERM or Ctrl-C; what was accepted until
    then is stored.

    `worker` is the command of the worker, if one is to run beside it for each project. Raises
    `LabelguardError` where the address cannot be had, no connector of a project can be served, or a
    secret of one project would open another; and what the worker would raise.
    """
    # Else the thread that writes waits 5 ms for the interpreter whenever it comes back to it.
    sys.setswitchinterval(_SWITCH_SECONDS)
    bounds, projects = bounds or Limits(), _open_named_projects(places or (None,))
    endpoints = _read_endpoints(projects)
    _refuse_shared_secrets(endpoints)
    token = read_secret(_TOKEN, ConnectorError)
    if token and not _SAFE_TOKEN.fullmatch(token):
        raise ConnectorError(
            f"{_TOKEN} must have 16 or more letters and digits: openssl rand -hex 24"
        )
    for name, opened in projects.items() if worker else ():
        # What it would refuse is an error now, for whoever starts the server.
        try:
            Schedule.of(opened.project.hook).describe_releases_and_allowance(opened.project)
        except (ConnectorError, PolicyError) as error:
            raise type(error)(f"{name}: {error}" if name else str(error)) from None
    logs.configure()
    terminal.ignore_hangups()
    log = logs.logger()
    with contextlib.ExitStack() as stack:
        bodies, hooks, watched = limits.Bodies(bounds), {}, {}
        for name, opened in projects.items():
            inbox = stack.enter_context(contextlib.closing(opened.answers.open_inbox()))
            watched[name] = ServedProject(opened.project)
            served = endpoints[name].served
            hooks[name] = Hook(served, inbox, bounds, watched[name], bodies, name)
            for source, why in opened.answers.explain_held_sources().items():
                log.warning("source held", source=f"{name}/{source}".lstrip("/"), why=why)
        stray = None if "" in hooks else Hook({}, inbox, bounds, watched[name], bodies)
        listener = stack.enter_context(contextlib.closing(terminal.open_listener(host, port)))
        address = terminal.format_address(listener)
        for name, each in endpoints.items():
            for connector, why in each.left_out.items():
                log.warning("not served", connector=f"{name}/{connector}".lstrip("/"), why=why)
        paths = sorted(
            f"{name}/{one}".lstrip("/") for name, each in endpoints.items() for one in each.served
        )
        log.info("serving", address=address, connectors=paths)
        if not ipaddress.ip_address(listener.getsockname()[0]).is_loopback:
            log.warning("not loopback", why="deliveries are unencrypted; put TLS in front of it")
            if not token:
                log.warning("no token", why=f"anybody may read /status and /metrics; set {_TOKEN}")
        for name, opened in projects.items() if worker else ():
            own = ["--project", str(opened.project.state), *(["--named", name] if name else [])]
            stack.enter_context(_keep_worker_running([*worker, *own], watched[name], name))
        terminal.run_server(
            app.application(hooks, stray, token),
            listener,
            http=limits.make_protocol(bounds, bounds.fit_connections_to_files()),
            lifespan="on",
            proxy_headers=True,
            forwarded_allow_ips="127.0.0.1,::1",
            backlog=terminal.BACKLOG,
        )
        totals = [hook.metrics.count_deliveries_and_events() for hook in hooks.values()]
        deliveries, events = map(sum, zip(*totals, strict=True))
        log.info("ended", address=address, deliveries=deliveries, events=events)
        return ServerSummary(address, paths, deliveries, events)


def _open_named_projects(places: Sequence[Where]) -> dict[str, OpenProject]:
    """Return projects by the names of their directories; "" is the name of an only one."""
    if len(places) == 1:
        return {"": OpenProject.open(places[0])}
    projects: dict[str, OpenProject] = {}
    for place in places:
        opened = OpenProject.open(place)
        state = opened.project.state
        name = state.parent.name if state.name == STATE else state.name
        if not _NAME.fullmatch(name):
            raise ConnectorError(
                f"{name!r} cannot stand in an address; give the project's directory a name of "
                "letters, digits, dots and dashes"
            )
        if name in projects:
            raise ConnectorError(f"two projects are called {name}, or one is named twice")
        projects[name] = opened
    return projects


def _read_endpoints(projects: Mapping[str, OpenProject]) -> dict[str, Endpoints]:
    """Return the endpoints of projects; what is wrong is said of each."""
    endpoints, wrong = dict[str, Endpoints](), list[str]()
    for name, opened in projects.items():
        try:
            opened.answers.check_readings()
            endpoints[name] = Endpoints.of(opened.project)
        except ConnectorError as error:
            wrong.append(f"{name}: {error}" if name else str(error))
    if wrong:
        raise ConnectorError("; ".join(wrong))
    return endpoints


def _refuse_shared_secrets(endpoints: Mapping[str, Endpoints]) -> None:
    """Raise `ConnectorError` where what opens one project's hook would open another's."""
    owners: dict[str, str] = {}
    for project, each in endpoints.items():
        for endpoint in each.served.values():
            for secret in endpoint.secrets:
                if (owner := owners.setdefault(secret, project)) != project:
                    raise ConnectorError(
                        f"connector {endpoint.name} of {project} has a secret of {owner} as well: "
                        "give it one of its own, under another name of the connector"
                    )


@contextlib.contextmanager
def _keep_worker_running(
    command: Sequence[str], project: ServedProject, name: str
) -> Iterator[None]:
    """Keep a worker running meanwhile: it ends with this process, however this ends."""
    ended = threading.Event()
    arguments = (command, ended, project, logs.logger(name))
    project.worker_ends = 0
    keeper = threading.Thread(
        target=_restart_worker_until_ended, args=arguments, name="labelguard-worker"
    )
    keeper.start()
    try:
        yield
    finally:
        ended.set()
        keeper.join()


def _restart_worker_until_ended(
    command: Sequence[str], ended: threading.Event, project: ServedProject, log: logs.Logger
) -> None:
    (first, most), ends = _RESTART_SECONDS, 0
    while not ended.is_set():
        # The worker ends when its standard input does, which this process alone holds open.
        # Ctrl-C is for the server, which tells it.
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=sys.stderr, start_new_session=True
        ) as worker:
            began = time.monotonic()
            while not ended.wait(0.2) and worker.poll() is None:
                if time.monotonic() - began > _STEADY_SECONDS:
                    project.worker_ends = ends = 0
            if ended.is_set():
                worker.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    worker.wait(_WORKER_SECONDS)
                worker.kill()
                return
        pause = min(first * 2 ** min(ends, 16), most)
        project.worker_ends = ends = ends + 1
        log.error("worker ended", code=worker.returncode, again_in_seconds=pause)
        ended.wait(pause)
