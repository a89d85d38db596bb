"""Work on buckets side by side, on threads of this process or wherever a package takes it.

Work is a function at the top of a module, `work(task, bucket)`. Task and result can be pickled, and
what it writes is named after its bucket, so that no two calls write one file: wherever the calls
run, as long as they see the same files, the outcome is the same to the last byte.

A package adds an executor by an entry point in the group `labelguard.executors`: a callable
(workers) → `Executor`. The environment variable LABELGUARD_EXECUTOR names the one to take.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar, cast

from labelguard import plugins
from labelguard.errors import LabelguardError
from labelguard.storage.buckets import BUCKETS

GROUP = "labelguard.executors"
VARIABLE = "LABELGUARD_EXECUTOR"

Task = TypeVar("Task")
Result = TypeVar("Result")
_Item = TypeVar("_Item")


class Executor(Protocol):
    """Runs work on buckets. Tasks and results hold secrets, which are neither stored nor logged."""

    def map(
        self, work: Callable[[Task, int], Result], task: Task, buckets: Iterable[int]
    ) -> Iterator[Result]:
        """`work(task, bucket)` of every bucket, in the order of these."""
        ...


@dataclass(frozen=True)
class Threads:
    """Threads of this process; at most `workers` + 1 results wait (bounded memory)."""

    workers: int

    def map(
        self, work: Callable[[Task, int], Result], task: Task, buckets: Iterable[int]
    ) -> Iterator[Result]:
        """`work(task, bucket)` of every bucket, in the order of these."""
        if self.workers == 1:
            yield from (work(task, bucket) for bucket in buckets)
            return
        with ThreadPoolExecutor(self.workers) as pool:
            waiting: deque[Future[Result]] = deque()
            try:
                for bucket in buckets:
                    waiting.append(pool.submit(work, task, bucket))
                    if len(waiting) > self.workers:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()


def open_executor(workers: int | None = None) -> Executor:
    """Return the executor that LABELGUARD_EXECUTOR names, by default `Threads`.

    `workers`: how many calls run at once; by default one a core. Raises `LabelguardError` for a
    name that is not installed.
    """
    workers, name = workers or os.cpu_count() or 1, os.environ.get(VARIABLE)
    if not name:
        return Threads(workers)
    entry = plugins.find(GROUP, name)
    if entry is None:
        known = ", ".join(plugins.available(GROUP)) or "none"
        raise LabelguardError(f"{VARIABLE}: there is no executor {name!r}; available: {known}")
    return cast(Executor, entry.load()(workers))


def over_buckets(
    executor: Executor,
    work: Callable[[Task, int], Result],
    task: Task,
    progress: Callable[[float], None] = lambda share: None,
) -> Iterator[Result]:
    """Yield the results of `work` on all buckets in order; report the share done to `progress`.

    Raises `LabelguardError` if the executor gives fewer results than there are buckets, or more: it
    left work out.
    """
    done = 0
    for done, result in enumerate(executor.map(work, task, range(BUCKETS)), 1):
        progress(done / BUCKETS)
        yield result
    if done != BUCKETS:
        raise LabelguardError(
            f"the executor {os.environ.get(VARIABLE) or 'threads'} answered for {done} of "
            f"{BUCKETS} buckets; nothing is lost: take another and run the same command again"
        )


def read_ahead(items: Iterator[_Item]) -> Iterator[_Item]:
    """Yield the same items, each fetched by another thread while the one before is being used."""
    done = object()
    with ThreadPoolExecutor(1) as pool:
        following: Future[_Item | object] = pool.submit(next, items, done)
        while (item := following.result()) is not done:
            following = pool.submit(next, items, done)
            yield cast(_Item, item)
