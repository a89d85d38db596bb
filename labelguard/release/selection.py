"""The labels that a release may touch and charge, bucket by bucket, from public columns only.

Every unit has an allowance of k uses. Labels that were released before keep their value and cost
nothing; new labels take what is left in the order of a keyed hash of labeler and item, never by
label or arrival, and of randomized response they are put into blocks in that order. A ranking is
taken or left as a whole. The label column is not read here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.budget.policy import Bound
from labelguard.inputs.staged import Staged
from labelguard.keys.keyring import KeyRing
from labelguard.keys.prf import RowKeys, Split, Splits
from labelguard.ledger.records import LabelerTable
from labelguard.project import private_map
from labelguard.project.private_map import RememberedLabels
from labelguard.project.project import Project
from labelguard.release.allocation import (
    assign_blocks,
    count_uses,
    find_latest_rows,
    number_rankings,
    read_label_authors,
    select_fitting_groups,
)
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks
from labelguard.storage.executor import Executor, run_over_buckets
from labelguard.storage.files import fresh_directory
from labelguard.text import LABEL_TIE

# The label column of a staged bucket is not among what planning may read.
PUBLIC: tuple[str, ...] = ("row", "unit_hi", "unit_lo", "author_hi", "author_lo", "item_hi")
PUBLIC += ("item_lo", "pair", "group_hi", "group_lo", "content", "size")


@dataclass(frozen=True)
class SelectionTask:
    """A task for `select_bucket`: by what the labels of every bucket are selected.

    `staged` holds the input's rows in so many `buckets`, `released` the private maps, of which
    those of the releases `earlier` are known, each of so many files; selected rows go to
    `selected`. `labelers`: rows say whose they are. Labels of units who are not of the `part` are
    left where they are, as if they were not there. `again`: every label is drawn anew as its next
    version. `released_only`: take no label but those that were released (a release that was drawn
    is being finished).
    """

    staged: Path
    buckets: int
    selected: Path
    released: Path
    earlier: Mapping[str, int]
    keys: RowKeys
    ledger: LabelerTable = field(repr=False)
    bound: Bound
    labelers: bool
    parts: Splits
    part: Split
    again: bool
    released_only: bool


@dataclass(frozen=True, repr=False)
class SelectedRows:
    """The labels of one bucket that go into a release; columns are (n,), `key` and `author` (n, 2).

    `index` is the row of the staged bucket, `unit` that of the unit in `Selection.units`; `new`
    labels have to be drawn as `version`, in block number `block` of the bucket; the rest has the
    `value` it was drawn with, in a block of this `threshold` and `block_labels`. `content` tells
    contents of a given id apart.
    Its repr shows nothing.
    """

    index: NDArray[np.intp]
    unit: NDArray[np.intp]
    block: NDArray[np.intp]
    author: Blocks
    key: Blocks
    new: NDArray[np.bool_]
    version: NDArray[np.uint32]
    value: NDArray[np.uint8]
    threshold: NDArray[np.uint64]
    block_labels: NDArray[np.uint16]
    content: NDArray[np.uint64]

    def __getitem__(self, rows: NDArray[np.generic]) -> SelectedRows:
        """Return some of the rows, by mask or index."""
        if rows.dtype == bool and rows.all():
            return self
        rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        columns = (getattr(self, field.name) for field in fields(self))
        return SelectedRows(*(column.take(rows, axis=0) for column in columns))

    def to_arrow(self) -> pa.Table:
        """Return a table; `from_arrow` is the inverse."""
        columns = {name: getattr(self, name) for name in _NUMBERS}
        for name in _BLOCKS:
            values = getattr(self, name)
            columns |= {f"{name}_hi": values[:, 0], f"{name}_lo": values[:, 1]}
        return pa.table(columns | {"new": self.new.view(np.uint8)})

    @classmethod
    def from_arrow(cls, table: pa.Table) -> SelectedRows:
        """Return the rows of a table of `to_arrow`."""
        columns = {name: buckets.read_column(table, name) for name in _NUMBERS}
        columns["new"] = columns["new"].astype(bool)
        columns |= {name: buckets.read_blocks(table, name) for name in _BLOCKS}
        return cls(**columns)  # type: ignore[arg-type]


_BLOCKS = ("author", "key")
_NUMBERS = tuple(field.name for field in fields(SelectedRows) if field.name not in _BLOCKS)


@dataclass(frozen=True)
class Selection:
    """The rows of one bucket, or all of them, in a release, and what they cost.

    `units` (n, 2) are the labelers, linked ones as one, with `capacity` (k, uses in all), `charged`
    (new uses) and `short` (uses beyond the allowance, of labelers who were charged before), each
    of shape (n,). `drawn` of the `rows` are new. `over_bound` labels are left out, of which
    `over_allowance` for want of allowance alone. `other_labels` of `other_units` are of the other
    part: held out where this trains, and the reverse. `unit_pairs` are pairs of answers that one
    unit gave to one item, by linked labelers.
    """

    units: Blocks = field(repr=False)
    capacity: NDArray[np.int64]
    charged: NDArray[np.int64]
    short: NDArray[np.int64]
    rows: int
    drawn: int
    duplicates: int
    over_bound: int
    over_allowance: int
    changed_items: int
    other_units: int
    other_labels: int
    unit_pairs: int


def select_bucket(task: SelectionTask, bucket: int) -> Selection | None:
    """Select one bucket's labels and write them down; None if the bucket is empty."""
    table = buckets.read_bucket(task.staged, bucket)
    if table is None:
        buckets.write_bucket(task.selected, bucket, None)
        return None
    public = table.select([name for name in PUBLIC if name in table.column_names])
    labels = _Labels.from_table(task, public, bucket)
    capacity, used = task.ledger.find_usage(labels.units)
    # A new labeler meets their bound; only who was charged before can be exhausted.
    exhaustible = (capacity > 0) & (not task.bound.contents)
    capacity = np.where(capacity > 0, capacity, task.bound.allowed).astype(np.int64)

    new, taken = _find_candidates(task, labels, used)
    order = task.keys.order(labels.identity)
    if task.bound.most_labels is not None:
        released = np.bincount(labels.unit[taken & ~new], minlength=len(labels.units))
        room = np.maximum(task.bound.most_labels - released, 0)
        taken &= ~new | _select_fitting(labels, order, new & taken, room)
    bounded = int(taken.sum())
    wanted = count_uses(labels.unit[new & taken], len(labels.units), task.bound)
    left = capacity - used
    over = new & taken & (wanted > left)[labels.unit]
    taken &= ~over | _select_fitting(labels, order, over, left * (task.bound.block or 0))
    block = assign_blocks(labels.unit, order, new & taken, task.bound)
    rows = labels.to_selected_rows(task, new, block)[taken]
    buckets.write_bucket(task.selected, bucket, rows.to_arrow())
    charged = count_uses(rows.unit[rows.new], len(labels.units), task.bound)
    return Selection(
        units=labels.units,
        capacity=capacity,
        charged=charged,
        short=np.where(exhaustible, wanted - charged, 0),
        rows=len(rows.index),
        drawn=int(rows.new.sum()),
        duplicates=labels.duplicates,
        over_bound=int((~taken).sum()),
        over_allowance=bounded - int(taken.sum()),
        changed_items=int(
            (labels.is_released & (labels.read_map_column("content", 0) != labels.content)).sum()
        ),
        other_units=labels.other_units,
        other_labels=labels.other_labels,
        unit_pairs=labels.count_repeat_answer_pairs(taken),
    )


