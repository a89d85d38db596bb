"""Measure a step in a process of its own, print tables, and make PostgreSQL databases."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa

POSTGRES = os.environ.get(
    "LABELGUARD_BENCH_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"
)


def measure(step: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Return `seconds`, `peak_gb` and `result` (JSON data) of a step in a fresh process."""
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


def report(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a title, and a Markdown table whose columns are aligned."""
    print(f"{title}\n")
    lines = [[str(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    lines.insert(1, ["-" * width for width in widths])
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        print(f"| {' | '.join(cells)} |")
    print(flush=True)


@contextlib.contextmanager
def postgres() -> Iterator[bool]:
    """Make an empty database and name it in LABELGUARD_LEDGER_URL; False without a server."""
    name = f"labelguard_bench_{uuid.uuid4().hex[:12]}"
    try:
        server = sa.create_engine(
            POSTGRES, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 3}
        )
        with server.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
    except (sa.exc.SQLAlchemyError, ModuleNotFoundError) as error:
        print(f"PostgreSQL is left out: {str(error).splitlines()[0]}")
        yield False
        return
    url = sa.make_url(POSTGRES).set(database=name).render_as_string(hide_password=False)
    os.environ["LABELGUARD_LEDGER_URL"] = url
    try:
        yield True
    finally:
        del os.environ["LABELGUARD_LEDGER_URL"]
        with server.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
        server.dispose()
