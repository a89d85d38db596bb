"""Which labels a release may touch, decided for one bucket of labelers from public columns only.

Every labeler has k places. Labels that were released before keep their place and value and cost
nothing; new labels take the free places in the order of a keyed hash of the item, never by label
or arrival. A ranking is kept or dropped whole. The label column is not read here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from labelguard import block128, segments
from labelguard.block128 import Blocks
from labelguard.keys import KeyRing
from labelguard.mechanisms.coins import Coins

SMALLEST_BOUND = 8


def rounded_bound(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Counts rounded up to 8, 16, 32, …, so that prices do not single a labeler out."""
    exponents = np.ceil(np.log2(np.maximum(counts, SMALLEST_BOUND)))
    return (1 << exponents.astype(np.int64)).astype(np.int64)


@dataclass(frozen=True)
class Allowances:
    """What the ledger says of the labelers of a bucket, in the order of `units`.

    `capacity` is k, or 0 for a labeler the ledger has not met; `used` counts issued coins.
    """

    capacity: NDArray[np.int64]
    used: NDArray[np.int64]


@dataclass(frozen=True)
class Selection:
    """The rows of one bucket that go into the release, and what they cost.

    `rows` has one line per kept label: `index` (into the staged bucket), `row`, `item_*`,
    `key_*`, `version`, `new`, `value` (of labels released before), `price` (k). `units`,
    `capacity`, `used`, `charged` and `short` describe labelers: shape (units,).
    """

    rows: pl.DataFrame
    units: Blocks
    capacity: NDArray[np.int64]
    known: NDArray[np.bool_]
    used: NDArray[np.int64]
    charged: NDArray[np.int64]
    short: NDArray[np.int64]
    duplicates: int
    over_bound: int


def split_occurrences(table: pa.Table, keys: KeyRing) -> Blocks:
    """Units of labels without labelers: the n-th label of an item is the n-th person."""
    units, items = segments.blocks(table, "unit"), segments.blocks(table, "item")
    frame = pl.DataFrame({"hi": items[:, 0], "lo": items[:, 1]})
    if "pair" in table.column_names:
        frame = frame.with_columns(pair=pl.Series(segments.column(table, "pair")))
    nth = frame.select(pl.int_range(pl.len(), dtype=pl.UInt64).over(frame.columns)).to_series()
    occurrences = np.stack([np.zeros(len(nth), np.uint64), nth.to_numpy()], axis=1)
    return keys.unit_keys(units, items, occurrences)


def select(
    table: pa.Table,
    keys: KeyRing,
    released: pl.DataFrame,
    allowances: Callable[[Blocks], Allowances],
    *,
    anonymous: bool,
    again: bool,
    released_only: bool,
    max_labels: int | None,
) -> Selection:
    """Select one bucket's labels.

    `table` is a staged bucket, `released` the private map of it, `allowances` looks labelers up.
    `anonymous`: labels without labelers. `again`: the latest submission of every label is drawn
    anew as its next version. `released_only`: take no label but those in `released` (a release
    whose map is complete is being finished). `max_labels`: the bound for new labelers, or None to
    round up.
    """
    unit_of_row = split_occurrences(table, keys) if anonymous else segments.blocks(table, "unit")
    units, unit = block128.unique(unit_of_row)
    keys.add_salts(units)
    coins = Coins(keys.coin_prf(), keys.salts(units))
    items = segments.blocks(table, "item")
    pair = _optional(table, "pair", len(unit)).astype(np.uint16)
    tie = _optional(table, "tie", len(unit))

    kept = _submissions(table, unit, items, pair, last=again)
    unit, items, pair = unit[kept], items[kept], pair[kept]
    free_of_charge = tie[kept] == 1
    row_keys = coins.row_keys(unit, items, pair)
    groups = segments.blocks(table, "group")[kept] if "group_hi" in table.column_names else items
    frame = pl.DataFrame(
        {
            "index": kept,
            "row": segments.column(table, "row")[kept],
            "unit": unit,
            "item_hi": items[:, 0],
            "item_lo": items[:, 1],
            "pair": pair,
            "key_hi": row_keys[:, 0],
            "key_lo": row_keys[:, 1],
            "group": block128.unique(groups)[1],
            "order": coins.order(unit, groups)[:, 0],
            "public_tie": free_of_charge,
        }
    ).join(released, on=["key_hi", "key_lo"], how="left", maintain_order="left")
    issued = pl.col("version").is_not_null()
    if released_only:
        frame = frame.filter(issued | (pl.col("public_tie") == 1))
    if again:
        frame = frame.with_columns(
            version=pl.when(issued).then(pl.col("version") + 1).otherwise(0).cast(pl.UInt32),
            new=pl.col("public_tie") == 0,
            value=pl.lit(None, pl.UInt8),
        )
    else:
        frame = frame.with_columns(
            new=~issued & (pl.col("public_tie") == 0), version=pl.col("version").fill_null(0)
        )

    ledger = allowances(units)
    labels = np.bincount(unit[~free_of_charge], minlength=len(units))
    fresh = np.full(len(units), max_labels) if max_labels else rounded_bound(labels)
    known = ledger.capacity > 0
    capacity = np.where(known, ledger.capacity, fresh).astype(np.int64)
    keep = _bounded(frame, capacity - ledger.used)
    wanted = _count(frame, len(units))
    rows = frame.filter(pl.Series(keep))
    charged = _count(rows, len(units))
    price = np.where(
        rows["new"].to_numpy(),
        capacity[rows["unit"].to_numpy()],
        rows["price"].fill_null(0).to_numpy(),
    )
    return Selection(
        rows=rows.with_columns(price=pl.Series(price)),
        units=units,
        capacity=capacity,
        known=known,
        used=ledger.used,
        charged=charged,
        short=np.where(known, wanted - charged, 0),
        duplicates=table.num_rows - len(kept),
        over_bound=int((~keep).sum()),
    )


