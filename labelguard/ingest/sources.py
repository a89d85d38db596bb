"""Where labels come from: files of several formats, or a table in memory, as DuckDB relations.

Every input becomes a list of parts that are read one after the other, in a fixed order, as a
stream; nothing is loaded whole. An error names the file and the line and never repeats content.
"""

from __future__ import annotations

import csv
import glob
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from labelguard.errors import InvalidLabels
from labelguard.ingest import arrow, canonical
from labelguard.ingest.canonical import NoContent
from labelguard.ingest.reader_errors import LONG_LINE, OURS

Input: TypeAlias = Any
"""A path or glob (str, Path), a table (pyarrow, polars, pandas), or a sequence of these."""

Opener: TypeAlias = Callable[[duckdb.DuckDBPyConnection], duckdb.DuckDBPyRelation]

_FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".arrow": "arrow",
}
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
_SUPPORTED = "Parquet, CSV, JSONL (.gz, .zst), or a Hugging Face dataset directory"
_MAX_LINE = 32 << 20
_MAX_HEADER = 1 << 20
MOST_COLUMNS = 4096
_PLENTY, _EXPANSION = 1 << 30, 200
"""Bytes that any input may take, and how many times the size of its files on top."""


@dataclass(frozen=True)
class Part:
    """One file or table: its name in messages and how to open it as a relation, from its start.

    `partitions` are what its directories are named by (`labeler_id=7/…`), in lower case. A `sparse`
    part lacks a column where no row has a value for it.
    """

    name: str
    open: Opener
    partitions: frozenset[str] = frozenset()
    size: int | None = None
    """Bytes on disk; None for a table in memory."""
    sparse: bool = False


@dataclass
class Allowance:
    """How many more bytes the rows of an input may take.

    A file of a few megabytes can unpack to terabytes. Rows of honest files take ten times what
    their files do, and up to a hundred times where many labelers see the same texts.
    """

    left: float

    @classmethod
    def of(cls, parts: Sequence[Part], given: int | None) -> Allowance:
        """`given`, or in proportion to the files; tables in memory are as large as they are."""
        sizes = [part.size for part in parts]
        if given is not None:
            return cls(given)
        if None in sizes:
            return cls(float("inf"))
        return cls(_PLENTY + _EXPANSION * sum(size for size in sizes if size))

    def take(self, name: str, count: int) -> None:
        """Raise `InvalidLabels` once more was read than is allowed."""
        self.left -= count
        if self.left < 0:
            raise InvalidLabels(
                f"{name}: its rows take far more room than the file; if that is right, allow it: "
                "--max-input-bytes"
            )


def parts(source: Input) -> list[Part]:
    """The parts of an input, in a fixed order; raises `InvalidLabels` if there are none."""
    items = list(_flat(source))
    found: list[Part] = []
    for number, item in enumerate(items, 1):
        if isinstance(item, str | Path):
            found += _path_parts(str(item))
        else:
            name = "table" if len(items) == 1 else f"table {number}"
            found.append(Part(name, _opener(_as_arrow(item, name))))
    if not found:
        raise InvalidLabels("no input: the list of files or tables is empty")
    return found


def _flat(source: Input) -> Iterator[Any]:
    if isinstance(source, list | tuple):
        for item in source:
            yield from _flat(item)
    else:
        yield source


def _as_arrow(table: Any, name: str) -> pa.Table:
    # A stream could be read only once, but rows that are set aside are read a second time.
    if isinstance(table, pa.RecordBatchReader) or not (
        isinstance(table, pa.Table | pa.RecordBatch) or hasattr(table, "__arrow_c_stream__")
    ):
        raise InvalidLabels(
            f"expected a path or a table (pyarrow, polars, pandas), found {type(table).__name__}"
        )
    try:
        converted = pa.table(table)
    except (pa.ArrowException, TypeError, ValueError):
        # Not which column: of chosen and rejected, that would name a side.
        raise InvalidLabels(
            f"{name}: a column holds values of several types, or text that is not UTF-8; "
            "give each column one type"
        ) from None
    _distinct(converted.column_names, name)
    told = arrow.told(converted.schema)
    converted = converted if told == converted.schema else converted.cast(told)
    start = 0
    for batch in converted.to_batches():
        problem = arrow.damage(batch, start)
        if problem:
            raise InvalidLabels(f"{name} {problem}")
        start += batch.num_rows
    return converted


