"""The rows of a release and what they charge, over all buckets, from public columns only."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from labelguard.ingest.staged import Staged
from labelguard.keys.keyring import KeyRing
from labelguard.keys.parts import Part
from labelguard.ledger.records import LabelerTable
from labelguard.policy.policy import Bound
from labelguard.project.project import Project
from labelguard.release.selection import SelectedRows, Selecting, Selection, select
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks
from labelguard.storage.executor import Executor, over_buckets
from labelguard.storage.files import fresh_directory
from labelguard.terms import counted


@dataclass(frozen=True)
class PlannedRows(Selection):
    """The rows of a release, and what they charge. `directory` holds the selected rows per bucket.

    `first_unit` says where the labelers of each bucket begin in `units`.
    """

    directory: Path
    first_unit: dict[int, int]

    @property
    def new(self) -> int:
        """Uses that have to be charged: of each new label, or of each labeler with any."""
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
    part: Part,
    held_out: float,
    executor: Executor,
    progress: Callable[[float], None],
) -> PlannedRows:
    """Select rows bucket by bucket and write them to the work directory.

    `finished` names the release that is being resumed, if it was drawn already; `earlier` are the
    releases whose labels are known, it among them, unless its kind of event knows none. Of the
    units, a share of which is `held_out`, those of the `part` are taken.
    """
    task = Selecting(
        staged=staged.rows_directory,
        selected=fresh_directory(project.work / "selected", mode=0o700),
        released=project.released,
        earlier=(finished,) if finished and (again or finished not in earlier) else tuple(earlier),
        keys=keys.row_keys(),
        ledger=ledger,
        bound=bound,
        labelers=staged.labelers,
        choices=staged.choices and bound.per_label,
        parts=keys.parts(held_out),
        part=part,
        again=again and not finished,
        released_only=finished is not None,
    )
    parts, first_unit, units = [Selection.nothing()], {}, 0
    for bucket, found in enumerate(over_buckets(executor, select, task, progress)):
        if found is not None:
            parts.append(found)
            first_unit[bucket] = units
            units += len(found.units)
    columns = {field.name: [getattr(p, field.name) for p in parts] for field in fields(Selection)}
    whole: Any = {
        n: sum(v) if isinstance(v[0], int) else np.concatenate(v) for n, v in columns.items()
    }
    return PlannedRows(**whole, directory=task.selected, first_unit=first_unit)


def authors(plan: PlannedRows) -> Blocks:
    """The labelers of all selected rows, sorted, (n, 2)."""
    found = (buckets.read_bucket(plan.directory, bucket) for bucket in range(buckets.BUCKETS))
    own = [SelectedRows.from_arrow(table).author for table in found if table is not None]
    return blocks.unique(np.concatenate([np.zeros((0, 2), np.uint64), *own]))[0]


def counts(plan: PlannedRows) -> dict[str, int]:
    """What the ledger notes of a plan beside the charges."""
    return {
        "labelers": len(plan.units),
        "rows_planned": plan.rows,
        "duplicates": plan.duplicates,
        "dropped_by_bound": plan.over_bound,
    }


def shortage(plan: PlannedRows, unit: str, noun: str) -> str:
    """Say how many units lack how much of their allowance."""
    lacking, everybody = counted(int(plan.short.sum()), noun), counted(len(plan.units), unit)
    return (
        f"{np.count_nonzero(plan.short):,} of {everybody} lack allowance for {lacking} (labelguard "
        "budget show); nothing was charged or released"
    )


def selected(selection: Path, staged: Path, bucket: int) -> tuple[SelectedRows, pa.Table] | None:
    """The rows of one bucket as `select` left them, and those that they were selected from.

    `selection` is the directory of a plan, `staged` that of the input's rows.
    """
    rows, table = (buckets.read_bucket(directory, bucket) for directory in (selection, staged))
    return None if rows is None or table is None else (SelectedRows.from_arrow(rows), table)
