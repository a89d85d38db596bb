"""A pseudorandom function over columns: AES-256 in CBC-MAC mode, fixed message length per key.

CBC-MAC over messages of one fixed number of blocks is a pseudorandom function if AES is a
pseudorandom permutation (Bellare, Kilian, Rogaway 2000): for q messages of m blocks an adversary
gains at most about (m q)² / 2^128, which is 2^-77 for three blocks and 10 million rows. Whole
columns go through AES at once, so a row costs nanoseconds.

Row keys are the lasting secret names of labels, by which the private map knows them again: an
output for who gave the label, the item's digest and the pair within a ranking. A row key tells
whether a label was released before; no randomness of a release depends on it alone. Units (linked
labelers, contents) do not enter, so that whoever is linked later keeps the labels they released.
Every field has a fixed width: two rows never share a message.
"""

from __future__ import annotations

import hmac
import math
import sys
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from labelguard.storage.blocks import Blocks

_ROW_KEY_VERSION = 1
# What is derived of a row; different purposes never share an output.
_ROW_KEY, _ORDER = 1, 2
# Whose labels a mechanism takes: those of units to learn from, or of the units held out.
Split = Literal["training", "held-out"]


def derive_key(secret: bytes, purpose: str) -> bytes:
    """Return a 32-byte key for one purpose: HMAC-SHA256 of its name under `secret`."""
    return hmac.digest(secret, b"labelguard/key/1/" + purpose.encode(), "sha256")


class Prf:
    """One keyed function of messages of exactly `length` 16-byte blocks."""

    def __init__(self, key: bytes, length: int) -> None:
        self._cipher = Cipher(algorithms.AES(key), modes.ECB())  # single blocks; chained below
        self._key, self._length = key, length

    def __reduce__(self) -> tuple[type[Prf], tuple[bytes, int]]:
        """Return what travels to the workers of a job, with the key; the repr shows nothing."""
        return Prf, (self._key, self._length)

    def __call__(self, *message: Blocks) -> Blocks:
        """Return the 16-byte output for each row; every block is an array (n, 2)."""
        if len(message) != self._length:
            raise ValueError(f"expected {self._length} blocks, found {len(message)}")
        state = np.zeros_like(message[0])
        for block in message:
            state = self.absorb(state, block)
        return state

    def absorb(self, state: Blocks, block: Blocks) -> Blocks:
        """Return the state after one step of the chain. Callers that share a prefix of blocks step
        by themselves; only the state after exactly `length` steps is an output.
        """
        return _encrypt_blocks(self._cipher.encryptor(), state ^ block)


def _encrypt_blocks(context: CipherContext, blocks: Blocks) -> Blocks:
    """Return AES over every 16-byte row."""
    clear = blocks.byteswap() if sys.byteorder == "little" else blocks
    output = np.empty(len(blocks) * 16 + 15, np.uint8)  # update_into wants room for a block more
    written = context.update_into(np.ascontiguousarray(clear).view(np.uint8).data, output.data)
    result: Blocks = output[:written].view(np.uint64).reshape(-1, 2)
    return result.byteswap(inplace=True) if sys.byteorder == "little" else result


class RowKeys:
    """Names rows, and puts them in an order that nobody can foresee. Its repr shows nothing."""

    def __init__(self, key: bytes) -> None:
        self._prf = Prf(key, 3)

    def __repr__(self) -> str:
        return "RowKeys(…)"

    def identify(self, authors: Blocks, items: Blocks) -> Blocks:
        """Return what all rows of (author, item) share, shape (n, 2); both arguments are (n, 2).

        The author is the labeler's key, or what stands for it where labelers are not known.
        """
        return self._prf.absorb(self._prf.absorb(np.zeros_like(authors), authors), items)

    def keys(self, identity: Blocks, pair: NDArray[np.uint16]) -> Blocks:
        """Return the row keys of pairs of rankings (0 elsewhere), shape (n, 2)."""
        return self._hash_pair(_ROW_KEY, identity, pair)

    def order(self, identity: Blocks) -> NDArray[np.uint64]:
        """Return keyed hashes that put a labeler's items (or rankings) in an order, shape (n,)."""
        return self._hash_pair(_ORDER, identity, 0)[:, 0]

    def _hash_pair(self, purpose: int, identity: Blocks, pair: NDArray[np.uint16] | int) -> Blocks:
        fields = np.zeros_like(identity)
        fields[:, 0] = np.asarray(pair, np.uint64) << np.uint64(32)
        fields[:, 0] |= np.uint64(_ROW_KEY_VERSION << 56 | purpose << 48)
        return self._prf.absorb(identity, fields)


@dataclass(frozen=True)
class Splits:
    """The two parts of a project's units: a `share` of them is held out. Its repr shows no key.

    A unit's part follows from its key and the project's alone: not from labels, order or names of
    files, nor from what was released before. The key of a unit outlasts a change of pseudonyms, and
    that of a person who was charged outlasts links.
    """

    prf: Prf = field(repr=False)
    share: float

    def is_in(self, units: Blocks, part: Split) -> NDArray[np.bool_]:
        """Return a mask, shape (n,), of the units, (n, 2), that are of this split."""
        held_out: NDArray[np.bool_] = np.zeros(len(units), bool)
        if self.share and len(units):
            held_out = self.prf(units)[:, 0] < np.uint64(math.ldexp(self.share, 64))
        return held_out if part == "held-out" else ~held_out
