"""SHA-256 of the ledger's tables, for the journal to tell and for verification to compare."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from labelguard.ledger import database, schema
from labelguard.storage.blocks import Blocks


def charges_digest(labelers: Blocks, capacity: NDArray[np.int64], labels: NDArray[np.int64]) -> str:
    """SHA-256 of who was charged how many labels: 32-byte rows, sorted by labeler (n, 2)."""
    rows = np.column_stack([labelers, capacity.astype(np.uint64), labels.astype(np.uint64)])
    return hashlib.sha256(rows.astype(">u8").tobytes()).hexdigest()


def release_digest(connection: sa.Connection, number: int) -> str:
    """`charges_digest` of what a release charged, as the tables have it."""
    own = schema.charges.c
    query = sa.select(own.labeler, own.capacity, own.labels).where(own.release == number)
    labelers, (capacity, labels) = database.keyed(connection, query.order_by(own.labeler))
    return charges_digest(labelers, capacity, labels)


def request_digest(idempotency_key: str, settings: str) -> str:
    """Of what a release was asked for, as its row has it."""
    return hashlib.sha256(f"{idempotency_key} {settings}".encode()).hexdigest()


def members_digest(connection: sa.Connection) -> str:
    """Of the table of members."""
    own = schema.members.c
    return _pairs_digest(connection, sa.select(own.labeler, own.unit).order_by(own.labeler))


def distinct_digest(connection: sa.Connection) -> str:
    """Of the pairs who are two people."""
    own = schema.distinct.c
    query = sa.select(own.labeler, own.other).order_by(own.labeler, own.other)
    return _pairs_digest(connection, query)


def _pairs_digest(connection: sa.Connection, query: sa.Select[Any]) -> str:
    columns = database.two_keys(connection, query)
    return hashlib.sha256(np.column_stack(columns).astype(">u8").tobytes()).hexdigest()


def tombstones_digest(connection: sa.Connection) -> str:
    """Of the table of tombstones."""
    own = schema.tombstones.c
    digest = hashlib.sha256()
    for row in connection.execute(sa.select(own.labeler, own.kind).order_by(own.labeler)):
        digest.update(bytes(row.labeler) + row.kind.encode() + b"\n")
    return digest.hexdigest()
