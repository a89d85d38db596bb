"""What the ledger knows of releases and labelers, and what it is asked to charge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.keys.identities import Identities
from labelguard.policy.policy import Priced
from labelguard.storage.blocks import Blocks


@dataclass(frozen=True)
class ReleaseRecord:
    """One release as the ledger knows it; `event` is the kind of places it takes.

    `map` is the keyed digest of its private map, and `drawn` how many labels that holds, from the
    moment on when the map is complete.
    """

    id: str
    number: int
    idempotency_key: str
    policy_id: int
    event: Priced
    state: str
    created_at: str
    settings: Mapping[str, Any]
    charged: int
    rows: int | None
    files: Mapping[str, str]
    map: str | None = None
    drawn: int | None = None

    @property
    def unfinished(self) -> bool:
        """Whether it read labels, or may have, and was neither committed nor given up."""
        return self.state in ("computing", "drawn")


@dataclass(frozen=True)
class Event:
    """What a mechanism wants to do to whom, computed from public columns only.

    `kind` says which places it takes. `labelers` (n, 2) are all units of the release with
    `capacity` k (n,), their places; `charged` (n,) is how many new places each of them is asked
    for: coins, or statistic releases. `prices` says for every k what noise a place buys.
    """

    mechanism: str
    kind: Priced
    idempotency_key: str
    settings: Mapping[str, Any]
    labelers: Blocks
    capacity: NDArray[np.int64]
    charged: NDArray[np.int64]
    prices: Mapping[int, int]


@dataclass(frozen=True)
class LabelerTable:
    """Labelers sorted by key, with their capacity k and used places, shape (n,)."""

    labelers: Blocks
    capacity: NDArray[np.int64]
    used: NDArray[np.int64]

    @classmethod
    def empty(cls) -> LabelerTable:
        """Nobody."""
        nothing = np.zeros(0, np.int64)
        return cls(np.zeros((0, 2), np.uint64), nothing, nothing)


@dataclass(frozen=True)
class Admission:
    """What a release reads: its source, the column of each role, and who is met the first time."""

    source: str
    columns: Mapping[str, str]
    newcomers: Identities = field(repr=False)
