"""Where raw rows lie in a project, and how those of labelers who leave are found and removed."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np

from labelguard.answers.inbox import Event, Inbox
from labelguard.answers.segments import Segments
from labelguard.inputs import quarantine
from labelguard.inputs.quarantine import DepartedLabelers, RawRows
from labelguard.ledger import segmentbook
from labelguard.project import ingestion
from labelguard.project.opening import OpenProject
from labelguard.storage import buckets


def _quarantined(opened: OpenProject, leavers: DepartedLabelers, epoch: int | None) -> RawRows:
    """Bad rows of theirs that were set aside, and files that cannot be read."""
    if epoch is None:
        return quarantine.find(opened.project.quarantine, leavers)
    # It names answers without labelers, and the next release writes it anew.
    opened.project.outside.unlink(missing_ok=True)
    return quarantine.purge(opened.project.quarantine, leavers)


def _ingested(opened: OpenProject, leavers: DepartedLabelers, epoch: int | None) -> RawRows:
    """Answers of theirs that were ingested, whichever state of them counts."""
    counted = opened.ledger.read(segmentbook.records)
    held, own_keys = Segments(opened.project.labels, opened.keys), row_keys(opened, leavers)
    if epoch is not None:
        held.settle(counted)
    places, rows, changed = set(buckets.bucket_of(leavers.labelers).tolist()), 0, {}
    for segment in counted:
        rest = {}
        for place, table in held.read(segment, places).items():
            own = leavers.rows(table["labeler"], segment.source)
            # Of a label that was forgotten, the keys of its rows tell whose it was.
            keys = table["rows"].to_pylist()
            own |= np.array([not own_keys.isdisjoint(one or ()) for one in keys], bool)
            if own.any():
                rows += int(own.sum())
                rest[place] = table.take(np.flatnonzero(~own))
        if rest and epoch is not None:
            changed[segment.name] = held.rewrite(segment, rest)
    if changed and epoch is not None:
        held.settle(opened.ledger.write(epoch, segmentbook.replace, changed))
    return RawRows(rows)


def _waiting(opened: OpenProject, leavers: DepartedLabelers, epoch: int | None) -> RawRows:
    """Answers of theirs that a hook was told, and dead letters, whose labelers nobody can tell."""
    project, met, remove = opened.project, 0, epoch is not None
    unknown: list[str] = []
    sources = {name: own.source for name, own in ingestion.settings(project).items()}

    def keep(event: Event) -> Event | None:
        nonlocal met
        source = sources.get(event.connector)
        if source is None:  # whose its ids are, nobody knows any more
            unknown.append(event.connector)
            return None if remove else event
        own = leavers.of_keys(opened.keys.labeler_keys(source, [a.labeler for a in event.answers]))
        met += int(own.sum())
        rest = tuple(a for a, left in zip(event.answers, ~own, strict=True) if left)
        return event if not remove else replace(event, answers=rest) if rest else None

    inbox = Inbox.find(project.state, project.ledger_url, opened.keys)
    if inbox is None:
        return RawRows()
    with contextlib.closing(inbox):
        inbox.filter(keep)
        letters = inbox.letters()
        for letter in letters if remove else ():
            inbox.remove(letter.number)
    names = [f"dead letter {one.number} for {one.connector}" for one in letters]
    names += [f"event of {name}, which labelguard.toml does not name" for name in unknown]
    return RawRows(met, tuple(names))


# Every store of raw rows; another adds itself here. A job's scratch space goes with the job.
HOLDERS = (_quarantined, _ingested, _waiting)


def find(opened: OpenProject, leavers: DepartedLabelers) -> RawRows:
    """Return what of these labelers lies anywhere."""
    return sum((holder(opened, leavers, None) for holder in HOLDERS), RawRows())


def purge(opened: OpenProject, leavers: DepartedLabelers, epoch: int) -> RawRows:
    """Remove it, from disk too; return what was found. May be called again after a crash."""
    return sum((holder(opened, leavers, epoch) for holder in HOLDERS), RawRows())


def row_keys(opened: OpenProject, leavers: DepartedLabelers) -> set[bytes]:
    """Return the keys of their rows in all private maps."""
    private_map = opened.private_map
    return {key for one in opened.maps for key in private_map.keys_of(one, leavers.labelers)}
