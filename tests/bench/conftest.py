"""Benchmarks are imported the way their own directory finds them."""

import importlib
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture(scope="module")
def bench(request):
    """The benchmark that a file of tests names as its SCRIPT."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCH))
        yield importlib.import_module(request.module.SCRIPT)
