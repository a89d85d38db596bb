"""Columns on disk, split into buckets, so that memory stays bounded by one bucket.

Rows that carry labels are split by unit: a labeler lies whole in one bucket, so that duplicates and
bounds are decided inside it. Texts and released rows are split by item, so that the
output can be sorted one bucket at a time. A bucket is a range of keys, so that two finer ones are
one coarser one: what was written in one number of them can be read in any other.

The rows of a release are one file or, of a release in many buckets, one for each of them. The parts
of 128 buckets are `data-00000-of-00128.parquet` and so on, as large data sets of the Hub are
called; one after the other they hold the rows of `data.parquet`, in its order. How many there are
follows from the number of buckets, which rows are in which from their items: both are public.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelguard.errors import LabelguardError, ProjectError
from labelguard.storage.blocks import Blocks
from labelguard.storage.files import fresh_directory, replace_when_done

BUCKETS, MOST_BUCKETS = 16, 4096
# The most buckets that are open files, or in the name of a part.
FEW = 64
# Bytes of rows that wait to become a part.
_MOST_WAITING = 256 << 20
_MOST_AT_ONCE = 1 << 28  # bytes
# Where each bucket ends in a part, as metadata of its schema.
_ENDS = b"ends"


def check_bucket_count(count: int) -> None:
    """Raise `LabelguardError` for a number of buckets that is no power of 2, too small or large."""
    if not BUCKETS <= count <= MOST_BUCKETS or count & (count - 1):
        raise LabelguardError(
            f"--buckets: expected a power of 2 from {BUCKETS} to {MOST_BUCKETS}, found {count}"
        )


def assign_buckets(keys: Blocks, count: int) -> NDArray[np.uint16]:
    """Return the bucket of each key: its first bits, 4 of them for 16 buckets."""
    return (keys[:, 0] >> np.uint64(65 - count.bit_length())).astype(np.uint16)


def open_writer(directory: Path, count: int) -> BucketWriter | PartWriter:
    """Return what writes buckets, or parts where these would be too many open files."""
    return BucketWriter(directory, count) if count <= FEW else PartWriter(directory, count)


class BucketWriter(ExitStack):
    """Appends tables to one Arrow file a bucket, by a number per row; a context manager.

    Every bucket has a file at the end, which is empty where no row fell into it.
    """

    def __init__(self, directory: Path, count: int) -> None:
        super().__init__()
        self._directory, self._count = fresh_directory(directory, mode=0o700), count
        self._writers: dict[int, pa.RecordBatchStreamWriter] = {}

    def append(self, table: pa.Table | pa.RecordBatch, buckets: NDArray[np.uint16]) -> None:
        """Add each row to its bucket, keeping the order of rows within a bucket."""
        grouped, counts, ends = _group_rows(table, buckets, self._count)
        for bucket in np.flatnonzero(counts).tolist():
            rows = grouped.slice(int(ends[bucket] - counts[bucket]), int(counts[bucket]))
            self._writer(bucket, table.schema).write(rows)

    def _writer(self, bucket: int, schema: pa.Schema) -> pa.RecordBatchStreamWriter:
        if bucket not in self._writers:
            file = self.enter_context(pa.OSFile(str(bucket_path(self._directory, bucket)), "wb"))
            self._writers[bucket] = self.enter_context(pa.ipc.new_stream(file, schema))
        return self._writers[bucket]

    def __exit__(self, *error: Any) -> bool | None:
        suppressed = super().__exit__(*error)
        for bucket in set(range(self._count)) - set(self._writers):
            write_bucket(self._directory, bucket, None)
        return suppressed


class PartWriter(ExitStack):
    """Collects tables by a bucket number per row and writes them as parts; a context manager.

    In memory are at most 256 MB of them.
    """

    def __init__(self, directory: Path, count: int) -> None:
        super().__init__()
        # Without its parents: those of a job that ended meanwhile are gone for good.
        directory.mkdir(mode=0o700)
        self._directory, self._count = directory, count
        self._tables: list[pa.Table] = []
        self._buckets: list[NDArray[np.uint16]] = []
        self._parts = 0
        self.callback(self._flush)

    def append(self, table: pa.Table, buckets: NDArray[np.uint16]) -> None:
        """Add each row to its bucket, keeping the order of rows within a bucket."""
        self._tables.append(table)
        self._buckets.append(buckets)
        if sum(table.nbytes for table in self._tables) > _MOST_WAITING:
            self._flush()

    def _flush(self) -> None:
        if self._tables:
            table, targets = pa.concat_tables(self._tables), np.concatenate(self._buckets)
            write_part(self._directory, self._parts, table, targets, self._count)
            self._tables, self._buckets, self._parts = [], [], self._parts + 1


def _group_rows(
    table: pa.Table | pa.RecordBatch, buckets: NDArray[np.uint16], count: int
) -> tuple[Any, NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows by bucket, how many each has, and where each ends."""
    counts = np.bincount(buckets, minlength=count)
    return table.take(pa.array(np.argsort(buckets, kind="stable"))), counts, np.cumsum(counts)


