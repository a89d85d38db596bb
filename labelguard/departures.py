"""What the ledger knows of labelers who leave: who left when, and who was charged for what.

Like `labelguard.people`; every function runs in the transaction of its caller.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from labelguard import block128, statements, tables
from labelguard.block128 import Blocks
from labelguard.people import Leaving


@dataclass(frozen=True)
class Departure:
    """One labeler who left: their pseudonym as 32 hexadecimal digits, how, and when (UTC)."""

    pseudonym: str
    kind: Leaving
    at: str


def departures(connection: sa.Connection) -> list[Departure]:
    """Everybody who left, the first one first."""
    own = tables.tombstones.c
    query = sa.select(own.labeler, own.kind, own.at).order_by(own.at, own.labeler)
    return [
        Departure(bytes(row.labeler).hex(), row.kind, row.at) for row in connection.execute(query)
    ]


def charges(connection: sa.Connection, names: Blocks) -> dict[int, int]:
    """How many places each release, by its number, took of any of these units, shape (n, 2)."""
    own, releases = tables.charges.c, tables.releases.c
    query = (
        sa.select(own.release, sa.func.sum(own.labels).label("places"))
        # With the releases spelled out the table's key serves, whatever the number of charges.
        .where(own.release.in_(sa.select(releases.number)))
        .where(own.labeler.in_(statements.keys(block128.unique(names)[0])))
        .group_by(own.release)
        .order_by(own.release)
    )
    return {int(row.release): int(row.places) for row in connection.execute(query)}
