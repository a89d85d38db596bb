"""Item ids that stand for several contents: nobody could say what a label is about."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa

from labelguard.errors import InvalidLabels
from labelguard.ingest.staged import Staged
from labelguard.storage import blocks, buckets
from labelguard.terms import counted


def refuse_conflicts(staged: Staged, column: str = "item_id") -> None:
    """Raise `InvalidLabels` if one given id stands for several contents."""
    conflicts = conflicting_items(staged)
    if conflicts:
        name = next(iter(sorted(conflicts)))
        raise InvalidLabels(
            f"column {column}: id {name!r} stands for several contents "
            f"({counted(len(conflicts), 'such id')}); give every content an id of its own, or "
            "rename the column to have ids made of contents"
        )


def conflicting_items(staged: Staged) -> Counter[str]:
    """Item ids that were given to more than one content, with the number of their rows."""
    found: Counter[str] = Counter()
    for bucket in range(buckets.BUCKETS):
        table = buckets.read_bucket(staged.texts_directory, bucket)
        if table is None:
            continue
        _, item = blocks.unique(buckets.blocks(table, "item"))
        contents, content = blocks.unique(buckets.blocks(table, "content"))
        pairs = np.unique(item * len(contents) + content)
        clashing = np.bincount(pairs // len(contents), minlength=item.max() + 1) > 1
        if clashing.any():
            rows = np.flatnonzero(clashing[item])
            found.update(table["item_id"].take(pa.array(rows)).to_pylist())
    return found
