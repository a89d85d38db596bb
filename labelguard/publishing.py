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
    flips = {k: pricing.flip_probability(policy, t) for k, t in grant.thresholds.items()}
    seen: list[NDArray[np.float64]] = []

    def work(bucket: int) -> pa.Table | None:
        texts = segments.read_bucket(staged.texts_directory, bucket)
        outcomes = segments.read_bucket(project.work / "outcomes", bucket)
        if texts is None or outcomes is None:
            return None
        return _rows(texts, outcomes, flips)

    with ReleaseWriter(grant, project.releases) as writer:
        for bucket, table in enumerate(ordered_map(work, range(segments.BUCKETS), workers)):
            progress((bucket + 1) / segments.BUCKETS)
            if table is not None:
                writer.write(table)
                seen.append(np.unique(segments.column(table, "flip_probability")))
        writer.describe(_card(staged, plan, grant, policy, ledger, writer.rows, flips))
    return writer.rows, writer.hashes


def _rows(texts: pa.Table, outcomes: pa.Table, flips: Mapping[int, float]) -> pa.Table:
    """One bucket of `data.parquet`, sorted by item, then by the secret row key."""
    released_tie = segments.column(outcomes, "value") == np.uint8(2)
    strict = ~released_tie | (segments.column(outcomes, "public_tie") == np.uint8(1))
    outcomes = outcomes.filter(pa.array(strict))
    items, keys = segments.blocks(outcomes, "item"), segments.blocks(outcomes, "key")
    order = np.lexsort((keys[:, 1], keys[:, 0], items[:, 1], items[:, 0]))
    where = np.searchsorted(segments.column(texts, "row"), segments.column(outcomes, "row"))[order]
    value = segments.column(outcomes, "value")[order]
    tie = value == 2
    prices = np.array(sorted(flips), dtype=np.int64)
    probabilities = np.array([flips[int(k)] for k in prices])
    price = segments.column(outcomes, "price")[order]
    flip = np.full(len(price), np.nan)
    flip[~tie] = probabilities[np.searchsorted(prices, price[~tie])]
    texts = texts.combine_chunks()
    count = texts.num_rows
    sides = pa.concat_arrays([*texts["first"].chunks, *texts["second"].chunks])
    second_preferred = value == 0
    schema = output_schema(texts.schema.field("prompt").type)
    columns = [
        texts["prompt"].take(pa.array(where)),
        sides.take(pa.array(where + count * second_preferred)),
        sides.take(pa.array(where + count * ~second_preferred)),
        texts["item_id"].take(pa.array(where))
        if "item_id" in texts.column_names
        else _hex(items[order]),
        pa.array(np.where(tie, 0.5, np.nan), mask=~tie),
        pa.array(flip, mask=tie),
        pa.nulls(len(where), pa.float64()),
    ]
    return pa.table(columns, schema=schema)


_DIGITS = np.frombuffer(b"".join(b"%02x" % value for value in range(256)), dtype=np.uint8)


def _hex(items: block128.Blocks) -> pa.Array:
    """Item digests as strings of 32 hexadecimal digits."""
    data = np.frombuffer(block128.to_bytes(items), dtype=np.uint8)
    digits = _DIGITS.reshape(256, 2)[data].tobytes()
    offsets = np.arange(len(items) + 1, dtype=np.int32) * 32
    return pa.StringArray.from_buffers(len(items), pa.py_buffer(offsets), pa.py_buffer(digits))


def _card(
    staged: Staged,
    plan: Plan,
    grant: Grant,
    policy: Policy,
    ledger: LabelerTable,
    rows: int,
    flips: Mapping[int, float],
) -> dict[str, Any]:
    where = block128.positions(ledger.labelers, plan.units)
    used, capacity = ledger.used[where], ledger.capacity[where]
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
            "accounting": f"{policy.composition} composition of randomized response",
            "ties": policy.ties,
            "tie_status_public": policy.tie_status_public,
            "skip_status": "public",
        },
        "counts": {
            "rows_read": staged.rows_read,
            "rows": rows,
            "labelers": len(plan.units),
            "charged": grant.release.charged,
            "released_before": plan.rows - grant.release.charged,
            "dropped_by_bound": plan.over_bound,
            "duplicates": plan.duplicates,
            "identical_sides": staged.identical_sides,
            "set_aside": staged.fault_count + staged.label_fault_count,
        },
        "flip_probability": _spread(np.array([flips[int(k)] for k in capacity])),
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
