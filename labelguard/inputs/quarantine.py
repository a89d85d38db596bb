"""Rows that are set aside: bad ones, those of labelers who left, and answers outside the domain.

They lie there as they were given, labels and all, readable by their owner only, until somebody
removes them; `remove_departed_rows` takes out those of a labeler who is erased.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelguard.inputs import readers
from labelguard.inputs.readers import InputFile, quote_file_name
from labelguard.inputs.staged import Staged
from labelguard.keys.keyring import KeyRing
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks
from labelguard.storage.files import fresh_directory, fsync_path, write_atomically

_BATCH_ROWS = 2048
_UNFINISHED = ".new"
_LABELER_COLUMN = b"labelguard.labeler_id"
_SOURCE = b"labelguard.source"


def write_bad_rows(
    directory: Path,
    files: Sequence[InputFile],
    bad_rows: Mapping[str, Sequence[int]],
    scratch: Path,
    labeler_column: str = "labeler_id",
    source: str = "files",
) -> None:
    """Copy the rows numbered in `bad_rows` (from 0, per file) as they came, one file each.

    The column `input_row` counts from 1, like the messages. Which column names the labeler, and
    the source of these ids, is noted in the file, for `remove_departed_rows`. What does not fit
    into memory goes to `scratch` meanwhile.
    """
    fresh_directory(directory, mode=0o700)
    for index, file in enumerate(files):
        rows = np.unique(np.asarray(bad_rows.get(file.name, []), dtype=np.int64))
        if not len(rows):
            continue
        reader = file.open(readers.connect(scratch)).to_arrow_reader(_BATCH_ROWS)
        path = directory / f"part-{index:04d}.parquet"
        name = "input_row" + "_" * ("input_row" in reader.schema.names)
        schema = reader.schema.append(pa.field(name, pa.int64()))
        noted = {_LABELER_COLUMN: labeler_column} if labeler_column in schema.names else {}
        schema = schema.with_metadata({_SOURCE: source} | noted)
        with _create_private(path) as sink, pq.ParquetWriter(sink, schema) as writer:
            start = 0
            for batch in reader:
                inside = rows[(rows >= start) & (rows < start + batch.num_rows)] - start
                if len(inside):
                    taken = pa.Table.from_batches([batch]).take(pa.array(inside))
                    taken = taken.append_column(name, pa.array(inside + start + 1))
                    writer.write_table(taken.replace_schema_metadata(schema.metadata))
                start += batch.num_rows


@dataclass(frozen=True)
class RawRows:
    """Raw rows of labelers who leave: how many, and files that may hold any.

    `unreadable` are files that cannot be read any more, as paths within what was searched: nobody
    can tell what is in them. `answers` of the rows are ingested, or wait in the inbox.
    """

    rows: int = 0
    unreadable: tuple[str, ...] = ()
    answers: int = 0

    def __add__(self, other: RawRows) -> RawRows:
        both = self.unreadable + other.unreadable
        return RawRows(self.rows + other.rows, both, self.answers + other.answers)


def count_departed_rows(directory: Path, departed: DepartedLabelers) -> RawRows:
    """Return the rows set aside that are theirs, below a directory."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    counts = (
        _count_rows_in_file(p, directory, departed)[0] for p in paths if p.suffix != _UNFINISHED
    )
    return sum(counts, RawRows())


def remove_departed_rows(directory: Path, departed: DepartedLabelers) -> RawRows:
    """Take their rows out, and remove unreadable files; return what `count_departed_rows` did.

    Each file is replaced at once, so that a crash leaves it as it was or without their rows.
    """
    raw = RawRows()
    if not directory.is_dir():
        return raw
    for unfinished in directory.rglob("*" + _UNFINISHED):
        unfinished.unlink()  # of a crashed `remove_departed_rows`: the whole file is still there
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        theirs, rest = _count_rows_in_file(path, directory, departed)
        raw += theirs
        if not rest:
            path.unlink()
        elif theirs.rows:
            _remove_rows_from_file(path, departed)
    for folder in sorted(directory.rglob("*"), reverse=True):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
        elif folder.is_dir():
            fsync_path(folder)
    fsync_path(directory)
    return raw


def _count_rows_in_file(
    path: Path, directory: Path, departed: DepartedLabelers
) -> tuple[RawRows, int]:
    """Return the rows of a file that are theirs, and how many are not."""
    theirs = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                theirs += int(_are_theirs(batch, departed).sum())
            return RawRows(theirs), file.metadata.num_rows - theirs
    except (pa.ArrowException, OSError, UnicodeError):
        return RawRows(unreadable=(str(path.relative_to(directory)),)), 0


