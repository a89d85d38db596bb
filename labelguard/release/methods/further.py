"""Rows that a head labels: those of the input, and further pairs that nobody labeled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.errors import LedgerError
from labelguard.ingest.pairs import DistinctPairs
from labelguard.learning.features import PairFeatures
from labelguard.release import planning
from labelguard.release.head import FILE, Head
from labelguard.release.planning import PlannedRows
from labelguard.release.protocol import Finished, Job
from labelguard.storage import buckets
from labelguard.storage.blocks import Blocks


def check_identity(what: str, recorded: str, found: str) -> None:
    """Raise `LedgerError` if a release that is being resumed was begun with another `what`."""
    if recorded != found:
        raise LedgerError(
            f"this release was begun with the {what} {recorded}; found "
            f"{found}; restore what it was and run the same command again"
        )


def label_pairs(
    job: Job, plan: PlannedRows, pairs: DistinctPairs, probability: NDArray[np.float64]
) -> None:
    """Write every planned row with its pair's `probability` (pairs,) of the first side."""
    of_row = probability[pairs.of_row]
    for bucket in range(buckets.BUCKETS):
        found = planning.selected(plan.directory, job.staged.rows_directory, bucket)
        if found is None:
            continue
        rows, table = found
        row = buckets.column(table, "row")[rows.index].astype(np.intp)
        items = buckets.blocks(table, "item")[rows.index]
        write_labeled(job.outcomes, bucket, row, rows.key, items, of_row[row])


def with_head(
    finished: Finished, job: Job, head: Head, provider: PairFeatures, labeled: DistinctPairs
) -> Finished:
    """The release with its head and, by it, labels of the further pairs that are not `labeled`."""
    file = job.opened.project.work / FILE
    file.write_bytes(head.to_bytes())
    further = job.further

    def probability(new: NDArray[np.intp]) -> NDArray[np.float64]:
        assert further is not None
        return head.probability(provider(further.pairs.table.take(pa.array(new))))

    return with_further(replace(finished, files=(file,)), job, labeled, probability)


def with_further(
    finished: Finished,
    job: Job,
    labeled: DistinctPairs,
    probability: Callable[[NDArray[np.intp]], NDArray[np.float64]],
) -> Finished:
    """The release with labels of the further pairs that are not `labeled`, if there are any.

    `probability` tells that of the first side of those further pairs, by their numbers.
    """
    if job.further is None:
        return finished
    pairs = job.further.pairs
    directory = job.opened.project.work / "also-outcomes"
    new = np.flatnonzero(~pairs.among(labeled))
    keys = np.zeros((len(new), 2), np.uint64)
    keys[:, 1] = new
    found = probability(new) if len(new) else np.zeros(0)
    write_labeled(directory, 0, pairs.first_row[new], keys, pairs.items[new], found)
    outcomes = (*finished.outcomes, (job.further.staged, directory))
    return replace(finished, outcomes=outcomes, further=len(new))


def write_labeled(
    outcomes: Path,
    source: int,
    row: NDArray[np.generic],
    key: Blocks,
    items: Blocks,
    probability: NDArray[np.float64],
) -> None:
    """Rows of one bucket, labeled by a head: the likelier side is chosen, with its probability."""
    first = probability >= 0.5
    table = pa.table(
        {
            "row": row.astype(np.uint64),
            "key_hi": np.ascontiguousarray(key[:, 0]),
            "key_lo": np.ascontiguousarray(key[:, 1]),
            "value": first.astype(np.uint8),
            "label_probability": np.where(first, probability, 1 - probability),
        }
    )
    buckets.write_part(outcomes, source, table, buckets.bucket_of(items))
