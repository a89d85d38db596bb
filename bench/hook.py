"""The hook under load on loopback: durable events a second, and how long an answer takes.

    python bench/hook.py                SQLite, and PostgreSQL where it answers; a minute
    python bench/hook.py --seconds 2    quickly

Every event is a delivery of Label Studio (4 KB) that was answered with 200: it is on disk then, and
counted afterwards. The client is a process on the same machine; its share of a processor stands
beside the server's. PostgreSQL is the server that LABELGUARD_BENCH_POSTGRES names.
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from _measure import measure, postgres, report

from labelguard.project.opening import OpenProject, init
from labelguard.project.project import CONFIG, Project, find

SECRET = "a-secret-of-the-benchmark"
CONNECTIONS, RATE = 256, 500
NUMBER = 424242424242
DELIVERY = json.dumps(
    {
        "action": "ANNOTATION_CREATED",
        "annotation": {
            "id": NUMBER,
            "result": [
                {
                    "id": "r1",
                    "type": "pairwise",
                    "from_name": "pref",
                    "to_name": "answer1",
                    "value": {"selected": "left"},
                }
            ],
            "was_cancelled": False,
            "ground_truth": False,
            "updated_at": "2026-11-21T08:29:20.150969Z",
            "task": NUMBER,
            "project": 1,
            "completed_by": 2,
        },
        "project": {"id": 1, "title": "pairs", "label_config": "<View/>" * 350},
        "task": {
            "id": NUMBER,
            "data": {
                "prompt": "What is 0+0?" * 20,
                "answer1": "0" * 300,
                "answer2": "1" * 300,
                "external_id": f"pair-{NUMBER}",
            },
        },
    }
)


@dataclass
class Answers:
    """What a client saw: seconds until each answer, and how many were not 200."""

    seconds: list[float] = field(default_factory=list)
    refused: int = 0

    def summarize(self, wall: float) -> dict[str, Any]:
        """Return the numbers of the table."""
        stored = len(self.seconds) - self.refused
        return {
            "stored": stored,
            "refused": self.refused,
            "rate": round(stored / wall),
            "p50_ms": round(1e3 * statistics.median(self.seconds), 1),
            "p99_ms": round(1e3 * float(np.quantile(self.seconds, 0.99)), 1),
            "client_cpu": round(time.process_time() / wall, 2),
        }


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

    async def send(self, number: int) -> bool:
        """Send a delivery; return True if it is answered with 200."""
        body = DELIVERY.replace(str(NUMBER), str(1_000_000_000 + number)).encode()
        head = (
            "POST /hooks/label-studio HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Content-Type: application/json\r\nX-Labelguard-Secret: {SECRET}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.received = b""
        self.answer = asyncio.get_running_loop().create_future()
        self.transport.write(head.encode() + body)
        return await self.answer


async def connect(port: int, free: set[Client]) -> Client:
    """Open a connection, which is put among those that are free when it is."""
    loop = asyncio.get_running_loop()
    return (await loop.create_connection(lambda: Client(free), "127.0.0.1", port))[1]


def send_as_fast_as_answered(port: int, first: int, seconds: float) -> dict[str, Any]:
    """Be the client: every connection sends the next when the last is answered."""
    seen = Answers()

    async def one(client: Client, numbers: Iterator[int], until: float) -> None:
        while (began := time.perf_counter()) < until:
            seen.refused += not await client.send(next(numbers))
            seen.seconds.append(time.perf_counter() - began)

    async def run() -> float:
        clients = [await connect(port, set()) for _ in range(CONNECTIONS)]
        numbers = iter(range(first, 1 << 40))
        began = time.perf_counter()
        await asyncio.gather(*(one(client, numbers, began + seconds) for client in clients))
        return time.perf_counter() - began

    return seen.summarize(asyncio.run(run()))


def send_at_a_rate(port: int, first: int, seconds: float) -> dict[str, Any]:
    """Be the client: RATE deliveries a second, whether or not others are answered."""
    seen = Answers()

    async def one(free: set[Client], number: int, due: float) -> None:
        stored = False
        for _ in range(2):  # a connection may have been idle for too long at this very moment
            with contextlib.suppress(ConnectionResetError):
                client = free.pop() if free else await connect(port, free)
                stored = await client.send(number)
                free.add(client)
                break
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

    return seen.summarize(asyncio.run(run()))


@contextlib.contextmanager
def serve(made: Project) -> Iterator[tuple[int, int]]:
    """Run `labelguard serve`; yield its port and its process."""
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


def make_project(directory: Path) -> Project:
    """Make a project whose hook listens to Label Studio."""
    path = init(directory).state / CONFIG
    table = '\n[connectors.label-studio]\nurl = "http://127.0.0.1"\nproject = 1\n'
    path.write_text(path.read_text() + table)
    os.environ["LABELGUARD_LABEL_STUDIO_HOOK_SECRET"] = SECRET
    os.environ["LABELGUARD_LABEL_STUDIO_API_KEY"] = "none is needed to hear"
    return find(directory)


def count_waiting(made: Project) -> int:
    """Return how many events are in the inbox."""
    with contextlib.closing(OpenProject.open(made).answers.open_inbox()) as inbox:
        return inbox.count_waiting()


def cpu_seconds(process: int) -> float:
    """Return the processor time of a process until now."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load(database: str, directory: Path, seconds: float) -> list[list[Any]]:
    """Return a row for each kind of load."""
    rows, made = [], make_project(directory / database)
    loads = {"as fast as answered": send_as_fast_as_answered, f"{RATE} a second": send_at_a_rate}
    with serve(made) as (port, process):
        for name, client in loads.items():
            before, cpu, began = count_waiting(made), cpu_seconds(process), time.perf_counter()
            seen = measure(client, port, before, seconds)["result"]
            share = (cpu_seconds(process) - cpu) / (time.perf_counter() - began)
            lost = seen["stored"] - (count_waiting(made) - before)
            rows.append([database, name, *seen.values(), round(share, 2), lost])
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=15, help="length of each load")
    parser.add_argument("--directory", type=Path, help="where projects are made, on a real disk")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        os.environ["XDG_STATE_HOME"] = str(directory / "state")
        rows = load("SQLite", directory, options.seconds)
        with postgres() as there:
            rows += load("PostgreSQL", directory, options.seconds) if there else []
    columns = ["database", "load", "stored", "refused", "a second", "p50 ms", "p99 ms"]
    report("hook", [*columns, "client CPU", "server CPU", "lost"], rows)


if __name__ == "__main__":
    main()
