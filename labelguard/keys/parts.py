"""Which units are held out: drawn once, by a keyed hash, whatever is released when."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelguard.keys.prf import Prf
from labelguard.storage.blocks import Blocks

# Whose labels a mechanism takes: those of units to learn from, or of the units held out.
Part = Literal["training", "held-out"]


@dataclass(frozen=True)
class Parts:
    """The two parts of a project's units: a `share` of them is held out. Its repr shows no key.

    A unit's part follows from its key and the project's alone: not from labels, order or names of
    files, nor from what was released before. The key of a unit outlasts a change of pseudonyms, and
    that of a person who was charged outlasts links.
    """

    prf: Prf = field(repr=False)
    share: float

    def among(self, units: Blocks, part: Part) -> NDArray[np.bool_]:
        """Which of some units, (n, 2), are of this part, shape (n,)."""
        held_out: NDArray[np.bool_] = np.zeros(len(units), bool)
        if self.share and len(units):
            held_out = self.prf(units)[:, 0] < np.uint64(math.ldexp(self.share, 64))
        return held_out if part == "held-out" else ~held_out
