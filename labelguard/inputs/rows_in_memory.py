"""Rows in memory, as Python has them: a list of dictionaries, or objects in a frame of pandas.

Every value is written as JSON, by its own type alone, and read as a value of a JSON file is: which
types a column holds may follow from the labels, so nothing is inferred from a column.
"""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from labelguard.errors import InvalidLabels
from labelguard.inputs import canonical, json_files
from labelguard.inputs.contents import roles_of_content, side_columns
from labelguard.inputs.json_files import ReadAs
from labelguard.inputs.readers import Opener, check_columns, identifier

NAME = "rows"
"""What messages call them."""
_EXPECTED = (
    "expected values that JSON has, and times: text in UTF-8, whole numbers, numbers of 64 bits, "
    "lists and objects without cycles"
)


def are_rows(items: Sequence[Any]) -> bool:
    """Return whether an input's items are rows; raise `InvalidLabels` for rows beside others."""
    rows = sum(map(_is_row, items))
    if 0 < rows < len(items):
        raise InvalidLabels(
            "rows (dictionaries) stand beside paths or tables in one list; give them apart, or "
            "make a table of the rows"
        )
    return rows > 0


def rows_opener(rows: Sequence[Mapping[Any, Any]], named: Mapping[str, str]) -> Opener:
    """Return what opens these rows; what a row lacks is null. `named` are columns by role.

    Raises `InvalidLabels` for names and values that JSON does not have.
    """
    names: set[Any] = set().union(*rows)
    if not all(isinstance(name, str) for name in names):
        raise InvalidLabels(f"{NAME}: a key is no text; name every column by a str")
    # In the order of their names: which row has a key first may follow from the labels.
    columns = {name: [row.get(name) for row in rows] for name in sorted(names)}
    check_columns(list(columns), NAME)
    return _opener(pa.table(_written(columns, named, NAME)), list(columns), named)


def frame_opener(frame: Any, named: Mapping[str, str], name: str) -> Opener | None:
    """Return what opens a frame of pandas, or None if all of its columns are typed.

    Columns of objects, and those that Arrow has no type for, are read as rows are; others are as
    their type says. Raises `InvalidLabels` as `rows_opener`; messages call the frame `name`.
    """
    if not frame.columns.is_unique or not all(isinstance(one, str) for one in frame.columns):
        return None
    # What is always missing has the type of another column's absent values.
    objects = [n for n in frame.columns if frame[n].isna().all() or not _is_typed(frame[n])]
    if not objects:
        return None
    typed = pa.table(frame.drop(columns=objects))  # with what the index holds
    written = _written({one: frame[one].tolist() for one in objects}, named, name)
    columns = dict(zip(typed.column_names, typed.columns, strict=True)) | written
    order = dict.fromkeys([*frame.columns, *columns])
    check_columns(list(order), name)
    return _opener(pa.table({one: columns[one] for one in order}), objects, named)


def _is_typed(series: Any) -> bool:
    """Whether the type of a column of pandas says what is in it, and Arrow has it, too."""
    if getattr(series.dtype, "hasobject", False):
        return False
    try:
        pa.array(series[:0])
    except (pa.ArrowException, TypeError, ValueError):
        return False
    return True


def _opener(table: pa.Table, texts: Sequence[str], named: Mapping[str, str]) -> Opener:
    """Return what opens a table whose columns `texts` are JSON."""
    types: dict[str, ReadAs] = {}

    def opened(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        relation = connection.from_arrow(table)
        if not types:
            raw = relation.project(
                ", ".join(f"{identifier(n)}::JSON AS {identifier(n)}" for n in texts)
            )
            types.update(json_files.read_types(raw, named))
        return json_files.select(relation, types)

    return opened


def _written(
    columns: Mapping[str, Iterable[Any]], named: Mapping[str, str], where: str
) -> dict[str, pa.Array]:
    """Return the columns as JSON, one text a value."""
    contents = roles_of_content(list(columns), named)
    sides = side_columns(list(columns), named)
    written = {}
    # Contents first: whether another column is at fault, too, must not depend on their order.
    for name in sorted(columns, key=lambda one: one not in contents):
        plain = _plain_container if name in contents else partial(_plain, wide=name in sides)
        try:
            texts = (_write(value, plain) for value in columns[name])
            written[name] = pa.array(texts, pa.large_string())
        except (TypeError, ValueError, RecursionError):
            if name in contents:
                raise canonical.refuse(where) from None
            raise InvalidLabels(f"{where}: {_EXPECTED}") from None
    return written


def _write(value: Any, plain: Callable[[Any], Any]) -> str | None:
    missing = value is None or type(value).__name__ in ("NAType", "NaTType")
    if missing or (isinstance(value, float | np.floating) and np.isnan(value)):
        return None
    return json.dumps(value, default=plain, ensure_ascii=False)


def _plain(value: Any, *, wide: bool) -> Any:
    """Any value but a content as JSON has it; numbers of a side (`wide`) are whole or of 64 bits.

    As a number of 32 bits a feature differs from the same in 64, and so would tell its side.
    """
    if isinstance(value, np.floating | np.ndarray) and wide:
        raise TypeError("not a number of 64 bits")
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal | uuid.UUID):
        return str(value)
    return _plain_container(value)


def _plain_container(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError("not JSON")


def _is_row(item: Any) -> bool:
    """Whether a member of a list is a row; splits by name hold tables, and a row none."""
    return isinstance(item, Mapping) and not any(
        hasattr(value, "__arrow_c_stream__") or hasattr(value, "with_format")
        for value in item.values()
    )
