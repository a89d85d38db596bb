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
from typing import Any, Protocol

from labelguard.answers.inbox import Event
from labelguard.errors import ConnectorError, LabelguardError
from labelguard_connectors.hook.metrics import Metrics

MOST_EVENTS, MOST_BYTES = 4_096, 64 << 20
"""What may wait for the disk; what comes then is to come again later."""
_TRANSACTION = 512


class Store(Protocol):
    """What of an `Inbox` is needed here."""

    def put(self, events: list[Event]) -> int: ...

    def bury(self, connector: str, body: bytes, why: str) -> None: ...

    def check(self) -> None: ...


class Overloaded(ConnectorError):
    """More waits for the disk than may; nothing of this delivery was kept."""


@dataclass(frozen=True)
class _Work:
    """An event to be stored, or something else to be done by the thread that writes."""

    done: asyncio.Future[None]
    event: Event | None
    act: Callable[[], None] | None
    size: int


class Committer:
    """Stores events for the coroutines of one event loop, in a thread of its own."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        self._store, self._metrics = store, metrics
        self._queue: queue.SimpleQueue[_Work | None] = queue.SimpleQueue()
        self._waiting = self._bytes = 0
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Begin; called in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._write, name="labelguard-inbox", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Store what was handed over, and end."""
        self._queue.put(None)
        if self._thread:
            await asyncio.to_thread(self._thread.join)

    @property
    def alive(self) -> bool:
        """Whether events can be stored."""
        return bool(self._thread and self._thread.is_alive())

    async def store(self, event: Event, size: int) -> None:
        """Wait until the event is on disk. `size` is about how many bytes it has.

        Raises `Overloaded`, or what `Inbox.put` raises. Where the caller stops waiting, it is
        stored all the same.
        """
        await self._hand_over(event, None, size)

    async def bury(self, connector: str, body: bytes, why: str) -> None:
        """Wait until a body that cannot be understood is among the dead letters."""
        await self._hand_over(None, lambda: self._store.bury(connector, body, why), len(body))

    async def check(self) -> None:
        """Wait until a record is on disk. Raises as `store` does."""
        await self._hand_over(None, self._store.check, 0)

    async def _hand_over(
        self, event: Event | None, act: Callable[[], None] | None, size: int
    ) -> None:
        if self._waiting >= MOST_EVENTS or self._bytes + size > MOST_BYTES or not self.alive:
            raise Overloaded("too many events wait for the disk")
        assert self._loop
        work = _Work(self._loop.create_future(), event, act, size)
        self._waiting += 1
        self._bytes += size
        self._metrics.queued.set(self._waiting)
        self._queue.put(work)
        await work.done

    def _write(self) -> None:
        """The thread: take all that waits, store it, say so."""
        ending = False
        while not ending:
            taken = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while len(taken) < _TRANSACTION:
                    taken.append(self._queue.get_nowait())
            ending = None in taken
            works = [work for work in taken if work is not None]
            events = [work for work in works if work.event]
            if events:
                self._settle(events, _attempt(self._put, events))
            for work in works:
                if work.act:
                    self._settle([work], _attempt(work.act))

    def _put(self, works: list[_Work]) -> None:
        began = time.perf_counter()
        events = [work.event for work in works if work.event]
        new, states = self._store.put(events), sum(len(event.answers) for event in events)
        self._metrics.commits.observe(time.perf_counter() - began)
        self._metrics.commit_events.observe(states)
        self._metrics.events.inc(new)
        self._metrics.repeated.inc(states - new)

    def _settle(self, works: list[_Work], error: Exception | None) -> None:
        assert self._loop
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._resolve, works, error)

    def _resolve(self, works: list[_Work], error: Exception | None) -> None:
        for work in works:
            self._waiting -= 1
            self._bytes -= work.size
            if not work.done.done():
                work.done.set_exception(error) if error else work.done.set_result(None)
        self._metrics.queued.set(self._waiting)


def _attempt(act: Callable[..., None], *arguments: Any) -> Exception | None:
    """Do it; what went wrong is for those who wait, and does not end the thread."""
    try:
        act(*arguments)
    except LabelguardError as error:
        return error
    except Exception as error:
        return ConnectorError(f"the inbox cannot be used now: {type(error).__name__}")
    return None
