"""Allocate uses to new labels, and put labels into blocks.

Arrays in, arrays out, from public columns and keyed hashes only.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.budget.policy import Bound
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks


def read_label_authors(table: pa.Table, *, labelers: bool) -> Blocks:
    """Return the author of the label of every staged row, (n, 2), as far as it is known.

    It is the labeler; without `labelers` the record, if records have ids; else the row's number
    among the labels of its pair, in canonical order.
    """
    if "author_hi" in table.column_names:
        return buckets.read_blocks(table, "author")
    if labelers:
        return buckets.read_blocks(table, "unit")
    import polars as pl

    names = [n for n in ("item_hi", "item_lo", "pair") if n in table.column_names]
    frame = pl.DataFrame(table.select(names))
    number = frame.select(pl.int_range(pl.len(), dtype=pl.UInt64).over(names)).to_series()
    return np.stack([np.zeros(len(number), np.uint64), number.to_numpy()], axis=1)


def find_latest_rows(row_keys: Blocks) -> NDArray[np.intp]:
    """Return the latest submission of every label, as ascending indices of canonically sorted rows.

    Equal row keys stand together there, in the order of their times.
    """
    last = np.ones(len(row_keys), dtype=bool)
    last[:-1] = blocks.differ(row_keys[1:], row_keys[:-1])
    return np.flatnonzero(last)


def count_uses(unit: NDArray[np.intp], units: int, bound: Bound) -> NDArray[np.int64]:
    """Count the uses of each unit's allowance that its new labels take, (units,)."""
    counts = np.bincount(unit, minlength=units).astype(np.int64)
    return np.minimum(counts, 1) if bound.block is None else -(-counts // bound.block)


def assign_blocks(
    unit: NDArray[np.intp], order: NDArray[np.uint64], new: NDArray[np.bool_], bound: Bound
) -> NDArray[np.intp]:
    """Return the block of every new label, numbered within the bucket, (n,); 0 for the others.

    A unit's labels go, by `order`, into as few blocks as hold them, of sizes as equal as possible.
    """
    block, rows = np.zeros(len(unit), np.intp), np.flatnonzero(new)
    rows = rows[blocks.order_within(unit[rows], order[rows])]
    counts = np.bincount(unit[rows], minlength=1)
    uses = count_uses(unit[rows], 1, bound)
    place = np.arange(len(rows)) - (np.cumsum(counts) - counts)[unit[rows]]
    within = place * uses[unit[rows]] // counts[unit[rows]]
    block[rows] = (np.cumsum(uses) - uses)[unit[rows]] + within
    return block


def select_fitting_groups(
    unit: NDArray[np.intp],
    group: NDArray[np.intp],
    order: NDArray[np.uint64],
    left: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return True for labels that fit: whole groups (labels, or rankings) while room is left.

    `unit`, `group` and `order` have one entry per label; the groups of each labeler are tried by
    `order`, a keyed hash that is equal within a group. `left` counts labels, shape (units,).
    """
    by_group = blocks.order_within(unit, order, group)
    starts = np.ones(len(unit), dtype=bool)
    starts[1:] = (np.diff(unit[by_group]) != 0) | (np.diff(group[by_group]) != 0)
    group_of_label = np.cumsum(starts) - 1
    size = np.bincount(group_of_label)
    groups = np.bincount(unit[by_group][starts], minlength=len(left))
    first = np.cumsum(groups) - groups
    fits = np.zeros(len(size), dtype=bool)
    left = left.copy()
    active = np.flatnonzero((groups > 0) & (left > 0))
    turn = 0
    while len(active):  # the group whose turn it is, of every labeler with uses left
        candidate = first[active] + turn
        fits[candidate] = size[candidate] <= left[active]
        left[active] -= size[candidate] * fits[candidate]
        turn += 1
        active = active[(left[active] > 0) & (groups[active] > turn)]
    taken = np.zeros(len(unit), dtype=bool)
    taken[by_group] = fits[group_of_label]
    return taken


def number_rankings(authors: Blocks, groups: Blocks) -> NDArray[np.intp]:
    """Return numbers for what is taken or left as a whole: the items or rankings of each author."""
    distinct, ranking = blocks.unique(groups)
    return ranking + blocks.unique(authors)[1] * len(distinct)
