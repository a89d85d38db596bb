"""Read an input once, canonically, and split it into buckets on disk.

Two views come out of the single pass. `rows/` holds what decides about labels (labeler, item,
label), split by labeler; `texts/` holds the public content, split by item. Everything but the
label column of `rows/` is public. Whether a label is in its domain is written down, not judged:
the judgement comes later, after a repeated command was recognised without looking at labels.

The order of an input may tell labels (an export sorted by them), so it is forgotten here: staged
rows are sorted by what is public of them, and the digest of an input is that of a set of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from labelguard.errors import InvalidLabels
from labelguard.inputs import canonical, query, readers
from labelguard.inputs.columns import ANSWERS, Reading
from labelguard.inputs.formats import FormattedFile, apply_format
from labelguard.inputs.layouts import Layout, merge_contents
from labelguard.inputs.left_out import describe_counts
from labelguard.inputs.quarantine import DepartedLabelers
from labelguard.inputs.query import LABEL_FAULT, LABEL_FAULTS, PUBLIC_FAULTS
from labelguard.inputs.sources import ByteLimit, Input, resolve_input
from labelguard.inputs.staged import Fault, Staged, sort_buckets
from labelguard.keys.identities import Identities
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.records import UnitGroups
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks
from labelguard.storage.buckets import BucketWriter
from labelguard.storage.executor import read_ahead
from labelguard.text import LABEL_SKIP, LABEL_TIE

# No file has more rows than these bits can count.
_FILE_BITS = 40


@dataclass(frozen=True)
class StagingOptions:
    """Options of staging: names, unit, what happens to bad rows and to public ties.

    `drop_ties` leaves ties out: only where tie status was declared public. `groups` says who
    belongs together; the unit `group` needs it, and `item` has none. `refused` are the keys of
    labelers who have left, (n, 2): their rows are treated as if they were not there.
    `max_input_bytes` is how much an input may unpack to; by default what its files' sizes let one
    expect. `spool` is a private directory to keep standard input in; by default one in TMPDIR.
    """

    reading: Reading
    namespace: str
    quarantine: bool = False
    drop_ties: bool = False
    groups: UnitGroups | None = None
    refused: Blocks | None = None
    max_input_bytes: int | None = None
    spool: Path | None = None

    def __post_init__(self) -> None:
        if self.reading.unit != "labeler" and (self.groups is None) == (
            self.reading.unit == "group"
        ):
            raise InvalidLabels(
                "groups of labelers go with --unit group, which needs them, or labeler, where "
                "several ids may be one person"
            )


def stage(
    source: Input,
    directory: Path,
    keys: KeyRing,
    options: StagingOptions,
    progress: Callable[[str, int], None] = lambda name, rows: None,
) -> Staged:
    """Read `source` into `directory`.

    Raises `InvalidLabels` for unreadable files, wrong columns and, unless bad rows are set aside,
    at the first row whose public columns are at fault.
    """
    staged = Staged(directory)
    reading = options.reading
    files = resolve_input(source, reading.split, reading.columns, options.spool)
    with (
        BucketWriter(staged.rows_directory) as rows,
        BucketWriter(staged.texts_directory) as texts,
        readers.connect(directory / "spill") as connection,
    ):
        stager = _Stager(staged, keys, options, connection)
        # Every file is looked at before any is read: a wrong column in the last one shows at once,
        # and chats whose members differ from file to file get one type.
        formatted = [apply_format(file, connection, reading) for file in files]
        layouts = [entry.find_layout(connection) for entry in formatted]
        content = merge_contents(files, layouts)
        for file, entry in zip(files, formatted, strict=True):
            reasons = readers.read_rows(file, connection, entry.left_out) if entry.left_out else []
            staged.left_out.update(dict(reasons))
        limit = ByteLimit.for_files(files, options.max_input_bytes)
        for entry, layout in zip(formatted, layouts, strict=True):
            stager.begin_file(entry, layout)
            sql = query.canonical_query(layout, content)
            for batch in read_ahead(readers.read_batches(entry.file, connection, sql)):
                limit.take(entry.file.name, batch.nbytes)
                stager.append(entry.file.name, batch, rows, texts)
                progress(entry.file.name, staged.rows_read)
    if not staged.rows_read and staged.refused_rows:
        raise InvalidLabels(
            "every row of the input is of labelers who were retired or erased; nothing is left"
        )
    if not staged.rows_read:
        left_out = staged.left_out
        why = f"nothing is a label; left out: {describe_counts(left_out)}" if left_out else ""
        raise InvalidLabels(f"{files[0].name}: {why or 'no rows in the input'}")
    stager.remove_withdrawn(staged.rows_directory)
    staged.public_digest = stager.public_digest()
    staged.columns = _columns_of_roles(formatted, layouts)
    staged.files, staged.formatted = tuple(files), tuple(formatted)
    staged.formats = {entry.format for entry in formatted}
    staged.own_values = {entry.format for entry in formatted if entry.has_own_values}
    staged.identities = stager.identities()
    return staged


def _columns_of_roles(formatted: list[FormattedFile], layouts: list[Layout]) -> dict[str, str]:
    """Return the column of each role; with one question, what answers it is its own role."""
    columns = {}
    for file, layout in zip(formatted, layouts, strict=True):
        question = layout.reading.question
        for role, name in layout.columns.items():
            key = f"{role} of {question}" if question and role in ANSWERS else role
            columns[key] = file.recorded.get(role, name)
    return columns


class _Stager:
    """Writer of canonical batches as bucketed rows and texts."""

    def __init__(
        self,
        staged: Staged,
        keys: KeyRing,
        options: StagingOptions,
        connection: duckdb.DuckDBPyConnection,
    ) -> None:
        self.staged = staged
        self.options = options
        self._digest = np.zeros(2, np.uint64)
        self._keys = keys
        self._connection = connection
        self._departed = DepartedLabelers(keys, options.namespace, options.refused)
        self._labelers: dict[str, int] = {}
        self._answered: NDArray[np.bool_] = np.zeros(0, bool)
        self._labeler_keys: Blocks = np.zeros((0, 2), np.uint64)
        self._file_rows = self._file_number = 0
        self._of_tool = False

    def begin_file(self, formatted: FormattedFile, layout: Layout) -> None:
        """Start a file; all files must give the same kinds of columns."""
        staged, columns = self.staged, layout.columns
        shape = {
            "chat": layout.content.chat,
            "pairs_of_rankings": layout.is_list,
            "choices": layout.kind == "choices",
            "rankings": layout.is_list or "ranking_id" in columns,
            "given_ids": "item_id" in columns,
            "questions": layout.has_questions,
            "timed": "submitted_at" in columns,
            "recorded": "record_id" in columns,
            "labelers": "labeler_id" in columns,
        }
        if staged.layouts and any(getattr(staged, key) != value for key, value in shape.items()):
            raise InvalidLabels(
                f"{formatted.file.name}: its columns differ from those of the files before it; "
                "privatize files of one kind together"
            )
        for key, value in shape.items():
            setattr(staged, key, value)
        staged.layouts.add(layout.kind)
        self._names = {**layout.columns, **formatted.names, **_feature_names(layout)}
        self._file_rows = 0
        self._file_number += 1
        self._of_tool = formatted.file.answers is not None

    def append(
        self, name: str, batch: pa.RecordBatch, rows: BucketWriter, texts: BucketWriter
    ) -> None:
        """Check a batch's public columns, then append its usable rows to their buckets."""
        batch = self._usable(name, batch)
        if not batch.num_rows:
            return
        blank = batch["label"].to_numpy() == LABEL_SKIP
        content = _read_digests(batch, "content")
        items = _read_digests(batch, "given_id") if self.staged.given_ids else content
        labelers = self._labeler_blocks(batch)
        units = self._units(labelers, batch)
        # Skips have no number, no text and no digest: what they do is seen once rows are sorted.
        numbers = np.cumsum(~blank, dtype=np.uint64) + np.uint64(self.staged.rows) - np.uint64(1)
        self.staged.rows += int((~blank).sum())

        columns = _split_blocks("unit", units) | _split_blocks("item", items)
        columns |= self._label_authors(labelers, batch)
        for name in ("pair", "size"):  # of rankings
            if name in batch.schema.names:
                columns[name] = batch[name].to_numpy()
        if self.staged.rankings:
            grouping = "ranking" if "ranking" in batch.schema.names else None
            columns |= _split_blocks("group", _read_digests(batch, grouping) if grouping else items)
        if self.staged.timed:
            time = pc.fill_null(batch["submitted"], pa.scalar(np.iinfo(np.int64).min, pa.int64()))
            columns["submitted"] = time.to_numpy()
        if self._has_withdrawals:
            columns["skip"] = blank.astype(np.uint8)
        label = batch["label"].to_numpy()
        names = [name for feature in self.options.reading.features for name in feature.columns]
        carried = {name: batch[name] for name in names}
        attached = {n: v.to_numpy() for n, v in carried.items() if pa.types.is_floating(v.type)}
        if "carried" in batch.schema.names:  # the names among them
            attached |= _split_blocks("carried", _read_digests(batch, "carried"))
        if self.staged.given_ids:
            attached |= _split_blocks("content", content)
        # Times and records only say which of a labeler's rows comes first. They are in no digest of
        # the input: numbers of rows that are sorted by label change with a label.
        public = {name: columns[name] for name in columns if name not in ("submitted", "skip")}
        digests = self._keys.digests(public | attached)
        self._digest += digests[~blank].sum(axis=0, dtype=np.uint64)
        if self.staged.recorded:
            digests = self._keys.digests(public | attached | _record_columns(batch))
        if self.staged.recorded or attached or "ranking" in batch.schema.names:
            # Rows may be equal but for these.
            columns["tiebreak"] = np.ascontiguousarray(digests[:, 0])
        if self.staged.given_ids:
            columns["content"] = np.ascontiguousarray(content[:, 0])
        if self.staged.pairs_of_rankings:
            submission = batch["source_row"].to_numpy().astype(np.uint64)
            columns["submission"] = submission + np.uint64(self._file_number << _FILE_BITS)
        columns |= {"row": numbers, "label": label}
        rows.append(pa.table(columns), buckets.bucket_of(units))

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
        texts.append(table, buckets.bucket_of(items))

    def public_digest(self) -> bytes:
        """Return a keyed digest of the multiset of rows, by public columns: no order enters it.

        The sum of pseudorandom numbers, one a row (MSet-Add-Hash of Clarke et al. 2003).
        """
        count = np.array([self.staged.rows], np.uint64)
        return np.concatenate([count, self._digest]).astype(">u8").tobytes()

    def remove_withdrawn(self, directory: Path) -> None:
        """Sort the rows, and leave out answers whose labeler skipped the same later."""
        for removed, skips in sort_buckets(directory):
            self.staged.withdrawn += removed
            if skips is not None:
                columns = {f"skip {name}": skips[name].to_numpy() for name in skips.column_names}
                self._digest += self._keys.digests(columns).sum(axis=0, dtype=np.uint64)

    @property
    def _has_withdrawals(self) -> bool:
        """True where it is known what a skip takes back: when it was, and whose."""
        return self.staged.timed and (self.staged.labelers or self.staged.recorded)

    def _usable(self, name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
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
        refused = self._departed.rows_of(batch)
        if refused.any():
            staged.refused_rows += int((refused & counted).sum())
            staged.refused_labelers = self._departed.count
            batch = batch.filter(pa.array(~refused))
            numbers, counted = numbers[~refused], counted[~refused]
        staged.rows_read += int(counted.sum())
        skipped = batch["label"].to_numpy() == LABEL_SKIP
        if skipped.any():
            staged.skipped += int((skipped & counted).sum())
            # One that is later than an answer takes it back; by time alone, value-blind.
            sound = batch["fault"].to_numpy() == 0
            left = ~skipped | (sound & self._has_withdrawals)
            batch, skipped = batch.filter(pa.array(left)), skipped[left]
            numbers, counted = numbers[left], counted[left] & ~skipped
        fault = batch["fault"].to_numpy()
        label = batch["label"].to_numpy()
        sound = fault == 0
        for index in np.flatnonzero(~sound)[: 3 if self.options.quarantine else 1].tolist():
            staged.faults.append(
                self._fault(name, int(numbers[index]), PUBLIC_FAULTS[int(fault[index])])
            )
        staged.fault_count += int((~sound).sum())
        for code, count in zip(*np.unique(fault[~sound], return_counts=True), strict=True):
            example = self._fault(name, 0, PUBLIC_FAULTS[int(code)])
            staged.fault_reasons[f"column {example.column}: {example.reason}"] += int(count)
        if not self.options.quarantine:
            staged.raise_for(staged.faults, staged.fault_count)
        invalid = sound & (label >= LABEL_FAULT)
        if self._of_tool:
            staged.outside.setdefault(name, []).extend(numbers[invalid].tolist())
        elif invalid.any():
            index = int(np.argmax(invalid))
            first = self._fault(name, int(numbers[index]), LABEL_FAULTS[int(label[index])])
            staged.label_fault = staged.label_fault or first
            staged.label_fault_count += int((invalid & counted).sum())
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
            if self._has_withdrawals:  # as a skip does
                label = np.where(ties, np.uint8(LABEL_SKIP), label)
            else:
                usable = usable & ~ties
        # Where ties are left out these stay: only that a label is a tie was declared public.
        label = np.where(invalid & self._of_tool, np.uint8(LABEL_TIE), label)
        batch = batch.set_column(batch.schema.get_field_index("label"), "label", pa.array(label))
        return batch if usable.all() else batch.filter(pa.array(usable))

    def _fault(self, file: str, row: int, fault: tuple[str, str]) -> Fault:
        role, reason = fault
        column = " or ".join(self._names.get(r, r) for r in role.split(" or "))
        return Fault(file, row + 1, column, reason)

    def _labeler_blocks(self, batch: pa.RecordBatch) -> Blocks:
        """Return the pseudonym of every row's labeler; each distinct id is hashed once."""
        if "labeler" not in batch.schema.names:
            return np.zeros((batch.num_rows, 2), np.uint64)
        encoded = batch["labeler"].dictionary_encode()
        ids = encoded.dictionary.to_pylist()
        new = [labeler for labeler in ids if labeler not in self._labelers]
        if new:
            for labeler in new:
                self._labelers[labeler] = len(self._labelers)
            fresh = self._keys.labeler_keys(self.options.namespace, new)
            self._labeler_keys = np.concatenate([self._labeler_keys, fresh])
            self._answered = np.concatenate([self._answered, np.zeros(len(new), bool)])
        codes = np.array([self._labelers[labeler] for labeler in ids], dtype=np.intp)
        number = codes[encoded.indices.to_numpy()]
        self._answered[number[batch["label"].to_numpy() != LABEL_SKIP]] = True
        keys: Blocks = self._labeler_keys[number]
        return keys

    def identities(self) -> Identities:
        """Return everybody who gave an answer."""
        names = list(compress(self._labelers, self._answered))  # in the order of their numbers
        keys = self._labeler_keys[self._answered]
        return Identities.of(self._keys, self.options.namespace, names, keys)

    def _label_authors(
        self, labelers: Blocks, batch: pa.RecordBatch
    ) -> dict[str, NDArray[np.generic]]:
        """Return who gave each label, where that is not the unit: the labeler, else the record."""
        if self.options.groups is None and self.options.reading.unit != "item":
            return {}
        if self.staged.labelers:
            return _split_blocks("author", labelers)
        if self.staged.recorded:
            return _split_blocks("author", self._keys.digests(_record_columns(batch)))
        return {}

    def _units(self, labelers: Blocks, batch: pa.RecordBatch) -> Blocks:
        """Return the unit of every row, whose uses it takes, shape (n, 2)."""
        if self.options.groups is not None:
            return self.options.groups.unit_of(labelers)
        if self.options.reading.unit == "item":
            return self._keys.content_units(
                canonical.compute_unit_digests(batch["sides"], self._connection)
            )
        return labelers


def _feature_names(layout: Layout) -> dict[str, str]:
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


def _record_columns(batch: pa.RecordBatch) -> dict[str, NDArray[np.generic]]:
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


def canonical_rows(path: Path, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield batches as staging gets them, whatever is wrong with their labels.

    Raises `InvalidLabels` for a file that cannot be read so.
    """
    (file,) = resolve_input(path, named=reading.columns)
    with readers.connect(path.parent / "spill") as connection:
        formatted = apply_format(file, connection, reading)
        layout = formatted.find_layout(connection)
        sql = query.canonical_query(layout, layout.content)
        yield from readers.read_batches(formatted.file, connection, sql)
