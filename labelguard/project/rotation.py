"""`project rotate-pseudonyms`: the same labelers under new names, which only the keys connect.

All pseudonyms in the ledger change in one transaction. Row keys, buckets and the private maps hang
on labelers' keys, which do not change: releases are what they would have been. The secret of
the new names is written beside the old one first, and takes its place when the ledger has them; a
crash between is completed by whoever opens the ledger next, which knows the secret's fingerprint.
Entries that the journal has already stay as they were: a `retired` or `erased` one names its
labeler by the pseudonym of its day.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa

from labelguard.errors import LedgerError
from labelguard.keys.identities import Identities
from labelguard.keys.pseudonyms import Pseudonyms
from labelguard.ledger import (
    database,
    digests,
    journal,
    meta,
    people,
    schema,
)
from labelguard.project.opening import OpenProject, Where
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks


@dataclass(frozen=True)
class Rotated:
    """A project whose labelers have new pseudonyms."""

    project: str
    """the project's directory"""
    renamed: int
    """how many labelers that were charged have one"""


def rotate(project: Where = None) -> Rotated:
    """Give every labeler of a project a new pseudonym; how many have one, and what else was done.

    Raises `LedgerError` for a ledger that does not hold: the digests of its charges, by which that
    is known, are made anew.
    """
    with OpenProject.job(project) as opened:
        home, keys, ledger = opened.project, opened.keys, opened.ledger
        broken = ledger.fault()
        if broken:
            raise LedgerError(f"the ledger does not hold, so no name is changed: {broken}")
        epoch = ledger.begin_job()
        before, after = keys.pseudonyms(), keys.prepare_pseudonyms()
        with ledger.transaction(epoch) as connection:
            rename(connection, before, after)
            charged = len(people.charged(connection))
        keys.pseudonyms(after.fingerprint)
    return Rotated(str(home.state), charged)


def rename(connection: sa.Connection, before: Pseudonyms, after: Pseudonyms) -> None:
    """Rewrite all pseudonyms of a ledger, and let the journal tell the digests that follow."""

    def renamed(names: Blocks) -> Blocks:
        return after.hide(before.reveal(names))

    for number in connection.scalars(sa.select(schema.allowances.c.id)).all():
        _rewrite(connection, schema.counters, "allowance_id", number, renamed)
    releases = connection.execute(sa.select(schema.releases.c.id, schema.releases.c.number)).all()
    for _, number in releases:
        _rewrite(connection, schema.charges, "release", number, renamed)
    members = _rename_members(connection, renamed)
    distinct = _rename_distinct(connection, renamed)
    _rename_identities(connection, renamed)
    tombstones = _rename_tombstones(connection, renamed)
    body: dict[str, Any] = {
        "charges": {row.id: digests.release_digest(connection, row.number) for row in releases},
        "identities": people.met_by_release(connection),
    }
    # The journal tells of these tables from their first row on; rows never leave them.
    if members:
        body["members"] = digests.members_digest(connection)
    if distinct:
        body["distinct"] = digests.distinct_digest(connection)
    if tombstones:
        body["tombstones"] = digests.tombstones_digest(connection)
    meta.set_meta(connection, "pseudonyms", after.fingerprint)
    journal.append(connection, "renamed", body)


_Renaming = Callable[[Blocks], Blocks]


def _rewrite(
    connection: sa.Connection, table: sa.Table, key: str, number: int, renamed: _Renaming
) -> None:
    """Rename the labelers of the rows whose column `key` is `number`; the rest are integers."""
    own = table.c[key] == number
    rest = [column.name for column in table.columns if column.name not in (key, "labeler")]
    query = sa.select(table.c.labeler, *(table.c[name] for name in rest)).where(own)
    names, columns = database.keyed(connection, query.order_by(table.c.labeler))
    names = renamed(names)
    order = blocks.order(names)
    connection.execute(sa.delete(table).where(own))
    rewritten = {name: column[order] for name, column in zip(rest, columns, strict=True)}
    database.insert(connection, table, {key: number, "labeler": names[order], **rewritten})


def _rename_members(connection: sa.Connection, renamed: _Renaming) -> int:
    labelers, units = (renamed(names) for names in people.members(connection))
    order = blocks.order(labelers)
    connection.execute(sa.delete(schema.members))
    renamed_pairs = {"labeler": labelers[order], "unit": units[order]}
    database.insert(connection, schema.members, renamed_pairs)
    return len(labelers)


def _rename_distinct(connection: sa.Connection, renamed: _Renaming) -> int:
    pairs = [blocks.unique(renamed(pair))[0] for pair in np.stack(people.distinct(connection), 1)]
    connection.execute(sa.delete(schema.distinct))
    values = [dict(zip(("labeler", "other"), database.stored(pair), strict=True)) for pair in pairs]
    if values:
        connection.execute(sa.insert(schema.distinct), values)
    return len(values)


def _rename_identities(connection: sa.Connection, renamed: _Renaming) -> None:
    rows = connection.execute(sa.select(schema.identities)).all()
    connection.execute(sa.delete(schema.identities))
    for row in rows:
        people.meet(connection, row.release, Identities.from_bytes(row.met).renamed(renamed))


def _rename_tombstones(connection: sa.Connection, renamed: _Renaming) -> int:
    rows = connection.execute(sa.select(schema.tombstones)).all()
    names = renamed(blocks.from_bytes(b"".join(row.labeler for row in rows)))
    connection.execute(sa.delete(schema.tombstones))
    values = [
        {"labeler": key, "kind": row.kind, "at": row.at}
        for key, row in zip(database.stored(names), rows, strict=True)
    ]
    if values:
        connection.execute(sa.insert(schema.tombstones), values)
    return len(values)
