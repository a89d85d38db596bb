"""Whether an input may be charged: it comes from a known source, is read as before, and nobody in
it is somebody whom the project knows under another spelling.

All of it follows from public columns, and comes before anything is charged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from labelguard.ingest.groups import Groups
from labelguard.ingest.staging import Staged
from labelguard.keys import identities
from labelguard.keys.identities import Identities
from labelguard.ledger import sourcebook
from labelguard.ledger.ledger import Ledger
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks


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
    everybody = _with_unmet(known, np.concatenate([groups.labelers, ledger.tombstones()]))
    identities.refuse_doubles(met, everybody, groups, ledger.distinct(), ledger.names)
    return Admission(source, staged.columns, met.without(known))


def _with_unmet(known: Identities, labelers: Blocks) -> Identities:
    """Those whom releases have met, and these, who were put into groups or left before any did.

    Of their ids only the keys are there: they are taken to be written in their normal forms.
    """
    unmet = Identities(*(blocks.unique(labelers)[0],) * 2).without(known)
    together = np.concatenate([known.labelers, unmet.labelers])
    order = blocks.order(together)
    forms = np.concatenate([known.forms, unmet.forms])
    return Identities(together[order], forms[order])
