"""Anchors: one line that names a ledger's newest entry, to be kept where nobody can change it.

The journal is a chain of digests, so number and digest of its last entry fix all of it. Whoever
has kept the line notices a ledger that was rewritten or falls short of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from labelguard.errors import LedgerError

_LINE = re.compile(r"labelguard-anchor:1:(0|[1-9][0-9]{0,17}):([0-9a-f]{64})")


@dataclass(frozen=True)
class Anchor:
    """Number and SHA-256 (64 hexadecimal digits) of a journal entry; its text is the line."""

    number: int
    digest: str

    def __str__(self) -> str:
        return f"labelguard-anchor:1:{self.number}:{self.digest}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The anchor of a line. Raises `LedgerError` if it is none."""
        match = _LINE.fullmatch(text.strip())
        if not match:
            raise LedgerError(
                "that is no anchor; expected the line labelguard-anchor:1:NUMBER:DIGEST that "
                "labelguard budget anchor and labelguard project backup print"
            )
        return cls(int(match[1]), match[2])
