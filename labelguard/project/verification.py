"""Verify everything that a project keeps: journal, tables, public files, private maps,
ingested answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise

from labelguard import clock
from labelguard.ledger.journal import Anchor, Entry
from labelguard.ledger.records import ReleaseRecord
from labelguard.project.opening import OpenProject
from labelguard.storage.files import find_changed_file

_TRUE_COPY = (
    "; put the release's directory back from a backup that is restored on trial "
    "(labelguard project restore BACKUP DIRECTORY --keys COPY): "
    "DIRECTORY/.labelguard/releases"
)

# How far the clocks of two machines with one ledger may be apart.
_SKEW = timedelta(minutes=1)


@dataclass(frozen=True)
class FilesVerification:
    """The verification of released files."""

    # whether everything holds
    ok: bool
    # the first thing that does not
    fault: str | None
    # committed releases that were looked at
    releases: int


@dataclass(frozen=True)
class Verification(FilesVerification):
    """The verification of everything that a project keeps."""

    # entries of the journal
    journal_entries: int
    # where the journal's time runs backwards by more than a minute; null where it does not
    backwards: str | None
    # the journal's newest entry as a line to keep elsewhere; null if there is a fault
    anchor: str | None


def verify_records(opened: OpenProject, anchor: Anchor | None) -> Verification:
    """Verify journal, charges and the files of all releases; report the first fault.

    The journal must still hold the entry that `anchor` names.
    """
    records, entries = opened.ledger.releases.all(), opened.ledger.read_journal()
    lost = anchor and not any(Anchor(e.number, e.digest) == anchor for e in entries)
    broken = find_ledger_fault(opened, records)
    if anchor and lost and not broken:
        restored = [e.at for e in entries if e.kind == "restored" and e.number <= anchor.number]
        broken = (
            f"the journal does not hold entry {anchor.number} of the anchor: it was cut or changed"
        ) + (
            f", unless the anchor is from before {restored[-1]}, when the project was restored from"
            " a backup without that entry"
            if restored
            else ""
        )
    broken = broken or find_release_fault(opened, records) or opened.answers.find_fault()
    committed = sum(record.state == "committed" for record in records)
    backwards, newest = None, None
    if not broken:
        backwards = _describe_backward_time(entries)
        newest = str(Anchor(entries[-1].number, entries[-1].digest))
    return Verification(broken is None, broken, committed, len(entries), backwards, newest)


def _describe_backward_time(entries: Sequence[Entry]) -> str | None:
    """Say which entries are dated before the one that they follow; None if none is.

    The chain holds: a clock was set back, or set wrong before; so it is no fault.
    """
    steps = [
        (a, b)
        for a, b in pairwise(entries)
        if clock.parse_time(a.at) - clock.parse_time(b.at) > _SKEW
    ]
    if not steps:
        return None
    (before, after), more = steps[0], f", and {len(steps) - 1:,} more" if len(steps) > 1 else ""
    return (
        f"time ran backwards: journal entry {after.number} is dated {after.at}, and entry "
        f"{before.number} before it {before.at}{more}; see that the clock is right"
    )


def find_ledger_fault(opened: OpenProject, records: Iterable[ReleaseRecord]) -> str | None:
    """Return the first thing in the ledger that does not hold, or a release on disk that it
    lacks.
    """
    strays = opened.project.list_unknown_releases(record.id for record in records)
    lost = f"release {strays[0]} is not in the ledger: it is an older copy" if strays else None
    return opened.ledger.find_fault() or lost


def find_release_fault(opened: OpenProject, records: Iterable[ReleaseRecord]) -> str | None:
    """Return the first file of these releases that is not what was drawn or committed, or None."""
    for record in records:
        broken = None
        if record.state == "committed":
            broken = find_changed_file(opened.project.releases / record.id, record.files)
            broken = broken and broken + _TRUE_COPY
        if record.map:
            broken = broken or opened.private_map.find_fault(record.id, record.map)
        if broken:
            return f"release {record.id}: {broken}"
    return None
