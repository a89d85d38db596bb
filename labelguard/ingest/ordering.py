"""The canonical order of staged rows: by what is public of them, whatever order they came in.

Rows that are equal in all that is public are sorted by their labels, so that everything made of a
unit's rows is a function of the set of its labels alone, and of no one else's.
Pairs of one ranking or choice are sorted by all of its labels together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.storage import buckets
from labelguard.storage.executor import open_executor, over_buckets

_KEYS: tuple[str, ...] = ("unit_hi", "item_hi", "unit_lo", "author_hi", "author_lo", "item_lo")
_KEYS += ("pair", "submitted", "tiebreak", "label")
_LABEL: tuple[str, ...] = _KEYS[: _KEYS.index("submitted")]
"""What rows of one label share."""
_SKIP = "skip"
"""The column that says which rows are skips, where these take back what came before."""
_SUBMISSION = "submission"
"""The column that says which pairs were submitted as one list; read here alone."""


def sort_buckets(directory: Path) -> Iterator[tuple[int, pa.Table | None]]:
    """Rewrite every bucket of staged rows in canonical order, without skips.

    A skip that is the latest of a label's submissions takes the earlier ones with it. Yields, for
    every bucket, how many answers went that way, and what is public of such skips.
    """
    yield from filter(None, over_buckets(open_executor(), _sort, directory))


def _sort(directory: Path, bucket: int) -> tuple[int, pa.Table | None] | None:
    table = buckets.read_bucket(directory, bucket)
    if table is None:
        return None
    table = table.take(pa.array(canonical(table)))
    if _SUBMISSION in table.column_names:  # It tells the order of the input.
        table = table.drop_columns([_SUBMISSION])
    removed, skips = 0, None
    skipped = np.zeros(table.num_rows, bool)
    if _SKIP in table.column_names:
        skipped = buckets.column(table, _SKIP) == 1
        table = table.drop_columns([_SKIP])
    if skipped.any():
        names = [name for name in _LABEL if name in table.column_names]
        ends = _ends(table.select(names))
        run = np.concatenate([[0], np.cumsum(ends)[:-1]])
        withdrawn = skipped[ends][run]
        removed = int((withdrawn & ~skipped).sum())
        answers = np.bincount(run, weights=~skipped)
        skips = table.select(names).filter(pa.array(ends & skipped & (answers[run] > 0)))
        table = table.filter(pa.array(~withdrawn & ~skipped))
    if table.num_rows:
        buckets.write_bucket(directory, bucket, table)
    else:
        buckets.bucket_path(directory, bucket).unlink()
    return removed, skips


def _ends(table: pa.Table) -> NDArray[np.bool_]:
    """Which rows are the last of a run of equal ones, shape (n,)."""
    ends = np.zeros(table.num_rows, bool)
    ends[-1:] = True
    for name in table.column_names:
        values = buckets.column(table, name)
        ends[:-1] |= values[1:] != values[:-1]
    return ends


def canonical(table: pa.Table) -> NDArray[np.intp]:
    """The permutation that sorts staged rows canonically, shape (n,)."""
    present = [name for name in _KEYS if name in table.column_names]
    first = [buckets.column(table, name) for name in present[:2]]
    order: NDArray[np.intp] = np.lexsort(first[::-1])
    # Two keyed digests decide nearly always.
    if not np.logical_and.reduce([np.diff(values[order]) == 0 for values in first]).any():
        return order
    keys = {name: buckets.column(table, name) for name in present}
    if _SUBMISSION in table.column_names:
        keys |= _shared(table, keys)
    order = np.lexsort([keys[name] for name in reversed(present)])
    return order


def _shared(
    table: pa.Table, keys: Mapping[str, NDArray[np.generic]]
) -> dict[str, NDArray[np.generic]]:
    """Keys that all pairs of one submitted list share: the latest of several is taken whole.

    What is public of all its pairs decides first, then all its labels (as numbers, each with its
    pair, mixed by splitmix64 and summed).
    """
    _, of_row = np.unique(buckets.column(table, _SUBMISSION), return_inverse=True)

    def whole(values: NDArray[np.generic]) -> NDArray[np.generic]:
        total = np.zeros(of_row.max() + 1, np.uint64)
        np.add.at(total, of_row, values.astype(np.uint64))
        return total[of_row]

    pair = keys["pair"].astype(np.uint64) << np.uint64(8)
    shared = {"label": whole(_mixed(pair + keys["label"].astype(np.uint64)))}
    if "tiebreak" in keys:
        shared["tiebreak"] = whole(keys["tiebreak"])
    return shared


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return values ^ (values >> np.uint64(31))
