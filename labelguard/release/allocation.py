"""Allocate the uses of a unit to its labels, and put these into blocks.

Arrays in, arrays out, from public columns and keyed hashes only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labelguard.budget.policy import Bound
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks


def count_uses(unit: NDArray[np.intp], units: int, bound: Bound) -> NDArray[np.int64]:
    """Count the uses of each unit's allowance that its new labels take, (units,)."""
    counts = np.bincount(unit, minlength=units).astype(np.int64)
    return np.minimum(counts, 1) if bound.block is None else -(-counts // bound.block)


def number_blocks(
    unit: NDArray[np.intp], order: NDArray[np.uint64], new: NDArray[np.bool_], bound: Bound
) -> NDArray[np.intp]:
    """Return the block of every new label, numbered within the bucket, (n,); 0 for the others.

    A unit's labels go, by `order`, into as few blocks as hold them, of sizes as equal as possible.
    """
    block, rows = np.zeros(len(unit), np.intp), np.flatnonzero(new)
    rows = rows[blocks.order_within(unit[rows], order[rows])]
    counts = np.bincount(unit[rows], minlength=1)
    uses = np.minimum(counts, 1) if bound.block is None else -(-counts // bound.block)
    place = np.arange(len(rows)) - (np.cumsum(counts) - counts)[unit[rows]]
    within = place * uses[unit[rows]] // counts[unit[rows]]
    block[rows] = (np.cumsum(uses) - uses)[unit[rows]] + within
    return block


def fit_groups(
    unit: NDArray[np.intp],
    group: NDArray[np.intp],
    order: NDArray[np.uint64],
    left: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return True for labels that fit: whole groups (labels, or rankings) while uses are left.

    `unit`, `group` and `order` have one entry per label; the groups of each labeler are tried by
    `order`, a keyed hash that is equal within a group. `left` counts uses, shape (units,).
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
