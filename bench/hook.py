"""The hook under load on loopback: durable events a second, how long they take, and memory.

    python bench/hook.py                      SQLite, and PostgreSQL where it answers; a minute
    python bench/hook.py --soak 30            30 minutes at 500 events a second: is memory flat?

Every event is a delivery of Label Studio (4 KB) that was answered with 200: it is on disk then, and
counted in the inbox afterwards. The client is a process on the same machine; what it takes of the
processor is said, for the server might have used it. PostgreSQL is the server that
LABELGUARD_BENCH_POSTGRES names (default: 127.0.0.1, user postgres).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from _measure import measure, report

from labelguard.project.opening import OpenProject, init
from labelguard.project.project import CONFIG, Project, find

POSTGRES = os.environ.get(
    "LABELGUARD_BENCH_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
)
SECRET = "a-secret-of-the-benchmark"
CONNECTIONS, RATE = 256, 500


@dataclass
class Answers:
    """What a client saw: seconds until the answer, and how many answers were not 200."""

    seconds: list[float]
    refused: int = 0


class Client(asyncio.Protocol):
    """One connection that sends a delivery and waits for the answer."""

    transport: asyncio.Transport

    def __init__(self, free: set[Client]) -> None:
        self.free, self.received = free, b""
        self.answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.answer.set_result(True)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data
        well = self.received.startswith(b"HTTP/1.1 200")
        ended = self.received.endswith(b"\r\n\r\n" if well else b"}")  # 200 has no body
        if ended and not self.answer.done():
            self.answer.set_result(well)

    def connection_lost(self, error: Exception | None) -> None:
        self.free.discard(self)  # idle for too long
        if not self.answer.done():
            self.answer.set_exception(ConnectionResetError())

    async def send(self, message: bytes) -> bool:
        """Whether it is answered with 200."""
        self.received = b""
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(message)
        return await self.answer


def delivery(number: int) -> bytes:
    """The request of one event, as Label Studio sends it."""
    body = _TEMPLATE.replace("424242424242", str(1_000_000_000 + number)).encode()
    head = (
        "POST /hooks/label-studio HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"X-Labelguard-Secret: {SECRET}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


_TEMPLATE = json.dumps(
    {
        "action": "ANNOTATION_CREATED",
        "annotation": {
            "id": 424242424242,
            "result": [
                {
                    "id": "r1",
                    "type": "pairwise",
                    "from_name": "pref",
                    "to_name": "answer1",
                    "value": {"selected": "left"},
                    "origin": "manual",
                }
            ],
            "was_cancelled": False,
            "ground_truth": False,
            "created_at": "2026-11-21T08:29:20.150918Z",
            "updated_at": "2026-11-21T08:29:20.150969Z",
            "lead_time": 12.5,
            "task": 424242424242,
            "project": 1,
            "completed_by": 2,
        },
        "project": {"id": 1, "title": "pairs", "description": "", "label_config": "<View/>" * 300},
        "task": {
            "id": 424242424242,
            "data": {
                "prompt": "What is 0+0?" * 20,
                "answer1": "0" * 300,
                "answer2": "1" * 300,
                "external_id": "pair-424242424242",
            },
            "created_at": "2026-11-21T08:29:19.686448Z",
            "updated_at": "2026-11-21T08:29:20.199713Z",
            "overlap": 3,
        },
    }
)


def as_fast_as_answered(port: int, first: int, seconds: float) -> dict[str, Any]:
    """The client's process: every connection sends the next when the last is answered."""
    seen = Answers([])

    async def one(client: Client, numbers: Iterator[int], until: float) -> None:
        while (began := time.perf_counter()) < until:
            seen.refused += not await client.send(delivery(next(numbers)))
            seen.seconds.append(time.perf_counter() - began)

    async def run() -> float:
        clients = [await _connected(port, set()) for _ in range(CONNECTIONS)]
        numbers = iter(range(first, 1 << 40))
        began = time.perf_counter()
        await asyncio.gather(*(one(client, numbers, began + seconds) for client in clients))
        return time.perf_counter() - began

    return _told(seen, asyncio.run(run()))


def at_a_rate(port: int, first: int, seconds: float) -> dict[str, Any]:
    """The client's process: RATE deliveries a second, whether or not others are answered."""
    seen = Answers([])

    async def one(free: set[Client], number: int, due: float) -> None:
        for _ in range(2):  # a connection may have been idle for too long at this very moment
            with contextlib.suppress(ConnectionResetError):
                client = free.pop() if free else await _connected(port, free)
                stored = await client.send(delivery(number))
                free.add(client)
                break
        else:
            stored = False
        seen.refused += not stored
        seen.seconds.append(time.perf_counter() - due)

    async def run() -> float:
        free: set[Client] = set()
        began = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for number in range(int(RATE * seconds)):
                due = began + number / RATE
                await asyncio.sleep(max(due - time.perf_counter(), 0))
                tasks.create_task(one(free, first + number, due))
        return time.perf_counter() - began

    return _told(seen, asyncio.run(run()))


async def _connected(port: int, free: set[Client]) -> Client:
    loop = asyncio.get_running_loop()
    _, client = await loop.create_connection(lambda: Client(free), "127.0.0.1", port)
    return client


