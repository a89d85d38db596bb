"""Raw answers that were ingested: append-only segments, by bucket of the labeler, sealed.

A segment is one file: a Parquet table for each bucket that has rows, and one for deletions, whose
labelers tools do not tell. Each is sealed under the project's key for its place, so that none can
be altered, moved or read without the key; and the ledger keeps a keyed digest of the whole file. A
file that the ledger does not list counts for nothing.

A row is one state of one answer. Of several states of a record the latest counts, by the tool's
clock. Of several of one version the first that came counts, until a pull takes what the tool lists
of those that came more than once. A deletion is for good, unless a later pull finds the answer in
the tool again.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelguard.answers.connector import Answer
from labelguard.errors import ProjectError
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.sources import Segment
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks
from labelguard.storage.buckets import BUCKETS
from labelguard.storage.files import fsync_path, write_atomically

SCHEMA = pa.schema(
    [
        ("record", pa.binary(16)),  # a keyed hash of the tool's id
        ("version", pa.int64()),
        # What follows is null once a label was forgotten that was released (`retention`).
        ("id", pa.string()),  # the tool's
        ("labeler", pa.string()),
        ("body", pa.string()),  # the task with this answer
        # Then this is there: the pair that it was about, and the keys of its labels.
        ("pair", pa.string()),
        ("rows", pa.list_(pa.binary(16))),
    ]
)
Table: TypeAlias = pa.Table
_HEADER = b"labelguard segment v1\n"
_LENGTHS = struct.Struct(f"<{BUCKETS + 1}Q")
# The place of deletions, beside those of the buckets.
DELETED = BUCKETS
_PURPOSE = "segment"
_NO_KEYS = np.zeros((0, 2), np.uint64)
_PAGE = 4096
# The columns that say which state of an answer counts, and whether its label was forgotten.
_STATE = ("record", "version", "id")
_REWRITTEN = ".new"


@dataclass(frozen=True, repr=False)
class AnswerRows:
    """Answers on their way into a segment, in the order of arrival. Its repr shows nothing.

    `table` has a row for each answer, as segments have them, and its keys are in `record` and
    `labeler_key`, (n, 2); `deleted` (m, 2) are records that are gone.
    """

    record: Blocks
    labeler_key: Blocks
    table: pa.Table
    deleted: Blocks

    @classmethod
    def from_answers(
        cls, answers: Sequence[Answer], connector: str, source: str, keys: KeyRing
    ) -> AnswerRows:
        """Return the answers of a connector as rows."""
        present = [answer for answer in answers if not answer.is_deleted]
        labelers = [answer.labeler for answer in present]
        position = {name: number for number, name in enumerate(dict.fromkeys(labelers))}
        distinct = keys.hash_labelers(source, position)
        record = keys.hash_records(connector, [answer.record for answer in present])
        rows = [
            {"record": key, "version": a.version, "id": a.record, "labeler": a.labeler}
            | {"body": a.body}
            for key, a in zip(blocks.to_list(record), present, strict=True)
        ]
        deleted = [answer.record for answer in answers if answer.is_deleted]
        return cls(
            record,
            distinct[[position[name] for name in labelers]] if present else _NO_KEYS,
            pa.Table.from_pylist(rows, SCHEMA),
            keys.hash_records(connector, deleted),
        )

    def __len__(self) -> int:
        return len(self.table) + len(self.deleted)

    def select(self, rows: NDArray[np.bool_], deleted: NDArray[np.bool_]) -> AnswerRows:
        """Return some of the answers, and of the deletions."""
        table, keys = self.table.filter(pa.array(rows)), self.labeler_key[rows]
        return AnswerRows(self.record[rows], keys, table, self.deleted[deleted])

    def split_by_place(self) -> dict[int, pa.Table]:
        """Return what goes to which place of a segment, in the order of arrival."""
        bucket = buckets.assign_buckets(self.labeler_key, BUCKETS)
        tables = {
            place: self.table.filter(pa.array(bucket == place))
            for place in np.unique(bucket).tolist()
        }
        if len(self.deleted):
            deleted = pa.array(blocks.to_list(self.deleted), pa.binary(16))
            tables[DELETED] = pa.table({"record": deleted})
        return tables


class Segments:
    """The segments of a project, in one directory."""

    def __init__(self, directory: Path, keys: KeyRing) -> None:
        self._directory, self._keys = directory, keys

    def write(self, name: str, tables: dict[int, pa.Table]) -> str:
        """Write a segment's file, flushed to disk; its digest."""
        return self._write(name, "", self._pack(name, tables))

    def _write(self, name: str, end: str, data: bytes) -> str:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        write_atomically(self._path(name, end), data, mode=0o600)
        return self._digest(name, data)

    def read(
        self,
        segment: Segment,
        only: Collection[int] | None = None,
        columns: Sequence[str] | None = None,
    ) -> dict[int, pa.Table]:
        """Return the tables of a segment by place, all or some; with some of their columns, or all.

        Raises `ProjectError` if the file is not the one that the ledger lists.
        """
        data = self._read_verified(segment)
        if not data.startswith(_HEADER):
            raise ProjectError(
                f"segment {segment.name} was written by a later version of labelguard"
            )
        return {
            place: self._open_table(segment.name, place, data[start:end], columns)
            for place, (start, end) in _locate_tables(data).items()
            if end > start and (only is None or place in only)
        }

    def rewrite(self, segment: Segment, changed: dict[int, pa.Table]) -> tuple[str, int]:
        """Write a segment anew beside itself with other tables in some places.

        Return its digest and number of rows; `complete_rewrites` puts it in place once the ledger
        lists them.
        """
        tables = {p: table for p, table in (self.read(segment) | changed).items() if len(table)}
        digest = self._write(segment.name, _REWRITTEN, self._pack(segment.name, tables))
        return digest, sum(map(len, tables.values()))

    def complete_rewrites(self, counted: Sequence[Segment]) -> None:
        """Complete what crashes left: files change places with those that were rewritten, as the
        ledger says, and those go that it does not list.
        """
        if not self._directory.is_dir():
            return
        digests = {segment.name: segment.digest for segment in counted}
        for path in self._directory.glob(f"*.segment{_REWRITTEN}"):
            name = path.name.partition(".")[0]
            if name in digests and self._digest(name, path.read_bytes()) == digests[name]:
                path.replace(self._path(name))
            else:
                path.unlink()
        for path in self._directory.glob("*.segment"):
            if path.stem not in digests:
                path.unlink()
        fsync_path(self._directory)

    def find_fault(self, counted: Sequence[Segment]) -> str | None:
        """Return the error of the first segment that is not as the ledger says, or None."""
        for segment in counted:
            try:
                self.read(segment, ())
            except ProjectError as error:
                return str(error)
        return None

    def _path(self, name: str, end: str = "") -> Path:
        return self._directory / f"{name}.segment{end}"

    def _read_verified(self, segment: Segment) -> bytes:
        """Return the bytes of a segment's file, as the ledger lists it; else `ProjectError`."""
        for path in map(partial(self._path, segment.name), ("", _REWRITTEN)):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            if self._digest(segment.name, data) == segment.digest:
                return data
        raise ProjectError(
            f"segment {segment.name} of ingested answers is missing, or not the one that the "
            "ledger lists; restore it from a backup"
        )

    def _digest(self, name: str, data: bytes) -> str:
        return self._keys.mac(_PURPOSE, name.encode() + hashlib.sha256(data).digest()).hex()

    def _pack(self, name: str, tables: dict[int, pa.Table]) -> bytes:
        pieces = [self._seal_table(name, place, tables.get(place)) for place in range(BUCKETS + 1)]
        return _HEADER + _LENGTHS.pack(*map(len, pieces)) + b"".join(pieces)

    def _seal_table(self, name: str, place: int, table: pa.Table | None) -> bytes:
        if table is None:
            return b""
        sink = pa.BufferOutputStream()
        buckets.write_uncompressed_parquet(table, sink)
        data = _pad(sink.getvalue().to_pybytes())
        return self._keys.seal(_PURPOSE, data, _seal_context(name, place))

    def _open_table(
        self, name: str, place: int, sealed: bytes, columns: Sequence[str] | None
    ) -> pa.Table:
        data = self._keys.unseal(_PURPOSE, sealed, _seal_context(name, place))
        wanted = list(columns) if columns and place != DELETED else None
        # On this thread alone: one of Arrow's that lets go of Python's bytes while the interpreter
        # ends aborts the process.
        with pq.ParquetFile(pa.BufferReader(_unpad(data)), pre_buffer=False) as file:
            return file.read(wanted, use_threads=False)


