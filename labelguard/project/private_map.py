"""PRIVATE: the memory of released labels: which, with which value, and at which price.

One directory per release and one Parquet file per bucket of units, written only after the charge
and complete before anything of the release is visible. The ledger keeps a keyed digest of it from
then on. What has a digest there is never drawn again, and what is not as the digest says stops the
project; a map without one (its release crashed before) counts for nothing.

A file of fresh random bytes is part of each, so that nobody finds by its digest what another
attempt drew, or who was taken out.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelguard.errors import ProjectError
from labelguard.keys import keyring
from labelguard.keys.keyring import KeyRing
from labelguard.storage import blocks as block128
from labelguard.storage.blocks import Blocks
from labelguard.storage.buckets import check_seen, read_column, write_uncompressed_parquet
from labelguard.storage.files import (
    PARTIAL,
    begin_directory,
    finish_directory,
    fsync_path,
    hash_file,
    replace_when_done,
)

_FILE = re.compile(r"bucket=(?P<bucket>\d{4})-of-(?P<count>\d{4})\.parquet")
_REWRITTEN = ".new"
# A map may lack it that was drawn before there was one.
NONCE = "nonce"
_NONCE_BYTES = 32
# `row_key` and `labeler` are keyed (`labeler` is zero where it is not known), `version` counts the
# draws of a label, `value` is 0, 1, or 2 for a released tie (and in a statistic); `threshold` and
# `block_labels` are the law of the block that it was drawn in (`accounting.blocks`; 0 in a
# statistic); `content` tells contents of a given id apart.
SCHEMA = pa.schema(
    [
        ("row_key", pa.binary(16)),
        ("labeler", pa.binary(16)),
        ("version", pa.uint32()),
        ("value", pa.uint8()),
        ("threshold", pa.uint64()),
        ("block_labels", pa.uint16()),
        ("content", pa.uint64()),
    ]
)


@dataclass(frozen=True, repr=False)
class RememberedLabels:
    """PRIVATE: labels released before, sorted by row key (n, 2); the other columns are (n,).

    Its repr shows nothing.
    """

    keys: Blocks
    version: NDArray[np.uint32]
    value: NDArray[np.uint8]
    threshold: NDArray[np.uint64]
    block_labels: NDArray[np.uint16]
    content: NDArray[np.uint64]


class PrivateMap:
    """The private maps of one project; `directory` holds one directory per release."""

    def __init__(self, directory: Path, keys: KeyRing) -> None:
        self._directory = directory
        self._mac: Callable[[bytes], bytes] = lambda data: keys.mac("map", data)

    def begin(self, release_id: str) -> Path:
        """Return a new directory for what is about to be drawn; `complete` makes it a map.

        A worker of a job that crashed would put its coins among the new, and one that is behind
        leaves nothing in a map.
        """
        directory = begin_directory(self._directory / release_id, mode=0o700)
        _write_nonce(directory / NONCE)
        return directory

    def complete(self, release_id: str, drawn: Path) -> str:
        """Flush and rename what was drawn into the directory that was begun; its digest."""
        finish_directory(drawn, self._directory / release_id)
        return self.digest(release_id)

    def discard(self, release_id: str) -> None:
        """Remove a map that the ledger does not count."""
        shutil.rmtree(self._directory / release_id, ignore_errors=True)

    def discard_unfinished(self) -> None:
        """Remove all that was begun and is no map: for a job that begins."""
        for path in self._directory.glob(f"*{PARTIAL}"):
            shutil.rmtree(path, ignore_errors=True)

    def digest(self, release_id: str, *, rewritten: bool = False) -> str:
        """Return the keyed digest of a map: HMAC over the names and SHA-256 of its files.

        `rewritten`: as it will be once the files that `rewrite_without` wrote are in place.
        """
        directory = self._directory / release_id
        files = {path.name: path for path in directory.iterdir() if path.suffix != _REWRITTEN}
        if rewritten:
            files |= {path.stem: path for path in directory.glob("*" + _REWRITTEN)}
        # Of what is no file there is no digest, and so none that a map may have.
        sums = {name: hash_file(path) if path.is_file() else "" for name, path in files.items()}
        listed = [release_id, *(f"{name} {sums[name]}" for name in sorted(files))]
        return self._mac("\n".join(listed).encode()).hex()

    def check(self, digests: Mapping[str, str]) -> None:
        """Raise `ProjectError` unless every map that the ledger counts is as it was drawn.

        Changes nothing, so that anybody may look while a job works.
        """
        for release_id, digest in digests.items():
            fault = self.find_fault(release_id, digest)
            if fault:
                raise ProjectError(f"release {release_id}: {fault}")

    def finish_rewriting(self, digests: Mapping[str, str]) -> None:
        """`check`, then complete a rewriting that crashed if the ledger has its digest, else undo
        it. Only for who holds the project.
        """
        self.check(digests)
        for release_id, digest in digests.items():
            rewritten = [*(self._directory / release_id).glob("*" + _REWRITTEN)]
            if not rewritten:
                continue
            done = self.digest(release_id, rewritten=True) == digest
            for path in rewritten:
                if done:
                    path.replace(path.with_suffix(""))
                else:
                    path.unlink()
            fsync_path(self._directory / release_id)

    def find_fault(self, release_id: str, digest: str) -> str | None:
        """Return what is wrong with a map that the ledger counts, or None."""
        directory = self._directory / release_id
        if not directory.is_dir():
            return f"the private map {directory} is missing; restore it from a backup"
        known = self.digest(release_id) == digest
        if not known and self.digest(release_id, rewritten=True) != digest:
            return f"the private map {directory} is not as it was drawn; restore it from a backup"
        return None

    def find_row_keys(self, release_id: str, labelers: Blocks) -> list[bytes]:
        """Return the keys of these labelers' rows in a map, (n, 2)."""
        parts = self._find_labeler_rows(release_id, labelers)
        tables = [table.filter(theirs) for _, table, theirs in parts]
        return [key for table in tables for key in table["row_key"].to_pylist()]

    def rewrite_without(self, release_id: str, labelers: Blocks) -> bool:
        """Write the files of a map anew without these labelers' rows, (n, 2); whether any changes.

        They take effect by `finish_rewriting`, once the ledger has the digest that follows.
        """
        changed = False
        for path, table, theirs in self._find_labeler_rows(release_id, labelers):
            if pc.any(theirs).as_py():
                changed, rest = True, path.with_name(path.name + _REWRITTEN)
                _write_table(table.filter(pc.invert(theirs)), rest)
                fsync_path(rest)
        if changed:
            nonce = self._directory / release_id / (NONCE + _REWRITTEN)
            _write_nonce(nonce)
            fsync_path(nonce)
        return changed

    def _find_labeler_rows(
        self, release_id: str, labelers: Blocks
    ) -> Iterator[tuple[Path, pa.Table, pa.ChunkedArray]]:
        """Yield every file of a map with its rows, and which of them are these labelers'."""
        for path in sorted((self._directory / release_id).glob("bucket=*.parquet")):
            table = _read_table(path)
            yield path, table, pc.is_in(table["labeler"], value_set=_to_binary_array(labelers))


