"""Row keys: the lasting secret names of labels, by which the private map knows them again.

A row key is a pseudorandom function of who gave the label, the item's digest and the pair within a
ranking, under a key of the project. It tells whether a label was released before; no randomness of
a release depends on it alone. Units (groups, contents) do not enter, so that whoever is grouped
later keeps the labels they released. Every field has a fixed width: two rows never share a message.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labelguard.keys.prf import Prf
from labelguard.storage.blocks import Blocks

SCHEME_VERSION = 1


# What is derived of a row; different purposes never share an output.
_ROW_KEY, _ORDER = 1, 2


class RowKeys:
    """Names rows, and puts them in an order that nobody can foresee. Its repr shows nothing."""

    def __init__(self, key: bytes) -> None:
        self._prf = Prf(key, 3)

    def __repr__(self) -> str:
        return "RowKeys(…)"

    def identify(self, authors: Blocks, items: Blocks) -> Blocks:
        """What all rows of (author, item) share, shape (n, 2); both arguments are (n, 2).

        The author is the labeler's key, or what stands for it where labelers are not known.
        """
        return self._prf.absorb(self._prf.absorb(np.zeros_like(authors), authors), items)

    def keys(self, identity: Blocks, pair: NDArray[np.uint16]) -> Blocks:
        """The row keys of pairs of rankings (0 elsewhere), shape (n, 2)."""
        return self._finish(_ROW_KEY, identity, pair)

    def order(self, identity: Blocks) -> NDArray[np.uint64]:
        """Keyed hashes that put a labeler's items (or rankings) in an order, shape (n,)."""
        return self._finish(_ORDER, identity, 0)[:, 0]

    def _finish(self, purpose: int, identity: Blocks, pair: NDArray[np.uint16] | int) -> Blocks:
        fields = np.zeros_like(identity)
        fields[:, 0] = np.asarray(pair, np.uint64) << np.uint64(32)
        fields[:, 0] |= np.uint64(SCHEME_VERSION << 56 | purpose << 48)
        return self._prf.absorb(identity, fields)
