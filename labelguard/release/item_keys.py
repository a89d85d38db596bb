"""The items of pairs, as training holds some of them out: 64 bits each, of texts alone."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.errors import LabelguardError
from labelguard.inputs import canonical, chats, readers
from labelguard.storage.buckets import read_table

PAIRS = ("prompt", "chosen", "rejected")
_TAG, _FEW = "labelguard/holdout/2:", 1e-4
# Bytes of texts that are looked at together.
_SMALL = 4 << 20


def compute_keys_and_sides(
    rows: duckdb.DuckDBPyRelation, file: str
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return the item of each pair, and whether the chosen side is its first, (n,).

    Raises `LabelguardError`, naming the `file`, for what are neither texts nor chats.
    """
    types = dict(zip(rows.columns, rows.types, strict=True))
    try:
        contents = {name: chats.find_content_of_types([types[name]]) for name in PAIRS}
        parts = [
            f"{canonical.encode_sql(name, contents[name])} AS {part}"
            for name, part in zip(PAIRS, ("ep", "ea", "eb"), strict=True)
        ]
    except chats.NotContent:
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


def find_least_holdout(texts: Path) -> float:
    """Return the least share of items that holds out one of an input, by its staged public texts.

    0 where that is below 1 in 10,000, so that few texts of a large input are looked at.
    """
    paths = [path for path in sorted(texts.iterdir()) if path.stat().st_size]
    if not paths:
        return 1.0
    is_small = sum(path.stat().st_size for path in paths) <= _SMALL
    least = 1.0
    with readers.connect(texts.parent / "spill") as connection:
        for several in [paths] if is_small else ([path] for path in paths):
            sides = pa.concat_tables(map(read_table, several))
            sides = sides.select(["prompt", "first", "second"]).rename_columns(list(PAIRS))
            keys = compute_keys_and_sides(connection.from_arrow(sides), str(texts))[0]
            least = min(least, float(keys.min()) / 2**64)
            if least < _FEW:
                return 0.0
    return least
