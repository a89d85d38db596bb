"""`POST /hooks/{connector}`: a delivery, from its headers to its answer.

It passes verification, then its connector, then the disk; only then is it answered with 200. Until
it is verified, nothing of it is parsed or stored. This is plain ASGI: there are very many of these.

Commits are of groups: whatever waits is stored in one transaction, by one thread. A flush of the
disk takes milliseconds however many events it covers, so the server waits for the disk with all of
them together. Whoever hands an event over waits until it is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import queue
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.types import Receive, Scope, Send

from labelguard.answers.inbox import Event, Inbox
from labelguard.errors import ConnectorError, LabelguardError
from labelguard_connectors.hook import logs
from labelguard_connectors.hook.limits import Bodies, ErrorResponse, Limits
from labelguard_connectors.hook.metrics import Metrics
from labelguard_connectors.hook.served import ServedProject
from labelguard_connectors.hook.serving import Endpoint, Refused, explain_ignored, parse_delivery

# The most that may wait for the disk; what comes then is to come again later.
MOST_EVENTS, MOST_BYTES = 4_096, 64 << 20
_TRANSACTION = 512


@dataclass(frozen=True)
class _WriterJob:
    """An event to be stored, or something else to be done by the thread that writes."""

    done: asyncio.Future[None]
    work: Event | Callable[[], None]
    size: int


class BatchWriter:
    """Stores events for the coroutines of one event loop, in a thread of its own.

    What `check` raises keeps anything from being stored.
    """

    def __init__(self, inbox: Inbox, metrics: Metrics, check: Callable[[], None]) -> None:
        self._inbox, self._metrics, self._check = inbox, metrics, check
        self._queue: queue.SimpleQueue[_WriterJob | None] = queue.SimpleQueue()
        self._waiting = self._bytes = 0
        self._thread = threading.Thread(
            target=self._run_writer_thread, name="labelguard-inbox", daemon=True
        )
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin; called in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    async def stop(self) -> None:
        """Store what was handed over, and end."""
        self._queue.put(None)
        if self._loop:
            await asyncio.to_thread(self._thread.join)

    async def store(self, event: Event, size: int) -> None:
        """Wait until the event is on disk. `size` is about how many bytes it has.

        Raises `ConnectorError` where too many wait, and what `Inbox.put` raises. Where the caller
        stops waiting, it is stored all the same.
        """
        await self._queue_and_await(event, size)

    async def bury(self, connector: str, body: bytes, why: str) -> None:
        """Wait until a body that cannot be understood is among the dead letters."""
        await self._queue_and_await(
            partial(self._inbox.store_dead_letter, connector, body, why), len(body)
        )

    async def check_disk(self) -> None:
        """Wait until a record is on disk. Raises as `store` does."""
        await self._queue_and_await(self._inbox.check_writable, 0)

    async def _queue_and_await(self, work: Event | Callable[[], None], size: int) -> None:
        is_full = self._waiting >= MOST_EVENTS or self._bytes + size > MOST_BYTES
        if is_full or not self._thread.is_alive() or not self._loop:
            raise ConnectorError("too many events are waiting for the disk")
        job = _WriterJob(self._loop.create_future(), work, size)
        self._waiting += 1
        self._bytes += size
        self._metrics.queued.set(self._waiting)
        self._queue.put(job)
        await job.done

    def _run_writer_thread(self) -> None:
        """Take all that waits, store it, say so: the thread."""
        is_ending = False
        while not is_ending:
            batch = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while len(batch) < _TRANSACTION:
                    batch.append(self._queue.get_nowait())
            is_ending = None in batch
            jobs = [job for job in batch if job is not None]
            events = [job.work for job in jobs if isinstance(job.work, Event)]
            if events:
                error = self._do_or_return_error(partial(self._store_events, events))
                self._report_to_waiters([job for job in jobs if isinstance(job.work, Event)], error)
            for job in jobs:
                if not isinstance(job.work, Event):
                    self._report_to_waiters([job], self._do_or_return_error(job.work))

    def _store_events(self, events: list[Event]) -> None:
        began = time.perf_counter()
        new, states = self._inbox.store_events(events), sum(len(event.answers) for event in events)
        self._metrics.commits.observe(time.perf_counter() - began)
        self._metrics.commit_events.observe(states)
        self._metrics.events.inc(new)
        self._metrics.repeated.inc(states - new)

    def _report_to_waiters(self, jobs: list[_WriterJob], error: Exception | None) -> None:
        assert self._loop
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._complete_futures, jobs, error)

    def _complete_futures(self, jobs: list[_WriterJob], error: Exception | None) -> None:
        for job in jobs:
            self._waiting -= 1
            self._bytes -= job.size
            if not job.done.done():
                job.done.set_exception(error) if error else job.done.set_result(None)
        self._metrics.queued.set(self._waiting)

    def _do_or_return_error(self, act: Callable[[], None]) -> Exception | None:
        """Do it; return what went wrong, for those who wait: it does not end the thread."""
        try:
            self._check()
            act()
        except LabelguardError as error:
            return error
        except Exception as error:
            return ConnectorError(f"the inbox cannot be used now: {logs.describe_own_error(error)}")
        return None


PATH = "/hooks/"
STATUSES = {
    200: "On disk in the inbox, now or since it came first; or about nothing to keep.",
    401: "The signature, the secret, the time or the address is wrong.",
    404: "No connector of this name is served.",
    405: "Not a POST.",
    408: "The body came too slowly, or ended too early.",
    413: "The body is too large.",
    422: "Not understood; kept among the dead letters.",
    503: "Nothing is known to be kept: to be sent again, after Retry-After seconds.",
}
RETRY_SECONDS = "10"

_NOTHING = [(b"content-length", b"0")]
_CHECK_SECONDS = 5.0
_QUIET_SECONDS = 1.0


class Hook:
    """Takes deliveries for the connectors that are served, into one inbox. An ASGI application.

    Hooks of one server share the `bodies` that they read, which have one bound; the log tells them
    apart by `name`.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        inbox: Inbox,
        limits: Limits,
        project: ServedProject,
        bodies: Bodies | None = None,
        name: str = "",
    ) -> None:
        self._endpoints, self._inbox, self._limits = endpoints, inbox, limits
        self._project, self._waiting, self._letters = project, 0, 0
        self.metrics = Metrics(project, list(endpoints))
        self.writer = BatchWriter(inbox, self.metrics, project.check_directory_unchanged)
        self._bodies = bodies or Bodies(limits)
        self._refusals = logs.Sparse(logs.logger(name), "refused", _QUIET_SECONDS)
        self._log = logs.logger(name)
        self._checked: tuple[float, asyncio.Task[bool]] | None = None
        self._counted: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one delivery."""
        began = time.perf_counter()
        name = scope["path"].removeprefix(PATH)
        known = name if name in self._endpoints else "unknown"
        try:
            await self._receive_delivery(name, scope, receive)
            status, headers, body = 200, _NOTHING, b""
        except ErrorResponse as error:
            status, headers, body = _build_refusal(error)
            why = error.why + (f": {error.__cause__}" if error.__cause__ else "")
            self._refusals.warn(connector=known, status=status, why=why)
        self.metrics.deliveries.labels(known, str(status)).inc()
        self.metrics.seconds.observe(time.perf_counter() - began)
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _receive_delivery(self, name: str, scope: Scope, receive: Receive) -> None:
        headers = {
            key.decode("latin-1"): value.decode("latin-1")
            for key, value in reversed(scope["headers"])  # of two, the first counts
        }
        # Who is cut off while sending does not hear why: so it is read whatever is wrong.
        body = await self._bodies.read(_stream_body(receive), headers.get("content-length"))
        endpoint = self._endpoints.get(name)
        if endpoint is None:
            raise ErrorResponse(404, "no connector of this name is served here")
        if scope["method"] != "POST":
            raise ErrorResponse(405, "a delivery is a POST")
        try:
            endpoint.scheme.check_sender(scope["client"][0] if scope.get("client") else None)
            endpoint.scheme.verify(endpoint.secrets, headers, body)
        except Refused as error:
            raise ErrorResponse(401, str(error)) from None
        try:
            answers = parse_delivery(endpoint.connector, body)
        except ConnectorError as error:
            await self._wait_for_disk(self.writer.bury(name, body, str(error)))
            raise ErrorResponse(422, f"kept among the dead letters: {error}", last=False) from None
        if answers:
            event = Event(name, tuple(answers))
            await self._wait_for_disk(self.writer.store(event, len(body)))
        elif why := explain_ignored(endpoint.connector, body):
            self.metrics.ignored.labels(name).inc()
            if self._project.note_ignored(name, why):
                self._log.warning("ignored", connector=name, why=why)

    async def _wait_for_disk(self, work: Awaitable[None]) -> None:
        """Wait until it is on disk."""
        try:
            async with asyncio.timeout(self._limits.commit_seconds):
                await work
        except TimeoutError:
            raise ErrorResponse(503, "the inbox is busy") from None
        except ConnectorError as error:
            raise ErrorResponse(503, "the inbox cannot be written now") from error

    async def ready(self) -> bool:
        """Return whether a delivery could be stored, as of at most five seconds ago.

        A record takes the way of a delivery, through the queue and onto the disk.
        """
        now, checked = time.monotonic(), self._checked
        # One at a time, whoever asks: nobody fills the queue with checks.
        if not checked or (checked[1].done() and now - checked[0] >= _CHECK_SECONDS):
            checked = now, asyncio.create_task(self._is_disk_writable())
            self._checked = checked
        done, _ = await asyncio.wait([checked[1]], timeout=_CHECK_SECONDS)
        return bool(done) and checked[1].result()

    async def _is_disk_writable(self) -> bool:
        try:
            await self.writer.check_disk()
        except ConnectorError as error:
            self._log.error("not ready", why=str(error))
            return False
        return True

    async def status(self) -> dict[str, Any]:
        """Return how releases go, and how many events wait, or wait in vain; no error's message."""
        await self.refresh_counts()
        known = self._project.attempts()
        trouble, worker = self._project.fault or known.failure_text, self._project.worker_state()
        return {
            "releases": trouble or ("ok" if known.released_at else "none was tried"),
            "last_release": known.released_at or None,
            "exhausted_labelers": worker.exhausted,
            "reconciled": dict(worker.list_reconciliations()),
            "worker": self._project.describe_worker(),
            "ignored": {name: list(why) for name, why in self._project.ignored.items()},
            "waiting_events": self._waiting,
            "dead_letters": self._letters,
        }

    async def refresh_counts(self) -> None:
        """Count waiting events and dead letters anew; as before, if the database is silent."""
        if self._counted is None or self._counted.done():
            self._counted = asyncio.create_task(asyncio.to_thread(self._read_counts))
        await asyncio.wait([self._counted], timeout=_CHECK_SECONDS)

    def _read_counts(self) -> None:
        with contextlib.suppress(ConnectorError):
            self._waiting, self._letters = (
                self._inbox.count_waiting(),
                self._inbox.count_dead_letters(),
            )
            self.metrics.waiting.set(self._waiting)
            self.metrics.letters.set(self._letters)


async def _stream_body(receive: Receive) -> AsyncIterator[bytes]:
    """Yield the body, as it comes."""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ErrorResponse(408, "the body ended too early")
        yield message.get("body", b"")
        if not message.get("more_body"):
            return


def _build_refusal(error: ErrorResponse) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    body = json.dumps({"error": error.why}).encode()
    headers: dict[str, Any] = {"content-type": "application/json", "content-length": len(body)}
    if error.last:
        headers["connection"] = "close"
    if error.status == 503:
        headers["retry-after"] = RETRY_SECONDS
    if error.status == 405:
        headers["allow"] = "POST"
    return error.status, [(k.encode(), str(v).encode()) for k, v in headers.items()], body
