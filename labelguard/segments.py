"""Columns on disk, split into 64 buckets, so that memory stays bounded by one bucket.

Rows that carry labels are split by labeler: a labeler lies whole in one bucket, so duplicates,
bounds and coins are decided inside it. Texts and released rows are split by item, so that the
output can be sorted one bucket at a time. `ReleasedMap` is the private memory of released labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelguard import block128
from labelguard._files import fresh_directory
from labelguard.block128 import Blocks

BUCKETS = 64


def bucket_of(keys: Blocks) -> NDArray[np.uint8]:
    """The bucket of each key: its first six bits."""
    return (keys[:, 0] >> np.uint64(58)).astype(np.uint8)


class BucketWriter:
    """Appends tables to 64 Arrow files by a bucket number per row; a context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = fresh_directory(directory, mode=0o700)
        self._files: dict[int, pa.OSFile] = {}
        self._writers: dict[int, pa.RecordBatchStreamWriter] = {}

    def append(self, table: pa.Table | pa.RecordBatch, buckets: NDArray[np.uint8]) -> None:
        """Add each row to its bucket, keeping the order of rows within a bucket."""
        order = np.argsort(buckets, kind="stable")
        counts = np.bincount(buckets, minlength=BUCKETS)
        ends = np.cumsum(counts)
        grouped = table.take(pa.array(order))
        for bucket in np.flatnonzero(counts).tolist():
            rows = grouped.slice(int(ends[bucket] - counts[bucket]), int(counts[bucket]))
            self._writer(bucket, table.schema).write(rows)

    def _writer(self, bucket: int, schema: pa.Schema) -> pa.RecordBatchStreamWriter:
        if bucket not in self._writers:
            file = pa.OSFile(str(bucket_path(self._directory, bucket)), "wb")
            self._files[bucket] = file
            self._writers[bucket] = pa.ipc.new_stream(file, schema)
        return self._writers[bucket]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for bucket, writer in self._writers.items():
            writer.close()
            self._files[bucket].close()


def bucket_path(directory: Path, bucket: int) -> Path:
    """The Arrow file of one bucket."""
    return directory / f"bucket={bucket:02d}.arrow"


def read_bucket(directory: Path, bucket: int) -> pa.Table | None:
    """One bucket, memory-mapped; None if no row fell into it."""
    path = bucket_path(directory, bucket)
    if not path.exists():
        return None
    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
        return reader.read_all()


def write_bucket(directory: Path, bucket: int, table: pa.Table) -> None:
    """Write one whole bucket."""
    path = bucket_path(directory, bucket)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)


def column(table: pa.Table, name: str) -> NDArray[np.generic]:
    """A fixed-width column without nulls as numpy, without a copy where it lies in one piece."""
    chunks = [chunk.to_numpy(zero_copy_only=False) for chunk in table[name].chunks]
    if len(chunks) == 1:
        return chunks[0]  # type: ignore[no-any-return]
    return np.concatenate(chunks) if chunks else np.zeros(0, np.uint64)


def blocks(table: pa.Table, name: str) -> Blocks:
    """The 16-byte column that is stored as `name`_hi and `name`_lo."""
    pair = (column(table, f"{name}_hi"), column(table, f"{name}_lo"))
    return np.stack(pair, axis=1).astype(np.uint64, copy=False)


@dataclass(frozen=True)
class ReleasedLabels:
    """PRIVATE: labels released before, sorted by row key (n, 2); the other columns are (n,)."""

    keys: Blocks
    version: NDArray[np.uint32]
    value: NDArray[np.uint8]
    threshold: NDArray[np.uint64]
    content: NDArray[np.uint64]


class ReleasedMap:
    """PRIVATE: which labels were released, with which value and at which price.

    One directory per release and one Parquet file per bucket of labelers, written only after the
    charge. Columns: `row_key` (16 bytes, keyed), `version` of the submission, `value` (0, 1, or 2
    for a released tie), `threshold` (the coin was compared with it: γ = threshold / 2^64),
    `content` (of items with given ids: the first 64 bits of their content's digest; else 0).
    """

    SCHEMA = pa.schema(
        [
            ("row_key", pa.binary(16)),
            ("version", pa.uint32()),
            ("value", pa.uint8()),
            ("threshold", pa.uint64()),
            ("content", pa.uint64()),
        ]
    )

    COUNT = "rows"
    """The file that says how many labels the map holds, so that a lost bucket is noticed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def fault(self, release_id: str) -> str | None:
        """What is missing from the map of a committed release, or None.

        Without its map, labels would be drawn again with the coins of their first release.
        """
        directory = self._directory / release_id
        if not (directory / self.COUNT).is_file():
            return f"the private map {directory} is missing; restore it from a backup"
        rows = sum(pq.read_metadata(path).num_rows for path in directory.glob("*.parquet"))
        if rows != int((directory / self.COUNT).read_text(encoding="ascii")):
            return f"the private map {directory} is incomplete; restore it from a backup"
        return None

    def released(
        self, bucket: int, only: str | None = None, excluding: frozenset[str] = frozenset()
    ) -> ReleasedLabels:
        """Every label released so far in one bucket: the latest version of each row.

        `only` restricts it to one release; those in `excluding` are left out.
        """
        name = f"bucket={bucket:02d}.parquet"
        tables = [
            pq.read_table(path / name, schema=ReleasedMap.SCHEMA, partitioning=None)
            for path in sorted(self._directory.iterdir())
            if not path.suffix
            and only in (None, path.name)
            and path.name not in excluding
            and (path / name).exists()
        ]
        table = pa.concat_tables(tables) if tables else ReleasedMap.SCHEMA.empty_table()
        keys = block128.from_bytes(b"".join(_fixed_bytes(table["row_key"])))
        distinct, place = block128.unique(keys)
        version = column(table, "version").astype(np.uint32)
        latest = np.zeros(len(distinct), np.intp)
        ascending = np.argsort(version, kind="stable")
        latest[place[ascending]] = ascending  # the last assignment stays
        value, threshold, content = (
            column(table, name) for name in ("value", "threshold", "content")
        )
        return ReleasedLabels(
            distinct,
            version[latest],
            value[latest].astype(np.uint8),
            threshold[latest].astype(np.uint64),
            content[latest].astype(np.uint64),
        )

    @staticmethod
    def write(
        directory: Path,
        bucket: int,
        keys: Blocks,
        version: NDArray[np.uint32],
        value: NDArray[np.uint8],
        threshold: NDArray[np.uint64],
        content: NDArray[np.uint64],
    ) -> None:
        """Write one bucket of a release's map into `directory`, sorted by row key."""
        order = block128.order(keys)
        key_column = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(16), len(keys), [None, pa.py_buffer(block128.to_bytes(keys[order]))]
        )
        table = pa.Table.from_arrays(
            [
                key_column,
                pa.array(version[order]),
                pa.array(value[order]),
                pa.array(threshold[order]),
                pa.array(content[order]),
            ],
            schema=ReleasedMap.SCHEMA,
        )
        path = directory / f"bucket={bucket:02d}.parquet"
        pq.write_table(
            table, path, compression="zstd", use_dictionary=["version", "threshold", "content"]
        )


def _fixed_bytes(array: pa.ChunkedArray) -> Iterator[memoryview]:
    for chunk in array.chunks:
        width = chunk.type.byte_width
        yield memoryview(chunk.buffers()[1])[chunk.offset * width :][: len(chunk) * width]
