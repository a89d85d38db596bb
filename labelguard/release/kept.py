"""What a release keeps on disk while it learns without the project: public texts, released rows.

Rows of an input are numbered as they came, and a file may be sorted by its labels. What is kept is
numbered in the order of the secret keys of its rows instead, and holds no other rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.ingest.staged import Staged
from labelguard.storage import blocks, buckets


@dataclass(frozen=True, eq=False)
class Kept:
    """The input without anything but texts, the rows as drawn, and which they were in the input.

    Row i of `staged` and of `outcomes` is row `rows[i]` of the input as it was staged, (n,).
    """

    staged: Staged
    outcomes: Path
    rows: NDArray[np.intp]


def keep(staged: Staged, outcomes: Path, directory: Path) -> Kept:
    """Write the texts and the rows as drawn (see `publish.Outcomes`) into an empty directory."""
    kept = Kept(replace(staged, directory=directory), directory / "outcomes", np.zeros(0, np.intp))
    found = [kept.rows]
    with buckets.BucketWriter(kept.staged.texts_directory) as writer:
        for bucket in range(buckets.BUCKETS):
            texts = buckets.read_bucket(staged.texts_directory, bucket)
            drawn = None if texts is None else buckets.read_parts(outcomes, bucket)
            if texts is None or drawn is None:
                continue
            drawn = drawn.take(pa.array(blocks.order(buckets.blocks(drawn, "key"))))
            old = buckets.column(drawn, "row")
            new = sum(map(len, found)) + np.arange(len(old), dtype=old.dtype)
            here = np.full(len(old), bucket, np.uint8)
            # Rows of texts are numbered in ascending order.
            place = np.searchsorted(buckets.column(texts, "row"), old)
            writer.append(_numbered(texts.take(pa.array(place)), new), here)
            buckets.write_part(kept.outcomes, bucket, _numbered(drawn, new), here)
            found.append(old.astype(np.intp))
    return replace(kept, rows=np.concatenate(found))


def _numbered(table: pa.Table, row: NDArray[np.generic]) -> pa.Table:
    at = table.schema.get_field_index("row")
    return table.set_column(at, table.schema.field(at), pa.array(row, table.schema.field(at).type))