def count_files(directory: Path, releases: Collection[str]) -> dict[str, int]:
    """Return how many files of buckets the map of each release has, in the order of their ids."""
    return {each: len(_list_files(directory / each)) for each in sorted(releases)}


def count_rows(directory: Path) -> int:
    """Return how many labels a map, or one that was begun, holds."""
    return sum(pq.read_metadata(path).num_rows for path in _list_files(directory))


def read_bucket(
    directory: Path, bucket: int, count: int, releases: Mapping[str, int]
) -> RememberedLabels:
    """Return every label of these releases in one of `count` buckets: the latest of each row.

    `releases` are ids, each with the number of its map's files (`count_files`). Of a map that was
    written in fewer buckets it is all that the coarser one holds.

    Raises `FileNotFoundError` for a map that is not there, `LabelguardError` for one of whose files
    this machine sees fewer: its labels would be taken for new ones.
    """
    paths = [
        path
        for release_id, files in releases.items()
        for path in _find_overlapping_files(directory / release_id, bucket, count, files)
    ]
    tables = [_read_table(path) for path in paths]
    table = pa.concat_tables(tables) if tables else SCHEMA.empty_table()
    keys = block128.from_bytes(b"".join(_yield_value_bytes(table["row_key"])))
    distinct, row = block128.unique(keys)
    ascending = np.argsort(read_column(table, "version"), kind="stable")
    latest = np.zeros(len(distinct), np.intp)
    latest[row[ascending]] = ascending  # the last assignment stays
    columns = {  # Arrow's integers have numpy's names; `to_pandas_dtype` may ask for pandas
        name: read_column(table, name)[latest].astype(str(SCHEMA.field(name).type))
        for name in SCHEMA.names[2:]
    }
    return RememberedLabels(distinct, **columns)


