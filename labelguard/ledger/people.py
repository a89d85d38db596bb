"""The ledger's tables of people, by pseudonym: who was met, who shares a budget, who has left.

Every function runs in the transaction of its caller.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
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
from labelguard.ledger.records import Links
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks
from labelguard.text import pluralize

# `retired`: no more labels, and none remembered. `erased`: raw rows are gone as well.
Leaving = Literal["retired", "erased"]


def read_links(connection: sa.Connection) -> Links:
    """Return the linked labelers, and the unit of each."""
    own = schema.links.c
    query = sa.select(own.labeler, own.unit).order_by(own.labeler)
    return Links(*database.read_pseudonym_pairs(connection, query))


def link_labelers(
    connection: sa.Connection, labelers: Blocks, same: Blocks, met: Sequence[Identities]
) -> int:
    """Record that each labeler shares one budget with `same` in their row, both (n, 2).

    `met` are those who are named by an id. Returns how many labelers are new among the linked.

    All labels of linked labelers use the allowance of one unit: that of whoever was charged before.
    Raises `PolicyError` for two such units, since what they spent apart cannot be added up, and for
    somebody who has left.
    """
    named = np.concatenate([labelers, same])
    _refuse_linking_after_incomplete_restore(connection)
    if (blocks.find_positions(read_tombstones(connection), named) >= 0).any():
        raise PolicyError(
            "one of these labelers has left: retire or erase the other id too, if it is theirs; "
            "nothing was written"
        )
    links = read_links(connection)
    units, unit = blocks.unique(links.unit_of(named))
    together = _find_smallest_connected(len(units), unit[: len(labelers)], unit[len(labelers) :])
    charged = blocks.find_positions(charges.read_charged_units(connection), units) >= 0
    apart = np.bincount(together[charged], minlength=len(units)) > 1
    if apart.any():
        raise PolicyError(
            f"{pluralize(int(apart.sum()), 'unit')} would have been charged as two: link ids "
            "before the first charge of either; nothing was written"
        )
    name = together.copy()  # of what is together: whose key was charged, else the smallest
    name[together[charged]] = np.flatnonzero(charged)
    now = units[name[together]]
    # A unit that was never charged may come under the name of another.
    renamed = (blocks.find_positions(blocks.unique(links.units)[0], units) >= 0) & blocks.differ(
        units, now
    )
    everybody, row = np.unique(named, axis=0, return_index=True)
    new = blocks.find_positions(links.labelers, everybody) < 0
    if not (renamed.any() or new.any()):
        return 0
    if renamed.any():
        own = schema.links.c.unit
        change = sa.update(schema.links).where(own == sa.bindparam("before"))
        change = change.values(unit=sa.bindparam("now"))
        pairs = zip(blocks.to_list(units[renamed]), blocks.to_list(now[renamed]), strict=True)
        connection.execute(change, [{"before": one, "now": other} for one, other in pairs])
    rows = {"labeler": everybody[new], "unit": now[unit[row]][new]}
    database.insert_columns(connection, schema.links, rows)
    facts: dict[str, Any] = {}
    number = min(connection.scalar(sa.select(sa.func.min(schema.identities.c.release))) or 0, 0)
    for each in met:  # numbered downwards from -1, beside the releases
        number -= 1
        newcomers = each.without(read_identities(connection))
        facts |= add_identities(connection, number, newcomers).get("identities", {})
    body = {"labelers": int(new.sum()), "links": digest_links(connection), "identities": facts}
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


def digest_links(connection: sa.Connection) -> str:
    """Return the SHA-256 of the table of links."""
    links = read_links(connection)
    pairs = np.column_stack((links.labelers, links.units))
    return hashlib.sha256(pairs.astype(">u8").tobytes()).hexdigest()


def read_identities(connection: sa.Connection) -> Identities:
    """Return everybody whom releases and links have named, and the forms of their ids."""
    own = schema.identities.c
    return Identities.from_bytes(b"".join(connection.scalars(sa.select(own.met))))


def add_identities(connection: sa.Connection, release: int, met: Identities) -> dict[str, Any]:
    """Record labelers whom a release, or a link, is the first to name.

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


def _refuse_linking_after_incomplete_restore(connection: sa.Connection) -> None:
    """Refuse to link labelers in a ledger that was restored from a backup that may lack charges."""
    own = schema.journal.c
    bodies = connection.scalars(sa.select(own.body).where(own.kind == "restored"))
    if any(not json.loads(body)["complete"] for body in bodies):
        raise PolicyError(
            "this project was restored without what followed its backup: who was charged alone "
            "since then is not known, so nobody can be linked any more; use another project"
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
    links = read_links(connection)
    theirs = links.labelers[blocks.find_positions(units, links.units) >= 0]
    everybody = {blocks.to_hex(one) for one in (*units, *theirs)}
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
    """Return whom releases met, and who was linked, or left, before any did."""
    unmet = np.concatenate([read_links(connection).labelers, read_tombstones(connection)])
    return read_identities(connection).add_unnamed_labelers(unmet)


class PeopleRepository(Repository):
    """The people of a ledger, by pseudonym, and the sources of their ids."""

    links = in_snapshot(read_links)
    identities = in_snapshot(read_identities)
    known = in_snapshot(read_known_people)
    tombstones = in_snapshot(read_tombstones)
    departures = in_snapshot(read_departures)
    policies_affecting = in_snapshot(read_policies_affecting)
    add_tombstone = in_transaction(add_tombstone)
    add_source = in_transaction(sources.add_source)
    sources = in_snapshot(sources.read_sources)