def _count(frame: pl.DataFrame, units: int) -> NDArray[np.int64]:
    """New labels per labeler, shape (units,)."""
    new = frame.filter("new")["unit"].to_numpy()
    return np.bincount(new, minlength=units).astype(np.int64)


def _optional(table: pa.Table, name: str, rows: int) -> NDArray[np.generic]:
    """A column, or zeros where the input has none."""
    return segments.column(table, name) if name in table.column_names else np.zeros(rows, np.uint8)


def _submissions(
    table: pa.Table,
    unit: NDArray[np.intp],
    items: Blocks,
    pair: NDArray[np.generic],
    *,
    last: bool,
) -> NDArray[np.intp]:
    """The first (or last) submission of every (labeler, item, pair), as ascending row indices.

    Submissions are ordered by time, then by keyed hash of the record id, then by place.
    """
    identity = {"unit": unit, "item_hi": items[:, 0], "item_lo": items[:, 1], "pair": pair}
    ordering = [name for name in ("submitted", "record") if name in table.column_names]
    frame = pl.DataFrame(
        {"index": np.arange(len(unit))}
        | identity
        | {name: segments.column(table, name) for name in ordering}
    )
    if ordering:
        frame = frame.sort([*ordering, "index"])
    distinct = frame.unique(list(identity), keep="last" if last else "first", maintain_order=True)
    return distinct["index"].sort().to_numpy()


def _bounded(frame: pl.DataFrame, free: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which rows stay: all that cost nothing, and whole groups of new ones while they fit.

    Groups (single labels, or rankings) of each labeler are tried in keyed-hash order; `free` is
    the number of free places, shape (units,).
    """
    groups = (
        frame.filter("new")
        .group_by("unit", "group")
        .agg(size=pl.len(), order=pl.col("order").first())
        .sort("unit", "order", "group")
    )
    unit, size = groups["unit"].to_numpy(), groups["size"].to_numpy().astype(np.int64)
    counts = np.bincount(unit, minlength=len(free))
    starts = np.cumsum(counts) - counts
    fits = np.bincount(unit, weights=size, minlength=len(free)) <= free
    kept = fits[unit]
    active = np.flatnonzero(~fits & (counts > 0))
    left = free.copy()
    place = 0
    while len(active):  # the place-th group of every labeler who does not fit whole
        group = starts[active] + place
        kept[group] = size[group] <= left[active]
        left[active] -= size[group] * kept[group]
        place += 1
        active = active[(left[active] > 0) & (counts[active] > place)]
    verdict = groups.select("unit", "group").with_columns(kept=pl.Series(kept))
    joined = frame.select("unit", "group", "new").join(
        verdict, on=["unit", "group"], how="left", maintain_order="left"
    )
    return np.asarray(joined["kept"].fill_null(True) | ~joined["new"], dtype=bool)
