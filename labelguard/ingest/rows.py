"""The canonical rows of one file, without staging them: for those who only look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from labelguard.ingest import formats, query, scan, sources
from labelguard.ingest.layouts import Reading


def canonical_rows(path: Path, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Batches as staging gets them, whatever is wrong with their labels.

    Raises `InvalidLabels` for a file that cannot be read so.
    """
    (part,) = sources.parts(path, named=reading.columns)
    with scan.connect(path.parent / "spill") as connection:
        one = formats.understood(part, connection, reading)
        layout = scan.look(one.part, connection, one.reading, one.labelers)
        yield from scan.batches(one.part, connection, query.query(layout, layout.content))
