"""Matrices of many rows, in scratch files where they are large, and work on portions of the rows.

A portion is a fixed number of rows, whatever the number of buckets and workers, and is worked on by
one core: what is made of it, and a sum over portions in their order, is the same to the last bit
wherever it is computed (among processors of one type).

Arrays in .npz files are stored without pickle and without compression: a compressed file of a
megabyte can hold a gigabyte of zeros; what is stored as it is cannot.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from labelguard.processes import count_cores
from labelguard.storage.executor import Task, Workers, run_ahead, run_over_buckets
from labelguard.storage.files import replace_when_done

PORTION = 1 << 16  # rows

# Bytes of an array that memory is not to hold as a whole, and that are written at once.
_LARGE = 64 << 20


def allocate(
    shape: tuple[int, ...], scratch: Path | None, dtype: DTypeLike = np.float32
) -> NDArray[Any]:
    """Return an array to be filled by this process, in a file of `scratch` if it is large.

    The system keeps of a file in memory what there is room for. Raises `OSError` where the disk is
    full.
    """
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    if size < _LARGE or scratch is None:
        return np.empty(shape, dtype)
    return _create_file(shape, scratch, dtype)


def _create_file(shape: tuple[int, ...], scratch: Path, dtype: DTypeLike) -> NDArray[Any]:
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    descriptor, name = tempfile.mkstemp(".matrix", dir=scratch)
    with os.fdopen(descriptor, "wb") as file:
        for start in range(0, size, _LARGE):  # a full disk would end the process in a map's write
            file.write(bytes(min(_LARGE, size - start)))
    return np.memmap(name, dtype, "r+", shape=shape)


@dataclass(frozen=True, repr=False, eq=False)
class SharedArray:
    """An array as tasks hold it: itself, or the file in which other processes read it."""

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
            assert workers.scratch is not None
            copy = _create_file(shape, workers.scratch, values.dtype)
            copy[:] = values
            values = copy
        assert isinstance(values, np.memmap) and values.filename is not None
        values.flush()
        return cls(None, Path(values.filename), kind, shape)

    def open(self) -> NDArray[Any]:
        """Return the array, to be read."""
        if self.values is not None:
            return self.values
        return np.memmap(str(self.path), self.dtype, "r", shape=self.shape)


def count_portions(rows: int) -> int:
    """Return of how many portions so many rows are; at least one."""
    return max(1, -(-rows // PORTION))


def rows_of_portion(number: int) -> slice:
    """Return the rows of a portion; its end may lie beyond the matrix."""
    return slice(number * PORTION, (number + 1) * PORTION)


def map_portions(work: Callable[[slice], NDArray[Any]], rows: int) -> Iterator[NDArray[Any]]:
    """Yield the arrays `work(rows)` of all portions of so many rows, in order, each made by one
    core, on threads of this process.
    """
    portions, workers = map(rows_of_portion, range(count_portions(rows))), count_cores()
    with _limit_to_one_core(), ThreadPoolExecutor(workers) as pool:
        yield from run_ahead(pool, workers, work, portions)


def map_arrays(
    workers: Workers, work: Callable[[Task, int], NDArray[Any]], task: Task, count: int
) -> Iterator[NDArray[Any]]:
    """Yield the arrays `work(task, number)` for so many numbers, in order, each made by one core.

    Other processes make them, in files, which go when the next one is asked for.
    """
    with tempfile.TemporaryDirectory(prefix="arrays-", dir=workers.scratch) as directory:
        job = _ArrayTask(work, task, Path(directory))
        for path in run_over_buckets(workers.executor, write_array, job, count=count):
            yield np.load(path)
            path.unlink()


@dataclass(frozen=True, repr=False, eq=False)
class _ArrayTask:
    """A task for `write_array`: `work(task, number)` gives what is written to the directory."""

    work: Callable[[Any, int], NDArray[Any]]
    task: Any
    directory: Path


def write_array(job: _ArrayTask, number: int) -> Path:
    """Write what the work on one number gives, and return the file."""
    with _limit_to_one_core():
        values = job.work(job.task, number)
    path = job.directory / f"{number:06d}.npy"
    with replace_when_done(path) as temporary, temporary.open("wb") as file:
        np.save(file, values)
    return path


_cores = threading.Lock()
_limits: list[Any] = []


@contextmanager
def _limit_to_one_core() -> Iterator[None]:
    """Have sums of products computed by one core: their order depends on how many share them.

    The limit is one of the whole process: it ends with the last of those who want it.
    """
    with _cores:
        _limits.append(None if _limits else _find_linear_algebra().limit(limits=1))
    try:
        yield
    finally:
        with _cores:
            if len(_limits) == 1:
                _limits[0].restore_original_limits()
            _limits.pop()


@cache
def _find_linear_algebra() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the file that `load_arrays` reads."""
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file by name.

    Sizes are taken from the headers and compared with what is there before an array is made.
    Raises `ValueError` for anything but arrays of plain numbers stored as they are, `OSError`.
    """
    try:
        with zipfile.ZipFile(path) as file:
            members = file.infolist()
            if sum(member.file_size for member in members) > path.stat().st_size:
                raise ValueError("the arrays are larger than their file")
            return {m.filename.removesuffix(".npy"): _read_array(file, m) for m in members}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
        raise ValueError(str(error)) from None


_FORMAT: Any = np.lib.format  # not typed before NumPy 2.3


def _read_array(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with file.open(member) as stream:
        version = _FORMAT.read_magic(stream)
        if version != (1, 0):
            raise ValueError(f"arrays of version {version}")
        shape, _, kind = _FORMAT.read_array_header_1_0(stream)
        if math.prod(shape) * kind.itemsize != member.file_size - stream.tell():
            raise ValueError(f"{member.filename} has another size than it says")
    with file.open(member) as stream:
        array: NDArray[Any] = _FORMAT.read_array(stream, allow_pickle=False)
        return array
