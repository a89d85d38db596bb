"""The ledger at size: one transaction that charges everybody, and what looks at it afterwards.

    python bench/ledger.py                    100,000 and 1,000,000 labelers, SQLite and PostgreSQL
    python bench/ledger.py --quick            10,000 labelers

PostgreSQL is the server that LABELGUARD_BENCH_POSTGRES names (a URL of a database that may create
others; default: 127.0.0.1, user postgres); without an answer it is left out. Each row says seconds,
and how many times as long as the floor: writing the rows of the charge to a file and flushing it.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from _measure import postgres, report

from labelguard.ledger.records import Charge
from labelguard.project import policies
from labelguard.project.opening import OpenProject, init
from labelguard.project.project import Project
from labelguard.storage import blocks

COLUMNS = ("step", "seconds", "times the floor")


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def event(labelers: int, number: int) -> Charge:
    """Every labeler is charged two of fifty uses."""
    rng = np.random.default_rng(0)
    keys = rng.integers(0, 2**64, (labelers, 2), dtype=np.uint64)
    return Charge(
        "rr",
        "rr",
        f"{number:064x}",
        {"mechanism": "rr"},
        keys,
        np.full(labelers, 50),
        np.full(labelers, 2),
        {},
    )


def floor(labelers: int, directory: Path) -> float:
    """Seconds to write and flush the rows of a charge as bytes: 32 a labeler."""
    data = blocks.to_bytes(np.zeros((2 * labelers, 2), np.uint64))

    def write() -> None:
        with (directory / "floor").open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    return min(timed(write) for _ in range(3))


class Hook(threading.Thread):
    """Inserts events into a database of its own, as a webhook does, and times each insert."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path, self.waits, self.done = path, [], threading.Event()

    def run(self) -> None:
        connection = sqlite3.connect(self.path, isolation_level=None)
        connection.execute("CREATE TABLE events (body TEXT)")
        while not self.done.is_set():
            self.waits.append(timed(lambda: connection.execute("INSERT INTO events VALUES ('{}')")))
            time.sleep(0.005)
        connection.close()


def measure(labelers: int) -> list[tuple[str, float, float]]:
    """Return every step in one database at one size: seconds, and ratio to the floor."""
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        project = init(here / "project")
        allow = ["rr:uses=50,block=1", "statistic:releases=12"]
        policies.new("bench", epsilon=3, delta=1e-5, allow=allow, project=project)
        policies.activate("bench", project=project)
        ledger = OpenProject.open(project).ledger
        policy = policies.find_policy(ledger.policies.all(), "bench").policy
        seconds = {"floor: the rows as bytes, flushed": (base := floor(labelers, here))}
        hook = Hook(here / "inbox.sqlite3")
        hook.start()
        for number, name in enumerate(("first charge", "second charge (same labelers)")):
            charge = partial(ledger.charge, event(labelers, number), policy, ledger.begin_job())
            seconds[name] = timed(charge)
        hook.done.set()
        hook.join()
        seconds["a hook's insert meanwhile, median"] = statistics.median(hook.waits)
        seconds["a hook's insert meanwhile, slowest"] = max(hook.waits)
        seconds["labelguard budget show, the whole process"] = timed(lambda: command(project))
        seconds["ledger.find_fault(), as in budget verify"] = timed(ledger.find_fault)
        assert ledger.find_fault() is None
    return [(name, round(taken, 3), round(taken / base, 1)) for name, taken in seconds.items()]


def command(project: Project) -> None:
    """The command as a user runs it."""
    run = [sys.executable, "-m", "labelguard", "budget", "show", "--project", str(project.state)]
    subprocess.run(run, check=True, capture_output=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10,000 labelers")
    sizes = [10_000] if parser.parse_args().quick else [100_000, 1_000_000]
    for size in sizes:
        report(f"SQLite, {size:,} labelers", COLUMNS, measure(size))
    for size in sizes:
        with postgres() as there:
            if there:
                report(f"PostgreSQL, {size:,} labelers", COLUMNS, measure(size))


if __name__ == "__main__":
    main()
