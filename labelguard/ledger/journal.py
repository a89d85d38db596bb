"""The journal: every entry holds the SHA-256 of the one before, so that none can vanish quietly.

Anybody can check this chain; that its digests were made by this project, and not by somebody who
can write the database, the HMAC of each tells, under a key derived from the project's.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

GENESIS = "0" * 64
Mac = Callable[[str], str]
"""The HMAC of a digest under the project's key, 64 hexadecimal digits each."""


@dataclass(frozen=True)
class Entry:
    """One event of the ledger's life: counts and settings, never labels or prompts."""

    number: int
    at: str
    kind: str
    body: str
    previous: str
    digest: str
    mac: str


def entry(
    number: int, at: str, kind: str, body: Mapping[str, Any], previous: str, mac: Mac
) -> Entry:
    """The entry that follows the one with digest `previous`."""
    text = json.dumps(body, sort_keys=True)
    digest = _digest(number, at, kind, text, previous)
    return Entry(number, at, kind, text, previous, digest, mac(digest))


def first_fault(entries: Iterable[Entry]) -> str | None:
    """What is wrong with the first entry that does not continue the chain, or None."""
    previous, number = GENESIS, 1
    for item in entries:
        if item.number != number:
            return f"journal entry {number} is missing"
        if item.previous != previous:
            return f"journal entry {number} does not follow the entry before it"
        if not _whole(item):
            return f"journal entry {number} was altered"
        previous, number = item.digest, number + 1
    return None


def first_forged(entries: Iterable[Entry], mac: Mac) -> str | None:
    """What is wrong with the first entry that this project did not write, or None."""
    for item in entries:
        if not (_whole(item) and hmac.compare_digest(item.mac, mac(item.digest))):
            return f"journal entry {item.number} was altered, or written without the project's key"
    return None


def _whole(item: Entry) -> bool:
    return item.digest == _digest(item.number, item.at, item.kind, item.body, item.previous)


def _digest(number: int, at: str, kind: str, body: str, previous: str) -> str:
    text = json.dumps([number, at, kind, body, previous])
    return hashlib.sha256(text.encode()).hexdigest()