def _find_overlapping_files(directory: Path, bucket: int, count: int, files: int) -> Iterator[Path]:
    """Yield the files of a map, in whatever number of buckets, that hold rows of one of `count`.

    They are some of so many `files`.
    """
    own = directory / _name_bucket_file(bucket, count)
    if own.exists():
        yield own
        return
    listed = _list_files(directory)
    check_seen(files, len(listed), "files of a private map")
    for path, match in listed.items():
        number, of = int(match["bucket"]), int(match["count"])
        if number * count < (bucket + 1) * of and bucket * of < (number + 1) * count:
            yield path


def _list_files(directory: Path) -> dict[Path, re.Match[str]]:
    """Return the files of buckets of a map, in order, each with what its name says."""
    matches = {path: _FILE.fullmatch(path.name) for path in sorted(directory.iterdir())}
    return {path: match for path, match in matches.items() if match}


def _name_bucket_file(bucket: int, count: int) -> str:
    return f"bucket={bucket:04d}-of-{count:04d}.parquet"


def write_bucket(
    directory: Path,
    bucket: int,
    count: int,
    keys: Blocks,
    labelers: Blocks,
    **columns: NDArray[Any],
) -> None:
    """Write one of `count` buckets of a map that was begun, sorted by row key.

    `columns` are (n,), by their names in `SCHEMA`; one that lacks is 0.
    """
    order = block128.sort_order(keys)
    none = np.zeros(len(keys), np.uint8)
    numbers = [pa.array(columns.get(name, none)[order]) for name in SCHEMA.names[2:]]
    arrays = [_to_binary_array(each.take(order, axis=0)) for each in (keys, labelers)] + numbers
    table = pa.Table.from_arrays(arrays, names=SCHEMA.names).cast(SCHEMA)
    with replace_when_done(directory / _name_bucket_file(bucket, count), directory.parent) as path:
        _write_table(table, path)


def _write_nonce(path: Path) -> None:
    path.write_bytes(keyring.random_bytes(_NONCE_BYTES))


def _write_table(table: pa.Table, path: Path) -> None:
    write_uncompressed_parquet(table, path)


def _read_table(path: Path) -> pa.Table:
    # Files are small and many, one for each release and bucket: a data set of one file takes twice
    # as long to open.
    with pq.ParquetFile(path) as file:
        return file.read(use_threads=False).cast(SCHEMA)


def _to_binary_array(blocks: Blocks) -> pa.Array:
    data = pa.py_buffer(np.ascontiguousarray(blocks, ">u8"))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(blocks), [None, data])


def _yield_value_bytes(array: pa.ChunkedArray) -> Iterator[memoryview]:
    for chunk in array.chunks:
        width = chunk.type.byte_width
        yield memoryview(chunk.buffers()[1])[chunk.offset * width :][: len(chunk) * width]
