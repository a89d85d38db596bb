"""DuckDB at work: files and tables as relations, their types and rows, and its errors as ours.

An error says which file, which line if known, and the kind of fault. It never repeats content, as
DuckDB's own errors do: a label may stand there.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa
from duckdb.sqltypes import DuckDBPyType

from labelguard.errors import InvalidLabels, ProjectError
from labelguard.processes import count_cores

# Opens one file or table as a relation, from its start.
Opener: TypeAlias = Callable[[duckdb.DuckDBPyConnection], duckdb.DuckDBPyRelation]

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
MAX_LINE = 32 << 20
MOST_COLUMNS = 4096
_DECIMAL_COMMA = "^[+-]?(0*,[0-9]+|[0-9]+,([0-9]{1,2}|[0-9]{4,}))$"

_BATCH_BYTES = 8 << 20  # larger ones are fresh pages each time, which the system must clear
_MAX_BATCH_ROWS = 262_144
# Rows that are taken from DuckDB at once: few, as they may be wide.
_ROWS_READ = 2048
_LEAST_MEMORY = 1 << 30
# The order of members of tool calls, as OpenAI writes them; others follow by name.
_CALL = " id type function name arguments "
_CONTAINER_LIMITS = tuple(
    Path("/sys/fs/cgroup", name) for name in ("memory.max", "memory/memory.limit_in_bytes")
)


@dataclass(frozen=True)
class InputFile:
    """One file or table: its name in messages and how to open it as a relation, from its start.

    `path` and `size`, in bytes, are those of a file on disk. `find_fault` says what is wrong in it,
    and in which line, from the message of its reader. Lines of a CSV file are no rows. A `sparse`
    file lacks a column where no row has a value for it. `arguments` name it in a command. `answers`
    is the file of answers ingested from a tool, in which no label stops a release. `results` are
    its columns and those of queries for its few names and counts, by what opened it then.
    """

    name: str
    open: Opener
    size: int | None = None
    sparse: bool = False
    arguments: tuple[str, ...] = ("INPUT",)
    answers: Path | None = None
    path: Path | None = None
    is_csv: bool = False
    find_fault: Callable[[str], str] = lambda message: ""
    results: dict[tuple[Opener, str], Any] = field(default_factory=dict, repr=False, compare=False)


def literal(text: str) -> str:
    """Return SQL of a string."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """Return SQL of a name, in quotes."""
    return '"' + name.replace('"', '""') + '"'


def source_column(name: str) -> str:
    """Return SQL of a file's column in `part`, whose columns have names that nothing else has."""
    return identifier(f"of the file: {name}")


def quote_file_name(path: Path) -> str:
    """Return SQL of the name of one file, in which DuckDB would read *, ? and [ as a glob."""
    return literal(re.sub(r"([*?\[])", r"[\1]", str(path)))


def nan_to_null_sql(column: str, kind: DuckDBPyType) -> str:
    """Return SQL of a column in which NaN is null, as pandas has it; the text `nan` stays text."""
    if kind.id not in ("float", "double"):
        return column
    # Statistics of a Parquet file know no NaN, by which DuckDB takes isnan() and = 'NaN' for false.
    return f"(CASE WHEN isfinite({column}) OR isinf({column}) THEN {column} END)"


def number_sql(value: str) -> str:
    """Return SQL of a text (or a number) as a DOUBLE; NULL if it is none.

    A comma is a decimal one where it cannot part thousands: in 0,5 and 3,75, not in 1,000.
    """
    comma = f"regexp_extract({value}::VARCHAR, {literal(_DECIMAL_COMMA)})"
    return f"coalesce(try_cast({value} AS DOUBLE), try_cast(replace({comma}, ',', '.') AS DOUBLE))"


def check_column_names(names: Sequence[str], where: str) -> None:
    """Refuse no columns, too many, or two that DuckDB takes for one."""
    if not names:
        raise InvalidLabels(f"{where}: no columns in the input")
    if len(names) > MOST_COLUMNS:
        raise InvalidLabels(f"{where}: {len(names):,} columns; at most {MOST_COLUMNS:,} are read")
    lower = [name.lower() for name in names]
    if twice := [name for name in names if lower.count(name.lower()) > 1]:
        raise InvalidLabels(
            f"{where}: two columns have one name ({', '.join(twice)}; upper and lower case are "
            "one); rename one"
        )


