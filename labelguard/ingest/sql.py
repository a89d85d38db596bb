"""Names, texts and paths as they are written in DuckDB's SQL."""

from __future__ import annotations

import re
from pathlib import Path


def literal(text: str) -> str:
    """A string."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """A name in quotes."""
    return '"' + name.replace('"', '""') + '"'


def file_literal(path: Path) -> str:
    """The name of one file, in which DuckDB would read *, ? and [ as a glob."""
    return literal(re.sub(r"([*?\[])", r"[\1]", str(path)))
