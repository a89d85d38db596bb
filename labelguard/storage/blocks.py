"""Columns of 16-byte values (keys, digests, coins) as numpy arrays of shape (n, 2).

The two columns are the big-endian halves as native `uint64`, so that comparing numbers compares
bytes, and DuckDB, Polars and numpy can sort and join them without touching strings. Rows are picked
by `take` and compared by `differ`: numpy takes ten times as long for an index in brackets, and for
`any` of two columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa

# Shape (n, 2), native uint64: high half, low half.
Blocks: TypeAlias = NDArray[np.uint64]


def from_bytes(data: bytes | memoryview, stride: int = 16) -> Blocks:
    """Return the first 16 of every `stride` bytes of `data`."""
    rows = np.frombuffer(data, dtype=">u8").reshape(-1, stride // 8)[:, :2]
    return rows.astype(np.uint64)


def to_bytes(blocks: Blocks) -> bytes:
    """Return the inverse of `from_bytes`: 16 bytes a row."""
    return blocks.astype(">u8").tobytes()


def to_list(blocks: Blocks) -> list[bytes]:
    """Return every row as 16 bytes."""
    data = to_bytes(blocks)
    return [data[start : start + 16] for start in range(0, len(data), 16)]


def to_hex(block: Blocks) -> str:
    """Return one row, shape (2,), as 32 hexadecimal digits."""
    return f"{int(block[0]):016x}{int(block[1]):016x}"


_DIGITS = np.frombuffer(np.arange(1 << 16, dtype=">u2").tobytes().hex().encode(), np.uint32)


def format_hexadecimal(blocks: Blocks) -> pa.StringArray:
    """Return all rows as strings of 32 hexadecimal digits."""
    import pyarrow as pa

    digits = _DIGITS[np.frombuffer(to_bytes(blocks), dtype=">u2")]
    offsets = np.arange(len(blocks) + 1, dtype=np.int32) * 32
    return pa.StringArray.from_buffers(len(blocks), pa.py_buffer(offsets), pa.py_buffer(digits))


def differ(one: Blocks, other: Blocks) -> NDArray[np.bool_]:
    """Return which rows of two arrays of one length differ, (n,)."""
    mask: NDArray[np.bool_] = (one[:, 0] != other[:, 0]) | (one[:, 1] != other[:, 1])
    return mask


def sort_order(blocks: Blocks) -> NDArray[np.intp]:
    """Return a permutation that sorts rows by their bytes."""
    # Sorting by the high half alone decides nearly always, and is several times as fast.
    permutation: NDArray[np.intp] = np.argsort(np.ascontiguousarray(blocks[:, 0]))
    high = blocks[permutation, 0]
    if (high[1:] == high[:-1]).any():
        permutation = np.lexsort((blocks[:, 1], blocks[:, 0]))
    return permutation


def order_within(group: NDArray[np.intp], *keys: NDArray[Any]) -> NDArray[np.intp]:
    """Return a permutation that sorts rows by their groups, whole numbers, then by keys, (n,)."""
    # The group and the leading bits of the first key decide nearly always, in a single sort.
    bits = int(group.max(initial=0)).bit_length()
    if bits:
        leading = (group.astype(np.uint64) << np.uint64(64 - bits)) | (keys[0] >> np.uint64(bits))
        permutation: NDArray[np.intp] = np.argsort(leading)
        leading = leading[permutation]
        if not (leading[1:] == leading[:-1]).any():
            return permutation
    return np.lexsort((*reversed(keys), group))


def unique(blocks: Blocks) -> tuple[Blocks, NDArray[np.intp]]:
    """Distinct rows in byte order, and for every row the index of its distinct value."""
    if not len(blocks):
        return blocks, np.zeros(0, dtype=np.intp)
    permutation = np.argsort(np.ascontiguousarray(blocks[:, 0]))
    ordered = blocks.take(permutation, axis=0)
    starts = np.ones(len(blocks), dtype=bool)
    starts[1:] = differ(ordered[1:], ordered[:-1])
    if (starts[1:] & (ordered[1:, 0] == ordered[:-1, 0])).any():  # one high half, two low halves
        permutation = np.lexsort((blocks[:, 1], blocks[:, 0]))
        ordered = blocks.take(permutation, axis=0)
        starts[1:] = differ(ordered[1:], ordered[:-1])
    inverse = np.empty(len(blocks), dtype=np.intp)
    inverse[permutation] = np.cumsum(starts) - 1
    return ordered.compress(starts, axis=0), inverse


def find_first_rows(number: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """Return the first row that has each number from 0 to `count` − 1, (count,)."""
    first = np.zeros(count, np.intp)
    first[number[::-1]] = np.arange(len(number))[::-1]
    return first


def distinct_rows(*columns: NDArray[Any]) -> tuple[NDArray[np.uint64], NDArray[np.intp]]:
    """Return the distinct rows of columns of whole numbers, ascending, and which each row has.

    Shapes (columns, distinct) and (n,). By hashing: for columns with few distinct values.
    """
    import pyarrow as pa

    code: NDArray[np.int64] = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values = pa.array(column).dictionary_encode()
        code = code * len(values.dictionary) + values.indices.to_numpy()
        code = pa.array(code).dictionary_encode().indices.to_numpy().astype(np.int64)
    first = find_first_rows(code, code.max(initial=-1) + 1)
    distinct = np.stack([column[first].astype(np.uint64) for column in columns])
    order = np.lexsort(distinct[::-1])
    rank = np.empty(len(order), np.intp)
    rank[order] = np.arange(len(order))
    return distinct[:, order], rank[code]


def find_positions(table: Blocks, values: Blocks) -> NDArray[np.intp]:
    """Return the row of each value in `table` (sorted, distinct), or -1 where it is absent."""
    if not len(table):
        return np.full(len(values), -1, dtype=np.intp)
    high = np.ascontiguousarray(table[:, 0])
    if (high[1:] == high[:-1]).any():
        distinct, inverse = unique(np.concatenate([table, values]))
        where = np.full(len(distinct), -1, dtype=np.intp)
        where[inverse[: len(table)]] = np.arange(len(table))
        return where[inverse[len(table) :]]
    nearest = np.minimum(np.searchsorted(high, values[:, 0]), len(table) - 1)
    return np.where(differ(table.take(nearest, axis=0), values), -1, nearest)
