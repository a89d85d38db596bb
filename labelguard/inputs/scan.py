"""DuckDB at work: what columns the parts of an input have, and their rows as canonical batches."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from duckdb.sqltypes import DuckDBPyType

from labelguard.errors import InvalidLabels
from labelguard.inputs import canonical
from labelguard.inputs import layouts as labels
from labelguard.inputs.canonical import Content, NotContent
from labelguard.inputs.layouts import Layout, Reading
from labelguard.inputs.readers import readable
from labelguard.inputs.sources import Part

_BATCH_BYTES = 48 << 20
_MAX_BATCH_ROWS = 262_144
_LEAST_READ, _MOST_READ = 2048, 32_768
_LEAST_MEMORY = 1 << 30
_CONTAINER_LIMITS = tuple(
    Path("/sys/fs/cgroup", name) for name in ("memory.max", "memory/memory.limit_in_bytes")
)


def connect(scratch: Path) -> duckdb.DuckDBPyConnection:
    """A DuckDB engine in memory that fetches nothing and spills into `scratch`."""
    return duckdb.connect(
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "memory_limit": f"{_memory()}B",
            # Each thread that reads JSON holds 64 MiB.
            "threads": min(os.cpu_count() or 1, 8),
            "temp_directory": str(scratch),
            "preserve_insertion_order": True,
        }
    )


def _memory() -> int:
    """Return the bytes that an engine may take: a quarter of the machine's or its container's."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # there is none, or it says "max"
            limits.append(int(path.read_text()))
    return max(min(limits) // 4, _LEAST_MEMORY)


def _cursor(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """A connection of its own to the same engine: counts in UTC, reads ahead by 128 MB."""
    cursor = connection.cursor()
    cursor.execute("SET TimeZone = 'UTC'").fetchall()
    cursor.execute("SET streaming_buffer_size = '128MB'").fetchall()
    return cursor


def look(
    part: Part, connection: duckdb.DuckDBPyConnection, reading: Reading, labelers: str = ""
) -> Layout:
    """The layout of one part, from its schema; `labelers` says where its format names them."""
    with _translated(part):
        relation = part.open(_cursor(connection))
        return labels.layout(relation, part.name, reading, sparse=part.sparse, labelers=labelers)


def columns(part: Part, connection: duckdb.DuckDBPyConnection) -> dict[str, DuckDBPyType]:
    """The columns of one part with their types."""
    with _translated(part):
        relation = part.open(_cursor(connection))
    return dict(zip(relation.columns, relation.types, strict=True))


def rows(part: Part, connection: duckdb.DuckDBPyConnection, query: str) -> list[tuple[Any, ...]]:
    """The few rows of a query over `part`."""
    with _translated(part):
        return _selected(part, _cursor(connection), query).fetchall()


def common_content(parts: list[Part], layouts: list[Layout]) -> Content:
    """Return the content that holds the prompts and responses of every part."""
    content = layouts[0].content
    for part, layout in zip(parts, layouts, strict=True):
        try:
            content = canonical.merge([content, layout.content])
        except NotContent:
            raise InvalidLabels(
                f"{part.name}: its prompts and responses have another type than those of the "
                "files before it; privatize files of one kind together"
            ) from None
    return content


def batches(
    part: Part, connection: duckdb.DuckDBPyConnection, query: str
) -> Iterator[pa.RecordBatch]:
    """The canonical batches of one part, about 48 MiB each; reader errors become ours."""
    with _translated(part):
        most = _read_rows(part, connection, query)
        relation = _selected(part, _cursor(connection), query)
        waiting: list[pa.RecordBatch] = []
        for batch in relation.to_arrow_reader(most):
            waiting.append(batch)
            rows = sum(piece.num_rows for piece in waiting)
            if rows >= _MAX_BATCH_ROWS or sum(piece.nbytes for piece in waiting) >= _BATCH_BYTES:
                yield pa.concat_batches(waiting)
                waiting = []
        if waiting:
            yield pa.concat_batches(waiting)


@contextlib.contextmanager
def _translated(part: Part) -> Iterator[None]:
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError, UnicodeError) as error:
        raise readable(error, part.name) from None


def _selected(part: Part, cursor: duckdb.DuckDBPyConnection, query: str) -> duckdb.DuckDBPyRelation:
    """What a query selects, which sees the part under the name `part`."""
    # By a view of its own: `relation.query` would bind the query twice as often.
    part.open(cursor).create_view("part", replace=True)
    relation = cursor.sql(query)
    assert relation is not None  # None is for statements without a result
    return relation


def _read_rows(part: Part, connection: duckdb.DuckDBPyConnection, query: str) -> int:
    """Rows to take from DuckDB at once, by the width of the first ones: long texts add up.

    Of canonical ones, which are as wide whatever their labels say and however those are written.
    """
    first = f"SELECT * FROM ({query}) LIMIT 256"
    head = _selected(part, _cursor(connection), first).to_arrow_table()
    rows = _BATCH_BYTES * max(head.num_rows, 1) / max(head.nbytes, 1)
    return int(np.clip(rows, _LEAST_READ, _MOST_READ))
