"""What the readers of all formats share: limits, names of columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import duckdb

from labelguard.errors import InvalidLabels

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
