"""`--engine processes`: a pool of processes on this machine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial

from labelguard.errors import LabelguardError
from labelguard.storage.executor import Result, Task, refuse_address, run_ahead


class Processes:
    """Processes of this machine, started with the first work; tasks go through pipes alone."""

    shares_memory = False

    def __init__(self, workers: int, address: str | None = None) -> None:
        refuse_address("processes", address)
        self._workers = workers
        # Forked processes would share locks that threads of this one hold.
        self._pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"))

    def map(
        self, work: Callable[[Task, int], Result], task: Task, buckets: Iterable[int]
    ) -> Iterator[Result]:
        """`work(task, bucket)` of every bucket, in the order of these."""
        try:
            yield from run_ahead(self._pool, self._workers, partial(work, task), buckets)
        except BrokenProcessPool:
            raise LabelguardError(
                "a worker process died, of too little memory perhaps; nothing is lost: run the "
                "same command again, with fewer --workers"
            ) from None

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)
