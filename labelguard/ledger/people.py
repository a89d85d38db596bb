"""The ledger's tables of people, by pseudonym: who was met, who is one unit or one person with
whom, who is not, and who has left. Every function runs in the transaction of its caller.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from labelguard import clock
from labelguard.errors import PolicyError
from labelguard.keys.identities import Identities
from labelguard.ledger import database, journal, schema
from labelguard.ledger.records import Groups
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks
from labelguard.text import pluralize

# `retired`: no more labels, and none remembered. `erased`: raw rows are gone as well.
Leaving = Literal["retired", "erased"]


def members(connection: sa.Connection) -> tuple[Blocks, Blocks]:
    """Labelers in groups, sorted, and the group of each; both (n, 2)."""
    own = schema.members.c
    return database.two_keys(connection, sa.select(own.labeler, own.unit).order_by(own.labeler))


def add_members(connection: sa.Connection, added: Groups, met: Identities) -> int:
    """Put labelers into groups; how many were new. A labeler's group never changes.

    `met` are those who are named by whatever id.

    Raises `PolicyError` for labelers of another group, or charged before as a unit of their own:
    what they spent would not count for the group.
    """
    labelers, units = added.labelers, added.units
    known, groups = members(connection)
    refuse_forgetful(connection)
    at = blocks.positions(known, labelers)
    found = at >= 0
    moved = (groups[at[found]] != units[found]).any(axis=1) if len(known) else np.zeros(0, bool)
    alone = blocks.positions(charged(connection), labelers) >= 0
    if moved.any() or alone.any():
        raise PolicyError(
            f"{pluralize(int(moved.sum()), 'labeler')} would leave their group, "
            f"{pluralize(int(alone.sum()), 'labeler')} charged before having one; "
            "a labeler's group never changes: nothing was written"
        )
    new = np.flatnonzero(~found)
    new = new[blocks.order(labelers[new])]
    database.insert(connection, schema.members, {"labeler": labelers[new], "unit": units[new]})
    if len(new):
        body = {"labelers": len(new), "members": members_digest(connection)}
        own = schema.identities.c.release
        first = connection.scalar(sa.select(sa.func.min(own))) or 0
        # Lists of groups are numbered downwards from -1, beside the releases.
        body |= meet(connection, min(first, 0) - 1, met.without(identities(connection)))
        journal.append(connection, "grouped", body)
    return len(new)


def join(connection: sa.Connection, labelers: Blocks, other: Blocks) -> int:
    """Each labeler is one person with the `other` in their row, both (n, 2); how many are in it.

    All labels of a person use the allowance of one unit: that of whoever was charged, or was in a
    group before. Raises `PolicyError` for people with two such units: what they spent apart cannot
    be added up; for two who were said to be distinct; and for somebody who has left.
    """
    everybody, row = blocks.unique(np.concatenate([labelers, other]))
    refuse_forgetful(connection)
    if (blocks.positions(tombstones(connection), everybody) >= 0).any():
        raise PolicyError(
            "one of these labelers has left, and who is one person with them has left as well: "
            "retire or erase the other id too; nothing was written"
        )
    known, groups = members(connection)
    before = Groups(known, groups).unit_of(everybody)
    units, unit = blocks.unique(before)
    person = _components(len(units), unit[row[: len(labelers)]], unit[row[len(labelers) :]])
    settled = blocks.positions(blocks.unique(groups)[0], units) >= 0
    settled |= blocks.positions(charged(connection), units) >= 0
    taken = np.bincount(person[settled], minlength=len(units))
    if (taken > 1).any():
        raise PolicyError(
            f"{pluralize(int((taken > 1).sum()), 'person')} would have been charged, or put into "
            "groups, as two: link people before the first charge of either; nothing was written"
        )
    unit_of = np.arange(len(units))
    unit_of[person[settled]] = np.flatnonzero(settled)
    now = units[unit_of[person[unit]]]
    _refuse_distinct(connection, Groups(everybody, now))
    new = blocks.positions(known, everybody) < 0
    # Whose key names the unit is a member as well: by that a person is told from a group.
    database.insert(connection, schema.members, {"labeler": everybody[new], "unit": now[new]})
    if new.any():
        body = {"labelers": int(new.sum()), "members": members_digest(connection)}
        journal.append(connection, "linked", body)
    return int(new.sum())


def _components(count: int, one: NDArray[np.intp], other: NDArray[np.intp]) -> NDArray[np.intp]:
    """The smallest of `count` nodes that each is connected with, where edges are given."""
    import scipy.sparse as sp
    from scipy.sparse.csgraph import connected_components

    links = sp.coo_matrix((np.ones(len(one), np.int8), (one, other)), (count, count))
    component = connected_components(links, directed=False)[1]
    found: NDArray[np.intp] = np.unique(component, return_index=True)[1][component]
    return found


def _refuse_distinct(connection: sa.Connection, groups: Groups) -> None:
    one, other = map(groups.unit_of, distinct(connection))
    if (one == other).all(axis=1).any():
        raise PolicyError(
            "two of these labelers were said to be two people (labelguard people list); nothing "
            "was written"
        )


def set_apart(connection: sa.Connection, pair: Blocks) -> bool:
    """Say that two labelers, (2, 2), are two people; whether that is new.

    Raises `PolicyError` if they are in one group, or one person.
    """
    units = Groups(*members(connection)).unit_of(pair)
    if (units[0] == units[1]).all():
        raise PolicyError("these ids are one person, or in one group; nothing was written")
    labeler, other = blocks.to_list(blocks.unique(pair)[0])
    own = schema.distinct.c
    same = sa.and_(own.labeler == labeler, own.other == other)
    if connection.scalar(sa.select(own.labeler).where(same)):
        return False
    connection.execute(sa.insert(schema.distinct).values(labeler=labeler, other=other))
    journal.append(connection, "distinct", {"distinct": distinct_digest(connection)})
    return True


def distinct(connection: sa.Connection) -> tuple[Blocks, Blocks]:
    """Pairs of labelers who are two people although their ids have one form; both (n, 2)."""
    own = schema.distinct.c
    return database.two_keys(
        connection, sa.select(own.labeler, own.other).order_by(own.labeler, own.other)
    )


def members_digest(connection: sa.Connection) -> str:
    """SHA-256 of the table of members."""
    return _digest(members(connection))


def distinct_digest(connection: sa.Connection) -> str:
    """SHA-256 of the pairs who are two people."""
    return _digest(distinct(connection))


def _digest(pairs: tuple[Blocks, Blocks]) -> str:
    return hashlib.sha256(np.column_stack(pairs).astype(">u8").tobytes()).hexdigest()


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


def tombstones_digest(connection: sa.Connection) -> str:
    """SHA-256 of the table of tombstones."""
    own = schema.tombstones.c
    digest = hashlib.sha256()
    for row in connection.execute(sa.select(own.labeler, own.kind).order_by(own.labeler)):
        digest.update(bytes(row.labeler) + row.kind.encode() + b"\n")
    return digest.hexdigest()


def bury(connection: sa.Connection, labeler: Blocks, kind: Leaving) -> None:
    """Set a labeler's tombstone, shape (1, 2): later labels are refused. Erased stays erased."""
    [key] = blocks.to_list(labeler)
    own = schema.tombstones.c
    before = connection.scalar(sa.select(own.kind).where(own.labeler == key))
    if before in (kind, "erased"):
        return
    connection.execute(sa.delete(schema.tombstones).where(own.labeler == key))
    values = {"labeler": key, "kind": kind, "at": clock.now()}
    connection.execute(sa.insert(schema.tombstones).values(values))
    body = {"labeler": key.hex(), "tombstones": tombstones_digest(connection)}
    journal.append(connection, kind, body)


