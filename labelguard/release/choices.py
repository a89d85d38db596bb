"""Choices of the best of several responses, put together again from the pairs they are staged as.

A choice is staged as all pairs of its responses, in canonical order (`labelguard.inputs.query`).
Here one label is made of them: the number of the chosen response among those that differ, in that
order. Which pairs there are, and how many responses differ, follows from public columns.

The uses of a unit are allocated to its labels here too, and labels put into blocks: arrays in,
arrays out, from public columns and keyed hashes only.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.budget.policy import Bound
from labelguard.mechanisms.randomized_response import NOTHING
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks
from labelguard.text import LABEL_A, LABEL_B


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


# Numbers of pairs within a ranking are below it: no choice shares a row key with any of them.
FIRST_NUMBER = 2**15


@dataclass(frozen=True, repr=False)
class BucketChoices:
    """The latest submission of every choice of a bucket. Its repr shows nothing.

    `rows` (n,) are the staged rows of their pairs, choice by choice, `of` (n,) says of which
    choice, and `first` and `second` (n,) are the numbers of the two responses. `published` (n,):
    rows that show each pair of different responses once. `options` (choices,) counts the different
    responses, `submissions` (choices,) how often each choice was made.
    """

    rows: NDArray[np.intp]
    of: NDArray[np.intp]
    first: NDArray[np.int16]
    second: NDArray[np.int16]
    published: NDArray[np.bool_]
    options: NDArray[np.int64]
    submissions: NDArray[np.int64]

    @classmethod
    def from_bucket(cls, table: pa.Table, *, labelers: bool) -> BucketChoices:
        """Return the choices of a bucket's public columns; `labelers`: rows have labelers."""
        _, author = blocks.unique(read_label_authors(table, labelers=labelers))
        _, item = blocks.unique(buckets.read_blocks(table, "item"))
        pair = buckets.read_column(table, "pair").astype(np.intp)
        size = buckets.read_column(table, "size").astype(np.intp)
        # Stable: of several submissions the latest stays the last, pair by pair.
        order = np.lexsort((pair, item, author))
        whose = np.stack([author, item, pair], axis=1)[order]
        begins = np.append(True, (np.diff(whose[:, :2], axis=0) != 0).any(axis=1))
        ends = np.append((np.diff(whose, axis=0) != 0).any(axis=1), True)
        submissions = np.diff(np.append(np.flatnonzero(begins), len(order)))
        pairs = np.bincount(np.cumsum(begins)[ends] - 1)
        rows, of = order[ends], (np.cumsum(begins) - 1)[ends]
        left, right = _pair_positions(pair[rows], size[rows])
        # Equal responses stand together, and no pair of them is staged: a response differs from
        # the one before it if they are a pair.
        begin = np.append(0, np.cumsum(size[rows][np.append(True, np.diff(of) != 0)]))
        differs = np.zeros(begin[-1], np.intp)
        differs[(begin[of] + right)[right == left + 1]] = 1
        number = np.cumsum(differs)
        options = number[begin[1:] - 1] - number[begin[:-1]] + 1
        number -= np.repeat(number[begin[:-1]], np.diff(begin))
        differs[begin[:-1]] = 1
        left, right = begin[of] + left, begin[of] + right
        return cls(
            rows,
            of,
            number[left].astype(np.int16),
            number[right].astype(np.int16),
            (differs[left] & differs[right]).astype(bool),
            options,
            submissions // pairs,
        )

    @property
    def representative_rows(self) -> NDArray[np.intp]:
        """Return the staged row that stands for each choice, (choices,): that of its first pair."""
        leading: NDArray[np.intp] = self.rows[np.append(True, np.diff(self.of) != 0)]
        return leading

    def find_choices_of_rows(self, rows: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the choices that these `representative_rows` stand for, shape (rows,)."""
        leading = self.representative_rows
        order = np.argsort(leading)
        numbers: NDArray[np.intp] = order[np.searchsorted(leading, rows, sorter=order)]
        return numbers

    def pair_released_responses(
        self, rows: NDArray[np.intp], value: NDArray[np.uint8]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.uint8]]:
        """Return the pairs of a released response, `value`, and every other one, of some choices.

        `rows` are representative ones, (n,). Returns staged rows, by choice and number of the pair;
        which of the `rows` each belongs to; and 1 where its first side was released, else 0.
        """
        place = np.full(len(self.options), -1, np.intp)
        place[self.find_choices_of_rows(rows)] = np.arange(len(rows))
        at = place[self.of]
        known = np.flatnonzero((at >= 0) & self.published)
        released = value[at[known]].astype(np.int16)
        first = self.first[known] == released
        either = first | (self.second[known] == released)
        shown = known[either]
        return self.rows[shown], at[shown], first[either].astype(np.uint8)

    def compute_row_key_numbers(self) -> NDArray[np.uint16]:
        """Return what stands for a pair's number in row keys, (choices,): by number of options."""
        return (FIRST_NUMBER + self.options).astype(np.uint16)

    def find_chosen_numbers(self, labels: NDArray[np.uint8]) -> NDArray[np.int16]:
        """Return the number of each chosen response, (choices,), or `NOTHING`. PRIVATE.

        `labels` are those of all staged rows.
        """
        label = labels[self.rows]
        named = np.where(label == LABEL_A, self.first, np.int16(NOTHING))
        named = np.where(label == LABEL_B, self.second, named)
        numbers = np.full(len(self.options), NOTHING, np.int16)
        np.maximum.at(numbers, self.of, named)
        return numbers


def _pair_positions(
    pair: NDArray[np.intp], size: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the two places of pairs, (n,), by their numbers among all pairs of `size` places."""
    left, right = np.zeros_like(pair), np.zeros_like(pair)
    for places in np.unique(size).tolist():
        among = size == places
        first, second = np.triu_indices(places, 1)
        left[among], right[among] = first[pair[among]], second[pair[among]]
    return left, right


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
