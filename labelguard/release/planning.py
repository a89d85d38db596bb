"""The plan of a release: its rows and charges over all buckets, from public columns only."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelguard.ingest.staging import Staged
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.records import LabelerTable
from labelguard.policy.bounds import Bound
from labelguard.project.private_map import PrivateMap
from labelguard.project.project import Project
from labelguard.release.selection import Allowances, SelectedRows, Selection, select
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks
from labelguard.storage.executor import ordered_map
from labelguard.storage.files import fresh_directory
from labelguard.terms import counted

# The label column of a staged bucket is not among what planning may read.
_PUBLIC = ["row", "unit_hi", "unit_lo", "author_hi", "author_lo", "item_hi", "item_lo", "pair"]
_PUBLIC += ["group_hi", "group_lo", "content", "tie", "size"]


@dataclass(frozen=True)
class Plan:
    """What a release will contain and cost. `directory` holds the selected rows per bucket.

    `units` (n, 2) are the labelers, or groups of them, with `capacity` (places in all), `charged`
    (new coins) and `short` (labels that found no place, of labelers who were charged before), each
    of shape (n,). `bucket_units` says where the labelers of each bucket stand in them; `drawn`
    counts new labels.
    """

    directory: Path
    bucket_units: dict[int, slice]
    units: Blocks
    capacity: NDArray[np.int64]
    charged: NDArray[np.int64]
    short: NDArray[np.int64]
    rows: int
    drawn: int
    duplicates: int
    over_bound: int
    public_ties: int
    changed_items: int

    @property
    def new(self) -> int:
        """Places that have to be charged: of each new label, or of each labeler with any."""
        return int(self.charged.sum())


def plan(
    staged: Staged,
    project: Project,
    keys: KeyRing,
    ledger: LabelerTable,
    *,
    again: bool,
    finished: str | None,
    earlier: Collection[str],
    bound: Bound,
    workers: int,
    progress: Callable[[float], None],
) -> Plan:
    """Select rows bucket by bucket and write them to the work directory.

    `finished` names the release that is being resumed, if it was drawn already; `earlier` are the
    releases whose labels are known, it among them.
    """
    directory = fresh_directory(project.work / "selected", mode=0o700)
    private_map, row_keys = PrivateMap(project.released, keys), keys.row_keys()
    known = [finished] if finished and again else earlier

    def allowances(units: Blocks) -> Allowances:
        where = blocks.positions(ledger.labelers, units)
        found = where >= 0
        if not len(ledger.labelers):
            nothing = np.zeros(len(units), np.int64)
            return Allowances(nothing, nothing)
        return Allowances(
            np.where(found, ledger.capacity[where], 0), np.where(found, ledger.used[where], 0)
        )

    def work(bucket: int) -> Selection | None:
        table = buckets.read_bucket(staged.rows_directory, bucket)
        if table is None:
            return None
        table = table.select([name for name in _PUBLIC if name in table.column_names])
        selection = select(
            table,
            row_keys,
            private_map.released(bucket, known),
            allowances,
            labelers=staged.labelers,
            again=again and not finished,
            released_only=finished is not None,
            bound=bound,
        )
        buckets.write_bucket(directory, bucket, selection.rows.to_arrow())
        return selection

    found: list[Selection] = []
    bucket_units: dict[int, slice] = {}
    labelers = 0
    for bucket, selection in enumerate(ordered_map(work, range(buckets.BUCKETS), workers)):
        progress((bucket + 1) / buckets.BUCKETS)
        if selection is not None:
            found.append(selection)
            bucket_units[bucket] = slice(labelers, labelers + len(selection.units))
            labelers += len(selection.units)

    def joined(values: list[NDArray[np.int64]]) -> NDArray[np.int64]:
        return np.concatenate(values) if values else np.zeros(0, np.int64)

    return Plan(
        directory=directory,
        bucket_units=bucket_units,
        units=np.concatenate([s.units for s in found]) if found else np.zeros((0, 2), np.uint64),
        capacity=joined([s.capacity for s in found]),
        charged=joined([s.charged for s in found]),
        short=joined([s.short for s in found]),
        rows=sum(len(s.rows.index) for s in found),
        drawn=sum(s.drawn for s in found),
        duplicates=sum(s.duplicates for s in found),
        over_bound=sum(s.over_bound for s in found),
        public_ties=sum(s.public_ties for s in found),
        changed_items=sum(s.changed_items for s in found),
    )


def counts(plan: Plan) -> dict[str, int]:
    """What the ledger keeps of a plan beside the charges."""
    return {
        "labelers": len(plan.units),
        "rows_planned": plan.rows,
        "duplicates": plan.duplicates,
        "dropped_by_bound": plan.over_bound,
    }


def shortage(plan: Plan, unit: str, noun: str) -> str:
    """Who lacks allowance, as pseudonyms, and what to do about it."""
    who = np.flatnonzero(plan.short)
    names = ", ".join(blocks.to_hex(plan.units[index]) for index in who[:5])
    more = f", … ({len(who)} in all)" if len(who) > 5 else ""
    return (
        f"{counted(int(plan.short.sum()), noun)} of {counted(len(who), unit)} beyond allowance: "
        f"{names}{more}; nothing was charged or released; leave such labels out with "
        "--exhausted drop"
    )


def selected(plan: Plan, bucket: int) -> SelectedRows | None:
    """The selected rows of one bucket, as `select` left them."""
    table = buckets.read_bucket(plan.directory, bucket)
    return None if table is None else SelectedRows.from_arrow(table)