def charged(connection: sa.Connection) -> Blocks:
    """Pseudonyms of all units that were ever charged, sorted, shape (n, 2)."""
    own = schema.counters.c.labeler
    return database.keyed(connection, sa.select(own).distinct().order_by(own))[0]


@dataclass(frozen=True)
class Departure:
    """One labeler who left."""

    # 32 hexadecimal digits
    pseudonym: str
    # retired or erased
    kind: Leaving
    # when, UTC
    at: str


def departures(connection: sa.Connection) -> list[Departure]:
    """Everybody who left, the first one first."""
    own = schema.tombstones.c
    query = sa.select(own.labeler, own.kind, own.at).order_by(own.at, own.labeler)
    return [Departure(bytes(key).hex(), kind, at) for key, kind, at in connection.execute(query)]


def charges_of(connection: sa.Connection, names: Blocks) -> dict[int, int]:
    """How many uses of any of these units, shape (n, 2), each release (by number) was charged."""
    own, releases = schema.charges.c, schema.releases.c
    query = (
        sa.select(own.release, sa.func.sum(own.labels).label("uses"))
        # With the releases spelled out the table's key serves, whatever the number of charges.
        .where(own.release.in_(sa.select(releases.number)))
        .where(own.labeler.in_(blocks.to_list(blocks.unique(names)[0])))
        .group_by(own.release)
        .order_by(own.release)
    )
    return {int(row.release): int(row.uses) for row in connection.execute(query)}
