"""The ledger's own settings: the newest job's epoch, and which secret its pseudonyms have."""

from __future__ import annotations

import sqlalchemy as sa

from labelguard.ledger import schema


def epoch(connection: sa.Connection) -> int:
    """The number of the newest job, locked until the transaction ends."""
    query = sa.select(schema.meta.c.value).where(schema.meta.c.name == "epoch").with_for_update()
    return int(connection.execute(query).scalar_one())


def next_epoch(connection: sa.Connection) -> int:
    """Begin a new epoch."""
    following = epoch(connection) + 1
    set_meta(connection, "epoch", str(following))
    return following


def set_meta(connection: sa.Connection, name: str, value: str) -> None:
    """Change one of the ledger's own settings."""
    connection.execute(sa.update(schema.meta).where(schema.meta.c.name == name).values(value=value))


def fingerprint(connection: sa.Connection) -> str:
    """Of the secret behind the ledger's pseudonyms; empty while they are the keys themselves."""
    own = schema.meta.c
    return connection.scalar(sa.select(own.value).where(own.name == "pseudonyms")) or ""
