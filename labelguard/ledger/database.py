"""The database under the ledger: connections, transactions, its errors as ours, and many rows in
and out at once by the driver's fastest way.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from labelguard.errors import LedgerError, ProjectBusy
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks

P = ParamSpec("P")
R = TypeVar("R")

# Pseudonyms (n, 2), integers (n,), or one integer for all rows.
Column: TypeAlias = "NDArray[Any] | int"


@dataclass(frozen=True)
class Repository:
    """Statements about tables of a ledger, as methods that run in transactions of their own."""

    snapshot: Callable[[], contextlib.AbstractContextManager[sa.Connection]]
    transaction: Callable[[int | None], contextlib.AbstractContextManager[sa.Connection]]


def in_snapshot(
    statement: Callable[Concatenate[sa.Connection, P], R],
) -> Callable[Concatenate[Repository, P], R]:
    """Return the method of a repository that runs a statement in a snapshot."""

    @wraps(statement)
    def method(self: Repository, /, *args: P.args, **kw: P.kwargs) -> R:
        with self.snapshot() as connection:
            return statement(connection, *args, **kw)

    return method


def in_transaction(
    statement: Callable[Concatenate[sa.Connection, P], R],
) -> Callable[Concatenate[Repository, int | None, P], R]:
    """Return the method of a repository that runs a statement in a transaction of an epoch."""

    @wraps(statement)
    def method(self: Repository, epoch: int | None, /, *args: P.args, **kw: P.kwargs) -> R:
        with self.transaction(epoch) as connection:
            return statement(connection, *args, **kw)

    return method


def connect(url: str) -> sa.Engine:
    """Return a ledger's engine; on SQLite one that locks before it reads and syncs fully."""
    try:
        engine = sa.create_engine(url)
    except (sa.exc.ArgumentError, ValueError, ModuleNotFoundError) as error:
        # Some of these messages repeat the URL, password and all.
        why = f" ({error})" if isinstance(error, ModuleNotFoundError) else ""
        raise LedgerError(
            f"LABELGUARD_LEDGER_URL is no database URL that can be used here{why}; expected "
            "sqlite:///PATH or postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"
        ) from None
    if "@" in (engine.url.host or ""):
        raise LedgerError(
            "LABELGUARD_LEDGER_URL has more than one @; write those in a password as %40"
        )
    if engine.dialect.name == "sqlite":

        @sa.event.listens_for(engine, "connect")
        def _make_durable(connection: Any, _: Any) -> None:
            connection.isolation_level = None  # the driver would begin only at the first change
            connection.execute("PRAGMA busy_timeout = 60000")
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA foreign_keys = ON")
            # What a labeler's leaving takes out of the ledger is gone from the file too.
            connection.execute("PRAGMA secure_delete = ON")

        @sa.event.listens_for(engine, "begin")
        def _begin(connection: sa.Connection) -> None:
            # A writer locks before it looks: what it checks stays so until it commits.
            writing = connection.get_execution_options().get("writing", False)
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")

    return engine


def connect_existing(url: str) -> sa.Engine:
    """Return the engine of a ledger that is there: whoever looks at one makes no file."""
    engine = connect(url)
    path = engine.url.database
    if engine.dialect.name == "sqlite" and path and not Path(path).exists():
        raise build_missing_ledger_error(format_address(engine.url))
    return engine


def enable_write_ahead_log(connection: Any, seconds: float) -> None:
    """Let readers of an SQLite file not stop writers; wait so long for who does this just now.

    SQLite's own wait (`busy_timeout`) does not cover this change, since two could wait for each
    other.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def build_missing_ledger_error(address: str) -> LedgerError:
    """Return the error where there is no ledger."""
    return LedgerError(
        f"no ledger at {address}: a project without one has lost it; if it is elsewhere, set "
        "LABELGUARD_LEDGER_URL to that place, or restore a backup into this one"
    )


def format_address(url: sa.URL) -> str:
    """Return a ledger's URL without what may be secret: its password and its options."""
    return url.set(password=None, query={}).render_as_string()


@contextlib.contextmanager
def translate_errors(engine: sa.Engine) -> Iterator[None]:
    """Raise the database's errors as `LedgerError`, without passwords."""
    try:
        yield
    except (sa.exc.SQLAlchemyError, engine.dialect.loaded_dbapi.Error) as error:  # COPY's own, too
        if isinstance(error, sa.exc.IntegrityError) and "allowance" in str(error.orig):
            raise LedgerError(
                "a charge would exceed a labeler's allowance; nothing was written"
            ) from None
        cause = str(getattr(error, "orig", None) or error).splitlines()[0]
        for secret in (engine.url.password, *engine.url.query.values()):
            cause = cause.replace(str(secret), "***") if secret else cause
        raise LedgerError(
            f"the ledger at {format_address(engine.url)} cannot be used: {cause}"
        ) from None


