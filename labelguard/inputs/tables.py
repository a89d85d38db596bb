"""Tables in memory, Parquet files, and rows of Python, as relations.

Arrow data is checked before DuckDB reads it. Of rows (a list of dictionaries, or objects in a frame
of pandas) every value is written as JSON, by its own type alone, and read as a value of a JSON file
is: which types a column holds may follow from the labels, so nothing is inferred from a column.
"""

from __future__ import annotations

import contextlib
import datetime
import decimal
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from labelguard.errors import InvalidLabels
from labelguard.inputs import canonical
from labelguard.inputs.columns import find_content_role_columns, find_side_columns
from labelguard.inputs.readers import (
    NOT_UTF8,
    OURS,
    Opener,
    check_column_names,
    identifier,
    quote_file_name,
)
from labelguard.inputs.text_files import JsonType, choose_json_types, select_typed

_DATASET_ROWS = 1000
ROWS = "rows"  # what messages call rows in memory
_SEVERAL_TYPES = (
    "a column holds values of several types, or text that is not UTF-8; give each column one type"
)
_EXPECTED = (
    "expected values that JSON has, and times: text in UTF-8, whole numbers, numbers of 64 bits, "
    "lists and objects without cycles"
)


def build_table_opener(table: Any, roles: Mapping[str, str], name: str) -> Opener:
    """Return what opens a table in memory (pyarrow, polars, pandas, datasets), checked here.

    `roles` are columns by role. Raises `InvalidLabels` for anything else, and damaged data.
    """
    # By the names of its class: nothing is imported to look for it.
    library = type(table).__module__.partition(".")[0]
    if library == "datasets":
        return _build_dataset_opener(table, name)
    if library == "pandas" and hasattr(table, "columns"):
        opener = _build_frame_opener(table, roles, name)
        if opener is not None:
            return opener
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
        raise InvalidLabels(f"{name}: {_SEVERAL_TYPES}") from None
    check_column_names(converted.column_names, name)
    for batch in converted.to_batches():
        if problem := _find_damage(batch):
            raise InvalidLabels(f"{name}: {problem}")
    return _make_arrow_opener(lambda: converted)


def _build_dataset_opener(dataset: Any, name: str) -> Opener:
    """Return what opens a `datasets.Dataset` as a stream of its rows, in the order it shows.

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
    check_column_names(schema.names, name)

    def read_batches() -> Iterator[pa.RecordBatch]:
        for table in rows.iter(_DATASET_ROWS):
            yield from table.combine_chunks().to_batches()

    return _make_arrow_opener(lambda: _check_batches(schema, read_batches()))


def build_parquet_opener(path: Path, name: str) -> Opener:
    """Return what opens a Parquet file."""
    query = f"FROM read_parquet({quote_file_name(path)}, hive_partitioning=false)"

    def open_parquet(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        check_column_names(pq.read_schema(path).names, name)
        return connection.sql(query)

    return open_parquet


def _check_batches(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
    def yield_undamaged() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if problem := _find_damage(batch):
                raise pa.ArrowInvalid(f"{OURS}{problem}{OURS}")
            yield batch

    return pa.RecordBatchReader.from_batches(schema, yield_undamaged())


def _find_damage(batch: pa.RecordBatch) -> str | None:
    """Return what breaks the Arrow format in a batch (DuckDB does not look), if anything.

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


