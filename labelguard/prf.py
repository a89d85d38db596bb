"""A pseudorandom function over columns: AES-256 in CBC-MAC mode, fixed message length per key.

CBC-MAC over messages of one fixed number of blocks is a pseudorandom function if AES is a
pseudorandom permutation (Bellare, Kilian, Rogaway 2000): for q messages of m blocks an adversary
gains at most about (m q)² / 2^128, which is 2^-77 for three blocks and 10 million rows. Whole
columns go through AES at once, so a row costs nanoseconds.
"""

from __future__ import annotations

import hmac

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from labelguard.block128 import Blocks


def derive_key(secret: bytes, purpose: str) -> bytes:
    """A 32-byte key for one purpose: HMAC-SHA256 of its name under `secret`."""
    return hmac.digest(secret, b"labelguard/key/1/" + purpose.encode(), "sha256")


class Prf:
    """One keyed function of messages of exactly `length` 16-byte blocks."""

    def __init__(self, key: bytes, length: int) -> None:
        self._cipher = Cipher(algorithms.AES(key), modes.ECB())  # single blocks; chained below
        self._length = length

    def __call__(self, *message: Blocks) -> Blocks:
        """The 16-byte output for each row; every block is an array (n, 2)."""
        if len(message) != self._length:
            raise ValueError(f"expected {self._length} blocks, found {len(message)}")
        state = np.zeros_like(message[0])
        for block in message:
            state = self._encrypt(state ^ block)
        return state

    def _encrypt(self, blocks: Blocks) -> Blocks:
        encrypted = self._cipher.encryptor().update(blocks.astype(">u8").tobytes())
        return np.frombuffer(encrypted, dtype=">u8").reshape(-1, 2).astype(np.uint64)

    def invert(self, blocks: Blocks) -> Blocks:
        """Undo a one-block function (used to unwrap salts)."""
        if self._length != 1:
            raise ValueError("only a one-block function can be inverted")
        clear = self._cipher.decryptor().update(blocks.astype(">u8").tobytes())
        return np.frombuffer(clear, dtype=">u8").reshape(-1, 2).astype(np.uint64)
