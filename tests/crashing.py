"""Runs labelguard in processes that die by SIGKILL at a chosen step; used by test_crash.py.

Reads a list of jobs as JSON from standard input and writes how each ended. A step is the moment
before or after something reaches the disk: a flush, a rename, a file, a ledger transaction.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import sqlalchemy.engine.default
from preferences import fixed_bytes

import labelguard.clock
import labelguard.keys
from labelguard import ledger, pipeline
from labelguard.project import init


class Steps:
    """Counts steps and kills this process at one of them."""

    def __init__(self, kill_at: int | None) -> None:
        self.taken, self.kill_at = 0, kill_at

    def step(self) -> None:
        self.taken += 1
        if self.taken == self.kill_at:
            die()

    def around(self, owner: Any, name: str) -> None:
        whole = getattr(owner, name)

        @functools.wraps(whole)
        def counted(*arguments: Any, **options: Any) -> Any:
            self.step()
            result = whole(*arguments, **options)
            self.step()
            return result

        setattr(owner, name, counted)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_after(owner: Any, name: str) -> None:
    whole: Callable[..., Any] = getattr(owner, name)

    def fatal(*arguments: Any, **options: Any) -> None:
        whole(*arguments, **options)
        die()

    setattr(owner, name, fatal)


AFTER = {
    "charge": (ledger.Ledger, "charge"),
    "start": (ledger.Ledger, "start"),
    "randomize": (pipeline._Run, "_draw"),
    "publish": (pipeline._Run, "_publish"),
    "commit": (ledger.Ledger, "commit"),
}


def run(job: dict[str, Any]) -> int:
    """Do one job; returns the number of steps, if it survives."""
    labelguard.clock.now = lambda: "2026-01-01T00:00:00Z"
    labelguard.keys.random_bytes = fixed_bytes
    steps = Steps(job.get("kill_at"))
    for owner, name in (
        (os, "fsync"),
        (os, "replace"),
        (Path, "replace"),
        (pq, "write_table"),
        (pq.ParquetWriter, "close"),
        (sqlalchemy.engine.default.DefaultDialect, "do_commit"),
    ):
        steps.around(owner, name)
    if job.get("kill_after"):
        die_after(*AFTER[job["kill_after"]])
    if job.get("source"):
        pipeline.privatize(job["source"], project=job["project"], **job["options"])
    else:
        init(Path(job["project"]))
    return steps.taken


def main() -> None:
    ends = []
    for job in json.load(sys.stdin):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.write(writing, str(run(job)).encode())
            os._exit(0)
        os.close(writing)
        _, status = os.waitpid(child, 0)
        with os.fdopen(reading) as pipe:
            ends.append({"signal": status & 0x7F, "steps": int(pipe.read() or 0)})
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
