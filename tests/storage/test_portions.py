"""Portions of large matrices: computed anywhere, and the same everywhere."""

from __future__ import annotations

import errno
import pickle
import resource

import numpy as np
import pytest
from support.twice import Twice
from threadpoolctl import threadpool_info, threadpool_limits

from labelguard.mechanisms import geometry
from labelguard.storage import portions
from labelguard.storage.executor import Threads, Workers
from labelguard.storage.portions import PORTION, SharedArray, allocate, choose_workers

X = np.random.default_rng(0).standard_normal((PORTION + 99, 388), np.float32)
COUNTS = np.random.default_rng(1).integers(0, 9, len(X))


def results(workers):
    spectrum = geometry.compute_spectrum(X, COUNTS, workers)
    z = geometry.project(X, spectrum.axes[:, :7], workers)
    return spectrum.values.tobytes(), spectrum.axes.tobytes(), z.tobytes()


@pytest.mark.parametrize("cores", [1, 2])
def test_sums_and_coordinates_are_the_same_wherever_they_are_computed(cores, tmp_path):
    with threadpool_limits(cores):  # of the command; eigenvalues depend on them
        expected = results(None)
        assert results(Workers(Threads(3), tmp_path)) == expected
        engine = Twice()
        assert results(Workers(engine, tmp_path)) == expected
        assert engine.works == ["write_array", "write_array"]
    assert not list(tmp_path.glob("arrays-*"))


def test_few_rows_and_workers_without_a_directory_are_not_bothered(tmp_path):
    engine = Twice()
    assert choose_workers(Workers(engine, tmp_path), PORTION).executor is not engine
    assert choose_workers(Workers(engine, None), 10 * PORTION).executor is not engine
    assert choose_workers(Workers(engine, tmp_path), PORTION + 1).executor is engine


def test_a_large_array_is_in_a_file_that_workers_can_open(tmp_path, monkeypatch):
    workers = Workers(Twice(), tmp_path)
    x = allocate((5, 3), workers)
    x[2] = 7
    shared = pickle.loads(pickle.dumps(SharedArray.of(x, workers)))
    assert shared.open()[2].tolist() == [7, 7, 7]
    with pytest.raises(ValueError, match="read-only"):
        shared.open()[2] = 8
    part = SharedArray.of(x[2:4], workers)  # a part of a file is no file
    assert part.open().tolist() == x[2:4].tolist() and part.path != shared.path
    assert not isinstance(allocate((5, 3), Workers(Threads(1), tmp_path)), np.memmap)
    monkeypatch.setattr(portions, "_LARGE", 8)
    assert isinstance(allocate((5, 3), Workers(Threads(1), tmp_path)), np.memmap)


def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            allocate((1 << 20, 2), Workers(Twice(), tmp_path))
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
