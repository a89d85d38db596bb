"""Rows in memory, as Python has them: a list of dictionaries, or a frame of pandas, whose columns
may hold any objects, becomes a table.

Which types a column holds may follow from the labels. So chosen and rejected have one type
together, and numbers beside texts are texts, as in JSON.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from labelguard.errors import InvalidLabels
from labelguard.ingest.tables import SEVERAL_TYPES

NAME = "rows"
"""What messages call them."""
_MOST_NESTED = 32
_NO_COLUMN = (pa.ArrowException, TypeError, ValueError, OverflowError)
_SIDES = ("chosen", "rejected")


def are_rows(items: Sequence[Any]) -> bool:
    """Whether an input's items are rows; raises `InvalidLabels` for rows beside other things."""
    rows = sum(map(_is_row, items))
    if 0 < rows < len(items):
        raise InvalidLabels(
            "rows (dictionaries) stand beside paths or tables in one list; give them apart, or "
            "make a table of the rows"
        )
    return rows > 0


def table_of(rows: Sequence[Mapping[Any, Any]], named: Mapping[str, str]) -> pa.Table:
    """The rows as a table; what a row lacks, and NaN, is null; `named` are columns by role.

    Columns are in the order of their names: which row has a key first may follow from the labels.
    Raises `InvalidLabels` for columns without one type, and names that are no text.
    """
    names: set[Any] = set().union(*rows)
    if not all(isinstance(name, str) for name in names):
        raise InvalidLabels(f"{NAME}: a key is no text; name every column by a str")
    # Arrow follows whatever is nested, and a list that holds itself without end.
    if any(_deeper(value, _MOST_NESTED) for row in rows for value in row.values()):
        raise InvalidLabels(f"{NAME}: values are nested more than {_MOST_NESTED} deep")
    columns = {name: [row.get(name) for row in rows] for name in sorted(names)}
    return pa.table(_typed(columns, named, NAME))


def table_of_frame(frame: Any, named: Mapping[str, str], name: str) -> Any:
    """A frame of pandas as a table, or as it is where it has no objects and no two sides.

    Raises `InvalidLabels` as `table_of`; messages call the frame `name`.
    """
    own = list(frame.columns)
    if not frame.columns.is_unique or not all(isinstance(column, str) for column in own):
        return frame
    couples = Counter(_couple(column, named) for column in own)
    columns = {
        column: frame[column].tolist()
        for column, kind in frame.dtypes.items()
        if getattr(kind, "hasobject", False) or couples[_couple(column, named)] > 1
    }
    if not columns:
        return frame
    if any(_deeper(value, _MOST_NESTED) for values in columns.values() for value in values):
        raise InvalidLabels(f"{name}: values are nested more than {_MOST_NESTED} deep")
    try:
        rest = pa.table(frame.drop(columns=list(columns)))  # with what the index holds
    except _NO_COLUMN:
        raise InvalidLabels(f"{name}: {SEVERAL_TYPES}") from None
    found = _typed(columns, named, name) | dict(zip(rest.column_names, rest.columns, strict=True))
    return pa.table({column: found[column] for column in dict.fromkeys([*own, *found])})


def _typed(
    columns: Mapping[str, list[Any]], named: Mapping[str, str], where: str
) -> dict[str, pa.Array]:
    """The columns, each under one type, and both sides under the same."""
    together: dict[str, list[str]] = {}
    for name in columns:
        together.setdefault(_couple(name, named), []).append(name)
    found: dict[str, pa.Array] = {}
    for couple in together.values():
        values = _array([value for name in couple for value in columns[name]], where)
        rows = len(values) // len(couple)
        found |= {name: values.slice(place * rows, rows) for place, name in enumerate(couple)}
    return {name: found[name] for name in columns}


def _couple(name: str, named: Mapping[str, str]) -> str:
    """One name for the columns of both sides, which trade values where a label is another."""
    role = next((role for role in _SIDES if named.get(role) == name), name.lower())
    return role.replace(_SIDES[1], _SIDES[0])


def _array(values: list[Any], where: str) -> pa.Array:
    """The values under one type."""
    # Arrow takes 1 after a date for another date, and a date after 1 for a mistake.
    kinds = [type(value).__qualname__ for value in values]
    order = sorted(range(len(values)), key=kinds.__getitem__)
    for written in (lambda value: value, _written):
        with contextlib.suppress(*_NO_COLUMN):
            found = pa.array([written(values[place]) for place in order], from_pandas=True)
            return found.take(pa.array(np.argsort(order)))
    # Not which column: of chosen and rejected, that would name a side.
    raise InvalidLabels(f"{where}: {SEVERAL_TYPES}")


def _written(value: Any) -> str | None:
    """A text, or a number as JSON has it."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return None if math.isnan(value) else json.dumps(value)
    raise TypeError("neither a text nor a number")


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
