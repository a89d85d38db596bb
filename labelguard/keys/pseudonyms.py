"""Pseudonyms: how the ledger names labelers, and how these names are changed.

Inside the project a labeler goes by a key that never changes, a keyed hash of their id: row keys
and buckets hang on it. The ledger, what is printed and what is exported show a pseudonym: the
key itself at first, and after a rotation the key enciphered with AES under a fresh secret, so that
lists of pseudonyms from before can no longer be matched by name. (What each of them spent stays,
and can tell them apart.)
"""

from __future__ import annotations

import hashlib

from labelguard.errors import KeyProblem
from labelguard.keys.prf import Prf, derive_key
from labelguard.storage.blocks import Blocks


class Pseudonyms:
    """One naming of labelers, a permutation of their keys. Its repr shows nothing."""

    def __init__(self, secret: bytes | None = None) -> None:
        """With no secret, a labeler's pseudonym is their key."""
        self._cipher = Prf(derive_key(secret, "pseudonyms"), 1) if secret else None
        self.fingerprint = ""
        if secret:
            self.fingerprint = hashlib.sha256(derive_key(secret, "fingerprint")).hexdigest()[:32]

    def __repr__(self) -> str:
        return "Pseudonyms(…)"

    def hide(self, labelers: Blocks) -> Blocks:
        """Keys to pseudonyms, shape (n, 2)."""
        return self._cipher(labelers) if self._cipher and len(labelers) else labelers

    def reveal(self, names: Blocks) -> Blocks:
        """Pseudonyms to keys, shape (n, 2)."""
        return self._cipher.invert(names) if self._cipher and len(names) else names

    def check(self, fingerprint: str) -> None:
        """Refuse to work with pseudonyms that were made under another secret."""
        if fingerprint != self.fingerprint:
            raise KeyProblem(
                "the ledger's pseudonyms are not those of keys/pseudonyms; unless they were "
                "changed just now (then run this again), restore that file from a backup"
            )
