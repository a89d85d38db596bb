"""What one content is, where contents are the units of privacy (`--unit item`).

The unit must be something that the next export cannot rename. So it is coarser than an item: a
digest of the set, over the sides of a comparison, of the words of prompt and response in a normal
form (NFKC, without white space and what cannot be seen, in capitals). Ids, roles, JSON, the
question, the order of sides, and where the prompt ends are not in it. Two items that fall together
share their uses, which is always sound; a paraphrase is another unit (docs/guarantees.md).
"""

from __future__ import annotations

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks

_INVISIBLE = r"[\s\p{Z}\p{C}\p{Default_Ignorable_Code_Point}\x{2800}]"


def normal_forms(texts: pa.Array) -> pa.Array:
    """Words as they are compared: one normal form for all ways to write them, shape (n,)."""
    composed = _composed(_bare(pl.Series(texts.cast(pa.large_string()))))
    # Capitals, because they are fewer: ß and ss, and the three Greek sigmas, become one. By way of
    # small letters, because there is a capital ß; and NFKC writes some marks with a space.
    capitals = composed.str.to_lowercase().str.to_uppercase()
    return _composed(_bare(capitals)).to_arrow()


def _bare(texts: pl.Series) -> pl.Series:
    return texts.str.replace_all(_INVISIBLE, "")


def _composed(texts: pl.Series) -> pl.Series:
    return pl.Series(pc.utf8_normalize(texts.to_arrow().cast(pa.large_string()), "NFKC"))


def digests(sides: pa.ListArray, connection: duckdb.DuckDBPyConnection) -> Blocks:
    """The unit of each row, from the words of its sides (a list of texts a row), shape (n, 2).

    The first 16 bytes of SHA-256 over the sorted distinct SHA-256 of the sides' normal forms.
    """
    flat = normal_forms(sides.flatten()).cast(pa.large_string())
    ends = pc.subtract(sides.offsets, sides.offsets[0]).cast(pa.int64())
    table = pa.table({"sides": pa.LargeListArray.from_arrays(ends, flat)})
    found = (
        connection.cursor()
        .from_arrow(table)
        .query(
            "units",
            "SELECT unhex(sha256(array_to_string(list_sort(list_distinct(list_transform(sides, "
            "lambda words: sha256(words)))), ''))) AS digest FROM units",
        )
    )
    assert found is not None  # None is for statements without a result
    digest = found.to_arrow_table()["digest"].combine_chunks().cast(pa.binary(32))
    return blocks.from_bytes(b"".join(digest.to_pylist()), 32)