def _are_theirs(batch: pa.RecordBatch, departed: DepartedLabelers) -> NDArray[np.bool_]:
    """Return which rows are theirs: by the column of labelers or, if none was noted, by any."""
    metadata = batch.schema.metadata or {}
    noted, source = metadata.get(_LABELER_COLUMN), metadata.get(_SOURCE, b"").decode()
    names = [noted.decode()] if noted else batch.schema.names[:-1]  # the last is input_row
    theirs = np.zeros(batch.num_rows, dtype=bool)
    for values in map(batch.column, names):
        if _can_hold_ids(values.type):
            theirs |= departed.match_ids(values.cast(pa.string()), source)
    return theirs


def _can_hold_ids(kind: pa.DataType) -> bool:
    """Return whether a column can hold ids: text or numbers."""
    types = pa.types
    text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    return bool(text or types.is_integer(kind) or types.is_decimal(kind))


def _remove_rows_from_file(path: Path, departed: DepartedLabelers) -> None:
    """Replace a file by itself without their rows."""
    temporary = path.with_name(path.name + _UNFINISHED)
    with (
        pq.ParquetFile(path) as file,
        _create_private(temporary) as sink,
        pq.ParquetWriter(sink, file.schema_arrow) as writer,
    ):
        for batch in file.iter_batches(_BATCH_ROWS):
            writer.write_batch(batch.filter(pa.array(~_are_theirs(batch, departed))))
    fsync_path(temporary)
    temporary.replace(path)


def _create_private(path: Path) -> BinaryIO:
    """Open a new file that only its owner can read, for writing."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


class DepartedLabelers:
    """The labelers who have left, whose rows are found by their ids. Its repr shows nothing.

    `labelers` are their keys, shape (n, 2).
    """

    def __init__(self, keys: KeyRing, namespace: str, labelers: Blocks | None) -> None:
        nobody = np.zeros((0, 2), np.uint64)
        self.labelers = nobody if labelers is None else blocks.unique(labelers)[0]
        self._keys, self._namespace = keys, namespace
        self._positions: dict[str, dict[str, int]] = {}
        self.present: set[int] = set()

    def __repr__(self) -> str:
        return "DepartedLabelers(…)"

    @property
    def present_count(self) -> int:
        """The number of them who had rows in what was looked at."""
        return len(self.present)

    def match_ids(self, ids: pa.Array | pa.ChunkedArray, source: str = "") -> NDArray[np.bool_]:
        """Return which of these ids (text, or null) are theirs, shape (len(ids),); of another
        `source` than that of an input, where it is named.
        """
        if not len(self.labelers) or not len(ids):
            return np.zeros(len(ids), dtype=bool)
        encoded = pc.fill_null(ids, "").dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        namespace, distinct = source or self._namespace, encoded.dictionary.to_pylist()
        known = self._positions.setdefault(namespace, {})
        new = [labeler for labeler in distinct if labeler not in known]
        positions = blocks.find_positions(self.labelers, self._keys.hash_labelers(namespace, new))
        known.update(zip(new, positions.tolist(), strict=True))
        theirs = self._note_present(
            np.array([known[labeler] for labeler in distinct], dtype=np.intp)
        )
        rows: NDArray[np.bool_] = theirs[encoded.indices.to_numpy()]
        return rows

    def match_keys(self, labelers: Blocks) -> NDArray[np.bool_]:
        """Return which of these keys, (n, 2), are theirs, shape (n,)."""
        return self._note_present(blocks.find_positions(self.labelers, labelers))

    def _note_present(self, positions: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Return which positions are in `labelers`, and note that these had rows."""
        theirs: NDArray[np.bool_] = positions >= 0
        self.present.update(positions[theirs].tolist())
        return theirs


_TASKS = """
    SELECT json->>'/id', coalesce(json->>'/annotations/0/id', json->>'/responses/0/id') AS answer
    FROM read_ndjson_objects({path}) WHERE answer IN (SELECT unnest(?))"""


def write_answers_outside_domain(path: Path, staged: Staged, scratch: Path) -> None:
    """List connector, answer and task of every such answer in a file of mode 0600.

    It is PRIVATE: which answers are in it follows from labels.
    """
    lines = []
    with readers.connect(scratch) as connection:
        for entry in staged.formatted:
            rows = np.unique(np.asarray(staged.outside.get(entry.file.name, []), np.int64))
            if entry.file.answers is None or not len(rows):
                continue
            records = entry.file.open(connection.cursor()).select("record_id").to_arrow_table()
            answers = records["record_id"].take(rows).to_pylist()
            query = _TASKS.format(path=quote_file_name(entry.file.answers))
            for task, answer in connection.execute(query, [answers]).fetchall():
                lines.append({"connector": entry.file.answers.stem, "answer": answer, "task": task})
    listed = sorted(json.dumps(line) for line in lines)
    write_atomically(path, "".join(f"{line}\n" for line in listed).encode(), mode=0o600)
