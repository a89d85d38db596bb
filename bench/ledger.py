"""The ledger at size: one transaction that charges everybody, and what looks at it afterwards.

    python bench/ledger.py                    100,000 and 1,000,000 labelers, SQLite and PostgreSQL
    python bench/ledger.py --quick            10,000 labelers

PostgreSQL is the server that LABELGUARD_BENCH_POSTGRES names (a URL of a database that may create
others; default: 127.0.0.1, user postgres); without an answer it is left out. Each row says seconds,
and how many times as long as the floor: writing the rows of the charge to a file and flushing it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import sqlalchemy as sa

from labelguard.ledger.records import Charge
from labelguard.project import policies
from labelguard.project.opening import OpenProject, init
from labelguard.project.project import Project
from labelguard.storage import blocks

POSTGRES = os.environ.get(
    "LABELGUARD_BENCH_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
)


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


def measure(labelers: int, url: str | None, show: Callable[[str, float, float], None]) -> None:
    """All measurements of one database at one size."""
    with tempfile.TemporaryDirectory() as scratch, _url(url):
        here = Path(scratch)
        project = init(here / "project")
        allow = ["rr:uses=50,block=1", "statistic:releases=12"]
        policies.new("bench", epsilon=3, delta=1e-5, allow=allow, project=project)
        policies.activate("bench", project=project)
        ledger = OpenProject.open(project).ledger
        policy = policies.find_policy(ledger.policies.all(), "bench").policy
        base = floor(labelers, here)
        show("floor: the rows as bytes, flushed", base, base)
        hook = Hook(here / "inbox.sqlite3")
        hook.start()
        for number, name in enumerate(("first charge", "second charge (same labelers)")):
            charge = partial(ledger.charge, event(labelers, number), policy, ledger.begin_job())
            show(name, timed(charge), base)
        hook.done.set()
        hook.join()
        show("a hook's insert meanwhile, median", statistics.median(hook.waits), base)
        show("a hook's insert meanwhile, slowest", max(hook.waits), base)
        show(
            "uses of all labelers, for planning",
            timed(lambda: ledger.releases.labelers("rr")),
            base,
        )
        show("labelguard budget show (process and all)", timed(lambda: command(project)), base)
        show("ledger.find_fault(), as in budget verify", timed(ledger.find_fault), base)
        assert ledger.find_fault() is None


def command(project: Project) -> None:
    """The command as a user runs it."""
    run = [sys.executable, "-m", "labelguard", "budget", "show", "--project", str(project.state)]
    subprocess.run(run, check=True, capture_output=True)


@contextlib.contextmanager
def _url(url: str | None) -> Iterator[None]:
    """A fresh database for one measurement; None: the project's own SQLite file."""
    if url is None:
        os.environ.pop("LABELGUARD_LEDGER_URL", None)
        yield
        return
    name = f"labelguard_bench_{uuid.uuid4().hex[:12]}"
    server = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    os.environ["LABELGUARD_LEDGER_URL"] = (
        sa.make_url(url).set(database=name).render_as_string(hide_password=False)
    )
    try:
        yield
    finally:
        del os.environ["LABELGUARD_LEDGER_URL"]
        with server.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="10,000 labelers")
    sizes = [10_000] if parser.parse_args().quick else [100_000, 1_000_000]
    servers: dict[str, str | None] = {"SQLite": None}
    try:
        sa.create_engine(POSTGRES, connect_args={"connect_timeout": 3}).connect().close()
        servers["PostgreSQL"] = POSTGRES
    except (sa.exc.SQLAlchemyError, ModuleNotFoundError) as error:
        print(f"PostgreSQL left out: {str(error).splitlines()[0]}")
    for name, url in servers.items():
        for size in sizes:
            print(f"\n{name}, {size:,} labelers")
            measure(
                size,
                url,
                lambda what, seconds, base: print(
                    f"  {what:<42} {seconds:8.3f} s {seconds / base:9.1f} ×"
                ),
            )


if __name__ == "__main__":
    main()
