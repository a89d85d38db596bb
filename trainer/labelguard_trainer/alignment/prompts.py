"""Public prompts and demonstrations, read from files or from a release's rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import polars as pl

from labelguard.errors import LabelguardError
from labelguard.release.pairs_file import scan_pairs

# A text, or messages of role and content.
Content: TypeAlias = str | list[dict[str, Any]]


def read_contents(file: Path, names: Sequence[str]) -> list[list[Content]]:
    """Return columns of texts or chats of a Parquet or JSON lines file, in its order.

    Raises `LabelguardError` for a file without them, without rows, or with an empty cell.
    """
    frame = scan_pairs(file)
    schema = frame.collect_schema()
    for name in names:
        if name not in schema:
            raise LabelguardError(f"{file} has no column {name}; wanted are {', '.join(names)}")
        if not isinstance(schema[name], pl.String | pl.List):
            raise LabelguardError(f"{file}: column {name} must hold texts or chats")
    rows = frame.select(names).collect()
    if not rows.height:
        raise LabelguardError(f"{file} has no rows")
    for name in names:
        if rows[name].null_count():
            raise LabelguardError(f"{file}: {rows[name].null_count():,} rows have no {name}")
    return [rows[name].to_list() for name in names]


def read_prompts(file: Path) -> list[Content]:
    """Return the distinct prompts of a file, in the order in which they come first."""
    [prompts] = read_contents(file, ["prompt"])
    return list({repr(prompt): prompt for prompt in prompts}.values())
