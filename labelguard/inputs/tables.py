"""Tables in memory, Parquet files, and rows of Python, as relations.

Arrow data is checked before DuckDB reads it. Of rows (a list of dictionaries, or a frame of pandas
with objects in it) every value is written as JSON, by its own type alone, and read as a value of a
JSON file is: which types a column holds may follow from the labels, so nothing is inferred from a
column.
"""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from labelguard.errors import InvalidLabels
from labelguard.inputs import chats
from labelguard.inputs.columns import find_content_role_columns, find_side_columns
from labelguard.inputs.json_files import JsonType, choose_json_types, select_typed
from labelguard.inputs.readers import (
    NOT_UTF8,
    Opener,
    check_column_names,
    identifier,
    quote_file_name,
)

ROWS = "rows"  # what messages call rows in memory
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
        table = _read_dataset(table, name)
    elif library == "pandas" and _has_objects(table):
        columns = {column: list(table[column].array) for column in table.columns}
        return _build_columns_opener(columns, roles, name)
    if not isinstance(table, pa.RecordBatch) and not hasattr(table, "__arrow_c_stream__"):
        raise InvalidLabels(
            "expected a path, a table (pyarrow, polars, pandas, datasets), or a list of rows, "
            f"found {type(table).__name__}"
        )
    try:
        converted = pa.table(table)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        raise InvalidLabels(
            f"{name}: a column holds values of several types, or text that is not UTF-8; give each "
            "column one type"
        ) from None
    _check_names(converted.schema, name)
    for column, values in zip(converted.column_names, converted.columns, strict=True):
        if damage := _describe_damage(values, column):  # DuckDB does not look
            raise InvalidLabels(f"{name}{damage}")
    return _build_table_opener(converted)


def _read_dataset(dataset: Any, name: str) -> pa.Table:
    """Return the rows of a `datasets.Dataset` in the order it shows, mapped where that is its own.

    All of its columns, whatever its format shows. Raises `InvalidLabels` for a streamed dataset.
    """
    if not hasattr(dataset, "with_format") or not hasattr(dataset, "num_rows"):
        raise InvalidLabels(
            f"{name}: a streamed dataset can be read only once; load it without streaming=True, or "
            "write it to Parquet"
        )
    return dataset.with_format("arrow")[:] if len(dataset) else dataset.data.table


def _has_objects(frame: Any) -> bool:
    """Return whether the types of a frame of pandas do not say what is in it.

    What is always missing has the type of another column's absent values.
    """
    named = frame.columns.is_unique and all(isinstance(name, str) for name in frame.columns)
    return named and any(
        getattr(frame[name].dtype, "hasobject", False) or frame[name].isna().all()
        for name in frame.columns
    )


def _build_table_opener(table: pa.Table) -> Opener:
    """Return what opens a table, with bytes in place of columns whose types DuckDB cannot take:
    they are no text, chat, id or label, and whoever asks for one is told so.
    """
    readable: list[pa.Table] = []

    def open_table(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        if not readable:
            shown = table
            for place, field in enumerate(table.schema):
                try:
                    connection.from_arrow(pa.schema([field]).empty_table())
                except duckdb.NotImplementedException:
                    blank = pa.repeat(pa.scalar(b"\xff"), len(table))
                    shown = shown.set_column(place, field.name, blank)
            readable.append(shown)
        return connection.from_arrow(readable[0])

    return open_table


def _check_names(fields: Iterable[pa.Field], where: str) -> None:
    """Refuse two columns that DuckDB takes for one, or two members of one object, at any depth."""
    listed = list(fields)
    check_column_names([field.name for field in listed], where)
    for kind in (field.type for field in listed):
        if kind.num_fields:
            _check_names(map(kind.field, range(kind.num_fields)), where)


def build_parquet_opener(path: Path, name: str) -> Opener:
    """Return what opens a Parquet file."""
    query = f"FROM read_parquet({quote_file_name(path)}, hive_partitioning=false)"

    def open_parquet(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        _check_names(pq.read_schema(path), name)
        return connection.sql(query)

    return open_parquet


def find_parquet_fault(path: Path, name: str, message: str) -> str:
    """Return where a text of a Parquet file is not UTF-8; nothing where the file is damaged.

    Raises `pa.ArrowException` or `OSError` then. A reader's `message` about `name` says less.
    """
    with pq.ParquetFile(path) as file:
        for column in file.schema_arrow.names:
            rows = 0
            for batch in file.iter_batches(columns=[column]):
                if damage := _describe_damage(batch.column(0), column, rows):
                    return damage
                rows += batch.num_rows
    return ""


def _describe_damage(values: pa.Array | pa.ChunkedArray, column: str, before: int = 0) -> str:
    """Return what is wrong with a column, and in which row, if Arrow's check finds damage in it.

    Messages count `before` rows first. What is within lists and objects is in no row of its own.
    """

    def is_damaged(rows: int) -> bool:
        try:
            values.slice(0, rows).validate(full=True)
        except pa.ArrowInvalid:
            return True
        return False

    if not is_damaged(len(values)):
        return ""
    row = bisect_left(range(1, len(values)), True, key=is_damaged) + 1 + before
    place = "" if values.type.num_fields else f" row {row}"
    return f"{place}: column {column}: {NOT_UTF8}, or damaged data"


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
    return _build_columns_opener(columns, roles, ROWS)


def _build_columns_opener(
    columns: Mapping[str, Sequence[Any]], roles: Mapping[str, str], where: str
) -> Opener:
    """Return what opens columns of values, each of which becomes JSON by its own type."""
    check_column_names(list(columns), where)
    contents = find_content_role_columns(list(columns), roles)
    sides = find_side_columns(list(columns), roles)
    arrays = {}
    for name, values in columns.items():
        is_content = name in contents
        wide = partial(_convert_for_json, wide=name in sides)
        plain = _convert_array_for_json if is_content else wide
        texts = list[bytes | None]()
        try:
            for value in values:
                texts.append(_to_json_text(value, plain))
        except (TypeError, ValueError, RecursionError):
            place = f"{where} row {len(texts) + 1}: column {name}"
            if is_content:
                raise chats.build_content_error(place) from None
            raise InvalidLabels(f"{place}: {_EXPECTED}") from None
        arrays[name] = pa.array(texts, pa.large_binary()).cast(pa.large_string())
    table = pa.table(arrays)
    types: dict[str, JsonType] = {}

    def open_columns(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        texts = (f"{identifier(name)}::JSON AS {identifier(name)}" for name in arrays)
        relation = connection.from_arrow(table).project(", ".join(texts))
        types.update(types or choose_json_types(relation, roles))
        return select_typed(relation, types)

    return open_columns


def _to_json_text(value: Any, plain: Callable[[Any], Any]) -> bytes | None:
    missing = value is None or type(value).__name__ in ("NAType", "NaTType")
    if missing or (isinstance(value, float | np.floating) and np.isnan(value)):
        return None
    return json.dumps(value, default=plain, ensure_ascii=False).encode()


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
