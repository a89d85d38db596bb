"""Files of pairs that say which side is preferred: a release's rows, or public probes.

And which of their rows are kept out of training, to evaluate on.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from polars.exceptions import PolarsError

from labelguard.errors import LabelguardError
from labelguard.inputs import canonical
from labelguard.learning.columns import content_column, plain_text

PAIRS = ("prompt", "chosen", "rejected")


def check_pairs(file: Path) -> None:
    """Raise `LabelguardError` unless a file holds pairs, each with three parts."""
    frame = scan_pairs(file)
    schema = frame.collect_schema()
    missing = [name for name in PAIRS if name not in schema]
    if missing:
        raise LabelguardError(f"{file} has no column {missing[0]}; wanted are {', '.join(PAIRS)}")
    for name in PAIRS:
        if not isinstance(schema[name], pl.String | pl.List | pl.Null):
            raise LabelguardError(f"{file}: column {name} must hold texts or chats")
    counts = frame.select(pl.len().alias("rows"), pl.col(PAIRS).null_count()).collect()
    if not counts["rows"][0]:
        raise LabelguardError(f"{file} holds no pair")
    for name in PAIRS:
        if counts[name][0]:
            raise LabelguardError(f"{file}: {counts[name][0]:,} rows have no {name}")


def read_preferred(file: Path) -> pa.Table:
    """Return prompt, chosen and rejected of a file that `check_pairs` accepts, in its order."""
    check_pairs(file)
    return scan_pairs(file).select(PAIRS).collect().to_arrow()


def length_margins(pairs: pa.Table) -> NDArray[np.float64]:
    """Return characters of `chosen` less those of `rejected`, (n,)."""
    sides = [
        pc.utf8_length(plain_text(content_column(pairs, side), "")).to_numpy() for side in PAIRS[1:]
    ]
    return np.asarray(sides[0] - sides[1], np.float64)


def scan_pairs(file: Path) -> pl.LazyFrame:
    """Return the columns of a Parquet or JSON lines file; raise `LabelguardError` otherwise."""
    try:
        frame = pl.scan_parquet(file) if file.suffix == ".parquet" else pl.scan_ndjson(file)
        frame.collect_schema()
    except (PolarsError, OSError):
        raise LabelguardError(f"{file} cannot be read as Parquet or JSON lines") from None
    return frame


_TAG = "labelguard/holdout/2:"


def item_keys(file: Path) -> NDArray[np.uint64]:
    """Return the item of each row of a file of pairs, (n,): 64 bits, uniform over items.

    A hash of what is compared: the prompt and the sides, whichever comes first. Not of an
    `item_id`, which may name a record: a model that was trained on a pair has seen it under every
    name. Pairs that share only a prompt are two items. Stages of PROPS go by other bits.

    Raises `LabelguardError` for columns that are neither texts nor chats.
    """
    return item_sides(file)[0]


def item_sides(file: Path) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return `item_keys`, and True where the chosen side of a row is its item's first one, (n,).

    Which side is the first follows from the sides alone.
    """
    with duckdb.connect() as connection:
        rows = (
            connection.read_parquet(str(file))
            if file.suffix == ".parquet"
            else connection.from_arrow(pl.read_ndjson(file).to_arrow())
        )
        types = dict(zip(rows.columns, rows.types, strict=True))
        try:
            parts = [
                f"{canonical.encode(name, canonical.content_of_types([types[name]]))} AS {part}"
                for name, part in (("prompt", "ep"), ("chosen", "ea"), ("rejected", "eb"))
            ]
        except canonical.NotContent:
            raise LabelguardError(
                f"{file}: prompt, chosen and rejected must be texts, or chats of role and content"
            ) from None
        item = f"concat('{_TAG}', ep, least(ea, eb), greatest(ea, eb))"
        columns = (
            rows.project(", ".join(parts))
            .project(f"('0x' || left(sha256({item}), 16))::UBIGINT AS key, ea < eb AS first")
            .fetchnumpy()
        )
        return np.asarray(columns["key"], np.uint64), np.asarray(columns["first"], np.bool_)


def hold_out(items: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
    """Return True for rows that are held out, (n,): all rows of about a `share` of the items.

    A function of the item's key alone: the rows of one item stay together (a model that has seen a
    pair is no judge of its other labels), an item that is held out of one release is held out of
    the next, and what is held out tells nothing.

    Raises `LabelguardError` unless 0 <= share < 1.
    """
    if not 0 <= share < 1:
        raise LabelguardError(f"holdout must be in [0, 1), found {share:g}")
    return items < np.uint64(int(share * 2**64))
