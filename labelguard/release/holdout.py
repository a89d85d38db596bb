"""Which rows of a release are kept out of training, to evaluate on."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from labelguard.errors import LabelguardError
from labelguard.ingest import canonical

__all__ = ["held_out", "item_keys", "item_sides"]

_TAG = "labelguard/holdout/2:"


def item_keys(file: Path) -> NDArray[np.uint64]:
    """The item of each row of a file of pairs, shape (n,): 64 bits, as good as uniform over items.

    A hash of what is compared: the prompt and the sides, whichever comes first. Not of an
    `item_id`, which may name a record: a model that was trained on a pair has seen it under every
    name. Pairs that share only a prompt are two items. Stages of PROPS go by other bits.

    Raises `LabelguardError` for columns that are neither texts nor chats.
    """
    return item_sides(file)[0]


def item_sides(file: Path) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """`item_keys`, and whether the chosen side of each row is the first one of its item, (n,).

    Which side is the first follows from the sides alone.
    """
    with duckdb.connect() as connection:
        rows = (
            connection.read_parquet(str(file))
            if file.suffix == ".parquet"
            else connection.from_arrow(pl.read_ndjson(file).to_arrow())
        )
        kinds = dict(zip(rows.columns, rows.types, strict=True))
        try:
            parts = [
                f"{canonical.encoded(name, canonical.content_of_types([kinds[name]]))} AS {part}"
                for name, part in (("prompt", "ep"), ("chosen", "ea"), ("rejected", "eb"))
            ]
        except canonical.NotContent:
            raise LabelguardError(
                f"{file}: prompt, chosen and rejected must be texts, or chats of role and content"
            ) from None
        item = f"concat('{_TAG}', ep, least(ea, eb), greatest(ea, eb))"
        found = (
            rows.project(", ".join(parts))
            .project(f"('0x' || left(sha256({item}), 16))::UBIGINT AS key, ea < eb AS first")
            .fetchnumpy()
        )
        return np.asarray(found["key"], np.uint64), np.asarray(found["first"], np.bool_)


def held_out(items: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
    """Which rows are held out, shape (n,): all rows of about a `share` of the items.

    A function of the item's key alone: the rows of one item stay together (a model that has seen a
    pair is no judge of its other labels), an item that is held out of one release is held out of
    the next, and what is held out tells nothing.

    Raises `LabelguardError` unless 0 <= share < 1.
    """
    if not 0 <= share < 1:
        raise LabelguardError(f"holdout must be in [0, 1), found {share:g}")
    return items < np.uint64(int(share * 2**64))