@dataclass(frozen=True, repr=False)
class _Labels:
    """The latest submission of every label of a bucket, and where it stands in the private map.

    Columns are (n,) or (n, 2); `unit` indexes `units`, `known` the rows of `released`, or is -1;
    `identity` is what rows of one author and item, or ranking (`group`), share. Of units of the
    other part it holds counts alone.
    """

    index: NDArray[np.intp]
    units: Blocks
    unit: NDArray[np.intp]
    author: Blocks
    item: Blocks
    group: Blocks
    identity: Blocks
    key: Blocks
    pair: NDArray[np.uint16]
    content: NDArray[np.uint64]
    released: RememberedLabels
    known: NDArray[np.intp]
    duplicates: int
    other_units: int
    other_labels: int

    @classmethod
    def from_table(cls, task: SelectionTask, table: pa.Table, bucket: int) -> _Labels:
        """Return the labels of the public columns of a staged bucket."""
        author = read_label_authors(table, labelers=task.labelers)
        item = buckets.read_blocks(table, "item")
        pair = _read_column_or_zeros(table, "pair").astype(np.uint16)
        identity = task.keys.identify(author, item)
        key = task.keys.keys(identity, pair)
        whose = buckets.read_blocks(table, "unit")
        of_part = task.parts.is_in(whose, task.part)
        latest = find_latest_rows(key)
        index = latest[of_part[latest]]
        units, unit = blocks.unique(whose.take(index, axis=0))
        columns = (author, item, identity, key)
        author, item, identity, key = (column.take(index, axis=0) for column in columns)
        group = item
        if "group_hi" in table.column_names:
            group = buckets.read_blocks(table, "group").take(index, axis=0)
            identity = task.keys.identify(author, group)
        released = private_map.read_bucket(task.released, bucket, task.buckets, task.earlier)
        return cls(
            index,
            units,
            unit,
            author,
            item,
            group,
            identity,
            key,
            pair[index],
            _read_column_or_zeros(table, "content")[index].astype(np.uint64),
            released,
            blocks.find_positions(released.keys, key),
            duplicates=int(of_part.sum()) - len(index),
            other_units=len(blocks.unique(whose[~of_part])[0]),
            other_labels=len(latest) - len(index),
        )

    @property
    def is_released(self) -> NDArray[np.bool_]:
        """Return True for labels that were released before, (n,)."""
        return self.known >= 0

    def count_repeat_answer_pairs(self, rows: NDArray[np.bool_]) -> int:
        """Count pairs among some rows that are answers of one unit to the same pair of an item."""
        if not blocks.differ(self.author, self.units.take(self.unit, axis=0)).any():
            return 0  # each has one label of a pair at most
        item = blocks.unique(self.item[rows])[1]
        same = np.lexsort((self.pair[rows], item, self.unit[rows]))
        columns = np.stack([self.unit[rows], item, self.pair[rows]], axis=1)[same]
        starts = np.flatnonzero(np.r_[True, (np.diff(columns, axis=0) != 0).any(axis=1)])
        answers = np.diff(np.r_[starts, len(columns)])
        return int((answers * (answers - 1) // 2).sum())

    def read_map_column(self, name: str, default: int) -> NDArray[Any]:
        """Return a column of the private map; `default` for labels that are not in it."""
        values = getattr(self.released, name)
        column = np.full(len(self.known), default).astype(values.dtype)
        column[self.is_released] = values[self.known[self.is_released]]
        return column

    def to_selected_rows(
        self, task: SelectionTask, new: NDArray[np.bool_], block: NDArray[np.intp]
    ) -> SelectedRows:
        """Return all of them as they would be released."""
        version = self.read_map_column("version", 0)
        return SelectedRows(
            index=self.index,
            unit=self.unit,
            block=block,
            author=self.author if task.labelers else np.zeros_like(self.author),
            key=self.key,
            new=new,
            version=version + (new & self.is_released) if task.again else version,
            value=self.read_map_column("value", LABEL_TIE),
            threshold=self.read_map_column("threshold", 0),
            block_labels=self.read_map_column("block_labels", 0),
            content=self.content,
        )


def _find_candidates(
    task: SelectionTask, labels: _Labels, used: NDArray[np.int64]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return labels to draw, and labels to take at all, if no labeler were exhausted, (n,)."""
    released = labels.is_released
    if task.released_only:
        return np.zeros(len(released), bool), released
    new, taken = ~released | task.again, np.ones(len(released), bool)
    if task.bound.once and not task.again:
        closed = (used > 0)[labels.unit] & ~released
        return new & ~closed, ~closed
    return new, taken


def _select_fitting(
    labels: _Labels,
    order: NDArray[np.uint64],
    candidates: NDArray[np.bool_],
    left: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """Return True for `candidates`, (n,), that fit into what is `left` of labels, (units,)."""
    # Of most units all do.
    crowded = (np.bincount(labels.unit[candidates], minlength=len(left)) > left)[labels.unit]
    rows, fits = np.flatnonzero(candidates & crowded), candidates & ~crowded
    if len(rows):
        rankings = number_rankings(labels.author[rows], labels.group[rows])
        fits[rows] = select_fitting_groups(labels.unit[rows], rankings, order[rows], left)
    return fits


def _read_column_or_zeros(table: pa.Table, name: str) -> NDArray[np.generic]:
    """Return a column, or zeros where the input has none."""
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.uint8)
    return buckets.read_column(table, name)


@dataclass(frozen=True)
class PlannedRows(Selection):
    """The rows of a release, and what they charge. `directory` holds the selected rows per bucket.

    `first_unit` says where the labelers of each bucket begin in `units`.
    """

    directory: Path
    first_unit: dict[int, int]

    @property
    def new_uses(self) -> int:
        """Return uses that have to be charged: of each new block of labels, or labeler with any."""
        return int(self.charged.sum())


def plan_rows(
    staged: Staged,
    project: Project,
    keys: KeyRing,
    ledger: LabelerTable,
    *,
    again: bool,
    finished: str | None,
    earlier: Collection[str],
    bound: Bound,
    part: Split,
    held_out: float,
    executor: Executor,
    progress: Callable[[float], None],
) -> PlannedRows:
    """Select rows bucket by bucket and write them to the work directory.

    `finished` names the release that is being resumed, if it was drawn already; `earlier` are the
    releases whose labels are known, it among them, unless its kind of event knows none. Of the
    units, a share of which is `held_out`, those of the `part` are taken.
    """
    task = SelectionTask(
        staged=staged.rows_directory,
        buckets=staged.buckets,
        selected=fresh_directory(project.work / "selected", mode=0o700),
        released=project.private_maps,
        earlier=private_map.count_files(
            project.private_maps,
            (finished,) if finished and (again or finished not in earlier) else earlier,
        ),
        keys=keys.row_keys(),
        ledger=ledger,
        bound=bound,
        labelers=staged.labelers,
        parts=keys.splits(held_out),
        part=part,
        again=again and not finished,
        released_only=finished is not None,
    )
    none = np.zeros(0, np.int64)
    parts = [Selection(np.zeros((0, 2), np.uint64), none, none, none, *(0,) * 9)]
    first_unit, units = {}, 0
    selections = run_over_buckets(executor, select_bucket, task, progress, count=staged.buckets)
    for bucket, selection in enumerate(selections):
        if selection is not None:
            parts.append(selection)
            first_unit[bucket] = units
            units += len(selection.units)
    columns = {field.name: [getattr(p, field.name) for p in parts] for field in fields(Selection)}
    whole: Any = {
        n: sum(v) if isinstance(v[0], int) else np.concatenate(v) for n, v in columns.items()
    }
    return PlannedRows(**whole, directory=task.selected, first_unit=first_unit)


def collect_ledger_counts(plan: PlannedRows) -> dict[str, int]:
    """Return the counts of a plan that the ledger notes beside the charges."""
    return {
        "labelers": len(plan.units),
        "rows_planned": plan.rows,
        "duplicates": plan.duplicates,
        "dropped_by_bound": plan.over_bound,
        "beyond_allowance": plan.over_allowance,
    }


def read_selected(
    selection: Path, staged: Path, bucket: int
) -> tuple[SelectedRows, pa.Table] | None:
    """Return the rows of one bucket as `select_bucket` left them, and the staged rows behind them.

    `selection` is the directory of a plan, `staged` that of the input's rows.
    """
    rows, table = (buckets.read_bucket(directory, bucket) for directory in (selection, staged))
    return None if rows is None or table is None else (SelectedRows.from_arrow(rows), table)
