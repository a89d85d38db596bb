"""Which labels a release may touch, decided for one bucket of labelers from public columns only.

Every labeler has k places. Labels that were released before keep their place and value and cost
nothing; new labels take the free places in the order of a keyed hash of the item, never by label
or arrival. A ranking is kept or dropped whole. The label column is not read here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from labelguard import block128, segments
from labelguard.block128 import Blocks
from labelguard.keys import KeyRing
from labelguard.labels import LABEL_TIE
from labelguard.mechanisms.coins import Coins
from labelguard.policy import Policy, Priced
from labelguard.segments import ReleasedLabels

SMALLEST_BOUND = 8
"""Smallest k of a labeler whose bound is rounded; single labels (`--unit item`) start at 1."""


def rounded_bound(counts: NDArray[np.int64], smallest: int) -> NDArray[np.int64]:
    """Counts rounded up to 8, 16, 32, …, so that prices do not single a labeler out."""
    # 2^e for the smallest e with count <= 2^e; exact, unlike a logarithm.
    exponents = np.frexp((np.maximum(counts, smallest) - 1).astype(np.float64))[1]
    return np.left_shift(1, exponents.astype(np.int64))


@dataclass(frozen=True)
class Bound:
    """How many places labelers who are new get, and what takes one.

    `places` for everybody, or None: their labels rounded up to a power of two from `smallest`.
    `per_label`: every label takes a place; else a release takes one for all labels of a labeler.
    """

    places: int | None
    smallest: int = SMALLEST_BOUND
    per_label: bool = True

    @classmethod
    def of(cls, policy: Policy, event: Priced) -> Bound:
        """The bound that a policy sets for one kind of event."""
        places = policy.allowance(event).places
        if event == "statistic":
            return cls(places, per_label=False)
        # Counts single a labeler out, but not one of many equal items.
        return cls(places, 1 if policy.unit == "item" else SMALLEST_BOUND)


@dataclass(frozen=True)
class Allowances:
    """What the ledger says of the labelers of a bucket, in the order of `units`.

    `capacity` is k, or 0 for a labeler the ledger has not met; `used` counts issued coins.
    """

    capacity: NDArray[np.int64]
    used: NDArray[np.int64]


@dataclass(frozen=True)
class SelectedRows:
    """The labels of one bucket that go into a release; every column has shape (n,), `key` (n, 2).

    `index` is the place in the staged bucket, `unit` that of the labeler in `Selection.units`;
    `new` labels have to be drawn as `version` at the price of their labeler; the others keep their
    `value` and the `threshold` it was drawn with. `content` tells contents of a given id apart.
    """

    index: NDArray[np.intp]
    unit: NDArray[np.intp]
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
        columns = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "key"}
        return pa.table(
            columns
            | {"new": self.new.view(np.uint8), "key_hi": self.key[:, 0], "key_lo": self.key[:, 1]}
        )

    @classmethod
    def from_arrow(cls, table: pa.Table) -> SelectedRows:
        """From `to_arrow`."""
        columns = {f.name: segments.column(table, f.name) for f in fields(cls) if f.name != "key"}
        columns["new"] = columns["new"].astype(bool)
        return cls(**columns, key=segments.blocks(table, "key"))  # type: ignore[arg-type]


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


def unit_keys(table: pa.Table, keys: KeyRing, *, anonymous: bool) -> Blocks:
    """The labeler of every staged row, shape (n, 2).

    `anonymous`: without labelers the n-th label of an item is that of an n-th person.
    """
    units = segments.blocks(table, "unit")
    if not anonymous:
        return units
    items = segments.blocks(table, "item")
    frame = pl.DataFrame({"hi": items[:, 0], "lo": items[:, 1]})
    if "pair" in table.column_names:
        frame = frame.with_columns(pair=pl.Series(segments.column(table, "pair")))
    nth = frame.select(pl.int_range(pl.len(), dtype=pl.UInt64).over(frame.columns)).to_series()
    occurrences = np.stack([np.zeros(len(nth), np.uint64), nth.to_numpy()], axis=1)
    return keys.unit_keys(units, items, occurrences)


def of_coins(
    table: pa.Table, units: Blocks, unit: NDArray[np.intp], index: NDArray[np.intp] | None = None
) -> tuple[Blocks, NDArray[np.intp]]:
    """Whose salts the coins come from, (m, 2), and for every row the place of its labeler in them.

    These are the units, unless units are groups: then the labelers, each by their own pseudonym,
    so that a label's coin does not depend on who belongs together. `index` are the rows of the
    staged bucket that `unit` is of; None: all.
    """
    if "labeler_hi" not in table.column_names:
        return units, unit
    labelers = segments.blocks(table, "labeler")
    return block128.unique(labelers if index is None else labelers[index])


def select(
    table: pa.Table,
    keys: KeyRing,
    released: ReleasedLabels,
    allowances: Callable[[Blocks], Allowances],
    *,
    anonymous: bool,
    again: bool,
    released_only: bool,
    bound: Bound,
) -> Selection:
    """Select one bucket's labels.

    `table` is a staged bucket whose labelers (see `of_coins`) all have salts, `released` the
    private map of it, `allowances` looks units up. `again`: the latest submission of every label
    is drawn anew as its next version. `released_only`: take no label but those in `released` (a
    release whose map is complete is being finished).
    """
    units, unit = block128.unique(unit_keys(table, keys, anonymous=anonymous))
    people, person = of_coins(table, units, unit)
    coins = Coins(keys.coin_prf(), keys.salts(people))
    items = segments.blocks(table, "item")
    pair = _optional(table, "pair", len(unit)).astype(np.uint16)
    row_keys = coins.row_keys(coins.identify(person, items), pair)
    index = _submissions(table, row_keys, last=again)
    duplicates = len(unit) - len(index)
    unit, person, row_keys = unit[index], person[index], row_keys[index]
    public_tie = _optional(table, "tie", table.num_rows)[index] == np.uint8(1)

    place = block128.positions(released.keys, row_keys)
    issued = place >= 0
    new = ~public_tie & (~issued | again)
    ledger = allowances(units)
    labels = np.bincount(unit[~public_tie], minlength=len(units))
    fresh = (
        np.full(len(units), bound.places) if bound.places else rounded_bound(labels, bound.smallest)
    )
    capacity = np.where(ledger.capacity > 0, ledger.capacity, fresh).astype(np.int64)

    keep = issued | public_tie if released_only else np.ones(len(unit), dtype=bool)
    new &= not released_only
    free = capacity - ledger.used
    wanted = np.bincount(unit[new], minlength=len(units))
    if not bound.per_label:
        wanted = np.minimum(wanted, 1)
    over = np.flatnonzero(new & (wanted > free)[unit])
    if len(over) and not bound.per_label:
        keep[over] = False
    elif len(over):
        grouping = segments.blocks(table, "group") if "group_hi" in table.column_names else items
        rankings = grouping[index[over]]
        order = coins.order(coins.identify(person[over], rankings))
        distinct, ranking = block128.unique(rankings)
        # Two members of a group who rank the same responses give two rankings.
        ranking += person[over] * len(distinct)
        keep[over] = bounded(unit[over], ranking, order, free)

    def known_or(default: int, values: NDArray[np.generic]) -> NDArray[np.generic]:
        if not len(values):
            return np.full(len(place), default)
        return np.where(issued, values[place], default)

    content = _optional(table, "content", table.num_rows)[index].astype(np.uint64)
    changed = issued & (known_or(0, released.content).astype(np.uint64) != content)
    rows = SelectedRows(
        index=index,
        unit=unit,
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
    return Selection(
        rows=rows,
        units=units,
        capacity=capacity,
        charged=charged,
        # A new labeler meets their bound; only who was charged before can be exhausted.
        short=np.where(ledger.capacity > 0, wanted - charged, 0),
        duplicates=duplicates,
        over_bound=int((~keep).sum()),
        public_ties=int(public_tie.sum()),
        changed_items=int(changed.sum()),
    )


def _optional(table: pa.Table, name: str, rows: int) -> NDArray[np.generic]:
    """A column, or zeros where the input has none."""
    return segments.column(table, name) if name in table.column_names else np.zeros(rows, np.uint8)


def _submissions(table: pa.Table, row_keys: Blocks, *, last: bool) -> NDArray[np.intp]:
    """The first (or last) submission of every (labeler, item, pair), as ascending row indices.

    Submissions are ordered by time, then by keyed hash of the record id, then by place.
    """
    distinct, same = block128.unique(row_keys)
    index = np.arange(len(row_keys))
    if len(distinct) == len(row_keys):
        return index
    times = [segments.column(table, n) for n in ("record", "submitted") if n in table.column_names]
    ordered = np.lexsort([index, *times, same])
    if last:
        ordered = ordered[::-1]
    _, first = np.unique(same[ordered], return_index=True)
    return np.sort(ordered[first])


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
