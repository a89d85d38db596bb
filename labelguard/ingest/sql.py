"""Names, texts and paths as they are written in DuckDB's SQL."""

from __future__ import annotations

import re
from pathlib import Path

from duckdb.sqltypes import DuckDBPyType


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
