"""Where labels come from: files of several formats, or a table in memory, as DuckDB relations.

Every input becomes a list of parts that are read one after the other, in a fixed order, as a
stream; nothing is loaded whole. An error names the file and the line and never repeats content.
"""

from __future__ import annotations

import csv
import glob
import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa

from labelguard.errors import InvalidLabels

Input: TypeAlias = Any
"""A path or glob (str, Path), a table (pyarrow, polars, pandas), or a sequence of paths."""

_FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".arrow": "arrow",
}
_COMPRESSIONS = {".gz", ".zst"}
_SUPPORTED = "Parquet, CSV, JSONL (.gz, .zst), or a Hugging Face dataset directory"


@dataclass(frozen=True)
class Part:
    """One file or table: its name in messages and how to open it as a relation, from its start."""

    name: str
    open: Callable[[duckdb.DuckDBPyConnection], duckdb.DuckDBPyRelation]


def parts(source: Input) -> list[Part]:
    """The parts of an input, in a fixed order; raises `InvalidLabels` if there are none."""
    if isinstance(source, str | Path):
        return _path_parts(str(source))
    if isinstance(source, list | tuple):
        return [part for item in source for part in parts(item)]
    return [Part("table", _opener(_as_arrow(source)))]


def _as_arrow(table: Any) -> pa.Table:
    if isinstance(table, pa.Table):
        return table
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    if hasattr(table, "__arrow_c_stream__"):
        return pa.table(table)
    raise InvalidLabels(
        f"expected a path or a table (pyarrow, polars, pandas), found {type(table).__name__}"
    )


def _opener(
    table: pa.Table | Callable[[], pa.RecordBatchReader],
) -> Callable[[duckdb.DuckDBPyConnection], duckdb.DuckDBPyRelation]:
    return lambda connection: connection.from_arrow(table() if callable(table) else table)


def _path_parts(pattern: str) -> list[Part]:
    path = Path(pattern)
    if path.is_dir():
        return _directory_parts(path)
    if path.is_file():
        return [_file_part(path, partitioned=False)]
    # Path.glob takes no absolute patterns.
    matches = sorted(Path(name) for name in glob.glob(pattern, recursive=True))  # noqa: PTH207
    if not matches:
        raise InvalidLabels(f"{pattern}: no such file or directory")
    found = []
    for match in matches:
        if match.is_dir():
            found += _directory_parts(match)
        else:
            found.append(_file_part(match, partitioned=True))
    return found


def _directory_parts(directory: Path) -> list[Part]:
    files = sorted(
        path
        for path in directory.rglob("*")
        if path.is_file() and _format(path) and not path.name.startswith((".", "_"))
    )
    if not files:
        raise InvalidLabels(f"{directory}: no readable file in it; expected {_SUPPORTED}")
    return [_file_part(path, partitioned=True) for path in files]


def _format(path: Path) -> str | None:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in _COMPRESSIONS:
        suffixes.pop()
    return _FORMATS.get(suffixes[-1]) if suffixes else None


def _file_part(path: Path, *, partitioned: bool) -> Part:
    kind = _format(path)
    if kind is None:
        raise InvalidLabels(f"{path}: unknown file type; expected {_SUPPORTED}")
    if path.stat().st_size == 0:
        raise InvalidLabels(f"{path}: the file is empty")
    if kind == "arrow":
        return Part(str(path), _opener(lambda: _arrow_reader(path)))
    query = {"parquet": _parquet, "csv": _csv, "jsonl": _jsonl}[kind]
    return Part(str(path), lambda connection: query(connection, path, partitioned))


def _arrow_reader(path: Path) -> pa.RecordBatchReader:
    # `datasets` writes the stream format; the file format serves others.
    source = pa.memory_map(str(path))
    try:
        return pa.ipc.open_stream(source)
    except pa.ArrowInvalid:
        source.seek(0)
        file = pa.ipc.open_file(source)
        batches = (file.get_batch(index) for index in range(file.num_record_batches))
        return pa.RecordBatchReader.from_batches(file.schema, batches)


