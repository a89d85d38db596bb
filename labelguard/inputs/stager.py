"""Canonical rows of one file after the other, checked and put into buckets.

`inputs.staging` says what comes out of it. What workers staged of other files is taken in here.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress, islice
from pathlib import Path
from typing import Protocol

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelguard.errors import InvalidLabels
from labelguard.inputs import canonical
from labelguard.inputs.columns import Reading
from labelguard.inputs.formats import FormattedFile
from labelguard.inputs.layouts import Layout
from labelguard.inputs.quarantine import DepartedLabelers
from labelguard.inputs.query import LABEL_FAULT, LABEL_FAULTS, PUBLIC_FAULTS
from labelguard.inputs.staged import Fault, Received, Staged, sort_bucket
from labelguard.keys.identities import Identities
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.records import Links
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks
from labelguard.storage.executor import Executor, run_over_buckets
from labelguard.text import LABEL_SKIP, LABEL_TIE

# No file has more rows than these bits can count.
_FILE_BITS = 40
# Labelers that Arrow looks up, which takes a fifth of the time, but builds a table for every batch.
_FIRST_LABELERS = 1 << 17


class Sink(Protocol):
    """A writer of rows by their buckets."""

    def append(self, table: pa.Table, buckets: NDArray[np.uint16]) -> None:
        """Take rows, each into its bucket."""


@dataclass(frozen=True)
class StagingOptions:
    """Options of staging: names, unit, what happens to bad rows and to public ties.

    `drop_ties` leaves ties out: only where tie status was declared public. `links` says which
    labelers are one unit; the unit `item` has none. `refused` are the keys of labelers who have
    left, (n, 2): their rows are treated as if they were not there.
    `max_input_bytes` is how much an input may unpack to; by default what its files' sizes let one
    expect. `spool` is the private directory that objects of a store are copied into.
    """

    reading: Reading
    namespace: str
    quarantine: bool = False
    drop_ties: bool = False
    links: Links | None = None
    buckets: int = buckets.BUCKETS
    refused: Blocks | None = None
    max_input_bytes: int | None = None
    spool: Path | None = None

    def __post_init__(self) -> None:
        buckets.check_bucket_count(self.buckets)


@dataclass(frozen=True, repr=False)
class Piece:
    """A file that a worker staged: where its parts are, what it counted, and who its labelers are.
    `size` is the number of bytes that its rows take. Its repr shows nothing.
    """

    directory: Path
    staged: Staged
    digest: NDArray[np.uint64]
    labelers: list[str]
    answered: NDArray[np.bool_]
    departed: set[int]
    size: int


class Stager:
    """Writer of canonical batches as bucketed rows and texts."""

    def __init__(
        self,
        staged: Staged,
        keys: KeyRing,
        options: StagingOptions,
        connection: duckdb.DuckDBPyConnection,
        *,
        first_file: int = 0,
    ) -> None:
        self.staged = staged
        self.options = options
        self._digest = np.zeros(2, np.uint64)
        self._keys = keys
        self.connection = connection
        self._departed = DepartedLabelers(keys, options.namespace, options.refused)
        self._labelers: dict[str, int] = {}
        self._first_labelers = pa.array([], pa.string())
        self._answered: NDArray[np.bool_] = np.zeros(0, bool)
        self._labeler_keys: Blocks = np.zeros((0, 2), np.uint64)
        self._file_rows, self._file_number = 0, first_file
        self._of_tool = False
        self._csv: Path | None = None

    def begin_file(self, formatted: FormattedFile, layout: Layout) -> None:
        """Start a file; all files must give the same kinds of columns."""
        staged, columns = self.staged, layout.columns
        # Each with what files that differ in it differ in.
        kinds = {
            "chat": (layout.content.chat, "texts in one, chats in the other"),
            "pairs_of_rankings": (layout.is_list, "pairs in one, lists of responses in the other"),
            "choices": (layout.kind == "choices", "rankings in one, choices in the other"),
            "rankings": (layout.is_list or "ranking_id" in columns, "ranking_id"),
            "given_ids": ("item_id" in columns, "item_id"),
            "questions": (layout.has_questions, "question"),
            "timed": ("submitted_at" in columns, "submitted_at"),
            "recorded": ("record_id" in columns, "record_id"),
            "labelers": ("labeler_id" in columns, "labeler_id"),
        }
        for key, (value, difference) in kinds.items():
            if staged.layouts and getattr(staged, key) != value:
                raise InvalidLabels(
                    f"{formatted.file.name}: its columns differ from those of the files before it "
                    f"({difference}); privatize files of one kind together"
                )
            setattr(staged, key, value)
        staged.layouts.add(layout.kind)
        self._names = {**layout.columns, **formatted.names, **_name_sources_and_strata(layout)}
        self._file_rows = 0
        self._file_number += 1
        self._of_tool = formatted.file.answers is not None
        self._csv = formatted.file.path if formatted.file.is_csv else None

    def append(self, name: str, batch: pa.RecordBatch, rows: Sink, texts: Sink) -> None:
        """Check a batch's public columns, then append its usable rows to their buckets."""
        batch = self._keep_usable_rows(name, batch)
        if not batch.num_rows:
            return
        blank = batch["label"].to_numpy() == LABEL_SKIP
        content = _read_digests(batch, "content")
        items = _read_digests(batch, "given_id") if self.staged.given_ids else content
        labelers = self._read_labeler_keys(batch)
        units = self._find_units(labelers, batch)
        # Skips have no number, no text and no digest: what they do is seen once rows are sorted.
        numbers = np.cumsum(~blank, dtype=np.uint64) + np.uint64(self.staged.rows) - np.uint64(1)
        self.staged.rows += int((~blank).sum())
        self.staged.received += batch.num_rows

        columns = _split_blocks("unit", units) | _split_blocks("item", items)
        columns |= self._read_label_authors(labelers, batch)
        for name in ("pair", "size"):  # of rankings
            if name in batch.schema.names:
                columns[name] = batch[name].to_numpy()
        if self.staged.rankings:
            grouping = "ranking" if "ranking" in batch.schema.names else None
            columns |= _split_blocks("group", _read_digests(batch, grouping) if grouping else items)
        if self.staged.timed:
            time = pc.fill_null(batch["submitted"], pa.scalar(np.iinfo(np.int64).min, pa.int64()))
            columns["submitted"] = time.to_numpy()
        if self._can_apply_withdrawals:
            columns["skip"] = blank.astype(np.uint8)
        label = batch["label"].to_numpy()
        names = [name for feature in self.options.reading.features for name in feature.pair_columns]
        carried = {name: batch[name] for name in names}
        attached = {n: v.to_numpy() for n, v in carried.items() if pa.types.is_floating(v.type)}
        if "carried" in batch.schema.names:  # the names among them
            attached |= _split_blocks("carried", _read_digests(batch, "carried"))
        if self.staged.given_ids:
            attached |= _split_blocks("content", content)
        # Times and records only say which of a labeler's rows comes first. They are in no digest of
        # the input: numbers of rows that are sorted by label change with a label.
        public = {name: columns[name] for name in columns if name not in ("submitted", "skip")}
        digests = self._keys.digest_rows(public | attached)
        self._digest += digests[~blank].sum(axis=0, dtype=np.uint64)
        if self.staged.recorded:
            digests = self._keys.digest_rows(public | attached | _read_record_columns(batch))
        if self.staged.recorded or attached or "ranking" in batch.schema.names:
            # Rows may be equal but for these.
            columns["tiebreak"] = np.ascontiguousarray(digests[:, 0])
        if self.staged.given_ids:
            columns["content"] = np.ascontiguousarray(content[:, 0])
        if self.staged.pairs_of_rankings:
            submission = batch["source_row"].to_numpy().astype(np.uint64)
            columns["submission"] = submission + np.uint64(self._file_number << _FILE_BITS)
        columns |= {"row": numbers, "label": label}
        rows.append(pa.table(columns), buckets.assign_buckets(units, self.options.buckets))

        shown = {"row": numbers} | _split_blocks("item", items)
        names = ["prompt", "first", "second"]
        if self.staged.given_ids:
            shown |= _split_blocks("content", content)
            names.append("item_id")
        if self.staged.questions:
            names.append("question")
        if "pair" in columns:
            shown["pair"] = columns["pair"]
        table = pa.table({key: pa.array(value) for key, value in shown.items()} | carried)
        for key in names:
            table = table.append_column(key, batch[key])
        self.staged.content_type = table.schema.field("prompt").type
        if blank.any():
            table, items = table.filter(pa.array(~blank)), items[~blank]
        texts.append(table, buckets.assign_buckets(items, self.options.buckets))

    def compute_public_digest(self) -> bytes:
        """Return a keyed digest of the multiset of rows, by public columns: no order enters it.

        The sum of pseudorandom numbers, one a row (MSet-Add-Hash of Clarke et al. 2003).
        """
        count = np.array([self.staged.rows], np.uint64)
        return np.concatenate([count, self._digest]).astype(">u8").tobytes()

    def to_piece(self, directory: Path, size: int) -> Piece:
        """Return what another stager has to know of all that this one read: `size` bytes of it."""
        names, departed = list(self._labelers), self._departed.present
        return Piece(directory, self.staged, self._digest, names, self._answered, departed, size)

    def add_piece(self, piece: Piece) -> None:
        """Count what a worker staged of a file, as if it had been read here."""
        self.staged.add(piece.staged)
        self._digest += piece.digest
        self._departed.present |= piece.departed
        self.staged.refused_labelers = self._departed.present_count
        number = self._number_labelers(piece.labelers)
        self._answered[number] |= piece.answered

    def sort(self, received: Received, executor: Executor) -> None:
        """Sort the rows, and leave out answers whose labeler skipped the same later."""
        rows = texts = 0
        for result in run_over_buckets(executor, sort_bucket, received, count=self.options.buckets):
            rows, texts = rows + result.rows, texts + result.texts
            self.staged.withdrawn += result.removed
            if result.skips is not None:
                skips = {f"skip {name}": result.skips[name] for name in result.skips.column_names}
                columns = {name: values.to_numpy() for name, values in skips.items()}
                self._digest += self._keys.digest_rows(columns).sum(axis=0, dtype=np.uint64)
        buckets.check_seen(self.staged.received, rows)
        if received.pieces:
            buckets.check_seen(self.staged.rows, texts)

    @property
    def _can_apply_withdrawals(self) -> bool:
        """True where it is known what a skip takes back: when it was, and whose."""
        return self.staged.timed and (self.staged.labelers or self.staged.recorded)

    def _keep_usable_rows(self, name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Check faults; drop skips, identical sides and (if asked) public ties."""
        staged = self.staged
        start = self._file_rows
        if staged.pairs_of_rankings:  # Rows are counted as the file has them, not as pairs.
            numbers = batch["source_row"].to_numpy()
            counted = batch["pair"].to_numpy() == 0
        else:
            numbers = np.arange(start, start + batch.num_rows)
            counted = np.ones(batch.num_rows, dtype=bool)
        self._file_rows += batch.num_rows
        if staged.labelers and (refused := self._departed.match_ids(batch["labeler"])).any():
            staged.refused_rows += int((refused & counted).sum())
            staged.refused_labelers = self._departed.present_count
            batch = batch.filter(pa.array(~refused))
            numbers, counted = numbers[~refused], counted[~refused]
        staged.rows_read += int(counted.sum())
        skipped = batch["label"].to_numpy() == LABEL_SKIP
        if skipped.any():
            staged.skipped += int((skipped & counted).sum())
            # One that is later than an answer takes it back; by time alone, value-blind.
            sound = batch["fault"].to_numpy() == 0
            left = ~skipped | (sound & self._can_apply_withdrawals)
            batch, skipped = batch.filter(pa.array(left)), skipped[left]
            numbers, counted = numbers[left], counted[left] & ~skipped
        fault = batch["fault"].to_numpy()
        label = batch["label"].to_numpy()
        sound = fault == 0
        if not sound.all():
            index = int(np.argmin(sound))
            first = self._describe_fault(
                name, int(numbers[index]), PUBLIC_FAULTS[int(fault[index])]
            )
            staged.fault = staged.fault or first
            staged.fault_count += int((~sound).sum())
            staged.faulty[name] += 1
        for code, count in zip(*np.unique(fault[~sound], return_counts=True), strict=True):
            example = self._describe_fault(name, 0, PUBLIC_FAULTS[int(code)])
            staged.fault_reasons[f"column {example.column}: {example.reason}"] += int(count)
        invalid = sound & (label >= LABEL_FAULT)
        if self._of_tool:
            staged.outside.setdefault(name, []).extend(numbers[invalid].tolist())
        elif invalid.any():
            index = int(np.argmax(invalid))
            first = self._describe_fault(name, int(numbers[index]), LABEL_FAULTS[int(label[index])])
            staged.label_fault = staged.label_fault or first
            staged.label_fault_count += int((invalid & counted).sum())
            staged.faulty_labels[name] += 1
        usable = sound
        if self.options.quarantine:
            bad = np.unique(numbers[~sound])
            if len(bad):
                staged.bad_rows.setdefault(name, []).extend(bad.tolist())
                usable = ~np.isin(numbers, bad)
        identical = usable & batch["identical"].to_numpy(zero_copy_only=False)
        staged.identical_sides += int(identical.sum())
        usable = usable & ~identical
        if self.options.drop_ties:
            ties = label == LABEL_TIE
            if self._can_apply_withdrawals:  # as a skip does
                label = np.where(ties, np.uint8(LABEL_SKIP), label)
            else:
                usable = usable & ~ties
        # Where ties are left out these stay: only that a label is a tie was declared public.
        label = np.where(invalid & self._of_tool, np.uint8(LABEL_TIE), label)
        batch = batch.set_column(batch.schema.get_field_index("label"), "label", pa.array(label))
        return batch if usable.all() else batch.filter(pa.array(usable))

    def _describe_fault(self, file: str, row: int, fault: tuple[str, str]) -> Fault:
        role, reason = fault
        return Fault(file, row + 1, self._names.get(role, role), reason, self._csv)

    def _read_labeler_keys(self, batch: pa.RecordBatch) -> Blocks:
        """Return the pseudonym of every row's labeler."""
        if "labeler" not in batch.schema.names:
            return np.zeros((batch.num_rows, 2), np.uint64)
        known = self._find_first_labelers(batch["labeler"])
        number = known.fill_null(-1).to_numpy()
        if known.null_count:
            encoded = batch["labeler"].filter(known.is_null()).dictionary_encode()
            others = self._number_labelers(encoded.dictionary.to_pylist())
            number = number.astype(np.intp)
            number[number < 0] = others[encoded.indices.to_numpy()]
        self._answered[number[batch["label"].to_numpy() != LABEL_SKIP]] = True
        keys: Blocks = self._labeler_keys.take(number, axis=0)
        return keys

    def _find_first_labelers(self, ids: pa.Array) -> pa.Int32Array:
        """Return the numbers of ids, null where an id is not among the first labelers, (n,)."""
        count = min(len(self._labelers), _FIRST_LABELERS)
        if count > 8 * len(ids):  # the table would cost more than it saves
            return pa.nulls(len(ids), pa.int32())
        if count > len(self._first_labelers):
            self._first_labelers = pa.array(islice(self._labelers, count), pa.string())
        return pc.index_in(ids, value_set=self._first_labelers)

    def _number_labelers(self, ids: list[str]) -> NDArray[np.intp]:
        """Return the numbers of distinct ids, (n,); each is hashed once."""
        new = [labeler for labeler in ids if labeler not in self._labelers]
        if new:
            for labeler in new:
                self._labelers[labeler] = len(self._labelers)
            fresh = self._keys.hash_labelers(self.options.namespace, new)
            self._labeler_keys = np.concatenate([self._labeler_keys, fresh])
            self._answered = np.concatenate([self._answered, np.zeros(len(new), bool)])
        return np.array([self._labelers[labeler] for labeler in ids], dtype=np.intp)

    def collect_identities(self) -> Identities:
        """Return everybody who gave an answer."""
        names = list(compress(self._labelers, self._answered))  # in the order of their numbers
        keys = self._labeler_keys[self._answered]
        return Identities.of(self._keys, self.options.namespace, names, keys)

    def _read_label_authors(
        self, labelers: Blocks, batch: pa.RecordBatch
    ) -> dict[str, NDArray[np.generic]]:
        """Return who gave each label, where that is not the unit: the labeler, else the record."""
        if not self.options.links and self.options.reading.unit != "item":
            return {}
        if self.staged.labelers:
            return _split_blocks("author", labelers)
        if self.staged.recorded:
            return _split_blocks("author", self._keys.digest_rows(_read_record_columns(batch)))
        return {}

    def _find_units(self, labelers: Blocks, batch: pa.RecordBatch) -> Blocks:
        """Return the unit of every row, whose uses it takes, shape (n, 2)."""
        if self.options.links:
            return self.options.links.unit_of(labelers)
        if self.options.reading.unit == "item":
            return self._keys.hash_contents(
                canonical.digest_content_units(batch["sides"], self.connection)
            )
        return labelers


def _name_sources_and_strata(layout: Layout) -> dict[str, str]:
    """Return what messages call the columns of sources and strata."""
    columns: dict[str, list[str]] = {"source": [], "stratum": [], "number": []}
    for feature, names in layout.features.items():
        columns[feature.kind] += names
    return {f"of a {kind}": " or ".join(columns[kind]) for kind in ("source", "stratum")}


def _split_blocks(name: str, values: Blocks) -> dict[str, NDArray[np.generic]]:
    return {
        f"{name}_hi": np.ascontiguousarray(values[:, 0]),
        f"{name}_lo": np.ascontiguousarray(values[:, 1]),
    }


def _read_record_columns(batch: pa.RecordBatch) -> dict[str, NDArray[np.generic]]:
    return _split_blocks("record", _read_digests(batch, "record"))


def _read_digests(batch: pa.RecordBatch, name: str | None) -> Blocks:
    """Return the first 16 bytes of each row's SHA-256 (a binary column without nulls)."""
    array = batch[name]
    if array.null_count:
        # Only an absent optional id can be null here; absent ones share one digest.
        array = pc.fill_null(array, bytes(32))
    offset = array.offset * 32
    data = memoryview(array.buffers()[2])
    return blocks.from_bytes(data[offset : offset + 32 * len(array)], 32)
