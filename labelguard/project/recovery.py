"""Leftovers of earlier jobs: given back, tidied away, listed, or given up."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable
from dataclasses import dataclass

from labelguard.budget import events
from labelguard.errors import LedgerError, ProjectBusy
from labelguard.ledger.records import ReleaseRecord
from labelguard.project.opening import OpenProject, Where


@dataclass(frozen=True)
class Abandoned:
    """A release that was given up."""

    # its id
    id: str
    # what it charged, which stays charged
    charged: int


def abandon(release_id: str, project: Where = None) -> Abandoned:
    """Give up an unfinished release: it stays charged, and can never be resumed.

    Raises `LedgerError` if it is not one that was begun and not committed, `ProjectBusy` if it is
    being computed. Its id may be shortened.
    """
    with OpenProject.job(project) as opened:
        ledger = opened.ledger
        begun = [record for record in ledger.releases.all() if record.is_unfinished]
        matches = [record for record in begun if record.id.startswith(release_id)]
        if len(matches) != 1:
            raise LedgerError(
                f"{release_id} names {len(matches)} unfinished releases; see: "
                "labelguard release list"
            )
        opened.project.check_free(matches[0].id)
        ledger.abandon(matches[0].id, ledger.begin_job())
        tidy(opened, ledger.releases.all())
        return Abandoned(matches[0].id, matches[0].charged)


def settle(opened: OpenProject, resumed: str | None, epoch: int) -> list[str]:
    """Give back what crashed jobs reserved and never used; notes on this and on what they began.

    `resumed` is the release that goes on, if any. Raises `LedgerError` if releases on disk are
    unknown to the ledger: it is an older copy; `ProjectError` if a private map is not the one that
    was drawn.
    """
    project, ledger = opened.project, opened.ledger
    notes = [
        f"release {release_id} never drew a coin; its charge was given back"
        for release_id in ledger.refund_reserved(epoch, resumed=resumed)
    ]
    releases = ledger.releases.all()
    strays = project.strays(record.id for record in releases)
    if strays:
        raise LedgerError(
            f"release {strays[0]} is in {project.state}, but not in the ledger: it is an older "
            "copy and would forget what was spent; put the newest copy back"
        )
    tidy(opened, releases)
    opened.private_map.settle(opened.maps)
    return notes + [
        _describe_unfinished(opened, record)
        for record in releases
        if record.is_unfinished and record.id != resumed
    ]


def _describe_unfinished(opened: OpenProject, record: ReleaseRecord) -> str:
    try:
        opened.project.check_free(record.id)
    except ProjectBusy as busy:
        return str(busy)
    return (
        f"release {record.id} is unfinished and stays charged; run its command again to finish it, "
        f"or give it up: labelguard release abandon {record.id}"
    )


def tidy(opened: OpenProject, releases: Iterable[ReleaseRecord]) -> None:
    """Remove what counts for nothing: maps that the ledger does not know to be drawn (nothing of
    them was visible), stages of ended releases, and the files of abandoned ones.

    A crash may have come before whoever should have done it. Who still works on a release that was
    given up keeps its stages until they notice.
    """
    project, private_map = opened.project, opened.private_map
    for record in releases:
        if not record.map:
            private_map.discard(record.id)
        if not record.is_unfinished and any(project.stages.glob(f"{record.id}*")):
            with contextlib.suppress(ProjectBusy), project.claim(record.id):
                project.clear(record.id)
        if record.state == "abandoned":
            shutil.rmtree(project.releases / record.id, ignore_errors=True)


def earlier_releases(releases: Iterable[ReleaseRecord], event: str) -> list[str]:
    """Return releases whose labels were released before, for a release of this kind of event.

    Kinds of events do not know each other's labels.
    """
    reuses_labels = events.kind(event).reuses_labels
    return [r.id for r in releases if r.map and r.event == event and reuses_labels(r.state)]
