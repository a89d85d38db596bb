"""A release from the moment on when its private map is complete: no label is read any more.

What is left to do is to learn, to publish and to commit. A mechanism that learns for hours is
detached: public texts and rows as drawn go into a directory of the release's own, and the project
is let go. Its scratch space, raw labels in it, is removed by whoever holds the project, which is
this job for the last time and from then on any other: so nothing raw is left while it learns, and
what is left nobody else touches. Then the project is held again, by a job of its own like any
other, and what happened meanwhile decides whether the release may still appear:

- other releases were made, or pseudonyms changed: its card says what was true when it was drawn;
- policies and people do not change while it is under way (`OpenProject.begin_exclusive_change`);
- somebody left whose labels it drew, or would repeat: it was given up, and stays charged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from labelguard.errors import LedgerError, ProjectError
from labelguard.ledger.ledger import Grant
from labelguard.ledger.records import ReleaseRecord
from labelguard.project import lifetime, recovery
from labelguard.project.locking import waiting
from labelguard.project.opening import OpenProject
from labelguard.project.project import Project
from labelguard.release import card
from labelguard.release.protocol import Mechanism, Prepared, ReleaseContext, TrainingInputs
from labelguard.release.publish import publish_release, snapshot_for_training
from labelguard.release.selection import PlannedRows, SelectedRows
from labelguard.release.writer import Release, deliver, read_card
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks
from labelguard.storage.files import find_changed_file, fresh_directory


@dataclass(frozen=True, eq=False, repr=False)
class DrawnRelease:
    """A release that was drawn, with all that is needed to finish it.

    `facts` are what its card says of the project on the day (see `card_context`), `output` where a
    copy goes, `authors` (n, 2), sorted, whose labels are in it, once it is detached.
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

    def detach(self, claims: contextlib.ExitStack) -> DrawnRelease:
        """Return the release as it goes on without the project, under a claim in `claims`."""
        context, project = self.context, self.context.opened.project
        claims.enter_context(project.claim(self.id))
        directory = fresh_directory(project.saved_rows(self.id), mode=0o700)
        snapshot = snapshot_for_training(context.staged, context.outcomes, directory)
        return replace(
            self,
            context=replace(context, staged=snapshot.staged, outcomes=snapshot.outcomes),
            prepared=self.prepared.renumber(snapshot.rows),
            authors=_labelers_of(self.prepared.plan),
        )

    def train(self) -> DrawnRelease:
        """Return the release with what the mechanism learned."""
        directory = self.context.opened.project.stages / self.id
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        inputs = TrainingInputs(self.context.outcomes, directory, self.context.progress)
        return replace(self, prepared=self.mechanism.learn(inputs, self.prepared))

    def publish(self) -> tuple[int, Mapping[str, str]]:
        """Write the release from what was drawn; return its rows and the hashes of its files."""
        finished = self.mechanism.finish(self.context, self.prepared, self.grant)
        return publish_release(self.context, self.prepared.plan, self.grant, finished, self.facts)

    def commit(self) -> Release:
        """Publish and commit the release; for the job that holds the project."""
        opened = self.context.opened
        rows, hashes = self.publish()
        opened.ledger.commit(self.grant, self.epoch, rows, hashes)
        opened.project.clear(self.id)
        record = opened.ledger.releases.get(self.id)
        assert record is not None
        return return_release(opened.project, record, self.output, self.notes)

    def commit_after_training(self, home: Project) -> Release:
        """Publish and commit the release in a job of its own, which waits for the project.

        Raises `LedgerError` if the release may not appear any more; it stays charged.
        """
        progress = self.context.progress
        with waiting(lambda text: progress(text, None)), OpenProject.job(home) as opened:
            epoch = opened.ledger.begin_job()
            self._check_not_given_up(opened, epoch)
            recovered = recovery.settle(opened, self.id, epoch)
            opened.project.work.mkdir(mode=0o700, parents=True)
            notes = tuple(dict.fromkeys((*self.notes, *recovered)))
            context = replace(self.context, opened=opened)
            return replace(self, context=context, epoch=epoch, notes=notes).commit()

    def _check_not_given_up(self, opened: OpenProject, epoch: int) -> None:
        """Raise `LedgerError` if the release may not appear any more, and leave nothing of it."""
        record = opened.ledger.releases.get(self.id)
        if record is None:
            raise LedgerError(
                f"release {self.id} is not in the ledger any more, which is an older copy; put the "
                "newest copy back"
            )
        left = (blocks.positions(self.authors, opened.ledger.people.tombstones()) >= 0).any()
        if record.is_unfinished and not left:
            return
        if record.is_unfinished:
            opened.ledger.abandon(self.id, epoch)
        opened.project.clear(self.id)
        raise LedgerError(
            f"release {self.id} was given up while it learned: somebody left whose labels are in "
            "it; it stays charged; run the same command again for a release without them"
        )


def card_context(context: ReleaseContext, plan: PlannedRows, grant: Grant) -> dict[str, Any]:
    """Return project facts for the card, captured when the labels are drawn.

    The policies beside this one, and what its labelers have used and left.
    """
    ledger = context.opened.ledger
    capacity, used = ledger.releases.labelers(grant.release.event).of(plan.units)
    met = capacity > 0  # who was never charged has no budget yet
    capacity, used = capacity[met], used[met]
    return {
        "privacy": lifetime.card_facts(ledger),
        "budget": {
            "allowed": card.spread(capacity),
            "used": card.spread(used),
            "left": card.spread(capacity - used),
        },
    }


def return_release(
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
    path = home.releases / record.id
    broken = find_changed_file(path, record.files) if reused else None
    if broken:
        raise ProjectError(f"release {record.id}: {broken}; restore it from a backup")
    if output:
        deliver(path, output, record.files)
        path = output
    return Release(record.id, path, read_card(path), reused, tuple(notes))


def _labelers_of(plan: PlannedRows) -> Blocks:
    """Return the labelers of all selected rows, sorted, (n, 2)."""
    tables = (buckets.read_bucket(plan.directory, bucket) for bucket in range(buckets.BUCKETS))
    authors = [SelectedRows.from_arrow(table).author for table in tables if table is not None]
    return blocks.unique(np.concatenate([np.zeros((0, 2), np.uint64), *authors]))[0]
