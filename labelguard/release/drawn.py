"""A release from the moment on when its private map is complete: no label is read any more.

What is left to do is to learn, to publish and to commit. A mechanism that learns for hours does so
`apart`: public texts and rows as drawn go into a directory of the release's own, and the project is
let go. Its scratch space, raw labels in it, is removed by whoever holds the project, which is this
job for the last time and from then on any other: so nothing raw is left while it learns, and what
is left nobody else touches. Then the project is held again, by a job of its own like any other, and
what happened meanwhile decides whether the release may still appear:

- other releases were made, or pseudonyms changed: its card says what was true when it was drawn;
- policies and people do not change while it is under way (`policies.settled_epoch`);
- somebody left whose labels it drew, or would repeat: it was given up, and stays charged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.errors import LedgerError, ProjectError
from labelguard.inputs.staged import Staged
from labelguard.ledger.ledger import Grant
from labelguard.ledger.records import ReleaseRecord
from labelguard.project import recovery
from labelguard.project.opening import OpenProject
from labelguard.project.project import Project
from labelguard.project.waiting import waiting
from labelguard.release import delivery, publish, selection
from labelguard.release.protocol import Job, Lesson, Mechanism, Prepared
from labelguard.release.writer import Release, read_card
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks
from labelguard.storage.files import fresh_directory
from labelguard.storage.sums import fault


@dataclass(frozen=True, eq=False, repr=False)
class Drawn:
    """A release that was drawn, with all that is needed to finish it.

    `told` is what its card says of the project on the day (see `publish.told`), `output` where a
    copy goes, `authors` (n, 2), sorted, whose labels are in it, once it is `apart`.
    """

    job: Job
    mechanism: Mechanism[Any]
    prepared: Prepared
    grant: Grant
    epoch: int
    told: Mapping[str, Any]
    output: Path | None
    notes: tuple[str, ...]
    authors: Blocks = field(default_factory=lambda: np.zeros((0, 2), np.uint64))

    @property
    def id(self) -> str:
        """Of the release."""
        return self.grant.release.id

    def apart(self, claimed: contextlib.ExitStack) -> Drawn:
        """The same as it goes on without the project, under a claim that ends with `claimed`."""
        job = self.job
        claimed.enter_context(job.opened.project.claim(self.id))
        directory = fresh_directory(job.opened.project.kept(self.id), mode=0o700)
        kept = keep(job.staged, job.outcomes, directory)
        return replace(
            self,
            job=replace(job, staged=kept.staged, outcomes=kept.outcomes),
            prepared=self.prepared.renumbered(kept.rows),
            authors=selection.authors_of(self.prepared.plan),
        )

    def learned(self) -> Drawn:
        """The same with what the mechanism learned."""
        job = self.job
        directory = job.opened.project.stages / self.id
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lesson = Lesson(job.outcomes, directory, job.progress)
        return replace(self, prepared=self.mechanism.learn(lesson, self.prepared))

    def committed(self) -> Release:
        """The release, published and committed; for who holds the project."""
        opened, grant = self.job.opened, self.grant
        rows, hashes = self.publish()
        opened.ledger.commit(grant, self.epoch, rows, hashes)
        opened.project.clear(self.id)
        record = opened.ledger.release(self.id)
        assert record is not None
        return answer(opened.project, record, self.output, self.notes)

    def committed_later(self, home: Project) -> Release:
        """The same in a job of its own, which waits for the project.

        Raises `LedgerError` if the release may not appear any more; it stays charged.
        """
        progress = self.job.progress
        with waiting(lambda text: progress(text, None)), OpenProject.job(home) as opened:
            epoch = opened.ledger.begin_job()
            self._check(opened, epoch)
            found = recovery.settle(opened, self.id, epoch)
            opened.project.work.mkdir(mode=0o700, parents=True)
            notes = tuple(dict.fromkeys((*self.notes, *found)))
            job = replace(self.job, opened=opened)
            return replace(self, job=job, epoch=epoch, notes=notes).committed()

    def publish(self) -> tuple[int, Mapping[str, str]]:
        """Write the release from what was drawn; its rows, and the hashes of its files."""
        finished = self.mechanism.finish(self.job, self.prepared, self.grant)
        return publish.publish(self.job, self.prepared.plan, self.grant, finished, self.told)

    def _check(self, opened: OpenProject, epoch: int) -> None:
        """Whether the release may still appear, after others had the project.

        Of one that may not nothing is left on disk.
        """
        record = opened.ledger.release(self.id)
        if record is None:
            raise LedgerError(
                f"release {self.id} is not in the ledger any more, which is an older copy; put the "
                "newest copy back"
            )
        left = (blocks.positions(self.authors, opened.ledger.tombstones()) >= 0).any()
        if record.unfinished and not left:
            return
        if record.unfinished:
            opened.ledger.abandon(self.id, epoch)
        opened.project.clear(self.id)
        raise LedgerError(
            f"release {self.id} was given up while it learned: somebody left whose labels are in "
            "it; it stays charged; run the same command again for a release without them"
        )


def answer(
    home: Project,
    record: ReleaseRecord,
    output: Path | None,
    notes: Sequence[str],
    *,
    reused: bool = False,
) -> Release:
    """A committed release, copied to `output` if that is asked for.

    Raises `ProjectError` if one that was made before is not as it was committed.
    """
    path = home.releases / record.id
    broken = fault(path, record.files) if reused else None
    if broken:
        raise ProjectError(f"release {record.id}: {broken}; restore it from a backup")
    if output:
        delivery.deliver(path, output, record.files)
        path = output
    return Release(record.id, path, read_card(path), reused, tuple(notes))


@dataclass(frozen=True, eq=False)
class Kept:
    """The input without anything but texts, the rows as drawn, and which they were in the input.

    Row i of `staged` and of `outcomes` is row `rows[i]` of the input as it was staged, (n,).
    """

    staged: Staged
    outcomes: Path
    rows: NDArray[np.intp]


def keep(staged: Staged, outcomes: Path, directory: Path) -> Kept:
    """Write the texts and the rows as drawn (see `publish.Outcomes`) into an empty directory.

    Rows of an input are numbered as they came, and a file may be sorted by its labels. What is kept
    is numbered in the order of the secret keys of its rows instead, and holds no other rows.
    """
    kept = Kept(replace(staged, directory=directory), directory / "outcomes", np.zeros(0, np.intp))
    found = [kept.rows]
    with buckets.BucketWriter(kept.staged.texts_directory) as writer:
        for bucket in range(buckets.BUCKETS):
            texts = buckets.read_bucket(staged.texts_directory, bucket)
            drawn = None if texts is None else buckets.read_parts(outcomes, bucket)
            if texts is None or drawn is None:
                continue
            drawn = drawn.take(pa.array(blocks.order(buckets.blocks(drawn, "key"))))
            old = buckets.column(drawn, "row")
            new = sum(map(len, found)) + np.arange(len(old), dtype=old.dtype)
            here = np.full(len(old), bucket, np.uint8)
            # Rows of texts are numbered in ascending order.
            place = np.searchsorted(buckets.column(texts, "row"), old)
            writer.append(_numbered(texts.take(pa.array(place)), new), here)
            buckets.write_part(kept.outcomes, bucket, _numbered(drawn, new), here)
            found.append(old.astype(np.intp))
    return replace(kept, rows=np.concatenate(found))


def _numbered(table: pa.Table, row: NDArray[np.generic]) -> pa.Table:
    at = table.schema.get_field_index("row")
    return table.set_column(at, table.schema.field(at), pa.array(row, table.schema.field(at).type))
