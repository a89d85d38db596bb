"""The journal: every entry holds the SHA-256 of the one before, so that none can vanish quietly."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

GENESIS = "0" * 64


@dataclass(frozen=True)
class Entry:
    """One event of the ledger's life: counts and settings, never labels or prompts."""

    number: int
    at: str
    kind: str
    body: str
    previous: str
    digest: str


def entry(number: int, at: str, kind: str, body: Mapping[str, Any], previous: str) -> Entry:
    """The entry that follows the one with digest `previous`."""
    text = json.dumps(body, sort_keys=True)
    return Entry(number, at, kind, text, previous, _digest(number, at, kind, text, previous))


def first_fault(entries: Iterable[Entry]) -> str | None:
    """What is wrong with the first entry that does not continue the chain, or None."""
    previous, number = GENESIS, 1
    for item in entries:
        if item.number != number:
            return f"journal entry {number} is missing"
        if item.previous != previous:
            return f"journal entry {number} does not follow the entry before it"
        if item.digest != _digest(item.number, item.at, item.kind, item.body, item.previous):
            return f"journal entry {number} was altered"
        previous, number = item.digest, number + 1
    return None


def _digest(number: int, at: str, kind: str, body: str, previous: str) -> str:
    text = json.dumps([number, at, kind, body, previous])
    return hashlib.sha256(text.encode()).hexdigest()