def _opener(table: pa.Table | Callable[[], pa.RecordBatchReader]) -> Opener:
    def opened(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        source = table() if callable(table) else table
        unreadable = arrow.clashing(source.schema)
        try:
            relation = connection.from_arrow(source)
        except duckdb.NotImplementedException:
            readable = _readable_columns(source, connection)
            unreadable += [
                name for name in source.schema.names if name not in readable.schema.names
            ]
            relation = connection.from_arrow(readable)
        return _opaque(relation, unreadable)

    return opened


def _opaque(relation: duckdb.DuckDBPyRelation, names: Sequence[str]) -> duckdb.DuckDBPyRelation:
    """The relation with bytes in place of columns whose types DuckDB cannot take.

    They are no text, chat, id or label. That one is there must show: if it were dropped, a message
    would name it, and of chosen and rejected that would name a side.
    """
    kept = ", ".join(identifier(name) for name in relation.columns if name not in names)
    bytes_ = ", ".join(f"'\\xFF'::BLOB AS {identifier(name)}" for name in names)
    return relation.project(", ".join(filter(None, (kept, bytes_)))) if names else relation


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


def _path_parts(pattern: str) -> list[Part]:
    path = Path(pattern)
    if path.is_dir():
        return _directory_parts(path)
    if path.is_file():
        return [_file_part(path)]
    # Path.glob takes no absolute patterns.
    matches = sorted(Path(name) for name in glob.glob(pattern, recursive=True))  # noqa: PTH207
    if not matches:
        raise InvalidLabels(f"{_name(path)}: no such file or directory")
    found = []
    for match in matches:
        found += _directory_parts(match) if match.is_dir() else [_file_part(match)]
    return found


def _directory_parts(directory: Path) -> list[Part]:
    files = sorted(
        path
        for path in directory.rglob("*")
        if path.is_file()
        and _format(path)
        and not path.name.startswith((".", "_"))
        and not (path.suffix == ".arrow" and _is_cache(path))
    )
    if not files:
        raise InvalidLabels(f"{_name(directory)}: no readable file in it; expected {_SUPPORTED}")
    return [_file_part(path) for path in files]


def _is_cache(path: Path) -> bool:
    """Whether an Arrow file is a leftover of `datasets`, not data of its directory."""
    state = path.with_name("state.json")
    try:
        listed = json.loads(state.read_bytes())["_data_files"]
        return path.name not in [file["filename"] for file in listed]
    except (OSError, ValueError, KeyError, TypeError):
        return path.name.startswith("cache-")


def _format(path: Path) -> str | None:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compressed = bool(suffixes) and suffixes[-1] in _COMPRESSIONS
    kind = _FORMATS.get(suffixes[-2 if compressed else -1]) if len(suffixes) > compressed else None
    return None if compressed and kind not in ("csv", "jsonl") else kind


def _file_part(path: Path) -> Part:
    kind = _format(path)
    if kind is None:
        raise InvalidLabels(f"{_name(path)}: unknown file type; expected {_SUPPORTED}")
    size = path.stat().st_size
    if size == 0:
        raise InvalidLabels(f"{_name(path)}: the file is empty")
    opener = {"parquet": _parquet, "csv": _csv, "jsonl": _jsonl, "arrow": _arrow}[kind](path)
    folders = (folder.lower() for folder in path.parts[:-1] if "=" in folder)
    keys = frozenset(folder.partition("=")[0] for folder in folders)
    return Part(_name(path), opener, keys, size, sparse=kind == "jsonl")


def _name(path: Path) -> str:
    """A path as messages show it (a file name may hold any bytes, even line breaks)."""
    text = os.fsencode(path).decode("utf-8", "replace")
    return text if text.isprintable() else repr(text)[1:-1]


def _arrow(path: Path) -> Opener:
    def checked(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> pa.RecordBatchReader:
        def run() -> Iterator[pa.RecordBatch]:
            start = 0
            for batch in batches:
                problem = arrow.damage(batch, start)
                if problem:
                    raise pa.ArrowInvalid(f"{OURS}{problem}{OURS}")
                start += batch.num_rows
                yield batch if told == schema else batch.cast(told)

        told = arrow.told(schema)
        return pa.RecordBatchReader.from_batches(told, run())

    def reader() -> pa.RecordBatchReader:
        # `datasets` writes the stream format; the file format serves others.
        source = pa.memory_map(str(path))
        try:
            stream = pa.ipc.open_stream(source)
        except pa.ArrowInvalid:
            source.seek(0)
            file = pa.ipc.open_file(source)
            batches = (file.get_batch(index) for index in range(file.num_record_batches))
            return checked(file.schema, batches)
        return checked(stream.schema, stream)

    looked = False

    def opened(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        nonlocal looked
        if not looked and arrow.compressed(path):
            raise InvalidLabels(
                f"{_name(path)}: compressed Arrow data; write it uncompressed, or as Parquet"
            )
        looked = True
        _distinct(reader().schema.names, _name(path))
        return _opener(reader)(connection)

    return opened


def _parquet(path: Path) -> Opener:
    query = (
        f"FROM read_parquet({literal(_escape(path))}, hive_partitioning=true, "
        "hive_types_autocast=false)"
    )

    def opened(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        schema = pq.read_schema(path)
        _distinct(schema.names, _name(path))
        return _opaque(connection.sql(query), arrow.clashing(schema))

    return opened


def _csv(path: Path) -> Opener:
    # The dialect is fixed, not guessed: a guess would turn a broken quote into other data.
    looked = False

    def opened(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        nonlocal looked
        names, delimiter = _csv_header(path)
        # DuckDB leaves such a line out without a word.
        if not looked and _ends_in_long_line(path):
            raise InvalidLabels(f"{_name(path)}: a {LONG_LINE}")
        looked = True
        columns = ", ".join(f"{literal(name)}: 'VARCHAR'" for name in names)
        return connection.sql(
            f"FROM read_csv({literal(_escape(path))}, auto_detect=false, header=true, "
            f"delim={literal(delimiter)}, quote='\"', escape='\"', strict_mode=true, "
            f"max_line_size={_MAX_LINE}, buffer_size={_MAX_LINE}, columns={{{columns}}}, "
            "hive_partitioning=true, hive_types_autocast=false)"
        )

    return opened


def _csv_header(path: Path) -> tuple[list[str], str]:
    compression = _COMPRESSIONS.get(path.suffix.lower())
    with pa.input_stream(str(path), compression=compression) as stream:
        text = stream.read(_MAX_HEADER)
    first = re.split(rb"\r|\n", text, maxsplit=1)[0]
    if len(first) == _MAX_HEADER:
        raise InvalidLabels(f"{_name(path)}: the first line must name every column; it is too long")
    try:
        line = first.decode("utf-8-sig")
        delimiter = max(",\t;", key=line.count)
        names = next(csv.reader(io.StringIO(line), delimiter=delimiter), [])
    except UnicodeDecodeError:
        raise InvalidLabels(f"{_name(path)}: the header is not UTF-8 text") from None
    except csv.Error:
        raise InvalidLabels(f"{_name(path)}: the first line must name every column") from None
    if not names or not all(names):
        raise InvalidLabels(f"{_name(path)}: the first line must name every column")
    _distinct(names, _name(path))
    return names, delimiter


def _ends_in_long_line(path: Path) -> bool:
    compression = _COMPRESSIONS.get(path.suffix.lower())
    if compression:
        return _has_long_line(path, compression)
    if path.stat().st_size <= _MAX_LINE:
        return False
    with path.open("rb") as file:
        file.seek(-_MAX_LINE, os.SEEK_END)
        return len(file.read().rstrip().splitlines()) < 2


def _has_long_line(path: Path, compression: str) -> bool:
    """Whether a line of a compressed file is too long: its end cannot be looked at alone."""
    length = 0
    with pa.input_stream(str(path), compression=compression) as stream:
        while length <= _MAX_LINE and (text := stream.read(_MAX_HEADER)):
            end = max(text.rfind(b"\n"), text.rfind(b"\r"))
            length = len(text) + (length if end < 0 else -end - 1)
    return length > _MAX_LINE


def _distinct(names: Sequence[str], where: str) -> None:
    if not names:
        raise InvalidLabels(f"{where}: no columns in the input")
    if len(names) > MOST_COLUMNS:
        raise InvalidLabels(
            f"{where}: {len(names):,} columns; more than {MOST_COLUMNS:,} cannot be read"
        )
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:
            raise InvalidLabels(
                f"{where}: two columns are named {name} (upper and lower case are one); rename one"
            )
        seen.add(name.lower())


def _jsonl(path: Path) -> Opener:
    # Two readings: the first finds which columns are nested; the second reads all others as text,
    # because guessed types rewrite ids ("007", "2024-1-1", upper-case UUIDs).
    options = (
        f"{literal(_escape(path))}, format='newline_delimited', "
        f"maximum_object_size={_MAX_LINE}, hive_partitioning=true, hive_types_autocast=false"
    )
    found: dict[str, str] = {}

    def opened(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        if not found:
            found.update(_json_columns(connection, options, _name(path)))
        columns = ", ".join(f"{literal(name)}: {literal(kind)}" for name, kind in found.items())
        return connection.sql(f"FROM read_json({options}, columns={{{columns}}})")

    return opened


def _json_columns(
    connection: duckdb.DuckDBPyConnection, options: str, where: str
) -> dict[str, str]:
    """The columns of a JSONL file and the types to read them as."""
    try:
        guessed = connection.sql(
            f"FROM read_json({options}, sample_size=-1, map_inference_threshold=-1, "
            "field_appearance_threshold=0)"
        )
    except duckdb.NotImplementedException as error:
        if "Duplicate name" not in str(error):
            raise
        return _json_columns_by_structure(connection, options, where)
    _distinct(guessed.columns, where)
    if guessed.columns[0] == "json":  # DuckDB's name for what is not an object.
        if guessed.limit(1).fetchall():
            raise InvalidLabels(f"{where}: not JSONL; every line must hold one object")
        raise InvalidLabels(f"{where}: no rows in the input")
    columns = dict(zip(guessed.columns, guessed.types, strict=True))
    kinds = {name: canonical.json_type(kind) for name, kind in columns.items()}
    chats = [
        name
        for name, kind in columns.items()
        if kind.id == "list"
        and (canonical.element(kind).id in ("struct", "null") or str(kind) == "JSON[]")
    ]
    if len(chats) > 1:
        kinds |= dict.fromkeys(chats, _common_type(connection, options, chats))
    mixed = [name for name, kind in kinds.items() if kind == "MIXED"]
    if mixed:  # Numbers and texts go together as text, but lists or objects do not.
        checks = [f"bool_or(json_type({identifier(n)}) IN ('ARRAY', 'OBJECT'))" for n in mixed]
        nested = guessed.aggregate(", ".join(checks)).fetchall()[0]
        kinds |= {n: "JSON" if is_so else "VARCHAR" for n, is_so in zip(mixed, nested, strict=True)}
    return kinds


def _json_columns_by_structure(
    connection: duckdb.DuckDBPyConnection, options: str, where: str
) -> dict[str, str]:
    """The same where DuckDB cannot guess: members of an object differ in upper and lower case."""
    objects = f"read_json({options}, records=false, columns={{json: 'JSON'}})"
    keys = connection.sql(f"SELECT DISTINCT unnest(json_keys(json)) AS k FROM {objects} ORDER BY k")
    names = [name for (name,) in keys.fetchall()]
    _distinct(names, where)
    found = {name: _structure(connection, options, [name]) for name in names}
    kinds = {
        name: "JSON" if not isinstance(structure, str) or structure == "JSON" else "VARCHAR"
        for name, structure in found.items()
    }
    chats = [name for name, structure in found.items() if isinstance(structure, list)]
    common = _common_type(connection, options, chats) if chats else ""
    return kinds | dict.fromkeys(chats, common)


def _structure(connection: duckdb.DuckDBPyConnection, options: str, names: Sequence[str]) -> object:
    """What DuckDB finds in the values of all these columns of a JSONL file."""
    columns = ", ".join(f"{literal(name)}: 'JSON'" for name in names)
    values = " UNION ALL ".join(f"SELECT {identifier(name)} AS v FROM raw" for name in names)
    query = (
        f"WITH raw AS (FROM read_json({options}, columns={{{columns}}})) "
        f"SELECT json_group_structure(v) FROM ({values})"
    )
    return json.loads(connection.sql(query).fetchall()[0][0])


def _common_type(connection: duckdb.DuckDBPyConnection, options: str, chats: Sequence[str]) -> str:
    """One type for all chats of a JSONL file.

    Guessed one by one, the types of chosen and rejected would follow from the labels.
    """
    try:
        shape = canonical.json_shape(_structure(connection, options, chats))
        return canonical.sql_type(shape, "JSON")
    except NoContent:
        return "JSON"


def literal(text: str) -> str:
    """A SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _escape(path: Path) -> str:
    # DuckDB reads *, ? and [ in file names as globs.
    return re.sub(r"([*?\[])", r"[\1]", str(path))
