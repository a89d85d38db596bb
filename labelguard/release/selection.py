"""Which labels a release may touch, decided for one bucket of units from public columns only.

Every unit has k places. Labels that were released before keep their place and value and cost
nothing; new labels take the free places in the order of a keyed hash of labeler and item, never by
label or arrival. A ranking is kept or dropped whole. The label column is not read here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.keys.row_keys import RowKeys
from labelguard.policy.bounds import Bound, rounded_bound
from labelguard.project.private_map import ReleasedLabels
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks
from labelguard.terms import LABEL_TIE


@dataclass(frozen=True)
class Allowances:
    """What the ledger says of the units of a bucket, in the order of `units`.

    `capacity` is k, or 0 for a unit the ledger has not met; `used` counts issued coins.
    """

    capacity: NDArray[np.int64]
    used: NDArray[np.int64]


@dataclass(frozen=True)
class SelectedRows:
    """The labels of one bucket that go into a release; columns are (n,), `key` and `author` (n, 2).

    `index` is the place in the staged bucket, `unit` that of the unit in `Selection.units`; `new`
    labels have to be drawn as `version` at the price of their unit; the others keep their `value`
    and the `threshold` it was drawn with. `content` tells contents of a given id apart.
    """

    index: NDArray[np.intp]
    unit: NDArray[np.intp]
    author: Blocks
    key: Blocks
    new: NDArray[np.bool_]
    version: NDArray[np.uint32]
    value: NDArray[np.uint8]
    threshold: NDArray[np.uint64]
    content: NDArray[np.uint64]

    def __getitem__(self, rows: NDArray[np.generic]) -> SelectedRows:
        """Some of the rows, by mask or index."""
        return SelectedRows(*(getattr(self, field.name)[rows] for field in fields(self)))

    def to_arrow(self) -> pa.Table:
        """As a table; `from_arrow` is the inverse."""
        columns = {name: getattr(self, name) for name in _NUMBERS}
        for name in _BLOCKS:
            values = getattr(self, name)
            columns |= {f"{name}_hi": values[:, 0], f"{name}_lo": values[:, 1]}
        return pa.table(columns | {"new": self.new.view(np.uint8)})

    @classmethod
    def from_arrow(cls, table: pa.Table) -> SelectedRows:
        """From `to_arrow`."""
        columns = {name: buckets.column(table, name) for name in _NUMBERS}
        columns["new"] = columns["new"].astype(bool)
        found = columns | {name: buckets.blocks(table, name) for name in _BLOCKS}
        return cls(**found)  # type: ignore[arg-type]


_BLOCKS = ("author", "key")
_NUMBERS = tuple(field.name for field in fields(SelectedRows) if field.name not in _BLOCKS)


@dataclass(frozen=True)
class Selection:
    """What one bucket gives to a release, and what that costs.

    `units`, `capacity` (k), `charged` (new coins) and `short` (labels that found no place, of
    labelers who were charged before) describe labelers, shape (units,).
    """

    rows: SelectedRows
    units: Blocks
    capacity: NDArray[np.int64]
    charged: NDArray[np.int64]
    short: NDArray[np.int64]
    duplicates: int
    over_bound: int
    public_ties: int
    changed_items: int

    @property
    def drawn(self) -> int:
        """Labels that are new in this release."""
        return int(self.rows.new.sum())


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


def select(
    table: pa.Table,
    keys: RowKeys,
    released: ReleasedLabels,
    allowances: Callable[[Blocks], Allowances],
    *,
    labelers: bool,
    again: bool,
    released_only: bool,
    bound: Bound,
) -> Selection:
    """Select one bucket's labels.

    `table` is a staged bucket, `released` the private map of it, `allowances` looks units up.
    `labelers`: rows say whose they are. `again`: every label is drawn anew as its next version.
    `released_only`: take no label but those in `released` (a release that was drawn is being
    finished).
    """
    author, items = authors(table, labelers=labelers), buckets.blocks(table, "item")
    pair = _optional(table, "pair", len(items)).astype(np.uint16)
    row_keys = keys.keys(keys.identify(author, items), pair)
    index = _latest(row_keys)
    units, unit = blocks.unique(buckets.blocks(table, "unit")[index])
    author, items, row_keys = author[index], items[index], row_keys[index]
    public_tie = _optional(table, "tie", table.num_rows)[index] == np.uint8(1)

    place = blocks.positions(released.keys, row_keys)
    issued = place >= 0
    ledger = allowances(units)
    new = ~public_tie & (~issued | again) & (not released_only)
    keep = issued | public_tie if released_only else np.ones(len(unit), dtype=bool)
    if bound.once and not again:
        closed = (ledger.used > 0)[unit] & ~issued & ~public_tie
        keep &= ~closed
        new &= ~closed
    labels = np.bincount(unit[~public_tie], minlength=len(units))
    fresh = np.full(len(units), bound.allowed) if bound.allowed else rounded_bound(labels)
    capacity = np.where(ledger.capacity > 0, ledger.capacity, fresh).astype(np.int64)

    free = capacity - ledger.used
    wanted = np.bincount(unit[new], minlength=len(units))
    if not bound.per_label:
        wanted = np.minimum(wanted, 1)
    over = np.flatnonzero(new & (wanted > free)[unit])
    if len(over) and not bound.per_label:
        keep[over] = False
    elif len(over):
        ranked = "group_hi" in table.column_names
        grouping = buckets.blocks(table, "group")[index] if ranked else items
        order = keys.order(keys.identify(author[over], grouping[over]))
        keep[over] = bounded(unit[over], _rankings(author[over], grouping[over]), order, free)

    def known_or(default: int, values: NDArray[np.generic]) -> NDArray[np.generic]:
        if not len(values):
            return np.full(len(place), default)
        return np.where(issued, values[place], default)

    content = _optional(table, "content", table.num_rows)[index].astype(np.uint64)
    changed = issued & (known_or(0, released.content).astype(np.uint64) != content)
    rows = SelectedRows(
        index=index,
        unit=unit,
        author=author if labelers else np.zeros_like(author),
        key=row_keys,
        new=new,
        version=(known_or(-1, released.version.astype(np.int64)) + new).clip(0).astype(np.uint32)
        if again
        else known_or(0, released.version).astype(np.uint32),
        value=known_or(LABEL_TIE, released.value).astype(np.uint8),
        threshold=known_or(0, released.threshold).astype(np.uint64),
        content=content,
    )[keep]
    charged = np.bincount(rows.unit[rows.new], minlength=len(units)).astype(np.int64)
    if not bound.per_label:
        charged = np.minimum(charged, 1)
    # A new labeler meets their bound; only who was charged before can be exhausted.
    exhaustible = (ledger.capacity > 0) & (not bound.contents)
    return Selection(
        rows=rows,
        units=units,
        capacity=capacity,
        charged=charged,
        short=np.where(exhaustible, wanted - charged, 0),
        duplicates=table.num_rows - len(index),
        over_bound=int((~keep).sum()),
        public_ties=int(public_tie.sum()),
        changed_items=int(changed.sum()),
    )


def _optional(table: pa.Table, name: str, rows: int) -> NDArray[np.generic]:
    """A column, or zeros where the input has none."""
    return buckets.column(table, name) if name in table.column_names else np.zeros(rows, np.uint8)


def _latest(row_keys: Blocks) -> NDArray[np.intp]:
    """The latest submission of every label, as ascending indices of canonically sorted rows.

    Equal row keys stand together there, in the order of their times.
    """
    last = np.ones(len(row_keys), dtype=bool)
    last[:-1] = (row_keys[1:] != row_keys[:-1]).any(axis=1)
    return np.flatnonzero(last)


def _rankings(authors: Blocks, groups: Blocks) -> NDArray[np.intp]:
    """Numbers for what is kept or dropped whole: the items or rankings of each author."""
    distinct, ranking = blocks.unique(groups)
    return ranking + blocks.unique(authors)[1] * len(distinct)


def bounded(
    unit: NDArray[np.intp],
    group: NDArray[np.intp],
    order: NDArray[np.uint64],
    free: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Which labels fit: whole groups (single labels, or rankings) while places are free.

    `unit`, `group` and `order` have one entry per label; the groups of each labeler are tried by
    `order`, a keyed hash that is equal within a group. `free` counts places, shape (units,).
    """
    by_group = np.lexsort((group, order, unit))
    starts = np.ones(len(unit), dtype=bool)
    starts[1:] = (np.diff(unit[by_group]) != 0) | (np.diff(group[by_group]) != 0)
    group_of_label = np.cumsum(starts) - 1
    size = np.bincount(group_of_label)
    groups = np.bincount(unit[by_group][starts], minlength=len(free))
    first = np.cumsum(groups) - groups
    kept = np.zeros(len(size), dtype=bool)
    left = free.copy()
    active = np.flatnonzero((groups > 0) & (left > 0))
    place = 0
    while len(active):  # the place-th group of every labeler who still has room
        candidate = first[active] + place
        kept[candidate] = size[candidate] <= left[active]
        left[active] -= size[candidate] * kept[candidate]
        place += 1
        active = active[(left[active] > 0) & (groups[active] > place)]
    keep = np.zeros(len(unit), dtype=bool)
    keep[by_group] = kept[group_of_label]
    return keep
