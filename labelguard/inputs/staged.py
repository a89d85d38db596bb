"""An input on disk, as `stage` left it: its buckets in canonical order, its counts, its faults.

The order is by what is public of rows, whatever order they came in. Rows that are equal in all that
is public are sorted by their labels, so that everything made of a unit's rows is a function of the
set of its labels alone, and of no one else's. Pairs of one ranking or choice are sorted by all of
its labels together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.errors import InvalidLabels, OutsideDomain
from labelguard.inputs.codings import explain_domain
from labelguard.inputs.csv_files import find_line_of_row
from labelguard.inputs.formats import FormattedFile
from labelguard.inputs.layouts import Layout
from labelguard.inputs.query import OUTSIDE
from labelguard.inputs.readers import InputFile
from labelguard.inputs.shapes import OWN_VALUES
from labelguard.keys.identities import Identities
from labelguard.storage import blocks, buckets

_ROWS, _TEXTS = "rows", "texts"
# What `Staged.add` sums.
_COUNTS = (
    *("rows_read", "rows", "identical_sides", "fault_count", "fault_reasons", "label_fault_count"),
    *("skipped", "left_out", "refused_rows", "received", "faulty", "faulty_labels"),
)


@dataclass
class Fault:
    """A row that cannot be used: where it stands and why. Never what its label is.

    `csv` is the file, where lines of it are no rows.
    """

    file: str
    row: int
    column: str
    reason: str
    csv: Path | None = None

    def __str__(self) -> str:
        place = f"{self.file} row {self.row}"
        if self.csv:
            place += f" (line {find_line_of_row(self.csv, self.file, self.row)})"
        return f"{place}: column {self.column}: {self.reason}"


@dataclass
class Staged:
    """An input on disk: its buckets, its counts, and the digest of all that is public in it."""

    directory: Path
    buckets: int = buckets.BUCKETS
    chat: bool = False
    # The files as they are, and each of them under its format.
    files: tuple[InputFile, ...] = ()
    formatted: tuple[FormattedFile, ...] = ()
    formats: set[str] = field(default_factory=set)
    # How each file is read.
    readings: tuple[Layout, ...] = ()
    rows_read: int = 0
    rows: int = 0
    # Rows that were put into buckets: those, and skips that may take an answer back.
    received: int = 0
    identical_sides: int = 0
    # Rows whose public columns are at fault: the first, their number, and that by reason.
    fault: Fault | None = None
    fault_count: int = 0
    fault_reasons: Counter[str] = field(default_factory=Counter)
    # The first row whose label is outside the domain, and their number.
    label_fault: Fault | None = None
    label_fault_count: int = 0
    # The files that have rows of either kind.
    faulty: Counter[str] = field(default_factory=Counter)
    faulty_labels: Counter[str] = field(default_factory=Counter)
    # PRIVATE: rows of answers of tools, by file, whose labels outside the domain became ties.
    outside: dict[str, list[int]] = field(default_factory=dict, repr=False)
    # Rows without a label, left out where skip status is public, and counted in `rows_read` alone.
    skipped: int = 0
    # Answers of a tool that are no rows, by what is public of them: ground truths, drafts.
    left_out: Counter[str] = field(default_factory=Counter)
    # Answers that are not there any more, because their labeler skipped the same later.
    withdrawn: int = 0
    public_digest: bytes = b""
    content_type: pa.DataType = field(default_factory=pa.string)
    layouts: set[str] = field(default_factory=set)
    # Rows are pairs of lists of responses: of rankings or, if `choices`, of choices.
    pairs_of_rankings: bool = False
    choices: bool = False
    rankings: bool = False
    given_ids: bool = False
    questions: bool = False
    timed: bool = False
    recorded: bool = False
    labelers: bool = False
    # The column of each role, in any file of the input; `label of Q` where `--question Q` is.
    columns: dict[str, str] = field(default_factory=dict)
    # The labelers of its rows, where it tells.
    identities: Identities = field(default_factory=lambda: Identities.from_bytes(b""))
    bad_rows: dict[str, list[int]] = field(default_factory=dict)
    # Rows of labelers who have left: dropped at the door, good or bad, and in no other count.
    refused_rows: int = 0
    refused_labelers: int = 0

    def add(self, other: Staged) -> None:
        """Count what another input like this one holds, as if its files came after these."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.fault = self.fault or other.fault
        self.label_fault = self.label_fault or other.label_fault
        self.content_type = other.content_type
        for mine, theirs in ((self.outside, other.outside), (self.bad_rows, other.bad_rows)):
            for name, rows in theirs.items():
                mine.setdefault(name, []).extend(rows)

    @property
    def rows_directory(self) -> Path:
        """PRIVATE: rows by unit, with labels, in canonical order (see `sort_bucket`)."""
        return self.directory / _ROWS

    @property
    def texts_directory(self) -> Path:
        """Public texts by item."""
        return self.directory / _TEXTS

    def count_rows_per_unit(self) -> NDArray[np.int64]:
        """Return how many usable rows every unit gave, (units,); each lies whole in one bucket."""
        tables = (buckets.read_bucket(self.rows_directory, b) for b in range(self.buckets))
        units = (blocks.unique(buckets.read_blocks(table, "unit"))[1] for table in tables if table)
        return np.concatenate([np.zeros(0, np.int64), *map(np.bincount, units)])

    def refuse_bad_rows(self) -> None:
        """Stop at bad rows: the first one in full, and how many more there are."""
        if self.fault is None:
            return
        more = _count_more(self.fault_count - 1, "bad", self.faulty)
        rest = ", or set such rows aside: --bad-rows quarantine"
        rest = "" if self.fault_count >= self.rows_read else rest
        raise InvalidLabels(f"{self.fault}{more}; mend the input{rest}")

    def refuse_labels_outside_domain(self) -> None:
        """Stop at labels outside their domain. Such rows cannot be set aside: that would tell what
        their labels are.
        """
        if self.label_fault is None:
            return
        rest = _count_more(self.label_fault_count - 1, "such", self.faulty_labels)
        read = zip(self.formatted, self.readings, strict=True)
        plain = (one for file, one in read if file.format not in OWN_VALUES)
        layout = next((one for one in plain if one.kind == "pairs"), None)
        way = "" if layout else ", or name another --format"
        if layout and self.label_fault.reason == OUTSIDE:
            way = explain_domain(layout.values, *layout.sides)
        raise OutsideDomain(f"{self.label_fault}{rest}; mend the input{way}")


