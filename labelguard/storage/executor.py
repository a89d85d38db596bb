"""Work on buckets side by side: on threads of this process, or wherever an engine takes it.

Work is a function at the top of a module, `work(task, bucket)`. Task and result can be pickled, and
what it writes gets its name when it is complete (`files.replace_when_done`): wherever the calls
run, and however often, as long as they see the same files the outcome is the same to the last byte.

A package adds an engine by an entry point in the group `labelguard.executors`: a callable
(workers, address) → `Executor`. `--engine` names the one to take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar, cast

from labelguard import extras
from labelguard.errors import LabelguardError
from labelguard.processes import count_cores

GROUP = "labelguard.executors"
LOCAL = "local"

Task = TypeVar("Task")
Result = TypeVar("Result")
_Item = TypeVar("_Item")


class Executor(Protocol):
    """Runs work on buckets. Tasks and results hold secrets, which are neither stored nor logged.

    `shares_memory`: calls run in this process.
    """

    shares_memory: bool

    def map(
        self, work: Callable[[Task, int], Result], task: Task, buckets: Iterable[int]
    ) -> Iterator[Result]:
        """`work(task, bucket)` of every bucket, in the order of these."""
        ...

    def close(self) -> None:
        """Let go of what runs calls."""
        ...


@dataclass(frozen=True)
class Threads:
    """Threads of this process; at most `workers` + 1 results wait (bounded memory)."""

    workers: int
    address: str | None = None
    shares_memory: ClassVar[bool] = True

    def __post_init__(self) -> None:
        refuse_address(LOCAL, self.address)

    def map(
        self, work: Callable[[Task, int], Result], task: Task, buckets: Iterable[int]
    ) -> Iterator[Result]:
        """`work(task, bucket)` of every bucket, in the order of these."""
        if self.workers == 1:
            yield from (work(task, bucket) for bucket in buckets)
            return
        with ThreadPoolExecutor(self.workers) as pool:
            yield from run_ahead(pool, self.workers, partial(work, task), buckets)

    def close(self) -> None:
        """Do nothing: threads end with each map."""


@dataclass(frozen=True)
class Workers:
    """An executor, and a directory that its workers see, for the files of tasks; None: TMPDIR."""

    executor: Executor
    scratch: Path | None = None


def refuse_address(engine: str, address: str | None) -> None:
    """Raise `LabelguardError` for the address of an engine that is on this machine."""
    if address is not None:
        raise LabelguardError(f"--address goes with an engine of several machines, not {engine}")


def run_ahead(
    pool: futures.Executor, most: int, work: Callable[[_Item], Result], items: Iterable[_Item]
) -> Iterator[Result]:
    """Yield `work(item)` of every item in order; at most `most` + 1 results wait.

    No call runs any more when it ends, however it ends.
    """
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
        futures.wait(waiting)  # what still runs writes labels that nobody would remove


def open_executor(
    engine: str = LOCAL, workers: int | None = None, address: str | None = None
) -> Executor:
    """Return the executor of an engine.

    `workers`: how many calls run at once; by default one a core. `address` is where the engine is
    to be found. Raises `LabelguardError` for an engine that is not installed, or not reached.
    """
    entry = extras.find_entry_point(GROUP, engine)
    if entry is None:
        known = ", ".join(extras.list_entry_points(GROUP))
        raise LabelguardError(f"--engine: there is no engine {engine!r}; available: {known}")
    return cast(Executor, entry.load()(workers or count_cores(), address))


def run_over_buckets(
    executor: Executor,
    work: Callable[[Task, int], Result],
    task: Task,
    progress: Callable[[float], None] = lambda share: None,
    *,
    count: int,
) -> Iterator[Result]:
    """Yield the results of `work` on `count` buckets in order.

    Reports the share done to `progress`. Raises `LabelguardError` if the executor gives fewer
    results than there are buckets, or more: it left work out.
    """
    done = 0
    for done, result in enumerate(executor.map(work, task, range(count)), 1):
        progress(done / count)
        yield result
    if done != count:
        raise LabelguardError(
            f"the engine answered for {done} of {count} buckets; nothing is lost: take another "
            "and run the same command again"
        )


def read_ahead(items: Iterator[_Item]) -> Iterator[_Item]:
    """Yield the same items, each fetched by another thread while the one before is being used."""
    done = object()
    with ThreadPoolExecutor(1) as pool:
        following: Future[_Item | object] = pool.submit(next, items, done)
        while (item := following.result()) is not done:
            following = pool.submit(next, items, done)
            yield cast(_Item, item)
