"""Portions of large matrices: computed anywhere, and the same everywhere."""

from __future__ import annotations

import errno
import hashlib
import pickle
import resource

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.twice import Twice
from threadpoolctl import threadpool_info, threadpool_limits

from labelguard.mechanisms import geometry
from labelguard.storage import portions
from labelguard.storage.blocks import distinct_rows, find_first_rows, order_within
from labelguard.storage.executor import Workers
from labelguard.storage.files import HashedFile, hash_file
from labelguard.storage.portions import PORTION, SharedArray, allocate

X = np.random.default_rng(0).standard_normal((PORTION + 99, 388), np.float32)
COUNTS = np.random.default_rng(1).integers(0, 9, len(X))


@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, 2])
def test_sums_and_coordinates_are_the_same_on_any_number_of_threads(cores, tmp_path, monkeypatch):
    def results(threads):
        monkeypatch.setattr("labelguard.storage.portions.count_cores", lambda: threads)
        spectrum = geometry.compute_spectrum(X, COUNTS)
        z = geometry.project(X, spectrum.axes[:, :7], tmp_path)
        return spectrum.values.tobytes(), spectrum.axes.tobytes(), z.tobytes()

    with threadpool_limits(cores):  # of the command; eigenvalues depend on them
        assert results(1) == results(3)


def square(task, number):
    return task[number] ** 2


def test_arrays_that_others_compute_come_in_order_and_leave_no_file(tmp_path):
    workers = Workers(Twice(), tmp_path)
    arrays = list(portions.map_arrays(workers, square, X[:9].reshape(3, 3, -1), 3))
    assert np.array_equal(np.concatenate(arrays), X[:9] ** 2)
    assert not list(tmp_path.iterdir())


def test_a_large_array_is_in_a_file_that_workers_can_open(tmp_path, monkeypatch):
    workers = Workers(Twice(), tmp_path)
    monkeypatch.setattr(portions, "_LARGE", 8)
    x = allocate((5, 3), tmp_path)
    assert isinstance(x, np.memmap)
    x[2] = 7
    shared = pickle.loads(pickle.dumps(SharedArray.of(x, workers)))
    assert shared.open()[2].tolist() == [7, 7, 7]
    with pytest.raises(ValueError, match="read-only"):
        shared.open()[2] = 8
    part = SharedArray.of(x[2:4], workers)  # a part of a file is no file
    assert part.open().tolist() == x[2:4].tolist() and part.path != shared.path
    assert SharedArray.of(np.arange(3), workers).open().tolist() == [0, 1, 2]
    monkeypatch.undo()
    assert not isinstance(allocate((5, 3), tmp_path), np.memmap)


def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            SharedArray.of(np.zeros((1 << 20, 2)), Workers(Twice(), tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.errno == errno.EFBIG


def test_the_limit_to_one_core_ends_with_the_last_who_wants_it():
    def count():
        return [one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"]

    before = count()
    first, second = portions._limit_to_one_core(), portions._limit_to_one_core()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert set(count()) == {1}
    second.__exit__(None, None, None)
    assert count() == before


# Sorting and counting of numbers in columns, as slow and plain code has it.

ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**64 - 1) | st.integers(0, 2)))


def columns(rows):
    group = np.array([row[0] for row in rows], np.intp)
    return group, np.array([row[1] for row in rows], np.uint64)


@given(ROWS)
def test_rows_are_sorted_by_group_then_by_keys(rows):
    group, key = columns(rows)
    other = key[::-1].copy()
    assert np.array_equal(order_within(group, key, other), np.lexsort((other, key, group)))


@given(ROWS)
def test_distinct_rows_are_those_of_a_sort(rows):
    group, key = columns(rows)
    distinct, which = distinct_rows(group, key)
    assert distinct.T.tolist() == [list(row) for row in sorted(set(rows))]
    assert distinct[:, which].T.tolist() == [list(row) for row in rows]
    first = find_first_rows(which, distinct.shape[1])
    assert [rows[row] for row in first.tolist()] == sorted(set(rows))
    assert [rows.index(rows[row]) for row in first.tolist()] == first.tolist()


# Files that are hashed while they are written.


def test_the_digest_is_that_of_the_file(tmp_path):
    with HashedFile(tmp_path / "file") as file:
        for data in (b"a" * 100_000, b"", memoryview(b"bc")):
            file.write(data)
    assert file.digest == hash_file(tmp_path / "file")
    assert file.digest == hashlib.sha256(b"a" * 100_000 + b"bc").hexdigest()


def test_a_file_that_is_there_is_not_written_over(tmp_path):
    (tmp_path / "file").write_text("first")
    with pytest.raises(FileExistsError):
        HashedFile(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "first"
