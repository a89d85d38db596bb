"""The canonical order of staged rows: by what is public of them, whatever order they came in.

Rows that are equal in all that is public are sorted by their labels, so that everything made of a
unit's rows is a function of the set of its labels alone, and of no one else's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.storage import buckets
from labelguard.storage.executor import open_executor, over_buckets

_KEYS: tuple[str, ...] = ("unit_hi", "item_hi", "unit_lo", "author_hi", "author_lo", "item_lo")
_KEYS += ("pair", "submitted", "tie", "tiebreak", "label")


def sort_buckets(directory: Path) -> None:
    """Rewrite every bucket of staged rows in canonical order."""
    for _ in over_buckets(open_executor(), _sort, directory):
        pass


def _sort(directory: Path, bucket: int) -> None:
    table = buckets.read_bucket(directory, bucket)
    if table is not None:
        buckets.write_bucket(directory, bucket, table.take(pa.array(canonical(table))))


def canonical(table: pa.Table) -> NDArray[np.intp]:
    """The permutation that sorts staged rows canonically, shape (n,)."""
    present = [name for name in _KEYS if name in table.column_names]
    first = [buckets.column(table, name) for name in present[:2]]
    order = np.lexsort(first[::-1])
    # Two keyed digests decide nearly always.
    if not np.logical_and.reduce([np.diff(values[order]) == 0 for values in first]).any():
        return order
    return np.lexsort([buckets.column(table, name) for name in reversed(present)])
