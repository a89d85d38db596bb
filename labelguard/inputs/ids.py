"""Tables of labelers' ids, in any format of labels."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb

from labelguard.errors import InvalidLabels
from labelguard.inputs import readers
from labelguard.inputs.layouts import ID_EXPECTED, can_hold_ids
from labelguard.inputs.query import NO_ID, is_blank_sql
from labelguard.inputs.readers import InputFile, identifier
from labelguard.inputs.sources import ByteLimit, Input, resolve_input
from labelguard.spelling import suggest

if TYPE_CHECKING:
    import polars as pl


def read_ids(
    source: Input, choose_columns: Callable[[Sequence[str]], Sequence[str]], scratch: Path
) -> pl.DataFrame:
    """Return the distinct rows of columns of ids, as texts, in their order.

    `choose_columns` picks the columns among those of the first part. Raises `InvalidLabels`
    for unreadable files, missing columns and empty ids.
    """
    import polars as pl

    files = resolve_input(source, spool=scratch)
    with (
        tempfile.TemporaryDirectory(prefix="labelguard-", dir=scratch) as spill,
        readers.connect(Path(spill)) as connection,
    ):
        columns = choose_columns(list(readers.read_columns(files[0], connection)))
        limit = ByteLimit.from_file_sizes(files, None)
        rows = pl.concat(_read_id_columns(file, connection, columns, limit) for file in files)
    if not len(rows):
        raise InvalidLabels(f"{files[0].name}: no rows in the input")
    return rows.unique(columns, keep="first", maintain_order=True)


def _read_id_columns(
    file: InputFile, connection: duckdb.DuckDBPyConnection, names: Sequence[str], limit: ByteLimit
) -> pl.DataFrame:
    """Return columns of ids of one file as texts."""
    import polars as pl

    types = readers.read_columns(file, connection)
    for name in names:
        if name not in types:
            free = tuple(column for column in types if column not in names)
            raise InvalidLabels(
                f"{file.name}: no column {name}{suggest(name, free)}; expected "
                f"{' and '.join(names)}; found: {', '.join(types)}"
            )
        if not can_hold_ids(types[name]):
            kind = str(types[name])[:80]
            raise InvalidLabels(
                f"{file.name}: column {name}: expected {ID_EXPECTED}, found type {kind}"
            )
    texts = ", ".join(f"{identifier(name)}::VARCHAR AS {identifier(name)}" for name in names)
    flags = ", ".join(f"{is_blank_sql(identifier(n))} AS blank_{i}" for i, n in enumerate(names))
    query = f"SELECT *, {flags} FROM (SELECT {texts} FROM part)"
    frames, count = [], 0
    for batch in readers.read_batches(file, connection, query):
        limit.subtract(file.name, batch.nbytes)
        frame = pl.DataFrame(pl.from_arrow(batch))
        for number, name in enumerate(names):
            if (blanks := frame[f"blank_{number}"]).any():
                row = count + (blanks.arg_max() or 0) + 1
                raise InvalidLabels(f"{file.name} row {row}: column {name}: {NO_ID}")
        count += len(frame)
        frames.append(frame.select(names))
    return pl.concat(frames) if frames else pl.DataFrame(schema=dict.fromkeys(names, pl.String))