def _make_arrow_opener(read: Callable[[], pa.Table | pa.RecordBatchReader]) -> Opener:
    def open_table(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        source = read()
        try:
            return connection.from_arrow(source)
        except duckdb.NotImplementedException:
            return _replace_unsupported_columns(source, connection)

    return open_table


def _replace_unsupported_columns(
    source: pa.Table | pa.RecordBatchReader, connection: duckdb.DuckDBPyConnection
) -> duckdb.DuckDBPyRelation:
    """Return the relation with bytes in place of columns whose types DuckDB cannot take.

    They are no text, chat, id or label. That one is there must show: if it were dropped, a message
    would name it, and of chosen and rejected that would name a side.
    """
    names = []
    for field in source.schema:
        with contextlib.suppress(duckdb.NotImplementedException):
            connection.from_arrow(pa.schema([field]).empty_table())
            names.append(field.name)
    if isinstance(source, pa.Table):
        readable = source.select(names)
    else:
        schema = pa.schema([source.schema.field(name) for name in names])
        batches = (batch.select(names) for batch in source)
        readable = pa.RecordBatchReader.from_batches(schema, batches)
    columns = (
        identifier(name) if name in names else f"'\\xFF'::BLOB AS {identifier(name)}"
        for name in source.schema.names
    )
    return connection.from_arrow(readable).project(", ".join(columns))


def are_rows(items: Sequence[Any]) -> bool:
    """Return whether an input's items are rows; raise `InvalidLabels` for rows beside others."""
    rows = sum(map(_is_row, items))
    if 0 < rows < len(items):
        raise InvalidLabels(
            "rows (dictionaries) stand beside paths or tables in one list; give them apart, or "
            "make a table of the rows"
        )
    return rows > 0


def _is_row(item: Any) -> bool:
    """Return whether a member of a list is a row; splits by name hold tables, and a row none."""
    return isinstance(item, Mapping) and not any(
        hasattr(value, "__arrow_c_stream__") or hasattr(value, "with_format")
        for value in item.values()
    )


def build_rows_opener(rows: Sequence[Mapping[Any, Any]], roles: Mapping[str, str]) -> Opener:
    """Return what opens these rows; what a row lacks is null. `roles` are columns by role.

    Raises `InvalidLabels` for names and values that JSON does not have.
    """
    names: set[Any] = set().union(*rows)
    if not all(isinstance(name, str) for name in names):
        raise InvalidLabels(f"{ROWS}: a key is no text; name every column by a str")
    # In the order of their names: which row has a key first may follow from the labels.
    columns = {name: [row.get(name) for row in rows] for name in sorted(names)}
    check_column_names(list(columns), ROWS)
    return _build_values_opener(pa.table(_to_json(columns, roles, ROWS)), list(columns), roles)


def _build_frame_opener(frame: Any, roles: Mapping[str, str], name: str) -> Opener | None:
    """Return what opens a frame of pandas, or None if all of its columns are typed.

    Columns of objects, and those that Arrow has no type for, are read as rows are; others are as
    their type says. Raises `InvalidLabels` as `build_rows_opener`; messages call the frame `name`.
    """
    if not frame.columns.is_unique or not all(isinstance(n, str) for n in frame.columns):
        return None
    # What is always missing has the type of another column's absent values.
    objects = [n for n in frame.columns if frame[n].isna().all() or not _has_arrow_type(frame[n])]
    if not objects:
        return None
    typed = pa.table(frame.drop(columns=objects))  # with what the index holds
    texts = _to_json({n: frame[n].tolist() for n in objects}, roles, name)
    columns = dict(zip(typed.column_names, typed.columns, strict=True)) | texts
    order = dict.fromkeys([*frame.columns, *columns])
    check_column_names(list(order), name)
    return _build_values_opener(pa.table({n: columns[n] for n in order}), objects, roles)


def _has_arrow_type(series: Any) -> bool:
    """Return whether the type of a column of pandas says what is in it, and Arrow has it, too."""
    if getattr(series.dtype, "hasobject", False):
        return False
    try:
        pa.array(series[:0])
    except (pa.ArrowException, TypeError, ValueError):
        return False
    return True


def _build_values_opener(table: pa.Table, texts: Sequence[str], roles: Mapping[str, str]) -> Opener:
    """Return what opens a table whose columns `texts` are JSON."""
    types: dict[str, JsonType] = {}

    def open_rows(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        relation = connection.from_arrow(table)
        if not types:
            columns = (f"{identifier(n)}::JSON AS {identifier(n)}" for n in texts)
            types.update(choose_json_types(relation.project(", ".join(columns)), roles))
        return select_typed(relation, types)

    return open_rows


def _to_json(
    columns: Mapping[str, Iterable[Any]], roles: Mapping[str, str], where: str
) -> dict[str, pa.Array]:
    """Return the columns as JSON, one text a value."""
    contents = find_content_role_columns(list(columns), roles)
    sides = find_side_columns(list(columns), roles)
    arrays = {}
    # Contents first: whether another column is at fault, too, must not depend on their order.
    for name in sorted(columns, key=lambda column: column not in contents):
        plain = (
            _convert_array_for_json
            if name in contents
            else partial(_convert_for_json, wide=name in sides)
        )
        try:
            texts = (_to_json_text(value, plain) for value in columns[name])
            arrays[name] = pa.array(texts, pa.large_string())
        except (TypeError, ValueError, RecursionError):
            if name in contents:
                raise canonical.build_content_error(where) from None
            raise InvalidLabels(f"{where}: {_EXPECTED}") from None
    return arrays


def _to_json_text(value: Any, plain: Callable[[Any], Any]) -> str | None:
    missing = value is None or type(value).__name__ in ("NAType", "NaTType")
    if missing or (isinstance(value, float | np.floating) and np.isnan(value)):
        return None
    return json.dumps(value, default=plain, ensure_ascii=False)


def _convert_for_json(value: Any, *, wide: bool) -> Any:
    """Return any value but a content as JSON has it; numbers of a side (`wide`) are whole or of 64
    bits.

    As a number of 32 bits a feature differs from the same in 64, and so would tell its side.
    """
    if isinstance(value, np.floating | np.ndarray) and wide:
        raise TypeError("not a number of 64 bits")
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    return _convert_array_for_json(value)


def _convert_array_for_json(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError("not JSON")
