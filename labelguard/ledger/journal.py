"""The journal: every entry holds the SHA-256 of the one before, so that none can vanish quietly.

Anybody can check this chain; that its digests were made by this project, and not by somebody who
can write the database, the HMAC of each tells, under a key derived from the project's.

A ledger that was set back has forgotten what was spent since. A job refuses one that lacks a
release on disk (`labelguard.project.opening`). Whatever else it forgot, only an anchor kept
elsewhere (`labelguard budget verify`) shows.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import sqlalchemy as sa

from labelguard import clock
from labelguard.errors import LedgerError
from labelguard.ledger import schema

if TYPE_CHECKING:
    from labelguard.keys.keyring import KeyRing

GENESIS = "0" * 64
_LINE = re.compile(r"labelguard-anchor:1:(0|[1-9][0-9]{0,17}):([0-9a-f]{64})")
# The HMAC of a digest under the project's key, 64 hexadecimal digits each.
Mac = Callable[[str], str]


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


def build_entry(
    number: int, at: str, kind: str, body: Mapping[str, Any], previous: str, mac: Mac
) -> Entry:
    """Return the entry that follows the one with digest `previous`."""
    text = json.dumps(body, sort_keys=True)
    digest = _digest_entry(number, at, kind, text, previous)
    return Entry(number, at, kind, text, previous, digest, mac(digest))


def find_first_fault(entries: Iterable[Entry]) -> str | None:
    """Return what is wrong with the first entry that does not continue the chain, or None."""
    previous, number = GENESIS, 1
    for item in entries:
        if item.number != number:
            return f"journal entry {number} is missing"
        if item.previous != previous:
            return f"journal entry {number} does not follow the entry before it"
        if not _is_unaltered(item):
            return f"journal entry {number} was altered"
        previous, number = item.digest, number + 1
    return None


def find_first_forgery(entries: Iterable[Entry], mac: Mac) -> str | None:
    """Return what is wrong with the first entry that this project did not write, or None."""
    for item in entries:
        if not (_is_unaltered(item) and hmac.compare_digest(item.mac, mac(item.digest))):
            return f"journal entry {item.number} was altered, or written without the project's key"
    return None


def _is_unaltered(item: Entry) -> bool:
    return item.digest == _digest_entry(item.number, item.at, item.kind, item.body, item.previous)


def _digest_entry(number: int, at: str, kind: str, body: str, previous: str) -> str:
    text = json.dumps([number, at, kind, body, previous])
    return hashlib.sha256(text.encode()).hexdigest()


def read_entries(connection: sa.Connection) -> list[Entry]:
    """Return the journal, oldest entry first."""
    rows = connection.execute(sa.select(schema.journal).order_by(schema.journal.c.number))
    return [Entry(*row) for row in rows]


def read_times(connection: sa.Connection) -> list[str]:
    """Return when the journal's entries were written, by the clocks of then, oldest first."""
    query = sa.select(schema.journal.c.at).order_by(schema.journal.c.number)
    return list(connection.scalars(query))


def read_head(connection: sa.Connection) -> tuple[int, str]:
    """Return number and digest of the journal's newest entry."""
    query = sa.select(schema.journal.c.number, schema.journal.c.digest)
    last = connection.execute(query.order_by(schema.journal.c.number.desc()).limit(1)).one_or_none()
    return (last.number, last.digest) if last else (0, GENESIS)


def read_digest(connection: sa.Connection, number: int) -> str | None:
    """Return the digest of one journal entry, or None if there is no such entry."""
    query = sa.select(schema.journal.c.digest).where(schema.journal.c.number == number)
    return connection.scalar(query)


def add_signer(engine: sa.Engine, keys: KeyRing) -> sa.Engine:
    """Return the engine of a ledger, whose connections can sign entries (see `find_signer`)."""

    def sign(digest: str) -> str:
        return keys.mac("journal", digest.encode()).hex()

    return engine.execution_options(journal_mac=sign)


def find_signer(connection: sa.Connection) -> Mac:
    """Return the HMAC of journal entries, which the ledger gives to its connections."""
    sign: Mac = connection.get_execution_options()["journal_mac"]
    return sign


def append_entry(
    connection: sa.Connection, kind: str, body: Mapping[str, Any], at: str | None = None
) -> None:
    """Add an entry to the journal's chain, dated now, or `at` the date of the row that it tells."""
    number, previous = read_head(connection)
    written = build_entry(
        number + 1, at or clock.now(), kind, body, previous, find_signer(connection)
    )
    connection.execute(sa.insert(schema.journal).values(vars(written)))


def check_newest_signature(connection: sa.Connection, address: str) -> None:
    """Raise `LedgerError` unless the journal's newest entry was written with the project's key."""
    own = schema.journal
    rows = connection.execute(sa.select(own).order_by(own.c.number.desc()).limit(1))
    newest = [Entry(*row) for row in rows]
    fault = (
        find_first_forgery(newest, find_signer(connection)) if newest else "the journal is empty"
    )
    if fault:
        raise LedgerError(f"the ledger at {address} does not hold: {fault}; put a true copy back")


@dataclass(frozen=True)
class Anchor:
    """Number and SHA-256 (64 hexadecimal digits) of a journal entry; its text is the line."""

    number: int
    digest: str

    def __str__(self) -> str:
        return f"labelguard-anchor:1:{self.number}:{self.digest}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the anchor of a line. Raises `LedgerError` if it is none."""
        match = _LINE.fullmatch(text.strip())
        if not match:
            raise LedgerError(
                "that is no anchor; expected the line labelguard-anchor:1:NUMBER:DIGEST that "
                "labelguard budget verify and labelguard project backup print"
            )
        return cls(int(match[1]), match[2])
