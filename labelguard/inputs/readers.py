"""What all readers share: SQL of names and texts, limits, and their errors as ours.

An error says where and what, and never repeats content.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import duckdb
import pyarrow as pa
from duckdb.sqltypes import DuckDBPyType

from labelguard.errors import InvalidLabels, ProjectError


def literal(text: str) -> str:
    """A string."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A name in quotes."""
    return '"' + name.replace('"', '""') + '"'


def nan_to_null(column: str, kind: DuckDBPyType) -> str:
    """Return SQL of a column in which NaN is null, as pandas has it; the text `nan` stays text."""
    if kind.id not in ("float", "double"):
        return column
    # Statistics of a Parquet file know no NaN, by which DuckDB takes isnan() and = 'NaN' for false.
    return f"(CASE WHEN isfinite({column}) OR isinf({column}) THEN {column} END)"


def file_literal(path: Path) -> str:
    """The name of one file, in which DuckDB would read *, ? and [ as a glob."""
    return literal(re.sub(r"([*?\[])", r"[\1]", str(path)))


Opener: TypeAlias = Callable[[duckdb.DuckDBPyConnection], duckdb.DuckDBPyRelation]
"""Opens one file or table as a relation, from its start."""

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
MAX_LINE = 32 << 20
MOST_COLUMNS = 4096


def check_columns(names: Sequence[str], where: str) -> None:
    """Refuse no columns, too many, or two that DuckDB takes for one."""
    if not names:
        raise InvalidLabels(f"{where}: no columns in the input")
    if len(names) > MOST_COLUMNS:
        raise InvalidLabels(
            f"{where}: {len(names):,} columns; more than {MOST_COLUMNS:,} cannot be read"
        )
    seen: set[str] = set()
    for name in names:
        if name.lower() in seen:  # Not which: that may name a side.
            raise InvalidLabels(
                f"{where}: two columns have one name (upper and lower case are one); rename one"
            )
        seen.add(name.lower())


OURS = "\x1e"
"""Marks, in an error that passes through DuckDB, the message that is ours."""
LONG_LINE = "line is longer than 32 MiB"
NOT_UTF8 = "not UTF-8 text; convert it to UTF-8"
# One fault for each kind of file: of two in one row, that of the chosen side may come first.
CSV = (
    "not CSV in UTF-8; every row needs as many fields as the header and the same line end, there "
    "must be no empty line, and texts with line ends or quotes must be quoted"
)
_JSON = "not JSON in UTF-8; every line, or element of an array, must be one object"
_FAULTS = (
    ("maximum line size", f"a {LONG_LINE}"),
    ("maximum_object_size", f"a {LONG_LINE}"),
    ("regular string buffers", "more than 2 GB of text in neighbouring rows"),
    ("csv error", CSV),
    ("csv parser", CSV),
    ("malformed json", _JSON),
    ("invalid unicode", NOT_UTF8),
    ("invalid utf-8", NOT_UTF8),
    ("not valid utf8", NOT_UTF8),
    ("json transform error", "not the JSON of the lines before it, or a key given twice"),
    ("end of gzip", "the compressed file is cut off"),
    ("truncated compressed", "the compressed file is cut off"),
    ("magic bytes", "not a complete Parquet file (truncated?)"),
    ("parquet", "not a complete Parquet file (truncated?)"),
)


def readable(
    error: duckdb.Error | pa.ArrowException | OSError | UnicodeError, name: str
) -> InvalidLabels | ProjectError:
    """A reader's error as ours: the file, the line if known, the kind of fault, no content."""
    if isinstance(error, OSError) and error.strerror:
        return InvalidLabels(f"{name}: {error.strerror}")
    text = str(error)
    ours = re.search(f"{OURS}(.*?){OURS}", text, re.DOTALL)
    if ours:
        return InvalidLabels(f"{name}: {ours[1]}")
    lowered = text.lower()
    for sign in ("out of memory", "failed to offload", "max_temp_directory_size", "no space left"):
        if sign in lowered:
            return ProjectError(
                f"{name}: too little memory to read it, or too little room for temporary files; "
                "make room, or leave out columns that are not needed, and run the same command "
                "again"
            )
    # Of JSON alone, where a row is a line: in CSV a text that is not quoted may end one,
    # and values are put into columns one column after the other, the chosen side first.
    line = re.search(r"in line (\d+)", text) if "malformed json" in lowered else None
    # DuckDB counts from 1, except where it cannot parse a line of JSON.
    number = int(line[1]) - text.startswith("Invalid Input Error: Malformed JSON") if line else 0
    where = f"{name} line {number}" if line else name
    for sign, meaning in _FAULTS:
        if sign in lowered:
            return InvalidLabels(f"{where}: {meaning}")
    return InvalidLabels(f"{name}: cannot be read; the file is damaged or not what its name says")
