"""An input on disk, as `stage` left it: its buckets in canonical order, its counts, its faults.

The order is by what is public of rows, whatever order they came in. Rows that are equal in all that
is public are sorted by their labels, so that everything made of a unit's rows is a function of the
set of its labels alone, and of no one else's. Pairs of one ranking or choice are sorted by all of
its labels together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.errors import InvalidLabels, OutsideDomain
from labelguard.inputs.formats import Understood
from labelguard.inputs.sources import Part
from labelguard.keys.identities import Identities
from labelguard.storage import blocks, buckets
from labelguard.storage.executor import open_executor, over_buckets


@dataclass
class Fault:
    """A row that cannot be used: where it stands and why. Never what its label is."""

    part: str
    row: int
    column: str
    reason: str

    def __str__(self) -> str:
        return f"{self.part} row {self.row}: column {self.column}: {self.reason}"


@dataclass
class Staged:
    """An input on disk: its buckets, its counts, and the digest of all that is public in it."""

    directory: Path
    chat: bool = False
    parts: tuple[Part, ...] = ()
    """What was given, each part as it is."""
    understood: tuple[Understood, ...] = ()
    """What was read, each of them under its format."""
    formats: set[str] = field(default_factory=set)
    own_values: set[str] = field(default_factory=set)
    """Those that say what their labels mean, whatever the policy does."""
    rows_read: int = 0
    rows: int = 0
    identical_sides: int = 0
    faults: list[Fault] = field(default_factory=list)
    fault_count: int = 0
    fault_reasons: Counter[str] = field(default_factory=Counter)
    """How many rows cannot be used for which reason, wherever they stand."""
    label_fault: Fault | None = None
    """The first row whose label is outside the domain; `label_fault_count` says how many there are.
    """
    label_fault_count: int = 0
    outside: dict[str, list[int]] = field(default_factory=dict, repr=False)
    """PRIVATE: rows of answers of tools, by part, whose labels outside the domain became ties."""
    skipped: int = 0
    """Rows without a label, left out where skip status is public, and in no other count but
    `rows_read`.
    """
    left_out: Counter[str] = field(default_factory=Counter)
    """Answers of a tool that are no rows, by what is public of them: ground truths, drafts."""
    withdrawn: int = 0
    """Answers that are not there any more, because their labeler skipped the same later."""
    public_digest: bytes = b""
    content_type: pa.DataType = field(default_factory=pa.string)
    layouts: set[str] = field(default_factory=set)
    pairs_of_rankings: bool = False
    """Rows are pairs of lists of responses: of rankings or, if `choices`, of choices."""
    choices: bool = False
    rankings: bool = False
    given_ids: bool = False
    questions: bool = False
    timed: bool = False
    recorded: bool = False
    labelers: bool = False
    columns: dict[str, str] = field(default_factory=dict)
    """The column of each role, in any part of the input; `label of Q` where `--question Q` is."""
    identities: Identities = field(default_factory=lambda: Identities.from_bytes(b""))
    """Who gave its rows, where it tells."""
    bad_rows: dict[str, list[int]] = field(default_factory=dict)
    refused_rows: int = 0
    """Rows of labelers who have left: dropped at the door, good or bad, and in no other count."""
    refused_labelers: int = 0

    @property
    def rows_directory(self) -> Path:
        """PRIVATE: rows by unit, with labels, in canonical order (see `labelguard.ordering`)."""
        return self.directory / "rows"

    @property
    def texts_directory(self) -> Path:
        """Public texts by item."""
        return self.directory / "texts"

    def labels_of_units(self) -> NDArray[np.int64]:
        """How many usable rows every unit gave, (units,); each lies whole in one bucket."""
        found = (buckets.read_bucket(self.rows_directory, b) for b in range(buckets.BUCKETS))
        units = (blocks.unique(buckets.blocks(table, "unit"))[1] for table in found if table)
        return np.concatenate([np.zeros(0, np.int64), *map(np.bincount, units)])

    def raise_for(self, faults: list[Fault], count: int) -> None:
        """Stop at bad rows: the first one in full, and how many more there are."""
        if not count:
            return
        more = f" ({count - 1} more bad rows)" if count > 1 else ""
        raise InvalidLabels(
            f"{faults[0]}{more}; mend the input or set such rows aside: --bad-rows quarantine"
        )

    def raise_for_labels(self) -> None:
        """Stop at labels outside their domain. Such rows cannot be set aside: that would tell what
        their labels are.
        """
        if self.label_fault is None:
            return
        more = self.label_fault_count - 1
        rest = f" ({more} more such rows)" if more else ""
        raise OutsideDomain(f"{self.label_fault}{rest}; {self._remedy}")

    @property
    def _remedy(self) -> str:
        """What to do about labels outside their domain, whatever they are."""
        if self.own_values:
            own = ", ".join(sorted(self.own_values))
            return f"mend the input, or name another --format than {own}"
        return (
            "mend the input, or say beforehand how labels are coded: --label-values a-b, "
            "left-right, 1-2 or true-false, or every value: --label-values a=win,b=loss,tie=draw"
        )


_KEYS: tuple[str, ...] = ("unit_hi", "item_hi", "unit_lo", "author_hi", "author_lo", "item_lo")
_KEYS += ("pair", "submitted", "tiebreak", "label")
_LABEL: tuple[str, ...] = _KEYS[: _KEYS.index("submitted")]
"""What rows of one label share."""
_SKIP = "skip"
"""The column that says which rows are skips, where these take back what came before."""
_SUBMISSION = "submission"
"""The column that says which pairs were submitted as one list; read here alone."""


def sort_buckets(directory: Path) -> Iterator[tuple[int, pa.Table | None]]:
    """Rewrite every bucket of staged rows in canonical order, without skips.

    A skip that is the latest of a label's submissions takes the earlier ones with it. Yields, for
    every bucket, how many answers went that way, and what is public of such skips.
    """
    yield from filter(None, over_buckets(open_executor(), _sort, directory))


def _sort(directory: Path, bucket: int) -> tuple[int, pa.Table | None] | None:
    table = buckets.read_bucket(directory, bucket)
    if table is None:
        return None
    table = table.take(pa.array(canonical_order(table)))
    if _SUBMISSION in table.column_names:  # It tells the order of the input.
        table = table.drop_columns([_SUBMISSION])
    removed, skips = 0, None
    skipped = np.zeros(table.num_rows, bool)
    if _SKIP in table.column_names:
        skipped = buckets.column(table, _SKIP) == 1
        table = table.drop_columns([_SKIP])
    if skipped.any():
        names = [name for name in _LABEL if name in table.column_names]
        ends = _ends(table.select(names))
        run = np.concatenate([[0], np.cumsum(ends)[:-1]])
        withdrawn = skipped[ends][run]
        removed = int((withdrawn & ~skipped).sum())
        answers = np.bincount(run, weights=~skipped)
        skips = table.select(names).filter(pa.array(ends & skipped & (answers[run] > 0)))
        table = table.filter(pa.array(~withdrawn & ~skipped))
    if table.num_rows:
        buckets.write_bucket(directory, bucket, table)
    else:
        buckets.bucket_path(directory, bucket).unlink()
    return removed, skips


def _ends(table: pa.Table) -> NDArray[np.bool_]:
    """Which rows are the last of a run of equal ones, shape (n,)."""
    ends = np.zeros(table.num_rows, bool)
    ends[-1:] = True
    for name in table.column_names:
        values = buckets.column(table, name)
        ends[:-1] |= values[1:] != values[:-1]
    return ends


def canonical_order(table: pa.Table) -> NDArray[np.intp]:
    """The permutation that sorts staged rows canonically, shape (n,)."""
    present = [name for name in _KEYS if name in table.column_names]
    first = [buckets.column(table, name) for name in present[:2]]
    order: NDArray[np.intp] = np.lexsort(first[::-1])
    # Two keyed digests decide nearly always.
    if not np.logical_and.reduce([np.diff(values[order]) == 0 for values in first]).any():
        return order
    keys = {name: buckets.column(table, name) for name in present}
    if _SUBMISSION in table.column_names:
        keys |= _shared(table, keys)
    order = np.lexsort([keys[name] for name in reversed(present)])
    return order


def _shared(
    table: pa.Table, keys: Mapping[str, NDArray[np.generic]]
) -> dict[str, NDArray[np.generic]]:
    """Keys that all pairs of one submitted list share: the latest of several is taken whole.

    What is public of all its pairs decides first, then all its labels (as numbers, each with its
    pair, mixed by splitmix64 and summed).
    """
    _, of_row = np.unique(buckets.column(table, _SUBMISSION), return_inverse=True)

    def whole(values: NDArray[np.generic]) -> NDArray[np.generic]:
        total = np.zeros(of_row.max() + 1, np.uint64)
        np.add.at(total, of_row, values.astype(np.uint64))
        return total[of_row]

    pair = keys["pair"].astype(np.uint64) << np.uint64(8)
    shared = {"label": whole(_mixed(pair + keys["label"].astype(np.uint64)))}
    if "tiebreak" in keys:
        shared["tiebreak"] = whole(keys["tiebreak"])
    return shared


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    return values ^ (values >> np.uint64(31))
