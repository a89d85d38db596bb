"""Who belongs to which group, and who has left: the ledger's tables of people, as pseudonyms."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

import numpy as np
import sqlalchemy as sa

from labelguard import block128, bulk, clock, statements, tables
from labelguard.block128 import Blocks
from labelguard.card import counted
from labelguard.errors import PolicyError

Leaving = Literal["retired", "erased"]
"""`retired`: no more labels, and none remembered. `erased`: raw rows are gone as well."""


def members(connection: sa.Connection) -> tuple[Blocks, Blocks]:
    """Labelers in groups, sorted, and the group of each; both (n, 2)."""
    own = tables.members.c
    rows = connection.execute(sa.select(own.labeler, own.unit).order_by(own.labeler)).all()
    labelers, units = zip(*rows, strict=True) if rows else ((), ())
    return block128.from_bytes(b"".join(labelers)), block128.from_bytes(b"".join(units))


def add_members(connection: sa.Connection, labelers: Blocks, units: Blocks) -> int:
    """Put labelers into groups; how many were new. A labeler's group never changes.

    Raises `PolicyError` for labelers of another group, or charged before as a unit of their own:
    what they spent would not count for the group.
    """
    known, groups = members(connection)
    if _forgot(connection):
        raise PolicyError(
            "this project was restored without what followed its backup: who was charged alone "
            "since then is not known, so nobody can join a group any more; use another project"
        )
    place = block128.positions(known, labelers)
    found = place >= 0
    moved = (groups[place[found]] != units[found]).any(axis=1) if len(known) else np.zeros(0, bool)
    alone = block128.positions(charged(connection), labelers) >= 0
    if moved.any() or alone.any():
        raise PolicyError(
            f"{counted(int(moved.sum()), 'labeler')} would leave their group, "
            f"{counted(int(alone.sum()), 'labeler')} charged before having one; a labeler's group "
            "never changes: nothing was written"
        )
    new = np.flatnonzero(~found)
    new = new[block128.order(labelers[new])]
    bulk.insert(connection, tables.members, {"labeler": labelers[new], "unit": units[new]})
    if len(new):
        body = {"labelers": len(new), "members": members_digest(connection)}
        statements.append(connection, "grouped", body)
    return len(new)


def _forgot(connection: sa.Connection) -> bool:
    """Whether the ledger was restored from a backup that may lack charges."""
    own = tables.journal.c
    bodies = connection.scalars(sa.select(own.body).where(own.kind == "restored"))
    return any(not json.loads(body)["complete"] for body in bodies)


def tombstones(connection: sa.Connection) -> Blocks:
    """Labelers who have left, sorted, shape (n, 2)."""
    own = tables.tombstones.c.labeler
    return bulk.keyed(connection, sa.select(own).order_by(own))[0]


def bury(connection: sa.Connection, labeler: Blocks, kind: Leaving) -> None:
    """Set a labeler's tombstone, shape (1, 2): later labels are refused. Erased stays erased."""
    [key] = statements.keys(labeler)
    own = tables.tombstones.c
    before = connection.scalar(sa.select(own.kind).where(own.labeler == key))
    if before in (kind, "erased"):
        return
    connection.execute(sa.delete(tables.tombstones).where(own.labeler == key))
    values = {"labeler": key, "kind": kind, "at": clock.now()}
    connection.execute(sa.insert(tables.tombstones).values(values))
    body = {"labeler": key.hex(), "tombstones": tombstones_digest(connection)}
    statements.append(connection, kind, body)


def charged(connection: sa.Connection) -> Blocks:
    """Pseudonyms of all units that were ever charged, sorted, shape (n, 2)."""
    own = tables.counters.c.labeler
    return bulk.keyed(connection, sa.select(own).distinct().order_by(own))[0]


def members_digest(connection: sa.Connection) -> str:
    """SHA-256 of the table of members."""
    labelers, units = members(connection)
    data = np.column_stack([labelers, units]).astype(">u8").tobytes()
    return hashlib.sha256(data).hexdigest()


def tombstones_digest(connection: sa.Connection) -> str:
    """SHA-256 of the table of tombstones."""
    own = tables.tombstones.c
    digest = hashlib.sha256()
    for row in connection.execute(sa.select(own.labeler, own.kind).order_by(own.labeler)):
        digest.update(bytes(row.labeler) + row.kind.encode() + b"\n")
    return digest.hexdigest()
