"""The segments in the ledger: which files of ingested answers count, and how far pulls have come.

A file of answers counts from the transaction on that lists it here, with a keyed digest of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from labelguard import clock
from labelguard.ledger import journal, schema

_DELETING, _PRUNED = "withdrawn", "pruned"


@dataclass(frozen=True)
class Segment:
    """A segment that counts.

    `connector` told its answers, whose labelers' ids are of `source`. `pulled`: it holds what the
    tool listed, not what it announced. `rows` is how many it has, deletions among them, and
    `digest` that of its file. After a pull, `cursor` is from where the next one goes on.
    """

    number: int
    name: str
    connector: str
    source: str
    pulled: bool
    rows: int
    digest: str
    cursor: str | None = None
    at: str = ""


def records(connection: sa.Connection) -> list[Segment]:
    """Return all segments that count, oldest first."""
    query = sa.select(schema.segments).order_by(schema.segments.c.number)
    return [Segment(**row._mapping) for row in connection.execute(query)]


def add(connection: sa.Connection, segment: Segment, deleted: int) -> None:
    """Let a segment count, whose file is on disk, and with so many deletions."""
    values = vars(segment) | {"at": clock.now()}
    connection.execute(sa.insert(schema.segments).values(values))
    entry = {name: values[name] for name in ("name", "connector", "source", "rows")}
    entry |= {"deleted": deleted, "segments": digest(connection)}
    journal.append(connection, _DELETING if deleted else "ingested", entry)


def has_deletions(connection: sa.Connection) -> bool:
    """Return whether deletions came since segments were pruned last."""
    own = schema.journal.c
    query = sa.select(own.kind).where(own.kind.in_((_DELETING, _PRUNED)))
    return connection.scalar(query.order_by(own.number.desc()).limit(1)) == _DELETING


def replace(connection: sa.Connection, changed: Mapping[str, tuple[str, int]]) -> list[Segment]:
    """Record that segments were rewritten: their new digests and numbers of rows.

    Returns all segments, as they count from now on.
    """
    for name, (new, rows) in changed.items():
        own = sa.update(schema.segments).where(schema.segments.c.name == name)
        connection.execute(own.values(digest=new, rows=rows))
    journal.append(connection, _PRUNED, {"segments": digest(connection)})
    return records(connection)


def advance(connection: sa.Connection, name: str, cursor: str) -> None:
    """Record at a connector's segment that a pull came as far as `cursor`, with nothing new."""
    own = sa.update(schema.segments).where(schema.segments.c.name == name)
    connection.execute(own.values(cursor=cursor))
    journal.append(connection, "pulled", {"segments": digest(connection)})


def digest(connection: sa.Connection) -> str:
    """SHA-256 of the table of segments."""
    text = json.dumps([vars(segment) for segment in records(connection)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
