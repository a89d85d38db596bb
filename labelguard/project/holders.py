"""Where raw rows lie in a project, and how those of labelers who leave are found and removed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from labelguard.ingest import quarantine
from labelguard.ingest import segments as stored
from labelguard.ingest.inbox import Event, Inbox
from labelguard.ingest.quarantine import Leavers, Raw
from labelguard.ingest.segments import Segments
from labelguard.ledger import segmentbook
from labelguard.ledger.segmentbook import Segment
from labelguard.project import ingestion
from labelguard.project.opening import OpenProject
from labelguard.storage import buckets


class Holder(Protocol):
    """A place in a project where raw rows lie."""

    def find(self, opened: OpenProject, leavers: Leavers) -> Raw:
        """What of these labelers lies there."""
        ...

    def purge(self, opened: OpenProject, leavers: Leavers, epoch: int) -> Raw:
        """Remove it, from disk too; what was found. May be called again after a crash."""
        ...


class Quarantine:
    """Bad rows that were set aside."""

    def find(self, opened: OpenProject, leavers: Leavers) -> Raw:
        """Their rows, and files that cannot be read."""
        return quarantine.find(opened.project.quarantine, leavers)

    def purge(self, opened: OpenProject, leavers: Leavers, epoch: int) -> Raw:
        """Take the rows out, remove those files."""
        # It names answers without labelers, and the next release writes it anew.
        opened.project.outside.unlink(missing_ok=True)
        return quarantine.purge(opened.project.quarantine, leavers)


class IngestedSegments:
    """Answers that were ingested."""

    def find(self, opened: OpenProject, leavers: Leavers) -> Raw:
        """Their answers, whichever state of them counts."""
        held, counted = _segments(opened)
        theirs = self._theirs(held, counted, leavers, row_keys(opened, leavers))
        return Raw(sum(rows for rows, _ in theirs.values()))

    def purge(self, opened: OpenProject, leavers: Leavers, epoch: int) -> Raw:
        """Write their segments anew without them."""
        held, counted = _segments(opened)
        held.settle(counted)
        theirs = self._theirs(held, counted, leavers, row_keys(opened, leavers))
        changed = {
            segment.name: held.rewrite(segment, theirs[segment.name][1])
            for segment in counted
            if segment.name in theirs
        }
        if changed:
            with opened.ledger.transaction(epoch) as connection:
                segmentbook.replace(connection, changed)
                after = segmentbook.records(connection)
            held.settle(after)
        return Raw(sum(rows for rows, _ in theirs.values()))

    def _theirs(
        self, held: Segments, counted: list[Segment], leavers: Leavers, row_keys: set[bytes]
    ) -> dict[str, tuple[int, dict[int, stored.Table]]]:
        """By segment: how many rows are theirs, and the tables without them."""
        places = set(buckets.bucket_of(leavers.labelers).tolist())
        found = {}
        for segment in counted:
            rows, rest = 0, {}
            for place, table in held.read(segment, places).items():
                own = leavers.rows(table["labeler"], segment.source)
                # Of a label that was forgotten, the keys of its rows tell whose it was.
                keys = table["rows"].to_pylist()
                own |= np.array([not row_keys.isdisjoint(one or ()) for one in keys], bool)
                if own.any():
                    rows += int(own.sum())
                    rest[place] = table.take(np.flatnonzero(~own))
            if rest:
                found[segment.name] = rows, rest
        return found


class WaitingEvents:
    """What a hook was told, and dead letters, which nobody can tell whose they are."""

    def find(self, opened: OpenProject, leavers: Leavers) -> Raw:
        """Their answers that wait, and all dead letters."""
        return self._walk(opened, leavers, remove=False)

    def purge(self, opened: OpenProject, leavers: Leavers, epoch: int) -> Raw:
        """Take the answers out, remove those letters."""
        return self._walk(opened, leavers, remove=True)

    def _walk(self, opened: OpenProject, leavers: Leavers, *, remove: bool) -> Raw:
        project, met = opened.project, 0
        unknown: list[str] = []
        sources = {name: own.source for name, own in ingestion.settings(project).items()}

        def keep(event: Event) -> Event | None:
            nonlocal met
            source = sources.get(event.connector)
            if source is None:  # whose its ids are, nobody knows any more
                unknown.append(event.connector)
                return None if remove else event
            keys = opened.keys.labeler_keys(source, [a.labeler for a in event.answers])
            own = leavers.of_keys(keys)
            met += int(own.sum())
            rest = tuple(a for a, left in zip(event.answers, ~own, strict=True) if left)
            return event if not remove else replace(event, answers=rest) if rest else None

        with _inbox(opened) as inbox:
            if inbox is None:
                return Raw()
            inbox.filter(keep)
            letters = inbox.letters()
            for letter in letters if remove else ():
                inbox.remove(letter.number)
        names = [f"dead letter {one.number} for {one.connector}" for one in letters]
        names += [f"event of {name}, which labelguard.toml does not name" for name in unknown]
        return Raw(met, tuple(names))


HOLDERS: tuple[Holder, ...] = (Quarantine(), IngestedSegments(), WaitingEvents())
"""Every store of raw rows; another adds itself here. A job's scratch space goes with the job."""


def row_keys(opened: OpenProject, leavers: Leavers) -> set[bytes]:
    """The keys of their rows in all private maps."""
    maps = [record.id for record in opened.ledger.releases() if record.map]
    private_map = opened.private_map
    return {key for one in maps for key in private_map.keys_of(one, leavers.labelers)}


def _segments(opened: OpenProject) -> tuple[Segments, list[Segment]]:
    with opened.ledger.snapshot() as connection:
        counted = segmentbook.records(connection)
    return Segments(opened.project.labels, opened.keys), counted


@contextlib.contextmanager
def _inbox(opened: OpenProject) -> Iterator[Inbox | None]:
    """The inbox, if there is one."""
    home = opened.project
    found = Inbox.find(home.state, home.ledger_url, opened.keys)
    try:
        yield found
    finally:
        if found:
            found.close()
