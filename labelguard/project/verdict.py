"""Whether everything that a project keeps holds: journal, tables, public files, private maps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from labelguard.ledger.journal import Anchor
from labelguard.ledger.records import ReleaseRecord
from labelguard.project.opening import OpenProject
from labelguard.storage.sums import fault as public_fault


def verdict(opened: OpenProject, kept: Anchor | None) -> dict[str, Any]:
    """Whether journal, charges and the files of all releases hold; the first fault if not.

    The journal must still hold the entry that the anchor `kept` names.
    """
    home, ledger = opened.project, opened.ledger
    everything = ledger.releases()
    records = [record for record in everything if record.state == "committed"]
    strays = home.strays(record.id for record in everything)
    entries = ledger.journal()
    lost = None
    if kept and not any((e.number, e.digest) == (kept.number, kept.digest) for e in entries):
        lost = f"the journal does not hold entry {kept.number} of the anchor: it was cut or changed"
    elif strays:
        lost = f"release {strays[0]} is not in the ledger: it is an older copy"
    broken = ledger.fault() or lost or release_fault(opened, records)
    return {
        "ok": broken is None,
        "fault": broken,
        "journal_entries": len(entries),
        "releases": len(records),
    }


def release_fault(opened: OpenProject, records: Iterable[ReleaseRecord]) -> str | None:
    """The first file of these releases that is not what was committed, or None."""
    private_map = opened.private_map
    for record in records:
        broken = public_fault(opened.project.releases / record.id, record.files)
        broken = broken or private_map.fault(record.id, record.map or "")
        if broken:
            return f"release {record.id}: {broken}"
    return None