def connect(scratch: Path) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB engine in memory that fetches nothing and spills into `scratch`."""
    return duckdb.connect(
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            # A file's own statistics may say that nothing in it is null.
            "disabled_optimizers": "statistics_propagation,compressed_materialization",
            "memory_limit": f"{_choose_memory_limit()}B",
            # Each thread that reads JSON holds 64 MiB.
            "threads": min(count_cores(), 8),
            "temp_directory": str(scratch),
            "preserve_insertion_order": True,
        }
    )


def _choose_memory_limit() -> int:
    """Return the bytes that an engine may take: a quarter of the machine's or its container's."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CONTAINER_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # there is none, or it says "max"
            limits.append(int(path.read_text()))
    return max(min(limits) // 4, _LEAST_MEMORY)


def open_cursor(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Return a connection of its own to the same engine: it counts in UTC, reads 128 MB ahead."""
    cursor = connection.cursor()
    cursor.execute("SET TimeZone = 'UTC'").fetchall()
    cursor.execute("SET streaming_buffer_size = '128MB'").fetchall()
    return cursor


def read_columns(file: InputFile, connection: duckdb.DuckDBPyConnection) -> dict[str, DuckDBPyType]:
    """Return the columns of a file with their types; it is opened once for them."""
    key = file.open, "columns"
    if key not in file.results:
        with translate_errors(file):
            relation = file.open(open_cursor(connection))
        file.results[key] = list(zip(relation.columns, relation.types, strict=True))
    return dict(file.results[key])


def read_rows(
    file: InputFile, connection: duckdb.DuckDBPyConnection, query: str
) -> list[tuple[Any, ...]]:
    """Return the few rows of a query over the file, called `part` in it: see `source_column`.

    A query is run once, however often an input is understood.
    """
    key = file.open, query
    if key not in file.results:
        with translate_errors(file):
            file.results[key] = open_query(file, open_cursor(connection), query).fetchall()
    rows: list[tuple[Any, ...]] = file.results[key]
    return rows


def read_batches(
    file: InputFile, connection: duckdb.DuckDBPyConnection, query: str
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a query over the file in batches of about 8 MiB."""
    with translate_errors(file):
        relation = open_query(file, open_cursor(connection), query)
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in relation.to_arrow_reader(_ROWS_READ):
            waiting.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
            if rows >= _MAX_BATCH_ROWS or size >= _BATCH_BYTES:
                yield pa.concat_batches(waiting)
                waiting, rows, size = [], 0, 0
        if waiting:
            yield pa.concat_batches(waiting)


def open_query(
    file: InputFile, cursor: duckdb.DuckDBPyConnection, query: str, part: str = "part"
) -> duckdb.DuckDBPyRelation:
    """Return the result of a query over `part`: the file's columns by their places, under the names
    that `source_column` gives them.
    """
    relation = file.open(cursor)
    check_column_names(relation.columns, file.name)
    names = (f"#{place} AS {source_column(name)}" for place, name in enumerate(relation.columns, 1))
    # By a view of its own: `relation.query` would bind the query twice as often.
    relation.project(", ".join(names)).create_view(part, replace=True)
    result = cursor.sql(query)
    assert result is not None  # None is for statements without a result
    return result


@contextlib.contextmanager
def translate_errors(file: InputFile) -> Iterator[None]:
    """Raise errors of readers as ours."""
    try:
        yield
    except (duckdb.Error, pa.ArrowException, OSError, UnicodeError) as error:
        raise translate_error(error, file.name, file.find_fault) from None


def is_text(kind: DuckDBPyType) -> bool:
    """Return whether a column holds plain text."""
    return kind.id in ("varchar", "enum") and str(kind) != "JSON"


def is_list(kind: DuckDBPyType) -> bool:
    """Return whether a column holds lists, of one length or of several."""
    return kind.id in ("list", "array")


def find_element_type(kind: DuckDBPyType) -> DuckDBPyType:
    """Return the type of a list's elements."""
    child = kind.children[0][1]
    assert isinstance(child, DuckDBPyType)
    return child


def list_members(kind: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    """Return the members of an object with their types, in their order."""
    return [(name, child) for name, child in kind.children if isinstance(child, DuckDBPyType)]


def read_members(value: str, kind: DuckDBPyType) -> dict[str, tuple[str, DuckDBPyType]]:
    """Return SQL of the members of an object by their places, and their types, but for nulls."""
    return {
        name: (f"struct_extract_at({value}, {place})", child)
        for place, (name, child) in enumerate(list_members(kind), 1)
        if child.id != "null"
    }


def calls_sql(value: str, kind: DuckDBPyType) -> str:
    """Return SQL of tool calls as text: what is no text becomes the text of its JSON."""
    return f"({value}->>'$')" if str(kind) == "JSON" else _json_sql(value, kind)


def _json_sql(value: str, kind: DuckDBPyType, level: int = 0) -> str:
    """Return SQL of the JSON of lists and objects of texts, without null members.

    In one order, whatever that of the type is, which may tell a side.
    """
    if is_list(kind):
        element = f"c{level}"
        inner = _json_sql(element, find_element_type(kind), level + 1)
        items = f"list_transform({value}, lambda {element}: coalesce({inner}, 'null'))"
        return f"('[' || array_to_string({items}, ',') || ']')"
    if kind.id == "struct":
        members = read_members(value, kind)
        pieces = (
            f"{literal(json.dumps(name, ensure_ascii=False) + ':')} "
            f"|| {_json_sql(*members[name], level)}"
            for name in sorted(members, key=lambda name: (_CALL.find(f" {name} ") < 0,
                                                          _CALL.find(f" {name} "), name))
        )  # fmt: skip
        joined = f"concat_ws(',', {', '.join(pieces)})" if members else "''"
        return f"CASE WHEN {value} IS NOT NULL THEN '{{' || {joined} || '}}' END"
    return f"to_json({value}::VARCHAR)::VARCHAR" if kind.id != "null" else "NULL::VARCHAR"


class _TooLittleMemory(InvalidLabels, ProjectError):
    """There is too little memory to read an input, or too little room for temporary files."""


LONG_LINE = "line is longer than 32 MiB"
NOT_UTF8 = "not UTF-8 text; convert it to UTF-8"


def translate_error(
    error: duckdb.Error | pa.ArrowException | OSError | UnicodeError,
    name: str,
    find_fault: Callable[[str], str] = lambda message: "",
) -> InvalidLabels:
    """Return a reader's error as ours: by its kind alone, for its text may quote content."""
    if isinstance(error, duckdb.OutOfMemoryException):
        return _TooLittleMemory(
            f"{name}: too little memory to read it, or too little room for temporary files; make "
            "room, or leave out columns that are not needed, and run the same command again"
        )
    if isinstance(error, OSError) and error.strerror:
        return InvalidLabels(f"{name}: {error.strerror}")
    fault = ": cannot be read; the file is damaged, cut off, or not what its name says"
    with contextlib.suppress(OSError, pa.ArrowException, UnicodeError):
        fault = find_fault(str(error)) or fault
    return InvalidLabels(f"{name}{fault}")