def _count_more(count: int, kind: str, files: Collection[str]) -> str:
    """Return how many rows have the same fault, and in how many files, if there are several."""
    where = f" in {len(files)} files" if len(files) > 1 else ""
    return f" ({count:,} more {kind} row{'s' * (count > 1)}{where})" if count else ""


_KEYS: tuple[str, ...] = ("unit_hi", "item_hi", "unit_lo", "author_hi", "author_lo", "item_lo")
_KEYS += ("pair", "submitted", "tiebreak", "label")
# Columns that rows of one label share.
_LABEL: tuple[str, ...] = _KEYS[: _KEYS.index("submitted")]
# The column that says which rows are skips, where these take back what came before.
_SKIP = "skip"
# The column that says which pairs were submitted as one list; read here alone.
_SUBMISSION = "submission"


@dataclass(frozen=True)
class Received:
    """A task for `sort_bucket`: rows as they came, `rows` and `texts` of them in `directory`.

    `pieces` are the directories of parts (`buckets.write_part`) that workers staged, each with the
    number of rows before it; without any, rows and texts lie in buckets.
    """

    staged: Path
    directory: Path
    pieces: tuple[tuple[Path, int], ...] = ()

    def read(self, view: str, bucket: int) -> pa.Table | None:
        """Return the rows or the texts of one bucket, numbered over all pieces."""
        if not self.pieces:
            return buckets.read_bucket(self.directory / view, bucket)
        tables = []
        for directory, before in self.pieces:
            table = buckets.read_parts(directory / view, bucket)
            if table is not None:
                row = pa.array(
                    buckets.read_column(table, "row").astype(np.uint64) + np.uint64(before)
                )
                at = table.schema.get_field_index("row")
                tables.append(table.set_column(at, "row", row))
        return pa.concat_tables(tables) if tables else None


