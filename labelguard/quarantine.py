"""Bad rows that were set aside: in the project directory, readable by its owner only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from labelguard._files import fresh_directory
from labelguard.sources import Part


def write(directory: Path, parts: Sequence[Part], bad_rows: Mapping[str, Sequence[int]]) -> None:
    """Copy the rows numbered in `bad_rows` (from 0, per part) as they came, one file per part.

    The column `input_row` counts from 1, like the messages.
    """
    fresh_directory(directory, mode=0o700)
    for index, part in enumerate(parts):
        rows = np.unique(np.asarray(bad_rows.get(part.name, []), dtype=np.int64))
        if not len(rows):
            continue
        connection = duckdb.connect()
        reader = part.open(connection).to_arrow_reader(2048)
        path = directory / f"part-{index:04d}.parquet"
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        name = "input_row" + "_" * ("input_row" in reader.schema.names)
        schema = reader.schema.append(pa.field(name, pa.int64()))
        with os.fdopen(descriptor, "wb") as file, pq.ParquetWriter(file, schema) as writer:
            start = 0
            for batch in reader:
                inside = rows[(rows >= start) & (rows < start + batch.num_rows)] - start
                if len(inside):
                    taken = pa.Table.from_batches([batch]).take(pa.array(inside))
                    writer.write_table(taken.append_column(name, pa.array(inside + start + 1)))
                start += batch.num_rows
