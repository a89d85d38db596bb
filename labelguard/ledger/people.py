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
from labelguard.budget.policy import Policy
from labelguard.errors import PolicyError
from labelguard.keys.identities import Identities
from labelguard.ledger import charges, database, journal, policies, schema, sources
from labelguard.ledger.database import Repository, in_snapshot, in_transaction
from labelguard.ledger.records import UnitGroups
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks
from labelguard.text import pluralize

# `retired`: no more labels, and none remembered. `erased`: raw rows are gone as well.
Leaving = Literal["retired", "erased"]


def read_members(connection: sa.Connection) -> tuple[Blocks, Blocks]:
    """Return labelers in groups, sorted, and the group of each; both (n, 2)."""
    own = schema.members.c
    return database.read_pseudonym_pairs(
        connection, sa.select(own.labeler, own.unit).order_by(own.labeler)
    )


def add_members(connection: sa.Connection, added: UnitGroups, met: Identities) -> int:
    """Put labelers into groups; return how many were new. A labeler's group never changes.

    `met` are those who are named by whatever id.

    Raises `PolicyError` for labelers of another group, or charged before as a unit of their own:
    what they spent would not count for the group.
    """
    labelers, units = added.labelers, added.units
    known, groups = read_members(connection)
    refuse_joining_after_incomplete_restore(connection)
    at = blocks.find_positions(known, labelers)
    present = at >= 0
    moved = (groups[at[present]] != units[present]).any(axis=1) if len(known) else np.zeros(0, bool)
    alone = blocks.find_positions(charges.read_charged_units(connection), labelers) >= 0
    if moved.any() or alone.any():
        raise PolicyError(
            f"{pluralize(int(moved.sum()), 'labeler')} would leave their group, "
            f"{pluralize(int(alone.sum()), 'labeler')} charged before having one; "
            "a labeler's group never changes: nothing was written"
        )
    new = np.flatnonzero(~present)
    new = new[blocks.sort_order(labelers[new])]
    database.insert_columns(
        connection, schema.members, {"labeler": labelers[new], "unit": units[new]}
    )
    if len(new):
        body = {"labelers": len(new), "members": digest_members(connection)}
        own = schema.identities.c.release
        first = connection.scalar(sa.select(sa.func.min(own))) or 0
        # Lists of groups are numbered downwards from -1, beside the releases.
        body |= add_identities(
            connection, min(first, 0) - 1, met.without(read_identities(connection))
        )
        journal.append_entry(connection, "grouped", body)
    return len(new)


def link_labelers(connection: sa.Connection, labelers: Blocks, same_as: Blocks) -> int:
    """Record that each labeler is one person with `same_as` in their row, both (n, 2).

    Returns how many labelers are new among those who share a unit.

    All labels of a person use the allowance of one unit: that of whoever was charged, or was in a
    group before. Raises `PolicyError` for people with two such units: what they spent apart cannot
    be added up; for two who were said to be distinct; and for somebody who has left.
    """
    everybody, row = blocks.unique(np.concatenate([labelers, same_as]))
    refuse_joining_after_incomplete_restore(connection)
    if (blocks.find_positions(read_tombstones(connection), everybody) >= 0).any():
        raise PolicyError(
            "one of these labelers has left, and who is one person with them has left as well: "
            "retire or erase the other id too; nothing was written"
        )
    known, groups = read_members(connection)
    before = UnitGroups(known, groups).unit_of(everybody)
    units, unit = blocks.unique(before)
    person = _find_smallest_connected(
        len(units), unit[row[: len(labelers)]], unit[row[len(labelers) :]]
    )
    settled = blocks.find_positions(blocks.unique(groups)[0], units) >= 0
    settled |= blocks.find_positions(charges.read_charged_units(connection), units) >= 0
    taken = np.bincount(person[settled], minlength=len(units))
    if (taken > 1).any():
        raise PolicyError(
            f"{pluralize(int((taken > 1).sum()), 'person')} would have been charged, or put into "
            "groups, as two: link people before the first charge of either; nothing was written"
        )
    unit_of = np.arange(len(units))
    unit_of[person[settled]] = np.flatnonzero(settled)
    now = units[unit_of[person[unit]]]
    _refuse_distinct(connection, UnitGroups(everybody, now))
    new = blocks.find_positions(known, everybody) < 0
    # Whose key names the unit is a member as well: by that a person is told from a group.
    database.insert_columns(
        connection, schema.members, {"labeler": everybody[new], "unit": now[new]}
    )
    if new.any():
        body = {"labelers": int(new.sum()), "members": digest_members(connection)}
        journal.append_entry(connection, "linked", body)
    return int(new.sum())