def _told(seen: Answers, wall: float) -> dict[str, Any]:
    stored = len(seen.seconds) - seen.refused
    return {
        "stored": stored,
        "refused": seen.refused,
        "rate": round(stored / wall),
        "p50_ms": round(1e3 * statistics.median(seen.seconds), 1),
        "p99_ms": round(1e3 * float(np.quantile(seen.seconds, 0.99)), 1),
        "client_cpu": round(time.process_time() / wall, 2),
    }


def flush_p99(directory: Path) -> float:
    """Milliseconds of the 99th percentile of writing and flushing 4 KB."""
    taken = []
    with (directory / "flushed").open("wb") as file:
        for _ in range(500):
            file.write(bytes(4096))
            file.flush()
            began = time.perf_counter()
            os.fsync(file.fileno())
            taken.append(time.perf_counter() - began)
    return round(1e3 * float(np.quantile(taken, 0.99)), 2)


@contextlib.contextmanager
def server(made: Project) -> Iterator[tuple[int, int]]:
    """The port and the process of `labelguard serve`."""
    command = [sys.executable, "-m", "labelguard", "serve", "--port", "0", "--no-worker"]
    with subprocess.Popen(
        [*command, "--project", str(made.state)], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr
        port = 0
        for line in process.stderr:
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                port = int(found[1])
            if "startup complete" in line:
                break
        try:
            yield port, process.pid
        finally:
            process.terminate()
            process.communicate()


def project(directory: Path) -> Project:
    """A project whose hook listens to Label Studio."""
    made = init(directory)
    path = made.state / CONFIG
    table = '\n[connectors.label-studio]\nurl = "http://127.0.0.1"\nproject = 1\n'
    path.write_text(path.read_text() + table)
    os.environ["LABELGUARD_LABEL_STUDIO_HOOK_SECRET"] = SECRET
    os.environ["LABELGUARD_LABEL_STUDIO_API_KEY"] = "none is needed to hear"
    return find(directory)


def waiting(made: Project) -> int:
    """How many events are in the inbox."""
    with contextlib.closing(OpenProject.open(made).answers.open_inbox()) as inbox:
        return inbox.count_waiting()


def memory_mb(process: int) -> float:
    """Resident memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{process}/status").read_text())
    assert found
    return round(int(found[1]) / 1024, 1)


def cpu_seconds(process: int) -> float:
    """Processor time of a process until now."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(name: str, made: Project, seconds: float, flush_ms: float) -> list[list[Any]]:
    """A row for each kind of load."""
    rows = []
    with server(made) as (port, process):
        for what, client in (("as fast", as_fast_as_answered), (f"{RATE}/s", at_a_rate)):
            before, cpu, began = waiting(made), cpu_seconds(process), time.perf_counter()
            told = measure(client, port, before, seconds)["result"]
            share = (cpu_seconds(process) - cpu) / (time.perf_counter() - began)
            lost = told["stored"] - (waiting(made) - before)
            bound = max(100, 10 * flush_ms)
            rows.append([name, what, *told.values(), round(share, 2), flush_ms, bound, lost])
    return rows


COLUMNS = [
    *("database", "load", "stored", "refused", "events_per_s", "p50_ms", "p99_ms", "client_cpu"),
    *("server_cpu", "flush_p99_ms", "p99_bound_ms", "lost"),
]


SOAK_COLUMNS = ["minute", "stored", "refused", "p99_ms", "resident_mb"]


@contextlib.contextmanager
def postgres() -> Iterator[bool]:
    """LABELGUARD_LEDGER_URL names an empty database meanwhile, if the server answers."""
    name = f"lg_bench_{uuid.uuid4().hex[:12]}"
    engine = sa.create_engine(
        POSTGRES, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 3}
    )
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
    except sa.exc.SQLAlchemyError:
        yield False
        return
    os.environ["LABELGUARD_LEDGER_URL"] = f"{POSTGRES.rpartition('/')[0]}/{name}"
    try:
        yield True
    finally:
        del os.environ["LABELGUARD_LEDGER_URL"]
        with engine.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        engine.dispose()


def soak(made: Project, minutes: int) -> list[list[Any]]:
    """Memory of the server after each minute at RATE events a second."""
    rows, stored, refused = [], 0, 0
    with server(made) as (port, process):
        for minute in range(minutes):
            told = measure(at_a_rate, port, stored, 60)["result"]
            stored += told["stored"]
            refused += told["refused"]
            rows.append([minute + 1, stored, refused, told["p99_ms"], memory_mb(process)])
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=15, help="length of each load")
    parser.add_argument("--soak", type=int, metavar="MINUTES", help="only this")
    parser.add_argument("--directory", type=Path, help="where projects are made, on a real disk")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        os.environ["XDG_STATE_HOME"] = str(directory / "state")
        if options.soak:
            rows = soak(project(directory / "soak"), options.soak)
            report("hook memory", SOAK_COLUMNS, rows)
            return
        flush_ms = flush_p99(directory)
        rows = load("sqlite", project(directory / "sqlite"), options.seconds, flush_ms)
        with postgres() as there:
            if there:
                made = project(directory / "postgresql")
                rows += load("postgresql", made, options.seconds, flush_ms)
        report("hook", COLUMNS, rows)


if __name__ == "__main__":
    main()
