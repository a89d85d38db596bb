"""Arrow tables, Arrow files and Parquet files as relations of DuckDB, judged before it reads."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from labelguard.errors import InvalidLabels
from labelguard.inputs.readers import (
    NOT_UTF8,
    OURS,
    Opener,
    check_columns,
    file_literal,
    identifier,
)

_DATASET_ROWS = 1000
SEVERAL_TYPES = (
    "a column holds values of several types, or text that is not UTF-8; give each column one type"
)
"""What is wrong with values in memory that are no column."""


def table_opener(table: Any, name: str) -> Opener:
    """Opens a table in memory (pyarrow, polars, pandas), judged here."""
    # A stream could be read only once, but rows that are set aside are read a second time.
    if isinstance(table, pa.RecordBatchReader) or not (
        isinstance(table, pa.Table | pa.RecordBatch) or hasattr(table, "__arrow_c_stream__")
    ):
        raise InvalidLabels(
            "expected a path, a table (pyarrow, polars, pandas, datasets), or a list of rows, "
            f"found {type(table).__name__}"
        )
    try:
        converted = pa.table(table)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        # Not which column: of chosen and rejected, that would name a side.
        raise InvalidLabels(f"{name}: {SEVERAL_TYPES}") from None
    check_columns(converted.column_names, name)
    for batch in converted.to_batches():
        if problem := _damage(batch):
            raise InvalidLabels(f"{name}: {problem}")
    return _opener(lambda: converted)


def dataset_opener(dataset: Any, name: str) -> Opener:
    """Opens a `datasets.Dataset` as a stream of its rows, in the order that it shows them in.

    All of its columns, whatever its format shows. Raises `InvalidLabels` for a streamed dataset.
    """
    if not hasattr(dataset, "with_format") or not hasattr(dataset, "num_rows"):
        raise InvalidLabels(
            f"{name}: a streamed dataset can be read only once; load it without streaming=True, or "
            "write it to Parquet"
        )
    rows = dataset.with_format("arrow")
    if not len(rows):
        raise InvalidLabels(f"{name}: no rows in the input")
    schema = rows[:1].schema
    check_columns(schema.names, name)

    def batches() -> Iterator[pa.RecordBatch]:
        for table in rows.iter(_DATASET_ROWS):
            yield from table.combine_chunks().to_batches()

    return _opener(lambda: _judged(schema, batches()))


def arrow_opener(path: Path, name: str) -> Opener:
    """Opens an Arrow file or stream, never a compressed one; messages call it `name`."""

    @cache
    def check() -> None:
        if _compressed(path):
            raise InvalidLabels(
                f"{name}: compressed Arrow data; write it uncompressed, or as Parquet"
            )
        check_columns(_arrow_batches(path).schema.names, name)

    def opened(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        check()
        return _opener(lambda: _arrow_batches(path))(connection)

    return opened


def parquet_opener(path: Path, name: str) -> Opener:
    """Opens a Parquet file; messages call it `name`."""
    query = (
        f"FROM read_parquet({file_literal(path)}, hive_partitioning=true, "
        "hive_types_autocast=false)"
    )

    def opened(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        check_columns(pq.read_schema(path).names, name)
        return connection.sql(query)

    return opened


def _arrow_batches(path: Path) -> pa.RecordBatchReader:
    """An Arrow file's batches, judged one by one as they are read."""
    # `datasets` writes the stream format; the file format serves others.
    source = pa.memory_map(str(path))
    try:
        stream = pa.ipc.open_stream(source)
    except pa.ArrowInvalid:
        source.seek(0)
        file = pa.ipc.open_file(source)
        return _judged(file.schema, map(file.get_batch, range(file.num_record_batches)))
    return _judged(stream.schema, stream)


