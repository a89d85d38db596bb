"""Many rows in and out of the ledger's database at once, by the driver's fastest way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks

Column: TypeAlias = "NDArray[Any] | int"
"""Pseudonyms (n, 2), integers (n,), or one integer for all rows."""


def insert(connection: sa.Connection, table: sa.Table, columns: Mapping[str, Column]) -> None:
    """Insert rows given by column: pseudonyms (n, 2), integers (n,), or one integer for all.

    In the order given; by key is fastest.
    """
    rows = max(len(column) for column in columns.values() if not isinstance(column, int))
    names = ", ".join(columns)
    if not rows:
        return
    if connection.dialect.name == "postgresql":
        driver: Any = connection.connection.driver_connection
        statement = f"COPY {table.name} ({names}) FROM STDIN (FORMAT BINARY)"
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(_binary(columns, rows))
    else:
        marks = ", ".join("?" * len(columns))
        values = zip(*(_values(column, rows) for column in columns.values()), strict=True)
        statement = f"INSERT INTO {table.name} ({names}) VALUES ({marks})"
        connection.exec_driver_sql(statement, list(values))


def _values(column: Column, rows: int) -> Sequence[object]:
    """A column as the values that a driver takes."""
    if isinstance(column, int):
        return [column] * rows
    if column.ndim == 1:
        return list(column.tolist())
    data = blocks.to_bytes(column)
    return [data[start : start + 16] for start in range(0, len(data), 16)]


def _binary(columns: Mapping[str, Column], rows: int) -> bytes:
    """PostgreSQL's binary COPY format; every row is as wide as the others, so numpy can lay it out.

    One integer for all rows is of type integer (4 bytes), the others are bigint (8 bytes).
    """
    fields: list[tuple[str, str]] = [("count", ">i2")]
    for name, column in columns.items():
        kind = ">i4" if isinstance(column, int) else ">i8" if column.ndim == 1 else "V16"
        fields += [(f"{name} length", ">i4"), (name, kind)]
    layout = np.zeros(rows, np.dtype(fields))
    layout["count"] = len(columns)
    for name, column in columns.items():
        layout[f"{name} length"] = layout.dtype[name].itemsize
        if not isinstance(column, int) and column.ndim == 2:
            layout[name] = np.frombuffer(blocks.to_bytes(column), "V16")
        else:
            layout[name] = column
    header = b"PGCOPY\n\xff\r\n\0" + bytes(8)
    return header + layout.tobytes() + b"\xff\xff"


def keyed(
    connection: sa.Connection, query: sa.Select[Any]
) -> tuple[Blocks, tuple[NDArray[np.int64], ...]]:
    """Rows whose first column is a pseudonym: these, shape (n, 2), and the integer columns (n,).

    The query must sort by pseudonym: both databases then sort as the bytes do.
    """
    rows = connection.execute(query).all()
    width = len(query.selected_columns) - 1
    if not rows:
        return np.zeros((0, 2), np.uint64), (np.zeros(0, np.int64),) * width
    labelers, *columns = zip(*rows, strict=True)
    keys = blocks.from_bytes(b"".join(labelers))
    return keys, tuple(np.fromiter(column, np.int64, len(rows)) for column in columns)
