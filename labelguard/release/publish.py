"""The public side of a release: texts and released labels, sorted by item, with the card.

Nothing here reads a raw label: the input is released rows and public columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard._version import __version__
from labelguard.ledger.ledger import Grant
from labelguard.project import policies
from labelguard.release import card
from labelguard.release.protocol import Finished, Job
from labelguard.release.selection import PlannedRows
from labelguard.release.writer import ReleaseWriter, output_schema, preferred
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks

PROBABILITIES = ("label_probability", "flip_probability", "residual_flip_estimate")
"""Columns of released rows that a mechanism may give; NaN and absent ones become null."""


def publish(
    job: Job, plan: PlannedRows, grant: Grant, finished: Finished, told: Mapping[str, Any]
) -> tuple[int, Mapping[str, str]]:
    """Write and rename the release; returns its number of rows and the hashes of its files.

    `told` are parts of the card that were known before (see `told`).
    """
    questions = any(source.questions for source, _ in finished.outcomes)
    schema = output_schema(job.staged.content_type, questions=questions)
    sources = tuple((source.texts_directory, rows) for source, rows in finished.outcomes)
    task = Outcomes(sources, schema)
    with ReleaseWriter(grant, job.opened.project.releases) as writer:
        for table in job.over_buckets("writing", rows_of_bucket, task):
            if table is not None:
                writer.write(table)
        if not writer.rows and finished.outcomes:
            writer.write(schema.empty_table())
        common = card.assembled(_card(job, plan, grant, writer.rows, finished), told)
        writer.describe(card.assembled(common, finished.card))
        for path in finished.files:
            writer.take(path)
    return writer.rows, writer.hashes


def told(job: Job, plan: PlannedRows, grant: Grant) -> dict[str, Any]:
    """What a card says of the project when its labels were drawn, whatever happens until it ends.

    The policies beside this one, and what its labelers have used and left.
    """
    ledger = job.opened.ledger
    capacity, used = ledger.labelers(grant.release.event).of(plan.units)
    met = capacity > 0  # who was never charged has no budget yet
    capacity, used = capacity[met], used[met]
    return {
        "privacy": policies.standing(ledger),
        "budget": {
            "allowed": card.spread(capacity),
            "used": card.spread(used),
            "left": card.spread(capacity - used),
        },
    }


@dataclass(frozen=True)
class Outcomes:
    """A task for `rows_of_bucket`: `sources` are directories of texts and of their released rows.

    Released rows are buckets by item, in parts (`buckets.write_part`), with the columns row (of the
    staged input), key_hi and key_lo (a secret order within an item), value (0: the second side is
    chosen, 1: the first) and any of `PROBABILITIES`.
    """

    sources: tuple[tuple[Path, Path], ...]
    schema: pa.Schema


def rows_of_bucket(task: Outcomes, bucket: int) -> pa.Table | None:
    """The rows of one bucket of items as they are published, in their order; None without any."""
    found = []
    for texts_directory, directory in task.sources:
        texts = buckets.read_bucket(texts_directory, bucket)
        # Parts are one file for every bucket of units: without texts none has to be looked at.
        outcomes = None if texts is None else buckets.read_parts(directory, bucket)
        if texts is not None and outcomes is not None:
            found.append(_Rows.of(texts, outcomes, task.schema))
    return _sorted(found) if found else None


@dataclass(frozen=True)
class _Rows:
    """Released rows of one bucket, with what they are sorted by."""

    table: pa.Table
    items: Blocks
    keys: Blocks

    @classmethod
    def of(cls, texts: pa.Table, outcomes: pa.Table, schema: pa.Schema) -> _Rows:
        """Join texts and outcomes."""
        # Rows of texts are numbered in ascending order.
        row = np.searchsorted(buckets.column(texts, "row"), buckets.column(outcomes, "row"))
        items = buckets.blocks(texts, "item")[row]
        keys = buckets.blocks(outcomes, "key")
        order = _order(items, keys)
        row, items = row[order], items[order]
        value = buckets.column(outcomes, "value")[order]

        given = "item_id" in texts.column_names
        columns = [
            texts["prompt"].combine_chunks().take(pa.array(row)),
            *preferred(texts, row, value != 0),
            texts["item_id"].take(pa.array(row)) if given else blocks.hexadecimal(items),
            *_probabilities(outcomes, order),
        ]
        questions = "question" in schema.names
        if questions:
            asked = "question" in texts.column_names
            nothing = pa.nulls(len(row), pa.string())
            columns.append(texts["question"].take(pa.array(row)) if asked else nothing)
        own = output_schema(texts.schema.field("prompt").type, questions=questions)
        table = pa.table(columns, schema=own)
        return cls(table if own == schema else table.cast(schema), items, keys[order])


def _probabilities(outcomes: pa.Table, order: NDArray[np.intp]) -> list[pa.Array]:
    """The three columns of probabilities."""
    columns = []
    for name in PROBABILITIES:
        if name in outcomes.column_names:
            values = buckets.column(outcomes, name)[order].astype(np.float64)
        else:
            values = np.full(len(order), np.nan)
        columns.append(pa.array(values, mask=np.isnan(values)))
    return columns


def _sorted(found: list[_Rows]) -> pa.Table:
    """Rows of several sources as one table in the order of a release."""
    if len(found) == 1:
        return found[0].table
    items = np.concatenate([rows.items for rows in found])
    keys = np.concatenate([rows.keys for rows in found])
    return pa.concat_tables([rows.table for rows in found]).take(pa.array(_order(items, keys)))


def _order(items: Blocks, keys: Blocks) -> NDArray[np.intp]:
    """The permutation that sorts rows by item, then by row key (which is unique)."""
    order: NDArray[np.intp] = np.argsort(np.ascontiguousarray(items[:, 0]))
    if not (np.diff(items[order, 0]) == 0).any():  # every item once: nothing else to compare
        return order
    _, item = blocks.unique(items)
    order = np.lexsort((keys[:, 0], item))
    same = (np.diff(item[order]) == 0) & (np.diff(keys[order, 0]) == 0)
    if same.any():
        order = np.lexsort((keys[:, 1], keys[:, 0], item))
    return order


def _card(
    job: Job, plan: PlannedRows, grant: Grant, rows: int, finished: Finished
) -> dict[str, Any]:
    """What cards of all mechanisms say."""
    staged, policy, further = job.staged, job.policy, finished.further
    forecast = grant.release.settings.get("forecast")
    return {
        "release": grant.release.id,
        "labelguard": __version__,
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
            "accounting": "",
            "ties": policy.ties_of(grant.release.event),
            "tie_status_public": policy.tie_status_public,
            "skip_status": "public" if policy.skips == "public" else "protected",
            "assignment": "reactive" if policy.assignment_reactive else "fixed",
            "public_columns": list(policy.public_columns),
            "held_out": policy.held_out,
        },
        "counts": {
            "rows_read": staged.rows_read,
            "rows": rows,
            "labelers": len(plan.units),
            "charged": grant.release.charged,
            "released_before": plan.rows - (grant.release.drawn or 0),
            "further_pairs": further,
            "of_other_part": {"units": plan.other_units, "labels": plan.other_labels},
            "dropped_by_bound": plan.over_bound,
            "duplicates": plan.duplicates,
            "identical_sides": staged.identical_sides,
            "skipped": staged.skipped,
            "set_aside": staged.fault_count,
            **({"left_out": dict(staged.left_out)} if staged.left_out else {}),
            # An item, as a unit, has nobody's labels.
            **({} if policy.unit == "item" else {"unit_pairs": plan.unit_pairs}),
        },
        **({"forecast": forecast} if forecast else {}),
        "train_with": "",
        "not_protected": card.not_protected(policy),
    }
