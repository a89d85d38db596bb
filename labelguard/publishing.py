"""The public side of a release: texts and released labels, sorted by item, with the card.

Nothing here reads a raw label: the input is the released values and public columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import labelguard
from labelguard import block128, card, pricing, segments
from labelguard.block128 import Blocks
from labelguard.labels import LABEL_TIE
from labelguard.ledger import Grant, LabelerTable
from labelguard.parallel import ordered_map
from labelguard.planning import Plan
from labelguard.policy import Policy
from labelguard.project import Project
from labelguard.release import ReleaseWriter, output_schema
from labelguard.staging import Staged


def publish(
    staged: Staged,
    plan: Plan,
    grant: Grant,
    project: Project,
    policy: Policy,
    ledger: LabelerTable,
    *,
    workers: int,
    progress: Callable[[float], None],
) -> tuple[int, Mapping[str, str]]:
    """Write and rename the release; returns its number of rows and the hashes of its files."""

    def work(bucket: int) -> pa.Table | None:
        texts = segments.read_bucket(staged.texts_directory, bucket)
        outcomes = segments.read_bucket(project.work / "outcomes", bucket)
        if texts is None or outcomes is None:
            return None
        return _rows(texts, outcomes, policy)

    with ReleaseWriter(grant, project.releases) as writer:
        for bucket, table in enumerate(ordered_map(work, range(segments.BUCKETS), workers)):
            progress((bucket + 1) / segments.BUCKETS)
            if table is not None:
                writer.write(table)
        if not writer.rows:  # every released label may be a tie
            writer.write(output_schema(staged.content_type).empty_table())
        writer.describe(_card(staged, plan, grant, policy, ledger, writer.rows))
    return writer.rows, writer.hashes


def _rows(texts: pa.Table, outcomes: pa.Table, policy: Policy) -> pa.Table:
    """One bucket of `data.parquet`, sorted by item, then by the secret row key.

    A tie is a row without a preference: kept, with probability ½, only where ties are public.
    """
    if policy.ties != "half":
        strict = segments.column(outcomes, "value") != np.uint8(LABEL_TIE)
        outcomes = outcomes if strict.all() else outcomes.filter(pa.array(strict))
    # Rows of texts are numbered in ascending order.
    row = np.searchsorted(segments.column(texts, "row"), segments.column(outcomes, "row"))
    items = segments.blocks(texts, "item")[row]
    order = _order(items, segments.blocks(outcomes, "key"))
    row, items = row[order], items[order]
    value = segments.column(outcomes, "value")[order]
    tie = value == np.uint8(LABEL_TIE)
    threshold = segments.column(outcomes, "threshold")[order]
    thresholds = np.unique(threshold)
    flips = np.array([pricing.flip_probability(policy, int(t)) for t in thresholds])
    flip = flips[np.searchsorted(thresholds, threshold)]

    sides = pa.concat_arrays([*texts["first"].chunks, *texts["second"].chunks])
    second = np.where(value == 0, texts.num_rows, 0)
    given = "item_id" in texts.column_names
    columns = [
        texts["prompt"].combine_chunks().take(pa.array(row)),
        sides.take(pa.array(row + second)),
        sides.take(pa.array(row + texts.num_rows - second)),
        texts["item_id"].take(pa.array(row)) if given else _hex(items),
        pa.array(np.where(tie, 0.5, np.nan), mask=~tie),
        pa.array(flip, mask=tie),
        pa.nulls(len(row), pa.float64()),
    ]
    return pa.table(columns, schema=output_schema(texts.schema.field("prompt").type))


def _order(items: Blocks, keys: Blocks) -> NDArray[np.intp]:
    """The permutation that sorts rows by item, then by row key (which is unique)."""
    order = np.argsort(np.ascontiguousarray(items[:, 0]))
    if not (np.diff(items[order, 0]) == 0).any():  # every item once: nothing else to compare
        return order
    _, item = block128.unique(items)
    order = np.lexsort((keys[:, 0], item))
    same = (np.diff(item[order]) == 0) & (np.diff(keys[order, 0]) == 0)
    return np.lexsort((keys[:, 1], keys[:, 0], item)) if same.any() else order


_DIGITS = np.frombuffer(b"".join(b"%04x" % value for value in range(1 << 16)), dtype=np.uint32)


def _hex(items: Blocks) -> pa.Array:
    """Item digests as strings of 32 hexadecimal digits."""
    digits = _DIGITS[np.frombuffer(block128.to_bytes(items), dtype=">u2")]
    offsets = np.arange(len(items) + 1, dtype=np.int32) * 32
    return pa.StringArray.from_buffers(len(items), pa.py_buffer(offsets), pa.py_buffer(digits))


def _card(
    staged: Staged,
    plan: Plan,
    grant: Grant,
    policy: Policy,
    ledger: LabelerTable,
    rows: int,
) -> dict[str, Any]:
    where = block128.positions(ledger.labelers, plan.units)
    where = where[where >= 0]  # who was never charged (public ties only) has no budget yet
    used, capacity = ledger.used[where], ledger.capacity[where]
    bounds, labelers = np.unique(capacity, return_inverse=True)
    flips = np.array([pricing.flip_probability(policy, grant.thresholds[int(k)]) for k in bounds])[
        labelers
    ]
    return {
        "release": grant.release.id,
        "labelguard": labelguard.__version__,
        "format": 1,
        "created_at": grant.release.created_at,
        "kind": "labels",
        "mechanism": grant.release.settings["mechanism"],
        "mechanism_version": grant.release.settings["mechanism_version"],
        "privacy": {
            "epsilon": policy.epsilon,
            "delta": policy.delta,
            "unit": policy.unit,
            "adjacency": "replace_labels",
            "composition": policy.composition,
            "accounting": f"{policy.composition} composition of "
            f"{'ternary ' if policy.ties == 'ternary' else ''}randomized response",
            "ties": policy.ties,
            "tie_status_public": policy.tie_status_public,
            "skip_status": "public",
        },
        "counts": {
            "rows_read": staged.rows_read,
            "rows": rows,
            "labelers": len(plan.units),
            "charged": grant.release.charged,
            "released_before": plan.rows - plan.public_ties - grant.release.charged,
            "public_ties": plan.public_ties,
            "released_ties_dropped": plan.rows - rows,
            "dropped_by_bound": plan.over_bound,
            "duplicates": plan.duplicates,
            "identical_sides": staged.identical_sides,
            "set_aside": staged.fault_count + staged.label_fault_count,
        },
        "flip_probability": _spread(flips),
        "budget": {
            "places": _spread(capacity),
            "used": _spread(used),
            "left": _spread(capacity - used),
        },
        "train_with": "forward",
        "not_protected": card.not_protected(policy.tie_status_public),
    }


def _spread(values: NDArray[Any]) -> dict[str, float]:
    if not len(values):
        return {}
    return {
        "min": float(values.min()),
        "median": float(np.median(values)),
        "max": float(values.max()),
    }
