"""What is carried for features is a function of contents: one response has one source in a file.

A seat belt, no proof: a column that says who won has another value where a response meets another
one, or another labeler. It reads public columns in no order, and says nothing of any row.
"""

from __future__ import annotations

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.errors import InvalidLabels
from labelguard.ingest.sql import identifier
from labelguard.learning.carried import is_carried
from labelguard.storage.blocks import Blocks

_FIRST, _SECOND = "_first", "_second"


def refuse_several(table: pa.Table, contents: Blocks, number: NDArray[np.int64]) -> None:
    """Raise `InvalidLabels` if distinct pairs differ only in what is carried with them.

    `table` holds them, with the digests of their `contents` and their `number` within a ranking.
    One response to one prompt has one source, in whichever pairs it is.
    """
    carried = [name for name in table.column_names if is_carried(name)]
    for name in carried:
        if name.startswith("source_"):
            stem = name.removesuffix(_FIRST)
            if stem != name and _several_sources(table, stem):
                raise InvalidLabels(
                    f"source {stem.removeprefix('source_')}: one response to one prompt has several"
                    " sources in the input, and is to have one: write A+B for what both A and B "
                    "said. A column that says what people preferred is no source"
                )
        elif _several_values(table[name], contents, number):
            kind, _, own = name.partition("_")
            raise InvalidLabels(
                f"{kind} {own}: one pair of responses has several values in the input, and is to "
                "have one, whoever compares it. A column that says what people preferred is none"
            )


def _several_values(values: pa.ChunkedArray, contents: Blocks, number: NDArray[np.int64]) -> bool:
    pairs = {"hi": contents[:, 0], "lo": contents[:, 1], "number": number}
    found = pl.DataFrame(pairs).with_columns(pl.Series("value", values)).unique()
    return bool(found.select("hi", "lo", "number").is_duplicated().any())


def _several_sources(table: pa.Table, stem: str) -> bool:
    sides = (
        f"SELECT {_key(side)} AS response, {identifier(stem + end)} AS source FROM pairs"
        for side, end in (("first", _FIRST), ("second", _SECOND))
    )
    query = (
        f"SELECT 1 FROM (SELECT DISTINCT * FROM ({' UNION ALL '.join(sides)})) "
        "GROUP BY response HAVING count(*) > 1 LIMIT 1"
    )
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.register("pairs", table)
        return connection.execute(query).fetchone() is not None


def _key(side: str) -> str:
    """SQL of a digest of a prompt and a response, of whatever type they are."""
    return f"md5(to_json([to_json(prompt), to_json({side})])::VARCHAR)"
