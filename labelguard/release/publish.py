"""The public side of a release: texts and released labels, sorted by item, with the card.

Nothing here reads a raw label: the input is released rows and public columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.inputs.staged import Staged
from labelguard.ledger.ledger import Grant
from labelguard.release import card
from labelguard.release.protocol import Finished, ReleaseContext
from labelguard.release.selection import PlannedRows
from labelguard.release.writer import ReleaseWriter, output_schema, split_by_preference
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks

# Columns of released rows that a mechanism may give; NaN and absent ones become null.
PROBABILITIES = ("label_probability", "flip_probability", "residual_flip_estimate")


def publish_release(
    context: ReleaseContext,
    plan: PlannedRows,
    grant: Grant,
    finished: Finished,
    facts: Mapping[str, Any],
) -> tuple[int, Mapping[str, str]]:
    """Write and rename the release; return its number of rows and the hashes of its files.

    `facts` are parts of the card that were known before (see `drawn.card_context`).
    """
    questions = any(source.questions for source, _ in finished.outcomes)
    schema = output_schema(context.staged.content_type, questions=questions)
    sources = tuple((source.texts_directory, rows) for source, rows in finished.outcomes)
    task = Outcomes(sources, schema)
    with ReleaseWriter(grant, context.opened.project.releases) as writer:
        for table in context.over_buckets("writing", rows_of_bucket, task):
            if table is not None:
                writer.write(table)
        if not writer.rows and finished.outcomes:
            writer.write(schema.empty_table())
        common = card.common_card(
            context.staged, context.policy, plan, grant.release, writer.rows, finished.further
        )
        writer.describe(card.merge(card.merge(common, facts), finished.card))
        for path in finished.files:
            writer.take(path)
    return writer.rows, writer.hashes


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
    """Return the rows of one bucket of items as published, in their order; None without any."""
    parts = []
    for texts_directory, directory in task.sources:
        texts = buckets.read_bucket(texts_directory, bucket)
        # Parts are one file for every bucket of units: without texts none has to be looked at.
        outcomes = None if texts is None else buckets.read_parts(directory, bucket)
        if texts is not None and outcomes is not None:
            parts.append(_ReleasedRows.of(texts, outcomes, task.schema))
    if len(parts) < 2:
        return parts[0].table if parts else None
    items = np.concatenate([part.items for part in parts])
    keys = np.concatenate([part.keys for part in parts])
    return pa.concat_tables([part.table for part in parts]).take(pa.array(_order(items, keys)))


@dataclass(frozen=True)
class _ReleasedRows:
    """Released rows of one bucket, with what they are sorted by."""

    table: pa.Table
    items: Blocks
    keys: Blocks

    @classmethod
    def of(cls, texts: pa.Table, outcomes: pa.Table, schema: pa.Schema) -> _ReleasedRows:
        """Join texts and outcomes."""
        # Rows of texts are numbered in ascending order.
        row = np.searchsorted(buckets.column(texts, "row"), buckets.column(outcomes, "row"))
        items = buckets.blocks(texts, "item")[row]
        keys = buckets.blocks(outcomes, "key")
        order = _order(items, keys)
        row, items = row[order], items[order]
        value = buckets.column(outcomes, "value")[order]

        has_ids = "item_id" in texts.column_names
        columns = [
            texts["prompt"].combine_chunks().take(pa.array(row)),
            *split_by_preference(texts, row, value != 0),
            texts["item_id"].take(pa.array(row)) if has_ids else blocks.hexadecimal(items),
            *_probabilities(outcomes, order),
        ]
        questions = "question" in schema.names
        if questions:
            has_questions = "question" in texts.column_names
            nothing = pa.nulls(len(row), pa.string())
            columns.append(texts["question"].take(pa.array(row)) if has_questions else nothing)
        content = output_schema(texts.schema.field("prompt").type, questions=questions)
        table = pa.table(columns, schema=content)
        return cls(table if content == schema else table.cast(schema), items, keys[order])


def _probabilities(outcomes: pa.Table, order: NDArray[np.intp]) -> list[pa.Array]:
    """Return the three columns of probabilities."""
    columns = []
    for name in PROBABILITIES:
        if name in outcomes.column_names:
            values = buckets.column(outcomes, name)[order].astype(np.float64)
        else:
            values = np.full(len(order), np.nan)
        columns.append(pa.array(values, mask=np.isnan(values)))
    return columns


def _order(items: Blocks, keys: Blocks) -> NDArray[np.intp]:
    """Return the permutation that sorts rows by item, then by row key (which is unique)."""
    order: NDArray[np.intp] = np.argsort(np.ascontiguousarray(items[:, 0]))
    if not (np.diff(items[order, 0]) == 0).any():  # every item once: nothing else to compare
        return order
    _, item = blocks.unique(items)
    order = np.lexsort((keys[:, 0], item))
    same = (np.diff(item[order]) == 0) & (np.diff(keys[order, 0]) == 0)
    if same.any():
        order = np.lexsort((keys[:, 1], keys[:, 0], item))
    return order


@dataclass(frozen=True, eq=False)
class TrainingSnapshot:
    """The input without anything but texts, the rows as drawn, and which they were in the input.

    Row i of `staged` and of `outcomes` is row `rows[i]` of the input as it was staged, (n,).
    """

    staged: Staged
    outcomes: Path
    rows: NDArray[np.intp]


def snapshot_for_training(staged: Staged, outcomes: Path, directory: Path) -> TrainingSnapshot:
    """Write the texts and the rows as drawn (see `Outcomes`) into an empty directory.

    Rows of an input are numbered as they came, and a file may be sorted by its labels. The snapshot
    is numbered in the order of the secret keys of its rows instead, and holds no other rows.
    """
    snapshot, drawn_rows = replace(staged, directory=directory), directory / "outcomes"
    rows = [np.zeros(0, np.intp)]
    with buckets.BucketWriter(snapshot.texts_directory) as writer:
        for bucket in range(buckets.BUCKETS):
            texts = buckets.read_bucket(staged.texts_directory, bucket)
            drawn = None if texts is None else buckets.read_parts(outcomes, bucket)
            if texts is None or drawn is None:
                continue
            drawn = drawn.take(pa.array(blocks.order(buckets.blocks(drawn, "key"))))
            old = buckets.column(drawn, "row")
            new = sum(map(len, rows)) + np.arange(len(old), dtype=old.dtype)
            here = np.full(len(old), bucket, np.uint8)
            # Rows of texts are numbered in ascending order.
            place = np.searchsorted(buckets.column(texts, "row"), old)
            writer.append(_renumber(texts.take(pa.array(place)), new), here)
            buckets.write_part(drawn_rows, bucket, _renumber(drawn, new), here)
            rows.append(old.astype(np.intp))
    return TrainingSnapshot(snapshot, drawn_rows, np.concatenate(rows))


def _renumber(table: pa.Table, row: NDArray[np.generic]) -> pa.Table:
    """Return a table with other numbers in its column `row`."""
    at = table.schema.get_field_index("row")
    return table.set_column(at, table.schema.field(at), pa.array(row, table.schema.field(at).type))