@contextlib.contextmanager
def begin_writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open one transaction that writes."""
    with translate_errors(engine), engine.execution_options(writing=True).begin() as connection:
        yield connection


def check_pages(connection: sa.Connection, address: str) -> None:
    """Raise `LedgerError` if pages of an SQLite file are damaged (PostgreSQL looks by itself)."""
    if connection.dialect.name != "sqlite":
        return
    if connection.exec_driver_sql("PRAGMA quick_check(1)").scalar() != "ok":
        raise LedgerError(f"the ledger at {address} is damaged; put the newest copy back")


@contextlib.contextmanager
def hold_exclusively(engine: sa.Engine, name: str) -> Iterator[None]:
    """Hold a PostgreSQL ledger against jobs on other machines; a second one is `ProjectBusy`.

    The lock ends with its connection. A job that lost it may go on until its next transaction,
    which checks the epoch. An SQLite ledger is guarded by the project's file lock.
    """
    if engine.dialect.name != "postgresql":
        yield
        return
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big", signed=True)
    with translate_errors(engine):
        connection = engine.connect()
    try:
        with translate_errors(engine):
            locked = connection.scalar(sa.select(sa.func.pg_try_advisory_lock(number)))
            connection.commit()
        if not locked:
            raise ProjectBusy(
                f"another labelguard job works with {format_address(engine.url)}; "
                "run this again when it is done"
            )
        try:
            yield
        finally:  # at once: the server may notice late that a session has ended
            with contextlib.suppress(sa.exc.SQLAlchemyError):
                connection.scalar(sa.select(sa.func.pg_advisory_unlock(number)))
                connection.commit()
    finally:
        connection.invalidate()  # the server frees the lock with the session
        connection.close()


def insert_columns(
    connection: sa.Connection, table: sa.Table, columns: Mapping[str, Column]
) -> None:
    """Insert rows given by column: pseudonyms (n, 2), integers (n,), or one integer for all.

    In the order given; by key is fastest.
    """
    rows = max(len(column) for column in columns.values() if not isinstance(column, int))
    values = (
        [column] * rows
        if isinstance(column, int)
        else column.tolist()
        if column.ndim == 1
        else blocks.to_list(column)
        for column in columns.values()
    )
    insert_rows(connection, table, tuple(columns), list(zip(*values, strict=True)))


def build_resolving_insert(engine: sa.Engine | sa.Connection, table: sa.Table) -> Any:
    """Return an INSERT that may say what to do where there is such a row already."""
    # The package for PostgreSQL is not loaded for SQLite.
    return import_module(f"sqlalchemy.dialects.{engine.dialect.name}").insert(table)


def insert_rows(
    connection: sa.Connection, table: sa.Table, names: Sequence[str], rows: Sequence[Sequence[Any]]
) -> None:
    """Insert rows of values of any types, in the order given."""
    into = f"{table.name} ({', '.join(names)})"
    if connection.dialect.name == "postgresql":
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor, cursor.copy(f"COPY {into} FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
    elif rows:
        statement = f"INSERT INTO {into} VALUES ({', '.join('?' * len(names))})"
        connection.exec_driver_sql(statement, [tuple(row) for row in rows])


def read_pseudonym_rows(
    connection: sa.Connection, query: sa.Select[Any]
) -> tuple[Blocks, tuple[NDArray[np.int64], ...]]:
    """Return the pseudonyms of a first column, (n, 2), and the other, integer columns, (n,).

    The query must sort by pseudonym: both databases then sort as the bytes do.
    """
    rows = connection.execute(query).all()
    width = len(query.selected_columns) - 1
    if not rows:
        return np.zeros((0, 2), np.uint64), (np.zeros(0, np.int64),) * width
    labelers, *columns = zip(*rows, strict=True)
    keys = blocks.from_bytes(b"".join(labelers))
    return keys, tuple(np.fromiter(column, np.int64, len(rows)) for column in columns)


def read_pseudonym_pairs(connection: sa.Connection, query: sa.Select[Any]) -> tuple[Blocks, Blocks]:
    """Return rows of two pseudonyms as two columns, each (n, 2)."""
    rows = connection.execute(query).all()
    first, second = zip(*rows, strict=True) if rows else ((), ())
    return blocks.from_bytes(b"".join(first)), blocks.from_bytes(b"".join(second))
