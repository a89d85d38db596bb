"""Matrices of many rows, in scratch files where they are large, and work on portions of the rows.

A portion is a fixed number of rows, whatever the number of buckets, and is worked on by one core:
what is made of it, and a sum over portions in their order, is the same to the last bit wherever it
is computed (among processors of one type).
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from labelguard.storage.executor import Result, Task, Workers, open_executor, run_over_buckets

PORTION = 1 << 16  # rows

# Bytes of an array that memory is not to hold as a whole, and that are written at once.
_LARGE = 64 << 20


def choose_workers(workers: Workers | None, rows: int) -> Workers:
    """Return what works on so many rows: threads of this process where these are one portion, or
    where nobody else would see a file.
    """
    if workers is None:
        return Workers(open_executor())
    seen = workers.executor.shares_memory or (workers.scratch is not None and rows > PORTION)
    return workers if seen else Workers(open_executor(), workers.scratch)


def allocate(
    shape: tuple[int, ...], workers: Workers, dtype: DTypeLike = np.float32
) -> NDArray[Any]:
    """Return an array to be filled, in a scratch file if it is large or other processes fill it.

    The system keeps of a file in memory what there is room for. Raises `OSError` where the disk is
    full.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    small = size < _LARGE and workers.executor.shares_memory
    if small or workers.scratch is None or not size:
        return np.empty(shape, dtype)
    descriptor, name = tempfile.mkstemp(".matrix", dir=workers.scratch)
    with os.fdopen(descriptor, "wb") as file:
        for start in range(0, size, _LARGE):  # a full disk would end the process in a map's write
            file.write(bytes(min(_LARGE, size - start)))
    return np.memmap(name, dtype, "r+", shape=shape)


@dataclass(frozen=True, repr=False, eq=False)
class SharedArray:
    """An array as tasks hold it: itself, or the file in which other processes find it."""

    values: NDArray[Any] | None
    path: Path | None
    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, values: NDArray[Any], workers: Workers) -> SharedArray:
        """Share an array, which goes to a scratch file unless it is in one, or memory is shared."""
        kind, shape = values.dtype.str, values.shape
        if workers.executor.shares_memory or not values.size:
            return cls(values, None, kind, shape)
        if not (isinstance(values, np.memmap) and isinstance(values.base, mmap.mmap)):
            copy = allocate(shape, workers, values.dtype)
            copy[:] = values
            values = copy
        assert isinstance(values, np.memmap) and values.filename is not None
        values.flush()
        return cls(None, Path(values.filename), kind, shape)

    def open(self, mode: Any = "r") -> NDArray[Any]:
        """Return the array; `r+` to fill it."""
        if self.values is not None:
            return self.values
        return np.memmap(str(self.path), self.dtype, mode, shape=self.shape)


def rows_of_portion(number: int) -> slice:
    """Return the rows of a portion; its end may lie beyond the matrix."""
    return slice(number * PORTION, (number + 1) * PORTION)


def map_portions(
    workers: Workers, work: Callable[[Task, int], Result], task: Task, rows: int
) -> Iterator[Result]:
    """Yield `work(task, portion)` of all portions of so many rows, in order, each by one core.

    No rows are one portion. `workers` are those of `choose_workers`.
    """
    executor = workers.executor
    count = max(1, -(-rows // PORTION))
    if executor.shares_memory:
        with _limit_to_one_core():
            yield from run_over_buckets(executor, work, task, count=count)
    else:
        yield from run_over_buckets(executor, work_on_one_core, (work, task), count=count)


def work_on_one_core(job: tuple[Callable[[Task, int], Result], Task], portion: int) -> Result:
    """Return `work(task, portion)` of a job (work, task)."""
    work, task = job
    with _limit_to_one_core():
        return work(task, portion)


def _limit_to_one_core() -> AbstractContextManager[Any]:
    """Have sums of products computed by one core: their order depends on how many share them."""
    limit: AbstractContextManager[Any] = _find_linear_algebra().limit(limits=1)
    return limit


@cache
def _find_linear_algebra() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
