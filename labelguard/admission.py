"""Whether an input may be charged: it comes from a known source, is read as before, and nobody in
it is somebody whom the project knows under another spelling.

All of it follows from public columns, and comes before anything is charged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from labelguard import identities, sourcebook
from labelguard.groups import Groups
from labelguard.identities import Identities
from labelguard.ledger import Ledger
from labelguard.staging import Staged


@dataclass(frozen=True)
class Admission:
    """What a release reads: its source, the column of each role, and who is met the first time."""

    source: str
    columns: Mapping[str, str]
    newcomers: Identities = field(repr=False)


def admit(ledger: Ledger, source: str, staged: Staged) -> Admission:
    """Judge a staged input. Raises `PolicyError` for another source or other columns than before,
    `InvalidLabels` for two ids that may be one person.
    """
    sourcebook.check(ledger.sources(), source, staged.columns)
    met, known = staged.identities, ledger.identities()
    groups = Groups(*ledger.members())
    identities.refuse_doubles(met, known, groups, ledger.distinct(), ledger.names)
    return Admission(source, staged.columns, met.without(known))
