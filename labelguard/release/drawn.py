"""A release from the moment on when its private map is complete: no label is read any more.

What is left to do is to learn, to publish and to commit. A mechanism that learns for hours is
detached: public texts and rows as drawn go into a directory of the release's own, and the project
is let go. Its scratch space, raw labels in it, is removed by whoever holds the project, which is
this job for the last time and from then on any other: so nothing raw is left while it learns, and
what is left nobody else touches. Then the project is held again, by a job of its own like any
other, and what happened meanwhile decides whether the release may still appear:

- other releases were made, or pseudonyms changed: its card says what was true when it was drawn;
- policies and people do not change while it is under way
  (`OpenProject.begin_epoch_between_releases`);
- somebody left whose labels it drew, or would repeat: it was given up, and stays charged.

Its public side are texts and released labels, sorted by item, with the card: made of released rows
and public columns alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelguard.errors import LedgerError
from labelguard.inputs.staged import Staged
from labelguard.ledger.ledger import Grant
from labelguard.ledger.records import ReleaseRecord
from labelguard.project import policy_facts
from labelguard.project.opening import OpenProject, clean_up_after_crashes
from labelguard.project.project import Project, waiting
from labelguard.release import card
from labelguard.release.protocol import (
    Mechanism,
    Prepared,
    ReleaseContext,
    TrainingInputs,
)
from labelguard.release.selection import PlannedRows, SelectedRows
from labelguard.release.writer import (
    PARQUET,
    PROBABILITIES,
    Release,
    ReleaseWriter,
    RowsPart,
    build_output_schema,
    copy_release,
    find_unchanged_release,
    read_card,
    split_by_preference,
    write_rows,
)
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks
from labelguard.storage.buckets import MOST_IN_ONE_FILE, format_part_name
from labelguard.storage.files import (
    HashedFile,
    fresh_directory,
    fsync_path,
    replace_when_done,
)


@dataclass(frozen=True)
class Outcomes:
    """A task for `build_published_rows`: `sources` are directories of texts and of released rows.

    `publish_bucket` writes them into `directory`, one of `count` parts.

    Released rows are buckets by item, in parts (`buckets.write_part`), with the columns row (of the
    staged input), key_hi and key_lo (a secret order within an item), value (0: the second side is
    chosen, 1: the first) and any of `PROBABILITIES`.
    """

    sources: tuple[tuple[Path, Path], ...]
    schema: pa.Schema
    directory: Path
    count: int


def publish_bucket(task: Outcomes, bucket: int) -> RowsPart:
    """Write the rows of one bucket of items as a part of the release, which may have none."""
    table, rows = build_published_rows(task, bucket), 0
    final = task.directory / format_part_name(bucket, task.count)
    with replace_when_done(final, task.directory.parent) as path:
        with HashedFile(path) as file, pq.ParquetWriter(file, task.schema, **PARQUET) as writer:
            if table is not None and (rows := table.num_rows):
                write_rows(writer, table)  # `datasets` fails on a row group without rows
        fsync_path(path)  # here: of another machine's cache the command knows nothing
        return RowsPart(final.name, rows, path.stat().st_size, file.digest)


def build_published_rows(task: Outcomes, bucket: int) -> pa.Table | None:
    """Return the rows of one bucket of items as published, in their order; None without any."""
    parts = []
    for texts_directory, directory in task.sources:
        texts = buckets.read_bucket(texts_directory, bucket)
        # Parts are one file for every bucket of units: without texts none has to be looked at.
        outcomes = None if texts is None else buckets.read_parts(directory, bucket)
        if texts is not None and outcomes is not None:
            parts.append(_ReleasedRows.join(texts, outcomes, task.schema))
    if len(parts) < 2:
        return parts[0].table if parts else None
    items = np.concatenate([part.items for part in parts])
    keys = np.concatenate([part.keys for part in parts])
    rows = pa.concat_tables([part.table for part in parts])
    return buckets.take_rows(rows, _sort_rows(items, keys))


@dataclass(frozen=True)
class _ReleasedRows:
    """Released rows of one bucket, with what they are sorted by."""

    table: pa.Table
    items: Blocks
    keys: Blocks

    @classmethod
    def join(cls, texts: pa.Table, outcomes: pa.Table, schema: pa.Schema) -> _ReleasedRows:
        """Join texts and outcomes."""
        row = _find_rows(texts, outcomes)
        items = buckets.read_blocks(texts, "item").take(row, axis=0)
        keys = buckets.read_blocks(outcomes, "key")
        order = _sort_rows(items, keys)
        row, items, keys = row[order], items.take(order, axis=0), keys.take(order, axis=0)
        value = buckets.read_column(outcomes, "value")[order]
        shown = _take_texts(texts, row, items, value != 0)
        for name, values in zip(PROBABILITIES, _read_probabilities(outcomes, order), strict=True):
            shown = shown.append_column(name, values)
        questions = "question" in schema.names
        if questions and "question" not in shown.column_names:
            shown = shown.append_column("question", pa.nulls(len(row), pa.string()))
        content = build_output_schema(texts.schema.field("prompt").type, questions=questions)
        table = pa.table(shown.select(content.names).columns, schema=content)
        return cls(table if content == schema else table.cast(schema), items, keys)


def _take_texts(
    texts: pa.Table, rows: NDArray[np.intp], items: Blocks, first: NDArray[np.bool_]
) -> pa.Table:
    """Return texts of rows as published, a portion at a time; the `first` side is chosen, or not.

    `items` are those of the rows: their ids where the input gives none.
    """
    parts, start = [], 0
    for part, places in buckets.split_rows(texts, rows):
        here = slice(start, start := start + len(places))
        chosen, rejected = split_by_preference(part, places, first[here])
        columns = {"chosen": chosen, "rejected": rejected}
        for name in ("prompt", "item_id", "question"):
            if name in part.column_names:
                columns[name] = part[name].combine_chunks().take(pa.array(places))
            elif name == "item_id":
                columns[name] = blocks.format_hexadecimal(items[here])
        parts.append(pa.table(columns))
    return pa.concat_tables(parts)


def _find_rows(texts: pa.Table, outcomes: pa.Table) -> NDArray[np.intp]:
    """Return the row of the texts that each released row shows, (n,)."""
    numbers, wanted = (buckets.read_column(table, "row") for table in (texts, outcomes))
    # The texts' numbers ascend; wanted in ascending order they are found four times as fast.
    order = np.argsort(wanted)
    rows = np.empty(len(wanted), np.intp)
    rows[order] = np.searchsorted(numbers, wanted[order])
    return rows


def _read_probabilities(outcomes: pa.Table, order: NDArray[np.intp]) -> list[pa.Array]:
    """Return the three columns of probabilities."""
    columns = []
    for name in PROBABILITIES:
        if name in outcomes.column_names:
            values = buckets.read_column(outcomes, name)[order].astype(np.float64)
        else:
            values = np.full(len(order), np.nan)
        columns.append(pa.array(values, mask=np.isnan(values)))
    return columns


def _sort_rows(items: Blocks, keys: Blocks) -> NDArray[np.intp]:
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


def snapshot_for_training(
    staged: Staged, outcomes: Path, directory: Path
) -> tuple[Staged, Path, NDArray[np.intp]]:
    """Write the texts and the rows as drawn (see `Outcomes`) into an empty directory.

    Returns the input without anything but texts, the rows as drawn, and which they were: row i of
    both is row `rows[i]` of the input as it was staged, (n,).

    Rows of an input are numbered as they came, and a file may be sorted by its labels. The snapshot
    is numbered in the order of the secret keys of its rows instead, and holds no other rows.
    """
    snapshot, drawn_rows = replace(staged, directory=directory), directory / "outcomes"
    for path in (snapshot.texts_directory, drawn_rows):
        path.mkdir(mode=0o700)
    rows = [np.zeros(0, np.intp)]
    for bucket in range(staged.buckets):
        texts = buckets.read_bucket(staged.texts_directory, bucket)
        drawn = None if texts is None else buckets.read_parts(outcomes, bucket)
        if texts is None or drawn is None:
            buckets.write_bucket(snapshot.texts_directory, bucket, None)
            continue
        drawn = drawn.take(pa.array(blocks.sort_order(buckets.read_blocks(drawn, "key"))))
        old = buckets.read_column(drawn, "row")
        new = sum(map(len, rows)) + np.arange(len(old), dtype=old.dtype)
        here = np.full(len(old), bucket, np.uint16)
        shown = buckets.take_rows(texts, _find_rows(texts, drawn))
        texts = _renumber_rows(shown, new)
        buckets.write_bucket(snapshot.texts_directory, bucket, texts)
        buckets.write_part(drawn_rows, bucket, _renumber_rows(drawn, new), here, staged.buckets)
        rows.append(old.astype(np.intp))
    return snapshot, drawn_rows, np.concatenate(rows)


def _renumber_rows(table: pa.Table, row: NDArray[np.generic]) -> pa.Table:
    """Return a table with other numbers in its column `row`."""
    at = table.schema.get_field_index("row")
    return table.set_column(at, table.schema.field(at), pa.array(row, table.schema.field(at).type))


@dataclass(frozen=True, eq=False, repr=False)
class DrawnRelease:
    """A release that was drawn, with all that is needed to finish it.

    `facts` are what its card says of the project on the day (`capture_card_facts`), `output` where
    a copy goes, `authors` (n, 2), sorted, whose labels are in it, once it is detached.
    """

    context: ReleaseContext
    mechanism: Mechanism[Any]
    prepared: Prepared
    grant: Grant
    epoch: int
    facts: Mapping[str, Any]
    output: Path | None
    notes: tuple[str, ...]
    authors: Blocks = field(default_factory=lambda: np.zeros((0, 2), np.uint64))

    @property
    def id(self) -> str:
        """Return the id of the release."""
        return self.grant.release.id

    def detach_from_project(self, claims: contextlib.ExitStack) -> DrawnRelease:
        """Return the release as it goes on without the project, under a claim in `claims`."""
        context, project = self.context, self.context.opened.project
        claims.enter_context(project.claim(self.id))
        directory = fresh_directory(project.saved_rows(self.id), mode=0o700)
        staged, outcomes, rows = snapshot_for_training(context.staged, context.outcomes, directory)
        return replace(
            self,
            context=replace(context, staged=staged, outcomes=outcomes),
            prepared=self.prepared.renumber(rows),
            authors=_read_selected_authors(self.prepared.plan),
        )

    def train(self) -> DrawnRelease:
        """Return the release with what the mechanism learned."""
        directory = self.context.opened.project.stages / self.id
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        count = self.context.staged.buckets
        inputs = TrainingInputs(self.context.outcomes, count, directory, self.context.progress)
        return replace(self, prepared=self.mechanism.learn(inputs, self.prepared))

    def finish_and_write(self) -> tuple[int, Mapping[str, str]]:
        """Write the release from what was drawn; return its rows and the hashes of its files."""
        context, grant = self.context, self.grant
        finished = self.mechanism.finish(context, self.prepared, grant)
        questions = any(source.questions for source, _ in finished.outcomes)
        schema = build_output_schema(context.staged.content_type, questions=questions)
        sources = tuple((source.texts_directory, rows) for source, rows in finished.outcomes)
        drawn = sum(buckets.count_part_rows(directory) for _, directory in sources)
        with ReleaseWriter(grant, context.opened.project.releases) as writer:
            task = Outcomes(sources, schema, writer.directory, context.staged.buckets)
            if sources and task.count > MOST_IN_ONE_FILE:
                for part in context.over_buckets("writing", publish_bucket, task):
                    writer.add_part(part)
            elif sources:
                for table in context.over_buckets("writing", build_published_rows, task):
                    if table is not None:
                        writer.write(table)
                if not writer.rows:
                    writer.write(schema.empty_table())
            buckets.check_seen(drawn, writer.rows)
            plan, further = self.prepared.plan, finished.further
            common = card.build_common_card(
                context.staged, context.policy, plan, grant.release, writer.rows, further
            )
            writer.write_card(card.merge_cards(card.merge_cards(common, self.facts), finished.card))
            for path in finished.files:
                writer.move_in(path)
        return writer.rows, writer.hashes

    def commit(self) -> Release:
        """Publish and commit the release; for the job that holds the project."""
        opened = self.context.opened
        rows, hashes = self.finish_and_write()
        opened.ledger.commit(self.grant, self.epoch, rows, hashes)
        opened.project.clear_stages(self.id)
        record = opened.ledger.releases.get(self.id)
        assert record is not None
        return copy_and_return_release(opened.project, record, self.output, self.notes)

    def commit_after_training(self, home: Project) -> Release:
        """Publish and commit the release in a job of its own, which waits for the project.

        Raises `LedgerError` if the release may not appear any more; it stays charged.
        """
        progress = self.context.progress
        with waiting(lambda text: progress(text, None)), OpenProject.hold_for_job(home) as opened:
            epoch = opened.ledger.begin_job()
            self._check_or_abandon(opened, epoch)
            recovered = clean_up_after_crashes(opened, self.id, epoch)
            opened.project.work.mkdir(mode=0o700, parents=True)
            notes = tuple(dict.fromkeys((*self.notes, *recovered)))
            context = replace(self.context, opened=opened)
            return replace(self, context=context, epoch=epoch, notes=notes).commit()

    def _check_or_abandon(self, opened: OpenProject, epoch: int) -> None:
        """Raise `LedgerError` if the release may not appear any more, and leave nothing of it."""
        record = opened.ledger.releases.get(self.id)
        if record is None:
            raise LedgerError(
                f"release {self.id} is not in the ledger any more, which is an older copy; put the "
                "newest copy back"
            )
        left = (blocks.find_positions(self.authors, opened.ledger.people.tombstones()) >= 0).any()
        if record.is_unfinished and not left:
            return
        if record.is_unfinished:
            opened.ledger.abandon(self.id, epoch)
        opened.project.clear_stages(self.id)
        raise LedgerError(
            f"release {self.id} was given up while it learned: somebody left whose labels are in "
            "it; it stays charged; run the same command again for a release without them"
        )


def capture_card_facts(context: ReleaseContext, plan: PlannedRows, grant: Grant) -> dict[str, Any]:
    """Return project facts for the card, captured when the labels are drawn.

    The policies beside this one, and what its labelers have used and left.
    """
    ledger = context.opened.ledger
    capacity, used = ledger.releases.labelers(grant.release.event).find_usage(plan.units)
    capacity = np.where(capacity > 0, capacity, plan.capacity)  # of who was never charged: all
    return {
        "privacy": policy_facts.collect_policy_card_facts(ledger),
        "budget": {
            "allowed": card.compute_min_median_max(capacity),
            "used": card.compute_min_median_max(used),
            "left": card.compute_min_median_max(capacity - used),
        },
    }


def copy_and_return_release(
    home: Project,
    record: ReleaseRecord,
    output: Path | None,
    notes: Sequence[str],
    *,
    reused: bool = False,
) -> Release:
    """Return a committed release, copied to `output` if that is asked for.

    Raises `ProjectError` if one that was made before is not as it was committed.
    """
    path = find_unchanged_release(home, record) if reused else home.releases / record.id
    if output:
        copy_release(path, output, record.files)
        path = output
    return Release(record.id, path, read_card(path), reused, tuple(notes))


def _read_selected_authors(plan: PlannedRows) -> Blocks:
    """Return the labelers of all selected rows, sorted, (n, 2)."""
    tables = (buckets.read_bucket(plan.directory, bucket) for bucket in plan.first_unit)
    authors = [SelectedRows.from_arrow(table).author for table in tables if table is not None]
    return blocks.unique(np.concatenate([np.zeros((0, 2), np.uint64), *authors]))[0]
