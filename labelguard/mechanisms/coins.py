"""Permanent coins: the randomness of randomized response, a function of secret keys and identity.

A coin is 64 bits of PRF(salt of the labeler, item, what is drawn), where "what is drawn" is a block
of fixed-width fields: scheme version, purpose, pair index within a ranking, version of the
submission, threshold. The encoding is injective, so two different draws never share a coin; the
threshold is part of it, because one coin compared with two thresholds would reveal the label. The
same draw gives the same coin on every run and machine, which is what makes a re-export free. The
salt is always that of the labeler who gave the label, also where labelers share places as a group.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from labelguard.block128 import Blocks
from labelguard.prf import Prf

SCHEME_VERSION = 1


class Purpose(IntEnum):
    """What a coin is for; different purposes never share one."""

    FLIP = 1
    TIE = 2
    ROW_KEY = 3
    ORDER = 4
    TERNARY = 5


class Coins:
    """The coins of several labelers; `salts` has shape (labelers, 2). Its repr is empty."""

    def __init__(self, prf: Prf, salts: Blocks) -> None:
        self._prf = prf
        self._salted = prf.absorb(np.zeros_like(salts), salts)

    def __repr__(self) -> str:
        return "Coins(…)"

    def identify(self, unit: NDArray[np.intp], items: Blocks) -> Blocks:
        """What all draws of the rows (labeler, item) share; `unit` indexes the labelers' salts."""
        return self._prf.absorb(self._salted[unit], items)

    def draw(
        self,
        purpose: Purpose,
        identity: Blocks,
        pair: NDArray[np.uint16],
        version: NDArray[np.uint32],
        threshold: NDArray[np.uint64],
    ) -> NDArray[np.uint64]:
        """One uniform 64-bit integer a row, shape (n,); `identity` comes from `identify`."""
        return self._finish(purpose, identity, pair, version, threshold)[:, 0]

    def row_keys(self, identity: Blocks, pair: NDArray[np.uint16]) -> Blocks:
        """The secret names of (labeler, item, pair) in the private map, shape (n, 2)."""
        return self._finish(Purpose.ROW_KEY, identity, pair, 0, 0)

    def order(self, identity: Blocks) -> NDArray[np.uint64]:
        """Keyed hashes that put a labeler's items (or rankings) in an order, shape (n,)."""
        return self._finish(Purpose.ORDER, identity, 0, 0, 0)[:, 0]

    def _finish(
        self,
        purpose: Purpose,
        identity: Blocks,
        pair: NDArray[np.uint16] | int,
        version: NDArray[np.uint32] | int,
        threshold: NDArray[np.uint64] | int,
    ) -> Blocks:
        drawn = np.empty_like(identity)
        drawn[:, 0] = np.asarray(pair, np.uint64) << np.uint64(32)
        drawn[:, 0] |= np.asarray(version, np.uint64)
        drawn[:, 0] |= np.uint64(SCHEME_VERSION << 56 | int(purpose) << 48)
        drawn[:, 1] = threshold
        return self._prf.absorb(identity, drawn)