def _pad(data: bytes) -> bytes:
    """Return the data behind its length, filled up with zeros: a sealed file shows its size in
    steps alone, and of how long it is exactly, nothing.
    """
    size = len(data) + 8
    step = max(_PAGE, 1 << (size.bit_length() - 5))
    return (len(data).to_bytes(8, "little") + data).ljust(size + -size % step, b"\0")


def _unpad(data: bytes) -> bytes:
    """Return the data that `_pad` filled up."""
    return data[8 : 8 + int.from_bytes(data[:8], "little")]


def _seal_context(name: str, place: int) -> bytes:
    return f"{name}/{place}".encode()


def _locate_tables(data: bytes) -> dict[int, tuple[int, int]]:
    """Return where the table of each place begins and ends."""
    start = len(_HEADER) + _LENGTHS.size
    ends = start + np.cumsum(_LENGTHS.unpack_from(data, len(_HEADER)), dtype=np.int64)
    starts = np.concatenate([[start], ends[:-1]])
    return {place: (int(starts[place]), int(ends[place])) for place in range(BUCKETS + 1)}


@dataclass(frozen=True, repr=False)
class AnswerStates:
    """The states that count of a connector's answers: one row for each record, sorted by it.

    `record` (n, 2), `version` (n,), and where the state that counts lies: `segment` indexes the
    list it was made of, with `place` and `row` in it; `segment` is -1 for records that are gone.
    `forgotten` are those whose label was released and forgotten since.
    """

    record: Blocks
    version: NDArray[np.int64]
    segment: NDArray[np.int64]
    place: NDArray[np.int64]
    row: NDArray[np.int64]
    forgotten: NDArray[np.bool_]

    @property
    def alive(self) -> NDArray[np.bool_]:
        """The records that are in the tool still, as far as is known."""
        alive: NDArray[np.bool_] = self.segment >= 0
        return alive

    def match_known(
        self, rows: AnswerRows, *, is_pull: bool, repeated: NDArray[np.bool_]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return which answers of `rows` are nothing new, and which of its deletions.

        What was announced of a record that is gone comes late; what a tool lists is there again.
        Of a version that was `repeated` (a flag for each answer) what counts is taken anew.
        """
        at = blocks.find_positions(self.record, rows.record)
        if not len(self.record):
            return np.zeros(len(at), bool), np.zeros(len(rows.deleted), bool)
        met, at, version = at >= 0, np.maximum(at, 0), rows.table["version"].to_numpy()
        same = (self.version[at] == version) & ~repeated
        older = self.alive[at] & (self.forgotten[at] | same | (self.version[at] > version))
        late = ~self.alive[at] & (not is_pull)
        gone = blocks.find_positions(self.record[~self.alive], rows.deleted) >= 0
        return met & (older | late), gone


def read_counting_states(files: Segments, segments: Sequence[Segment]) -> AnswerStates:
    """Return what counts after these segments, which are of one connector, in their order."""
    records, deleted = [_NO_KEYS], [_NO_KEYS]
    states: list[NDArray[np.int64]] = [np.zeros((5, 0), np.int64)]
    since: list[NDArray[np.int64]] = [np.zeros(0, np.int64)]
    for number, segment in enumerate(segments):
        for place, table in files.read(segment, columns=_STATE).items():
            record = blocks.from_bytes(b"".join(table["record"].to_pylist()))
            if place == DELETED:
                deleted.append(record)
                since.append(np.full(len(record), number))
                continue
            rows = np.arange(len(record))
            forgotten = table["id"].is_null().to_numpy().astype(np.int64)
            where = np.full(len(rows), number), np.full(len(rows), place)
            records.append(record)
            states.append(np.stack([table["version"].to_numpy(), *where, rows, forgotten]))
    record, state = np.concatenate(records), np.concatenate(states, axis=1)
    version, at, places, row, forgotten = state
    last = _last_deletion(record, np.concatenate(deleted), np.concatenate(since))
    pulled = np.array([segment.pulled for segment in segments] or [False])
    valid = (at > last) & pulled[at] | (last < 0)
    # A forgotten label counts before all that came later: its released value stays.
    order = np.lexsort((row, at, version, forgotten, valid, record[:, 1], record[:, 0]))
    record, state, valid = record[order], state[:, order], valid[order]
    ends = np.ones(len(record), bool)
    ends[:-1] = (record[1:] != record[:-1]).any(axis=1)
    version, at, places, row, forgotten = state[:, ends]
    alive = valid[ends]
    return AnswerStates(
        *(record[ends], version, np.where(alive, at, -1), places, row),
        forgotten=forgotten.astype(bool) & alive,
    )


def read_deletions(files: Segments, segments: Sequence[Segment]) -> Blocks:
    """Return the records that these segments say are gone, sorted and each once, (n, 2)."""
    tables = (t for s in segments for t in files.read(s, {DELETED}, _STATE).values())
    keys = b"".join(key for table in tables for key in table["record"].to_pylist())
    return blocks.unique(blocks.from_bytes(keys))[0]


def _last_deletion(record: Blocks, dead: Blocks, since: NDArray[np.int64]) -> NDArray[np.int64]:
    """In which segment each record was deleted last, or -1; shape (len(record),)."""
    if not len(dead):
        return np.full(len(record), -1)
    distinct, which = blocks.unique(dead)
    latest = np.full(len(distinct), -1)
    np.maximum.at(latest, which, since)
    at = blocks.find_positions(distinct, record)
    return np.where(at >= 0, latest[at], -1)


def read_counting_rows(
    files: Segments, segments: Sequence[Segment], standing: AnswerStates
) -> Iterator[pa.Table]:
    """Yield the rows that count and are not forgotten, a segment's bucket at a time."""
    counts = standing.alive & ~standing.forgotten
    for number, segment in enumerate(segments):
        here = counts & (standing.segment == number)
        places = set(np.unique(standing.place[here]).tolist())
        for place, table in files.read(segment, places).items() if places else ():
            rows = standing.row[here & (standing.place == place)]
            yield table.take(pa.array(np.sort(rows)))