@dataclass(frozen=True, repr=False)
class Sorted:
    """The outcome of `sort_bucket`: the number of rows, and of texts if it wrote any, as they came;
    how many answers were taken back, and what is public of the skips that did it. Its repr shows
    nothing.
    """

    rows: int
    texts: int
    removed: int = 0
    skips: pa.Table | None = None


def sort_bucket(task: Received, bucket: int) -> Sorted:
    """Write one bucket of staged rows in canonical order, without skips, and its texts if need be.

    A skip that is the latest of a label's submissions takes the earlier ones with it.
    """
    texts = 0
    if task.pieces:
        shown = task.read(_TEXTS, bucket)
        buckets.write_bucket(task.staged / _TEXTS, bucket, shown)
        texts = 0 if shown is None else shown.num_rows
    table = task.read(_ROWS, bucket)
    if table is None:
        buckets.write_bucket(task.staged / _ROWS, bucket, None)
        return Sorted(0, texts)
    received = table.num_rows
    table = table.take(pa.array(compute_canonical_order(table)))
    if _SUBMISSION in table.column_names:  # It tells the order of the input.
        table = table.drop_columns([_SUBMISSION])
    removed, skips = 0, None
    skipped = np.zeros(table.num_rows, bool)
    if _SKIP in table.column_names:
        skipped = buckets.read_column(table, _SKIP) == 1
        table = table.drop_columns([_SKIP])
    if skipped.any():
        names = [name for name in _LABEL if name in table.column_names]
        ends = _find_run_ends(table.select(names))
        run = np.concatenate([[0], np.cumsum(ends)[:-1]])
        withdrawn = skipped[ends][run]
        removed = int((withdrawn & ~skipped).sum())
        answers = np.bincount(run, weights=~skipped)
        skips = table.select(names).filter(pa.array(ends & skipped & (answers[run] > 0)))
        table = table.filter(pa.array(~withdrawn & ~skipped))
    buckets.write_bucket(task.staged / _ROWS, bucket, table if table.num_rows else None)
    return Sorted(received, texts, removed, skips)


def _find_run_ends(table: pa.Table) -> NDArray[np.bool_]:
    """Return which rows are the last of a run of equal ones, shape (n,)."""
    ends = np.zeros(table.num_rows, bool)
    ends[-1:] = True
    for name in table.column_names:
        values = buckets.read_column(table, name)
        ends[:-1] |= values[1:] != values[:-1]
    return ends


def compute_canonical_order(table: pa.Table) -> NDArray[np.intp]:
    """Return the permutation that sorts staged rows canonically, shape (n,)."""
    present = [name for name in _KEYS if name in table.column_names]
    first = [buckets.read_column(table, name) for name in present[:2]]
    unit = np.unique(first[0], return_inverse=True)[1]
    order = blocks.order_within(unit, first[1].astype(np.uint64, copy=False))
    # Two keyed digests decide nearly always.
    if not np.logical_and.reduce([np.diff(values[order]) == 0 for values in first]).any():
        return order
    keys = {name: buckets.read_column(table, name) for name in present}
    if _SUBMISSION in table.column_names:
        keys |= _compute_submission_sort_keys(table, keys)
    order = np.lexsort([keys[name] for name in reversed(present)])
    return order


def _compute_submission_sort_keys(
    table: pa.Table, keys: Mapping[str, NDArray[np.generic]]
) -> dict[str, NDArray[np.generic]]:
    """Return keys that all pairs of one submitted list share: the latest of several is taken whole.

    What is public of all its pairs decides first, then all its labels (as numbers, each with its
    pair, mixed by splitmix64 and summed).
    """
    _, of_row = np.unique(buckets.read_column(table, _SUBMISSION), return_inverse=True)

    def sum_per_submission(values: NDArray[np.generic]) -> NDArray[np.generic]:
        total = np.zeros(of_row.max() + 1, np.uint64)
        np.add.at(total, of_row, values.astype(np.uint64))
        return total[of_row]

    pair = keys["pair"].astype(np.uint64) << np.uint64(8)
    shared = {"label": sum_per_submission(_mix_bits(pair + keys["label"].astype(np.uint64)))}
    if "tiebreak" in keys:
        shared["tiebreak"] = sum_per_submission(keys["tiebreak"])
    return shared


def _mix_bits(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return values ^ (values >> np.uint64(31))
