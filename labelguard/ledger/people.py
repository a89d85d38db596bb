"""Who was met, who is in which group, who has left: the ledger's tables of people, by pseudonym."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import sqlalchemy as sa

from labelguard import clock
from labelguard.errors import PolicyError
from labelguard.keys.identities import Identities
from labelguard.ledger import database, digests, journal, schema
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks
from labelguard.terms import counted

Leaving = Literal["retired", "erased"]
"""`retired`: no more labels, and none remembered. `erased`: raw rows are gone as well."""


def members(connection: sa.Connection) -> tuple[Blocks, Blocks]:
    """Labelers in groups, sorted, and the group of each; both (n, 2)."""
    own = schema.members.c
    return database.two_keys(connection, sa.select(own.labeler, own.unit).order_by(own.labeler))


def add_members(
    connection: sa.Connection, labelers: Blocks, units: Blocks, newcomers: Identities
) -> int:
    """Put labelers into groups; how many were new. A labeler's group never changes.

    `newcomers` are those of them whose ids no release and no list of groups has named before.

    Raises `PolicyError` for labelers of another group, or charged before as a unit of their own:
    what they spent would not count for the group.
    """
    known, groups = members(connection)
    refuse_forgetful(connection)
    at = blocks.positions(known, labelers)
    found = at >= 0
    moved = (groups[at[found]] != units[found]).any(axis=1) if len(known) else np.zeros(0, bool)
    alone = blocks.positions(charged(connection), labelers) >= 0
    if moved.any() or alone.any():
        raise PolicyError(
            f"{counted(int(moved.sum()), 'labeler')} would leave their group, "
            f"{counted(int(alone.sum()), 'labeler')} charged before having one; a labeler's group "
            "never changes: nothing was written"
        )
    new = np.flatnonzero(~found)
    new = new[blocks.order(labelers[new])]
    database.insert(connection, schema.members, {"labeler": labelers[new], "unit": units[new]})
    if len(new):
        body = {"labelers": len(new), "members": digests.members_digest(connection)}
        own = schema.identities.c.release
        first = connection.scalar(sa.select(sa.func.min(own))) or 0
        # Lists of groups are numbered downwards from -1, beside the releases.
        body |= meet(connection, min(first, 0) - 1, newcomers)
        journal.append(connection, "grouped", body)
    return len(new)


def distinct(connection: sa.Connection) -> tuple[Blocks, Blocks]:
    """Pairs of labelers who are two people although their ids have one form; both (n, 2)."""
    own = schema.distinct.c
    return database.two_keys(
        connection, sa.select(own.labeler, own.other).order_by(own.labeler, own.other)
    )


def identities(connection: sa.Connection) -> Identities:
    """Everybody whom releases and lists of groups have named, and the forms of their ids."""
    own = schema.identities.c
    return Identities.from_bytes(b"".join(connection.scalars(sa.select(own.met))))


def meet(connection: sa.Connection, release: int, met: Identities) -> dict[str, Any]:
    """Keep labelers whom a release, or a list of groups, is the first to name; what the journal
    tells of them.
    """
    if not len(met.labelers):
        return {}
    data = met.to_bytes()
    values = {"release": release, "labelers": len(met.labelers), "met": data}
    connection.execute(sa.insert(schema.identities).values(values))
    return {"identities": {str(release): hashlib.sha256(data).hexdigest()}}


def met_by_release(connection: sa.Connection) -> dict[str, str]:
    """SHA-256 of those whom each release, by its number, was the first to meet."""
    own = schema.identities.c
    rows = connection.execute(sa.select(own.release, own.met).order_by(own.release))
    return {str(row.release): hashlib.sha256(row.met).hexdigest() for row in rows}


def refuse_forgetful(connection: sa.Connection) -> None:
    """Refuse to join people in a ledger that was restored from a backup that may lack charges."""
    own = schema.journal.c
    bodies = connection.scalars(sa.select(own.body).where(own.kind == "restored"))
    if any(not json.loads(body)["complete"] for body in bodies):
        raise PolicyError(
            "this project was restored without what followed its backup: who was charged alone "
            "since then is not known, so nobody can be joined any more; use another project"
        )


def tombstones(connection: sa.Connection) -> Blocks:
    """Labelers who have left, sorted, shape (n, 2)."""
    own = schema.tombstones.c.labeler
    return database.keyed(connection, sa.select(own).order_by(own))[0]


def bury(connection: sa.Connection, labeler: Blocks, kind: Leaving) -> None:
    """Set a labeler's tombstone, shape (1, 2): later labels are refused. Erased stays erased."""
    [key] = database.stored(labeler)
    own = schema.tombstones.c
    before = connection.scalar(sa.select(own.kind).where(own.labeler == key))
    if before in (kind, "erased"):
        return
    connection.execute(sa.delete(schema.tombstones).where(own.labeler == key))
    values = {"labeler": key, "kind": kind, "at": clock.now()}
    connection.execute(sa.insert(schema.tombstones).values(values))
    body = {"labeler": key.hex(), "tombstones": digests.tombstones_digest(connection)}
    journal.append(connection, kind, body)


def charged(connection: sa.Connection) -> Blocks:
    """Pseudonyms of all units that were ever charged, sorted, shape (n, 2)."""
    own = schema.counters.c.labeler
    return database.keyed(connection, sa.select(own).distinct().order_by(own))[0]


@dataclass(frozen=True)
class Departure:
    """One labeler who left."""

    pseudonym: str
    """32 hexadecimal digits"""
    kind: Leaving
    """retired or erased"""
    at: str
    """when, UTC"""


def departures(connection: sa.Connection) -> list[Departure]:
    """Everybody who left, the first one first."""
    own = schema.tombstones.c
    query = sa.select(own.labeler, own.kind, own.at).order_by(own.at, own.labeler)
    return [
        Departure(bytes(row.labeler).hex(), row.kind, row.at) for row in connection.execute(query)
    ]


def charges_of(connection: sa.Connection, names: Blocks) -> dict[int, int]:
    """How many uses of any of these units, shape (n, 2), each release (by number) was charged."""
    own, releases = schema.charges.c, schema.releases.c
    query = (
        sa.select(own.release, sa.func.sum(own.labels).label("uses"))
        # With the releases spelled out the table's key serves, whatever the number of charges.
        .where(own.release.in_(sa.select(releases.number)))
        .where(own.labeler.in_(database.stored(blocks.unique(names)[0])))
        .group_by(own.release)
        .order_by(own.release)
    )
    return {int(row.release): int(row.uses) for row in connection.execute(query)}
