"""Which labelers are one unit of privacy, as arrays of keys."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks


@dataclass(frozen=True, eq=False)
class Groups:
    """Which group labelers belong to: pseudonyms of labelers, (n, 2), distinct and in byte order,
    and those of their groups, (n, 2). Its repr is empty.
    """

    labelers: Blocks = field(repr=False)
    units: Blocks = field(repr=False)

    def __post_init__(self) -> None:
        distinct = blocks.unique(self.labelers)[0]
        if len(self.units) != len(self.labelers) or not np.array_equal(distinct, self.labelers):
            raise ValueError("expected distinct labelers in byte order, and a unit for each")

    def unit_of(self, labelers: Blocks) -> Blocks:
        """The unit of each labeler, (m, 2): their group, or themselves if they are in none."""
        if not len(self.labelers):
            return labelers
        where = blocks.positions(self.labelers, labelers)
        return np.where((where >= 0)[:, None], self.units[where], labelers)

    def is_group(self, key: Blocks) -> bool:
        """Whether this pseudonym, shape (1, 2), is a group's: a unit's, and no labeler's."""
        units = blocks.unique(self.units)[0]
        labeler = blocks.positions(self.labelers, key)[0] >= 0
        return not labeler and bool(blocks.positions(units, key)[0] >= 0)