def _judged(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
    def run() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if problem := _damage(batch):
                raise pa.ArrowInvalid(f"{OURS}{problem}{OURS}")
            yield batch

    return pa.RecordBatchReader.from_batches(schema, run())


def _opener(read: Callable[[], pa.Table | pa.RecordBatchReader]) -> Opener:
    def opened(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        source = read()
        try:
            return connection.from_arrow(source)
        except duckdb.NotImplementedException:
            readable = _readable_columns(source, connection)
            unreadable = [n for n in source.schema.names if n not in readable.schema.names]
            return _opaque(connection.from_arrow(readable), unreadable, source.schema.names)

    return opened


def _opaque(
    relation: duckdb.DuckDBPyRelation, unreadable: Sequence[str], names: Sequence[str]
) -> duckdb.DuckDBPyRelation:
    """Return the relation with bytes in place of columns whose types DuckDB cannot take.

    They are no text, chat, id or label. That one is there must show: if it were dropped, a message
    would name it, and of chosen and rejected that would name a side.
    """
    opaque = {name: f"'\\xFF'::BLOB AS {identifier(name)}" for name in unreadable}
    return relation.project(", ".join(opaque.get(name, identifier(name)) for name in names))


def _readable_columns(
    source: pa.Table | pa.RecordBatchReader, connection: duckdb.DuckDBPyConnection
) -> pa.Table | pa.RecordBatchReader:
    """The source without columns of types that DuckDB lacks."""
    names = []
    for name in source.schema.names:
        try:
            connection.from_arrow(pa.schema([source.schema.field(name)]).empty_table())
            names.append(name)
        except duckdb.NotImplementedException:
            continue
    if isinstance(source, pa.Table):
        return source.select(names)
    schema = pa.schema([source.schema.field(name) for name in names])
    return pa.RecordBatchReader.from_batches(schema, (batch.select(names) for batch in source))


def _damage(batch: pa.RecordBatch) -> str | None:
    """What breaks the Arrow format in a batch (DuckDB does not look).

    Neither the column nor the row, which not every type tells: of chosen and rejected, that would
    name a side.
    """
    problems = set()
    for values in batch.columns:
        try:
            values.validate(full=True)
        except pa.ArrowInvalid as error:
            problems.add(NOT_UTF8 if "UTF8" in str(error) else "damaged data")
    return min(problems, default=None)


def _compressed(path: Path) -> bool:
    """Whether the body of an Arrow file or stream is compressed.

    Arrow unpacks a batch whole, to whatever size it says: 50 kB became 3 GB. What is stored as it
    is takes no memory at all, being mapped. Raises `pa.ArrowInvalid` for damaged data.
    """
    with pa.memory_map(str(path)) as source:
        # A file is a stream between a mark, padded to 8 bytes, and a table of contents.
        source.seek(8 if source.read(6) == b"ARROW1" else 0)
        for message in pa.ipc.MessageReader.open_stream(source):
            if message.type in ("record batch", "dictionary"):
                try:
                    if _is_compressed(message.metadata.to_pybytes(), message.type):
                        return True
                except struct.error:
                    raise pa.ArrowInvalid("damaged metadata") from None
    return False


def _is_compressed(message: bytes, kind: str) -> bool:
    """Whether a message names a codec (Message.fbs: Message.header, RecordBatch.compression)."""
    (root,) = struct.unpack_from("<I", message)
    batch = _member(message, root, 2)
    if kind == "dictionary":
        batch = _member(message, batch, 1)
    return _field(message, batch, 3) != 0


def _field(message: bytes, table: int, index: int) -> int:
    """Where a flatbuffer's table has its field number `index`; 0 if it has not."""
    vtable = table - struct.unpack_from("<i", message, table)[0]
    (size,) = struct.unpack_from("<H", message, vtable)
    entry = 4 + 2 * index
    offset = struct.unpack_from("<H", message, vtable + entry)[0] if entry < size else 0
    return table + offset if offset else 0


def _member(message: bytes, table: int, index: int) -> int:
    """Where the table is that this field refers to."""
    field = _field(message, table, index)
    return field + int(struct.unpack_from("<I", message, field)[0])
