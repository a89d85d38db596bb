"""Runs a step in a process of its own and tells its seconds and its peak memory."""

from __future__ import annotations

import json
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


def measure(step: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """`seconds`, `peak_gb` and `result` (JSON data) of `step(*arguments)` in a fresh process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sender, step, arguments))
    process.start()
    sender.close()
    try:
        outcome: dict[str, Any] = receiver.recv()
    except EOFError:
        process.join()
        raise RuntimeError(f"{step.__name__} ended with exit code {process.exitcode}") from None
    process.join()
    return outcome


def _run(sender: Any, step: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    start = time.perf_counter()
    result = step(*arguments)
    seconds = time.perf_counter() - start
    usages = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)  # a command is a child
    peak = max(resource.getrusage(who).ru_maxrss for who in usages) / 1e6
    sender.send({"seconds": round(seconds, 2), "peak_gb": round(peak, 2), "result": result})


def report(name: str, columns: list[str], rows: list[list[Any]]) -> None:
    """A table for people on standard output, then one JSON line for machines."""
    widths = [max(len(str(row[i])) for row in [columns, *rows]) for i in range(len(columns))]
    for row in [columns, *rows]:
        cells = (str(cell).ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    print(json.dumps({"bench": name, "rows": [dict(zip(columns, r, strict=True)) for r in rows]}))
    sys.stdout.flush()
