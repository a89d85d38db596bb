"""Whether an input may be charged: it comes from a known source, is read as before, and nobody in
it is somebody whom the project knows under another spelling.

All of it follows from public columns, and comes before anything is charged.
"""

from __future__ import annotations

from labelguard.ingest.staged import Staged
from labelguard.ledger import sourcebook
from labelguard.ledger.ledger import Ledger
from labelguard.ledger.records import Admission, Groups
from labelguard.project.doubles import refuse_doubles


def admit(ledger: Ledger, source: str, staged: Staged) -> Admission:
    """Judge a staged input. Raises `PolicyError` for another source or other columns than before,
    `InvalidLabels` for two ids that may be one person.
    """
    sourcebook.check(ledger.sources(), source, staged.columns)
    met, known = staged.identities, ledger.identities()
    groups = Groups(*ledger.members())
    refuse_doubles(met, ledger.known(), groups, ledger.distinct())
    return Admission(source, staged.columns, met.without(known))
