"""A pseudorandom function over columns: AES-256 in CBC-MAC mode, fixed message length per key.

CBC-MAC over messages of one fixed number of blocks is a pseudorandom function if AES is a
pseudorandom permutation (Bellare, Kilian, Rogaway 2000): for q messages of m blocks an adversary
gains at most about (m q)² / 2^128, which is 2^-77 for three blocks and 10 million rows. Whole
columns go through AES at once, so a row costs nanoseconds.
"""

from __future__ import annotations

import hmac
import sys

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

from labelguard.storage.blocks import Blocks


def derive_key(secret: bytes, purpose: str) -> bytes:
    """A 32-byte key for one purpose: HMAC-SHA256 of its name under `secret`."""
    return hmac.digest(secret, b"labelguard/key/1/" + purpose.encode(), "sha256")


class Prf:
    """One keyed function of messages of exactly `length` 16-byte blocks."""

    def __init__(self, key: bytes, length: int) -> None:
        self._cipher = Cipher(algorithms.AES(key), modes.ECB())  # single blocks; chained below
        self._key, self._length = key, length

    def __reduce__(self) -> tuple[type[Prf], tuple[bytes, int]]:
        """How it travels to the workers of a job, with its key; its repr shows nothing."""
        return Prf, (self._key, self._length)

    def __call__(self, *message: Blocks) -> Blocks:
        """The 16-byte output for each row; every block is an array (n, 2)."""
        if len(message) != self._length:
            raise ValueError(f"expected {self._length} blocks, found {len(message)}")
        state = np.zeros_like(message[0])
        for block in message:
            state = self.absorb(state, block)
        return state

    def absorb(self, state: Blocks, block: Blocks) -> Blocks:
        """One step of the chain. Callers that share a prefix of blocks step by themselves; only
        the state after exactly `length` steps is an output.
        """
        return _apply(self._cipher.encryptor(), state ^ block)


def _apply(context: CipherContext, blocks: Blocks) -> Blocks:
    """AES over every 16-byte row."""
    clear = blocks.byteswap() if sys.byteorder == "little" else blocks
    output = np.empty(len(blocks) * 16 + 15, np.uint8)  # update_into wants room for a block more
    written = context.update_into(np.ascontiguousarray(clear).view(np.uint8).data, output.data)
    result: Blocks = output[:written].view(np.uint64).reshape(-1, 2)
    return result.byteswap(inplace=True) if sys.byteorder == "little" else result