def bucket_path(directory: Path, bucket: int) -> Path:
    """Return the Arrow file of one bucket."""
    return directory / f"bucket={bucket:04d}.arrow"


def read_bucket(directory: Path, bucket: int) -> pa.Table | None:
    """Return one bucket, memory-mapped; None if no row fell into it.

    Raises `FileNotFoundError` for a bucket that was not written, or that this machine does not see:
    its rows would be lost without a word.
    """
    path = bucket_path(directory, bucket)
    return read_table(path) if path.stat().st_size else None


def read_table(path: Path, *, mapped: bool = True) -> pa.Table:
    """Return the table of an Arrow file, memory-mapped or read into memory."""
    opened = pa.memory_map(str(path)) if mapped else pa.OSFile(str(path), "rb")
    with opened as source, pa.ipc.open_stream(source) as reader:
        return reader.read_all()


def take_rows(table: pa.Table, rows: NDArray[np.intp]) -> pa.Table:
    """Return some rows of a table, in the order that they are given in."""
    return pa.concat_tables(
        [part.take(pa.array(places)) for part, places in split_rows(table, rows)]
    )


def split_rows(
    table: pa.Table, rows: NDArray[np.intp]
) -> Iterator[tuple[pa.Table, NDArray[np.intp]]]:
    """Yield some rows of a table in portions: a table that has them, and the place of each in it.

    All texts of a column may be more than the 2 GiB of one array.
    """
    if table.nbytes <= _MOST_AT_ONCE:
        yield table, rows
        return
    step = max(_MOST_AT_ONCE * len(table) // table.nbytes, 1)
    for start in range(0, max(len(rows), 1), step):
        needed, places = np.unique(rows[start : start + step], return_inverse=True)
        mask = np.zeros(len(table), bool)
        mask[needed] = True
        yield table.filter(pa.array(mask)), places


def write_part(
    directory: Path, source: int, table: pa.Table, targets: NDArray[np.uint16], count: int
) -> None:
    """Write what the work on bucket or piece `source` makes for buckets, `targets` of its rows.

    One file with an index instead of one for each of the `count` targets: 256 small files would
    cost every release a tenth of a second. Where targets are few its name tells which it has rows
    for, so that it is opened for these alone.
    """
    directory.mkdir(mode=0o700, exist_ok=True)
    grouped, counts, ends = _group_rows(table, targets, count)
    schema = table.schema.with_metadata({_ENDS: ends.astype("<i8").tobytes()})
    grouped = grouped.cast(schema).combine_chunks()
    bits = sum(1 << target for target in np.flatnonzero(counts).tolist())
    to = f",to={bits:x}" if count <= FEW else ""
    _write_arrow_stream(grouped, directory / f"from={source:06d}{to}.arrow")


def read_parts(directory: Path, bucket: int | None = None) -> pa.Table | None:
    """Return the rows of one bucket, or of all, in all parts (`write_part`); None if there are
    none.

    Raises `FileNotFoundError` for a directory that is not there, or not seen by this machine.
    """
    tables = []
    for path in _list_parts(directory):
        bits = path.stem.partition("to=")[2]
        if bucket is not None and bits and not int(bits, 16) >> bucket & 1:
            continue
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
            table = reader.read_all()
        if bucket is not None:
            ends = np.frombuffer(table.schema.metadata[_ENDS], "<i8")
            start = int(ends[bucket - 1]) if bucket else 0
            table = table.slice(start, int(ends[bucket]) - start)
        if table.num_rows:
            tables.append(table.replace_schema_metadata())
    return pa.concat_tables(tables) if tables else None


def count_part_rows(directory: Path) -> int:
    """Return how many rows all parts have."""
    return sum(map(_rows_of_part, _list_parts(directory)))


def check_seen(written: int, seen: int, what: str = "rows") -> None:
    """Raise `LabelguardError` where fewer rows are seen than were written, or more."""
    if written != seen:
        raise LabelguardError(
            f"{seen:,} of {written:,} {what} are there; an engine needs a file system on which "
            "every worker sees at once what another has written; run the same command again"
        )


def _rows_of_part(path: Path) -> int:
    with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
        return int(np.frombuffer(reader.schema.metadata[_ENDS], "<i8")[-1])


def _list_parts(directory: Path) -> list[Path]:
    # Unlike `glob`, `iterdir` fails where there is no such directory.
    return sorted(path for path in directory.iterdir() if path.name.startswith("from="))


def write_bucket(directory: Path, bucket: int, table: pa.Table | None) -> None:
    """Write one whole bucket; None is one without rows."""
    path = bucket_path(directory, bucket)
    if table is not None:
        _write_arrow_stream(table, path)
    else:
        path.touch(mode=0o600)


def _write_arrow_stream(table: pa.Table, path: Path) -> None:
    with (
        replace_when_done(path) as temporary,
        pa.OSFile(str(temporary), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as writer,
    ):
        writer.write_table(table)


def write_uncompressed_parquet(table: pa.Table, where: Path | pa.NativeFile) -> None:
    """Write a Parquet file whose size follows from the number of rows and the lengths of their
    values: how well labels compress is nobody's business, and a sealed file shows its size.
    """
    pq.write_table(table, where, compression="none", use_dictionary=False, write_statistics=False)


def read_column(table: pa.Table, name: str) -> NDArray[np.generic]:
    """Return a fixed-width column without nulls as numpy, without a copy where it lies in one
    piece.
    """
    chunks = [chunk.to_numpy(zero_copy_only=False) for chunk in table[name].chunks]
    if len(chunks) == 1:
        return chunks[0]  # type: ignore[no-any-return]
    return np.concatenate(chunks) if chunks else np.zeros(0, np.uint64)


def read_blocks(table: pa.Table, name: str) -> Blocks:
    """Return the 16-byte column that is stored as `name`_hi and `name`_lo."""
    pair = (read_column(table, f"{name}_hi"), read_column(table, f"{name}_lo"))
    return np.stack(pair, axis=1).astype(np.uint64, copy=False)


ROWS = "data.parquet"
# The most buckets whose rows are in one file: more of them are too much for one process.
MOST_IN_ONE_FILE = 64
_PART = re.compile(r"data-\d{5}-of-(?P<count>\d{5})\.parquet")


def format_part_name(number: int, count: int) -> str:
    """Return the name of a part, numbered from 0."""
    return f"data-{number:05d}-of-{count:05d}.parquet"


def find_rows_path(directory: Path) -> Path:
    """Return the file of a release's rows, or the pattern of its parts, for `list_files`.

    Raises `ProjectError` where there are none, where a part is missing, or where those of another
    release lie among them, as where two were copied into one directory.
    """
    names = (_PART.fullmatch(path.name) for path in directory.glob("data-*.parquet"))
    counts = [int(part["count"]) for part in names if part]
    path = directory / ROWS
    if len({*counts}) + path.is_file() > 1 or len(counts) > max(counts, default=0):
        raise ProjectError(
            f"{directory} holds rows of several releases; copy each into a directory of its own"
        )
    if not counts:
        if path.is_file():
            return path
        raise ProjectError(f"{directory} holds no labelguard release (no {ROWS})")
    count = counts[0]
    for number in range(count):
        if not (directory / format_part_name(number, count)).is_file():
            raise ProjectError(
                f"{directory / format_part_name(number, count)} is missing; copy the release again"
            )
    return directory / f"data-?????-of-{count:05d}.parquet"


def list_files(path: Path) -> list[Path]:
    """Return the files that a path of `find_rows_path` stands for, in the order of the rows."""
    return [path] if path.is_file() else sorted(path.parent.glob(path.name))


def escape_file_names(path: Path) -> list[str]:
    """Return these files for Polars, DuckDB and `datasets`, which take `run[1]` for `run1`.

    Parts are one pattern: of a list of files, `datasets` reads the directory again for each.
    """
    if "\\" in str(path.parent):  # DuckDB reads no pattern below it
        return [glob.escape(str(file)) for file in list_files(path) or [path]]
    name = glob.escape(path.name) if path.is_file() else path.name
    return [str(Path(glob.escape(str(path.parent)), name))]
