"""Natural mistakes by which a release would depend on raw labels: comparisons must find each."""

import numpy as np
import pyarrow as pa

from labelguard.inputs import staged, stager
from labelguard.release import selection
from labelguard.storage import buckets
from labelguard.text import LABEL_TIE


def rows_keep_the_order_of_the_file(patch):
    patch.setattr(staged, "compute_canonical_order", lambda table: np.arange(table.num_rows))


def _keep_usable_rows(patch, change):
    whole = stager.Stager._keep_usable_rows

    def usable(self, name, batch):
        return change(self, whole(self, name, batch))

    patch.setattr(stager.Stager, "_keep_usable_rows", usable)


def ties_are_dropped(patch):
    _keep_usable_rows(
        patch, lambda _, rows: rows.filter(pa.array(rows["label"].to_numpy() != LABEL_TIE))
    )


def ties_are_not_counted(patch):
    def usable(self, rows):
        self.staged.rows_read -= int((rows["label"].to_numpy() == LABEL_TIE).sum())
        return rows

    _keep_usable_rows(patch, usable)


def labels_enter_the_key(patch):
    def usable(self, rows):
        self._digest += rows["label"].to_numpy().sum(dtype=np.uint64)
        return rows

    _keep_usable_rows(patch, usable)


def _counts(patch, count):
    whole = selection.collect_ledger_counts

    def counts(plan):
        rows = plan.directory.parent / "input" / "rows"
        tables = [buckets.read_bucket(rows, bucket) for bucket in range(buckets.BUCKETS)]
        labels = [y for table in tables if table is not None for y in table["label"].to_pylist()]
        return whole(plan) | {"duplicates": count(labels)}

    patch.setattr(selection, "collect_ledger_counts", counts)


def preferences_are_counted(patch):
    _counts(patch, lambda labels: labels.count(1))


def types_follow_values(patch):
    _counts(patch, lambda labels: 2 if LABEL_TIE in labels else 1)
