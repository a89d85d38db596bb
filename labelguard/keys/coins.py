"""Coins: the randomness of one release of randomized response, which nothing keeps.

A coin is 128 bits of a pseudorandom function, under a nonce drawn for this release alone, of what
it is for, of a counter and of the row's key. The nonce lives in memory and is forgotten when the
release is drawn: nobody, with whatever key, can draw a coin again, and two releases never share
one, not even those of two copies of a project. Permanence (the same label keeps its value, free)
comes from the private map. The encoding is injective: within a release no two draws share a coin.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

from labelguard.keys import keyring
from labelguard.keys.prf import Prf
from labelguard.storage.blocks import Blocks

SCHEME_VERSION = 3
NONCE_BYTES = 32


class Purpose(IntEnum):
    """The purpose of a coin; different purposes never share one."""

    CHANGES = 1
    TIE = 2
    ORDER = 3


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

    def draw(self, purpose: Purpose, row_keys: Blocks, counter: int = 0) -> Blocks:
        """Return 128 uniform bits a row, (n, 2); `row_keys` are (n, 2) and distinct."""
        field = np.array([[SCHEME_VERSION << 56 | int(purpose) << 48, counter]], np.uint64)
        prefix = self._prf.absorb(np.zeros_like(field), field)
        return self._prf.absorb(np.broadcast_to(prefix, row_keys.shape), row_keys)

    def draw_bytes(self, purpose: Purpose, row_keys: Blocks, size: int) -> NDArray[np.bytes_]:
        """Return a uniform number of `size` bytes a row, big-endian, (n,), for a multiple of 16."""
        words = [self.draw(purpose, row_keys, counter) for counter in range(size // 16)]
        numbers = np.ascontiguousarray(np.concatenate(words, axis=1).astype(">u8"))
        result: NDArray[np.bytes_] = numbers.view(f"S{size}")[:, 0]
        return result
