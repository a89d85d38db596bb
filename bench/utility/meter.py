"""Seconds and memory of a call inside a long-lived process."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def metered(call: Callable[[], Result]) -> tuple[Result, float, float]:
    """The result, seconds, and the most memory in MB that the call held at one time.

    numpy reports its arrays to tracemalloc, so that a process that ran other things before, and
    holds their memory, says the same as a fresh one. Watching costs a few percent of the time.
    """
    tracemalloc.start()
    try:
        start = time.perf_counter()
        result = call()
        seconds = time.perf_counter() - start
        return result, seconds, tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()
