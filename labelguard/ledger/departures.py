"""What the ledger knows of labelers who leave: who left when, and who was charged for what.

Like `labelguard.people`; every function runs in the transaction of its caller.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from labelguard.ledger import charges as statements
from labelguard.ledger import schema
from labelguard.ledger.people import Leaving
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks


@dataclass(frozen=True)
class Departure:
    """One labeler who left: their pseudonym as 32 hexadecimal digits, how, and when (UTC)."""

    pseudonym: str
    kind: Leaving
    at: str


def departures(connection: sa.Connection) -> list[Departure]:
    """Everybody who left, the first one first."""
    own = schema.tombstones.c
    query = sa.select(own.labeler, own.kind, own.at).order_by(own.at, own.labeler)
    return [
        Departure(bytes(row.labeler).hex(), row.kind, row.at) for row in connection.execute(query)
    ]


def charges(connection: sa.Connection, names: Blocks) -> dict[int, int]:
    """How many places each release, by its number, took of any of these units, shape (n, 2)."""
    own, releases = schema.charges.c, schema.releases.c
    query = (
        sa.select(own.release, sa.func.sum(own.labels).label("places"))
        # With the releases spelled out the table's key serves, whatever the number of charges.
        .where(own.release.in_(sa.select(releases.number)))
        .where(own.labeler.in_(statements.keys(blocks.unique(names)[0])))
        .group_by(own.release)
        .order_by(own.release)
    )
    return {int(row.release): int(row.places) for row in connection.execute(query)}