def _find_smallest_connected(
    count: int, left: NDArray[np.intp], right: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Return the smallest of `count` nodes that each is connected with by edges left–right."""
    import scipy.sparse as sp
    from scipy.sparse.csgraph import connected_components

    links = sp.coo_matrix((np.ones(len(left), np.int8), (left, right)), (count, count))
    component = connected_components(links, directed=False)[1]
    smallest: NDArray[np.intp] = np.unique(component, return_index=True)[1][component]
    return smallest


def _refuse_distinct(connection: sa.Connection, groups: UnitGroups) -> None:
    first, second = map(groups.unit_of, read_distinct(connection))
    if (first == second).all(axis=1).any():
        raise PolicyError(
            "two of these labelers were said to be two people (labelguard people list); nothing "
            "was written"
        )


def set_distinct(connection: sa.Connection, pair: Blocks) -> bool:
    """Record that two labelers, (2, 2), are two people; return whether that is new.

    Raises `PolicyError` if they are in one group, or one person.
    """
    units = UnitGroups(*read_members(connection)).unit_of(pair)
    if (units[0] == units[1]).all():
        raise PolicyError("these ids are one person, or in one group; nothing was written")
    labeler, other = blocks.to_list(blocks.unique(pair)[0])
    own = schema.distinct.c
    same = sa.and_(own.labeler == labeler, own.other == other)
    if connection.scalar(sa.select(own.labeler).where(same)):
        return False
    connection.execute(sa.insert(schema.distinct).values(labeler=labeler, other=other))
    journal.append_entry(connection, "distinct", {"distinct": digest_distinct(connection)})
    return True


def read_distinct(connection: sa.Connection) -> tuple[Blocks, Blocks]:
    """Return pairs of labelers who are two people although their ids have one form; both (n, 2)."""
    own = schema.distinct.c
    return database.read_pseudonym_pairs(
        connection, sa.select(own.labeler, own.other).order_by(own.labeler, own.other)
    )


def digest_members(connection: sa.Connection) -> str:
    """Return the SHA-256 of the table of members."""
    return _digest_pairs(read_members(connection))


def digest_distinct(connection: sa.Connection) -> str:
    """Return the SHA-256 of the pairs who are two people."""
    return _digest_pairs(read_distinct(connection))


def _digest_pairs(pairs: tuple[Blocks, Blocks]) -> str:
    return hashlib.sha256(np.column_stack(pairs).astype(">u8").tobytes()).hexdigest()


def read_identities(connection: sa.Connection) -> Identities:
    """Return everybody whom releases and lists of groups have named, and the forms of their ids."""
    own = schema.identities.c
    return Identities.from_bytes(b"".join(connection.scalars(sa.select(own.met))))


def add_identities(connection: sa.Connection, release: int, met: Identities) -> dict[str, Any]:
    """Record labelers whom a release, or a list of groups, is the first to name.

    Returns the facts for the journal's entry.
    """
    if not len(met.labelers):
        return {}
    data = met.to_bytes()
    values = {"release": release, "labelers": len(met.labelers), "met": data}
    connection.execute(sa.insert(schema.identities).values(values))
    return {"identities": {str(release): hashlib.sha256(data).hexdigest()}}


def digest_identities(connection: sa.Connection) -> dict[str, str]:
    """Return the SHA-256 of those whom each release, by its number, was the first to meet."""
    own = schema.identities.c
    rows = connection.execute(sa.select(own.release, own.met).order_by(own.release))
    return {str(row.release): hashlib.sha256(row.met).hexdigest() for row in rows}


def refuse_joining_after_incomplete_restore(connection: sa.Connection) -> None:
    """Refuse to join people in a ledger that was restored from a backup that may lack charges."""
    own = schema.journal.c
    bodies = connection.scalars(sa.select(own.body).where(own.kind == "restored"))
    if any(not json.loads(body)["complete"] for body in bodies):
        raise PolicyError(
            "this project was restored without what followed its backup: who was charged alone "
            "since then is not known, so nobody can be joined any more; use another project"
        )


def read_tombstones(connection: sa.Connection) -> Blocks:
    """Return labelers who have left, sorted, shape (n, 2)."""
    own = schema.tombstones.c.labeler
    return database.read_pseudonym_rows(connection, sa.select(own).order_by(own))[0]


def digest_tombstones(connection: sa.Connection) -> str:
    """Return the SHA-256 of the table of tombstones."""
    own = schema.tombstones.c
    digest = hashlib.sha256()
    for row in connection.execute(sa.select(own.labeler, own.kind).order_by(own.labeler)):
        digest.update(bytes(row.labeler) + row.kind.encode() + b"\n")
    return digest.hexdigest()


def add_tombstone(connection: sa.Connection, labeler: Blocks, kind: Leaving) -> None:
    """Record that a labeler, shape (1, 2), left: later labels are refused. Erased stays erased."""
    [key] = blocks.to_list(labeler)
    own = schema.tombstones.c
    before = connection.scalar(sa.select(own.kind).where(own.labeler == key))
    if before in (kind, "erased"):
        return
    connection.execute(sa.delete(schema.tombstones).where(own.labeler == key))
    at = clock.now()
    values = {"labeler": key, "kind": kind, "at": at}
    connection.execute(sa.insert(schema.tombstones).values(values))
    body = {"labeler": key.hex(), "tombstones": digest_tombstones(connection)}
    journal.append_entry(connection, kind, body, at)


@dataclass(frozen=True)
class Departure:
    """One labeler who left."""

    # 32 hexadecimal digits
    pseudonym: str
    # retired or erased
    kind: Leaving
    # when, UTC
    at: str
    # when somebody who is erased was retired before; null if they never were
    retired_at: str | None = None


def read_departures(connection: sa.Connection) -> list[Departure]:
    """Return everybody who left, the first one first."""
    own, entry = schema.tombstones.c, schema.journal.c
    query = sa.select(own.labeler, own.kind, own.at).order_by(own.at, own.labeler)
    noted = sa.select(entry.body, entry.at).where(entry.kind == "retired")
    retired = {json.loads(body)["labeler"]: at for body, at in connection.execute(noted)}
    rows = ((bytes(key).hex(), kind, at) for key, kind, at in connection.execute(query))
    return [
        Departure(name, kind, at, retired.get(name) if kind == "erased" else None)
        for name, kind, at in rows
    ]


def read_policies_affecting(connection: sa.Connection, units: Blocks) -> list[Policy]:
    """Return the policies that people who are charged as one of these units, (n, 2), may lose to.

    Every policy that was or is in force. But once all of them have left, no label of theirs is
    read: of later policies only those that charged the unit. The journal's order decides, no clock.
    """
    records = [one for one in policies.read_policies(connection) if one.state != "draft"]
    labelers, groups = read_members(connection)
    unit_of = UnitGroups(labelers, groups)
    theirs = labelers[blocks.find_positions(units, groups) >= 0]
    alone = [unit for unit in units if not unit_of.is_group(unit[np.newaxis])]
    everybody = {blocks.to_hex(one) for one in (*alone, *theirs)}
    gone: dict[str, int] = {}
    in_force: dict[int, int] = {}
    own = schema.journal.c
    kinds = ("retired", "erased", "policy", "activated")
    query = sa.select(own.number, own.kind, own.body).where(own.kind.in_(kinds))
    for number, kind, text in connection.execute(query.order_by(own.number)):
        body = json.loads(text)
        if kind in ("retired", "erased"):
            gone.setdefault(body["labeler"], number)
        elif body.get("state") != "draft":
            in_force[body["policy"]] = number
    # Contents are labelled by others as well, and whole records are not labels.
    of_people = all(
        one.policy.unit != "item" and one.policy.adjacency == "replace_labels" for one in records
    )
    if not (of_people and everybody <= gone.keys()):
        return [one.policy for one in records]
    left = max((gone[one] for one in everybody), default=0)
    counters, allowances = schema.counters.c, schema.allowances.c
    charged = set(
        connection.scalars(
            sa.select(allowances.policy_id)
            .join_from(schema.counters, schema.allowances, allowances.id == counters.allowance_id)
            .where(counters.labeler.in_(blocks.to_list(units)))
        )
    )
    return [one.policy for one in records if in_force[one.id] < left or one.id in charged]


def read_known_people(connection: sa.Connection) -> Identities:
    """Return whom releases met, and who was put into a group, linked, or left before any did."""
    unmet = np.concatenate([read_members(connection)[0], read_tombstones(connection)])
    return read_identities(connection).add_unnamed_labelers(unmet)


class PeopleRepository(Repository):
    """The people of a ledger, by pseudonym, and the sources of their ids."""

    members = in_snapshot(read_members)
    add_members = in_transaction(add_members)
    link = in_transaction(link_labelers)
    distinct = in_snapshot(read_distinct)
    set_distinct = in_transaction(set_distinct)
    identities = in_snapshot(read_identities)
    known = in_snapshot(read_known_people)
    tombstones = in_snapshot(read_tombstones)
    departures = in_snapshot(read_departures)
    policies_affecting = in_snapshot(read_policies_affecting)
    add_tombstone = in_transaction(add_tombstone)
    add_source = in_transaction(sources.add_source)
    sources = in_snapshot(sources.read_sources)
