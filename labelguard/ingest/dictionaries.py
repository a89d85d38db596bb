"""Rows in memory, as Python has them: a list of dictionaries becomes a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from labelguard.errors import InvalidLabels
from labelguard.ingest.tables import SEVERAL_TYPES

NAME = "rows"
"""What messages call them."""
_MOST_NESTED = 32


def are_rows(items: Sequence[Any]) -> bool:
    """Whether an input's items are rows; raises `InvalidLabels` for rows beside other things."""
    rows = sum(map(_is_row, items))
    if 0 < rows < len(items):
        raise InvalidLabels(
            "rows (dictionaries) stand beside paths or tables in one list; give them apart, or "
            "make a table of the rows"
        )
    return rows > 0


def table_of(rows: Sequence[Mapping[Any, Any]]) -> pa.Table:
    """The rows as a table; what a row lacks, and NaN, is null.

    Columns are in the order of their names: which row has a key first may follow from the labels.
    Raises `InvalidLabels` for columns without one type, and names that are no text.
    """
    names: set[Any] = set().union(*rows)
    if not all(isinstance(name, str) for name in names):
        raise InvalidLabels(f"{NAME}: a key is no text; name every column by a str")
    # Arrow follows whatever is nested, and a list that holds itself without end.
    if any(_deeper(value, _MOST_NESTED) for row in rows for value in row.values()):
        raise InvalidLabels(f"{NAME}: values are nested more than {_MOST_NESTED} deep")
    try:
        return pa.table(
            {
                name: pa.array([row.get(name) for row in rows], from_pandas=True)
                for name in sorted(names)
            }
        )
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        # Not which column: of chosen and rejected, that would name a side.
        raise InvalidLabels(f"{NAME}: {SEVERAL_TYPES}") from None


def _deeper(value: Any, most: int) -> bool:
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return False
    return not most or any(_deeper(member, most - 1) for member in value)


def _is_row(item: Any) -> bool:
    """Whether a member of a list is a row; splits by name hold tables, and a row none."""
    return isinstance(item, Mapping) and not any(map(_is_table, item.values()))


def _is_table(value: Any) -> bool:
    return hasattr(value, "__arrow_c_stream__") or hasattr(value, "with_format")
