"""Records of the ledger: releases, charges, links, and labelers with their allowances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelguard.budget.event_kind import Price
from labelguard.keys.identities import Identities
from labelguard.keys.prf import Split
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks


@dataclass(frozen=True)
class ReleaseRecord:
    """One release as the ledger knows it; `event` names the kind of uses that it is charged.

    `map` is the keyed digest of its private map, and `drawn` how many labels that holds, from the
    moment on when the map is complete.
    """

    id: str
    number: int
    idempotency_key: str
    policy_id: int
    event: str
    state: str
    created_at: str
    settings: Mapping[str, Any]
    charged: int
    rows: int | None
    files: Mapping[str, str]
    map: str | None = None
    drawn: int | None = None

    @property
    def is_unfinished(self) -> bool:
        """True if it read labels, or may have, and was neither committed nor given up."""
        return self.state in ("computing", "drawn")

    @property
    def part(self) -> Split:
        """The units whose labels it has: those of held-out units evaluate, and never train."""
        part: Split = self.settings.get("part", "training")
        return part


@dataclass(frozen=True)
class Charge:
    """The charge of a release: how many uses of whom, computed from public columns only.

    `event` names the kind of event. `labelers` (n, 2) are all units of the release, `capacity` k
    (n,) what they are allowed; `charged` (n,) is how many new uses each of them is asked for:
    randomized blocks, statistic releases, training runs or stages. `prices` says for every k what
    a use costs. The repr leaves out who they are.
    """

    mechanism: str
    event: str
    idempotency_key: str
    settings: Mapping[str, Any]
    labelers: Blocks = field(repr=False)
    capacity: NDArray[np.int64]
    charged: NDArray[np.int64]
    prices: Mapping[int, Price]


@dataclass(frozen=True, eq=False)
class Links:
    """The linked labelers, who share one budget: their pseudonyms, (n, 2), distinct and in byte
    order, and that of the labeler who names their unit, (n, 2). Its repr is empty.
    """

    labelers: Blocks = field(repr=False)
    units: Blocks = field(repr=False)

    def __post_init__(self) -> None:
        distinct = blocks.unique(self.labelers)[0]
        if len(self.units) != len(self.labelers) or not np.array_equal(distinct, self.labelers):
            raise ValueError("expected distinct labelers in byte order, and a unit for each")

    def unit_of(self, labelers: Blocks) -> Blocks:
        """Return the unit of each labeler, (m, 2); whoever is not linked is a unit alone."""
        if not len(self.labelers):
            return labelers
        where = blocks.find_positions(self.labelers, labelers)
        return np.where((where >= 0)[:, None], self.units[where], labelers)

    def __len__(self) -> int:
        """Return how many labelers are linked."""
        return len(self.labelers)

    def find_linked(self, labeler: Blocks) -> Blocks:
        """Return the other labelers of a labeler's unit, (1, 2), in byte order, (m, 2)."""
        unit = self.unit_of(labeler)
        same = ~blocks.differ(self.units, unit) & blocks.differ(self.labelers, labeler)
        others: Blocks = self.labelers[same]
        return others


@dataclass(frozen=True)
class LabelerTable:
    """Labelers sorted by key, with their capacity k and what is used of it, (n,).

    The repr leaves out who they are.
    """

    labelers: Blocks = field(repr=False)
    capacity: NDArray[np.int64]
    used: NDArray[np.int64]

    def find_usage(self, labelers: Blocks) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return k and uses of some labelers, (n,) each; 0 for whom the ledger has not met."""
        where = blocks.find_positions(self.labelers, labelers)
        met = where >= 0
        capacity, used = np.zeros((2, len(labelers)), np.int64)
        capacity[met], used[met] = self.capacity[where[met]], self.used[where[met]]
        return capacity, used


@dataclass(frozen=True)
class Admission:
    """The reading of a release: its source, the column of each role, and who is met first."""

    source: str
    columns: Mapping[str, str]
    newcomers: Identities = field(repr=False)
