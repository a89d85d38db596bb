"""Arrow data as DuckDB can take it: valid, and without types that say nothing."""

from __future__ import annotations

import re

import pyarrow as pa

from labelguard.unreadable import NOT_UTF8


def damage(batch: pa.RecordBatch, start: int) -> str | None:
    """Where a batch that begins at row `start` breaks the Arrow format (DuckDB does not look).

    The first row, but not the column: of chosen and rejected, that would name a side.
    """
    rows, problems = [], set()
    for values in batch.columns:
        try:
            values.validate(full=True)
        except pa.ArrowInvalid as error:
            row = re.match(r"Invalid UTF8 sequence at string index (\d+)", str(error))
            rows += [start + int(row[1]) + 1] if row else []
            problems.add(NOT_UTF8 if "UTF8" in str(error) else "damaged data")
    if not problems:
        return None
    return f"row {min(rows)}: {min(problems)}" if rows else min(problems)


def told(schema: pa.Schema) -> pa.Schema:
    """The schema without members of structs that were always null, or empty structs.

    They tell nothing, DuckDB cannot convert them, and whether they are may follow from the labels.
    """
    return pa.schema([field.with_type(_told_type(field.type)) for field in schema])


def _told_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        told = _told_type(kind.value_type)
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return kind if told == kind.value_type else make(kind.value_field.with_type(told))
    if not pa.types.is_struct(kind):
        return kind
    fields = [field.with_type(_told_type(field.type)) for field in kind]
    return pa.struct([field for field in fields if not _tells_nothing(field.type)])


def _tells_nothing(kind: pa.DataType) -> bool:
    return pa.types.is_null(kind) or (pa.types.is_struct(kind) and not kind.num_fields)