def _parquet(
    connection: duckdb.DuckDBPyConnection, path: Path, partitioned: bool
) -> duckdb.DuckDBPyRelation:
    return connection.sql(
        f"FROM read_parquet({literal(_escape(path))}, hive_partitioning={partitioned}, "
        "hive_types_autocast=false)"
    )


def _csv(
    connection: duckdb.DuckDBPyConnection, path: Path, partitioned: bool
) -> duckdb.DuckDBPyRelation:
    # The dialect is fixed, not guessed: a guess would turn a broken quote into other data.
    names, delimiter = _csv_header(path)
    columns = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in names)
    return connection.sql(
        f"FROM read_csv({literal(_escape(path))}, auto_detect=false, header=true, "
        f"delim={literal(delimiter)}, quote='\"', escape='\"', strict_mode=true, "
        f"max_line_size=67108864, columns={{{columns}}}, hive_partitioning={partitioned})"
    )


def _csv_header(path: Path) -> tuple[list[str], str]:
    compression = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix.lower())
    try:
        with pa.input_stream(str(path), compression=compression) as stream:
            line = stream.read(1 << 20).split(b"\n", 1)[0].decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidLabels(f"{path}: the header is not UTF-8 text") from None
    delimiter = max(",\t;", key=line.count)
    names = next(csv.reader(io.StringIO(line), delimiter=delimiter), [])
    if not names or len(set(names)) != len(names) or not all(names):
        raise InvalidLabels(f"{path}: the header must name every column once")
    return names, delimiter


def _jsonl(
    connection: duckdb.DuckDBPyConnection, path: Path, partitioned: bool
) -> duckdb.DuckDBPyRelation:
    # Two readings: the first finds which columns are nested; the second reads all others as text,
    # because guessed types rewrite ids ("007", "2024-1-1", upper-case UUIDs).
    name = literal(_escape(path))
    options = (
        f"format='newline_delimited', maximum_object_size=67108864, hive_partitioning={partitioned}"
    )
    guessed = connection.sql(f"FROM read_json({name}, {options}, sample_size=-1)")
    columns = ", ".join(
        f"{literal(column)}: {literal(str(kind) if kind.id in _NESTED else 'VARCHAR')}"
        for column, kind in zip(guessed.columns, guessed.types, strict=True)
    )
    return connection.sql(f"FROM read_json({name}, {options}, columns={{{columns}}})")


_NESTED = ("list", "struct", "map")


def literal(text: str) -> str:
    """A SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _escape(path: Path) -> str:
    # DuckDB reads *, ? and [ in file names as globs.
    return re.sub(r"([*?\[])", r"[\1]", str(path))


def readable(error: duckdb.Error | pa.ArrowException | OSError, name: str) -> InvalidLabels:
    """A reader's error as ours: the file, the line if known, the kind of fault, no content."""
    text = str(error)
    line = re.search(r"(?:on Line: |in line )(\d+)", text)
    where = f"{name} line {line[1]}" if line else name
    for sign, meaning in _FAULTS:
        if sign in text.lower():
            return InvalidLabels(f"{where}: {meaning}")
    return InvalidLabels(f"{where}: cannot be read; the file is damaged or not what its name says")


_FAULTS: Iterable[tuple[str, str]] = (
    ("unterminated quote", "a quote is opened and never closed"),
    ("expected number of columns", "a row has more or fewer fields than the header"),
    ("invalid unicode", "not UTF-8 text; convert the file to UTF-8"),
    ("invalid utf-8", "not UTF-8 text; convert the file to UTF-8"),
    ("not utf-8", "not UTF-8 text; convert the file to UTF-8"),
    ("malformed json", "not valid JSON; every line must hold one object"),
    ("magic bytes", "not a complete Parquet file (truncated?)"),
    ("parquet", "not a complete Parquet file (truncated?)"),
    ("maximum line size", "a line is longer than 64 MiB"),
    ("maximum_object_size", "a line is longer than 64 MiB"),
    ("permission denied", "permission denied"),
)
