"""Errors of the readers (DuckDB, Arrow, the system) as ours: where and what, never content."""

from __future__ import annotations

import re

import duckdb
import pyarrow as pa

from labelguard.errors import InvalidLabels, ProjectError

OURS = "\x1e"
"""Marks, in an error that passes through DuckDB, the message that is ours."""
LONG_LINE = "line is longer than 32 MiB"
NOT_UTF8 = "not UTF-8 text; convert it to UTF-8"
_FAULTS = (
    ("unterminated quote", "a quote is opened and never closed"),
    ("expected number of columns", "a row has more or fewer fields than the header"),
    ("reached an invalid state", "a quote is misplaced, or lines end in different ways"),
    ("maximum line size", f"a {LONG_LINE}"),
    ("maximum_object_size", f"a {LONG_LINE}"),
    ("regular string buffers", "more than 2 GB of text in neighbouring rows"),
    ("invalid unicode", NOT_UTF8),
    ("invalid utf-8", NOT_UTF8),
    ("not valid utf8", NOT_UTF8),
    ("malformed json", "not valid JSON; every line, or element of an array, must be one object"),
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
        return InvalidLabels(f"{name} {ours[1]}")
    lowered = text.lower()
    for sign in ("out of memory", "failed to offload", "max_temp_directory_size", "no space left"):
        if sign in lowered:
            return ProjectError(
                f"{name}: too little memory to read it, or too little room for temporary files; "
                "make room, or leave out columns that are not needed, and run the same command "
                "again"
            )
    line = re.search(r"(?:on Line: |in line )(\d+)", text)
    # DuckDB counts from 1, except where it cannot parse a line of JSON.
    number = int(line[1]) - text.startswith("Invalid Input Error: Malformed JSON") if line else 0
    # Values are put into columns one column after the other: of several faults, the first one is of
    # the chosen side, say, and its line would tell where that stands.
    located = line and "json transform error" not in lowered
    where = f"{name} line {number}" if located else name
    for sign, meaning in _FAULTS:
        if sign in lowered:
            return InvalidLabels(f"{where}: {meaning}")
    return InvalidLabels(f"{where}: cannot be read; the file is damaged or not what its name says")
