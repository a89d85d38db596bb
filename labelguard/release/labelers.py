"""Whose the labels of a bucket are, as far as the input tells."""

from __future__ import annotations

import numpy as np
import polars as pl
import pyarrow as pa

from labelguard.storage import buckets
from labelguard.storage.blocks import Blocks


def authors(table: pa.Table, *, labelers: bool) -> Blocks:
    """Who gave the label of every staged row, shape (n, 2), as far as it is known.

    The labeler; without `labelers` the record, if records have ids; else the row's number among the
    labels of its pair, in canonical order.
    """
    if "author_hi" in table.column_names:
        return buckets.blocks(table, "author")
    if labelers:
        return buckets.blocks(table, "unit")
    names = [n for n in ("item_hi", "item_lo", "pair") if n in table.column_names]
    frame = pl.DataFrame(table.select(names))
    number = frame.select(pl.int_range(pl.len(), dtype=pl.UInt64).over(names)).to_series()
    return np.stack([np.zeros(len(number), np.uint64), number.to_numpy()], axis=1)
