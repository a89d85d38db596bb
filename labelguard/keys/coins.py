"""Coins: the randomness of one release of randomized response, which nothing keeps.

A coin is 64 bits of a pseudorandom function, under a nonce drawn for this release alone, of what it
is for and of the row's key. The nonce lives in memory and is forgotten when the release is drawn:
nobody, with whatever key, can draw a coin again, and two releases never share one, not even those
of two copies of a project. Permanence (the same label keeps its value, free) comes from the private
map. The encoding is injective, so within a release no two draws share a coin.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

from labelguard.keys import keyring
from labelguard.keys.prf import Prf
from labelguard.storage.blocks import Blocks

SCHEME_VERSION = 2
NONCE_BYTES = 32


class Purpose(IntEnum):
    """The purpose of a coin; different purposes never share one."""

    FLIP = 1
    TIE = 2
    CHOICE = 4


class Coins:
    """The coins of one release. Its repr is empty."""

    def __init__(self, nonce: bytes) -> None:
        if len(nonce) != NONCE_BYTES:
            raise ValueError(f"a nonce has {NONCE_BYTES} bytes, found {len(nonce)}")
        self._prf = Prf(nonce, 2)

    @classmethod
    def fresh(cls) -> Self:
        """Coins that nobody has tossed before."""
        return cls(keyring.random_bytes(NONCE_BYTES))

    def __repr__(self) -> str:
        return "Coins(…)"

    def draw(self, purpose: Purpose, row_keys: Blocks) -> NDArray[np.uint64]:
        """Return one uniform 64-bit integer a row, shape (n,); `row_keys` are (n, 2) and
        distinct.
        """
        field = np.array([[SCHEME_VERSION << 56 | int(purpose) << 48, 0]], np.uint64)
        prefix = self._prf.absorb(np.zeros_like(field), field)
        return self._prf.absorb(np.broadcast_to(prefix, row_keys.shape), row_keys)[:, 0]
