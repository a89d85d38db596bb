"""Group commit: whatever waits is stored in one transaction, by one thread.

A flush of the disk takes milliseconds however many events it covers, so the server waits for the
disk with all of them together. Whoever hands an event over waits until it is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from labelguard.answers.inbox import Event, Inbox
from labelguard.errors import ConnectorError, LabelguardError
from labelguard_connectors.hook.metrics import Metrics

# The most that may wait for the disk; what comes then is to come again later.
MOST_EVENTS, MOST_BYTES = 4_096, 64 << 20
_TRANSACTION = 512


class Overloaded(ConnectorError):
    """More waits for the disk than may; nothing of this delivery was stored."""


@dataclass(frozen=True)
class _WriterJob:
    """An event to be stored, or something else to be done by the thread that writes."""

    done: asyncio.Future[None]
    work: Event | Callable[[], None]
    size: int


class BatchWriter:
    """Stores events for the coroutines of one event loop, in a thread of its own."""

    def __init__(self, inbox: Inbox, metrics: Metrics) -> None:
        self._inbox, self._metrics = inbox, metrics
        self._queue: queue.SimpleQueue[_WriterJob | None] = queue.SimpleQueue()
        self._waiting = self._bytes = 0
        self._thread = threading.Thread(target=self._write, name="labelguard-inbox", daemon=True)
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

        Raises `Overloaded`, or what `Inbox.put` raises. Where the caller stops waiting, it is
        stored all the same.
        """
        await self._hand_over(event, size)

    async def bury(self, connector: str, body: bytes, why: str) -> None:
        """Wait until a body that cannot be understood is among the dead letters."""
        await self._hand_over(partial(self._inbox.bury, connector, body, why), len(body))

    async def check(self) -> None:
        """Wait until a record is on disk. Raises as `store` does."""
        await self._hand_over(self._inbox.check, 0)

    async def _hand_over(self, work: Event | Callable[[], None], size: int) -> None:
        is_full = self._waiting >= MOST_EVENTS or self._bytes + size > MOST_BYTES
        if is_full or not self._thread.is_alive() or not self._loop:
            raise Overloaded("too many events are waiting for the disk")
        job = _WriterJob(self._loop.create_future(), work, size)
        self._waiting += 1
        self._bytes += size
        self._metrics.queued.set(self._waiting)
        self._queue.put(job)
        await job.done

    def _write(self) -> None:
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
                error = _attempt(partial(self._put, events))
                self._settle([job for job in jobs if isinstance(job.work, Event)], error)
            for job in jobs:
                if not isinstance(job.work, Event):
                    self._settle([job], _attempt(job.work))

    def _put(self, events: list[Event]) -> None:
        began = time.perf_counter()
        new, states = self._inbox.put(events), sum(len(event.answers) for event in events)
        self._metrics.commits.observe(time.perf_counter() - began)
        self._metrics.commit_events.observe(states)
        self._metrics.events.inc(new)
        self._metrics.repeated.inc(states - new)

    def _settle(self, jobs: list[_WriterJob], error: Exception | None) -> None:
        assert self._loop
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._resolve, jobs, error)

    def _resolve(self, jobs: list[_WriterJob], error: Exception | None) -> None:
        for job in jobs:
            self._waiting -= 1
            self._bytes -= job.size
            if not job.done.done():
                job.done.set_exception(error) if error else job.done.set_result(None)
        self._metrics.queued.set(self._waiting)


def _attempt(act: Callable[[], None]) -> Exception | None:
    """Do it; return what went wrong, for those who wait: it does not end the thread."""
    try:
        act()
    except LabelguardError as error:
        return error
    except Exception as error:
        return ConnectorError(f"the inbox cannot be used now: {type(error).__name__}")
    return None
