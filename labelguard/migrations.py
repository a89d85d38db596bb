"""Ledgers of older versions, brought forward in one transaction; newer ones are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from labelguard import statements, tables
from labelguard.errors import LedgerError

_OLDEST = 2


def needed(meta: Mapping[str, str], place: str) -> bool:
    """Whether a ledger is older than this program; `LedgerError` if it is newer, or too old."""
    version = int(meta.get("schema", 0))
    if not _OLDEST <= version <= tables.SCHEMA_VERSION:
        raise LedgerError(
            f"the ledger at {place} has schema {version}; this labelguard knows {_OLDEST} to "
            f"{tables.SCHEMA_VERSION}; use the version of labelguard that wrote it"
        )
    return version < tables.SCHEMA_VERSION


def migrate(connection: sa.Connection, place: str) -> None:
    """Bring the ledger to this program's schema, step by step, and say so in the journal."""
    statements.epoch(connection)  # others wait here, and then find it done
    meta = {row.name: row.value for row in connection.execute(sa.select(tables.meta))}
    if not needed(meta, place):
        return
    version = int(meta["schema"])
    if version < 3:
        _to_3(connection)
    statements.set_meta(connection, "schema", str(tables.SCHEMA_VERSION))
    statements.append(connection, "migrated", {"from": version, "to": tables.SCHEMA_VERSION})


def settings_of_2(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A policy's settings as schema 2 kept them, in the form of schema 3."""
    if "allowances" in settings:
        return dict(settings)
    new = {k: settings[k] for k in settings if k not in _REPLACED}
    rr = settings["mechanism"] == "rr"
    places = settings["max_labels_per_labeler"] if rr else settings["releases"]
    allowance = {"event": settings["mechanism"], "places": places, "share": 1.0}
    return new | {"allowances": [allowance], "closing_points": 1}


_REPLACED = ("mechanism", "max_labels_per_labeler", "releases")
_TABLES = ("policies", "prices", "labelers", "releases", "charges")


def _to_3(connection: sa.Connection) -> None:
    """Several policies with several allowances each; charges by number of release."""
    from labelguard.policy import Policy
    from labelguard.policybook import IMPLICIT
    from labelguard.quotes import quote

    run = connection.exec_driver_sql
    run("DROP INDEX ix_releases_idempotency_key")
    for name in _TABLES:
        run(f"ALTER TABLE {name} RENAME TO old_{name}")
    tables.metadata.create_all(connection)
    connection.execute(sa.insert(tables.meta).values(name="pseudonyms", value=""))
    for row in run("SELECT id, created_at, settings FROM old_policies").all():
        settings = settings_of_2(json.loads(row.settings))
        policy = Policy.from_json(json.dumps(settings))
        values = {"id": row.id, "name": IMPLICIT, "created_at": row.created_at, "state": "active"}
        values |= {"settings": policy.to_json(), "quote": json.dumps(quote(policy)[0])}
        connection.execute(sa.insert(tables.policies).values(values))
        allowance = {"id": 1, "policy_id": row.id, "event": policy.events[0]}
        connection.execute(sa.insert(tables.allowances).values(allowance))
    run("INSERT INTO prices SELECT 1, k, price FROM old_prices")
    run("INSERT INTO counters SELECT 1, labeler, capacity, used FROM old_labelers")
    columns = "state, created_at, settings, charged, rows, files, seal"
    run(
        f"INSERT INTO releases (id, number, idempotency_key, allowance_id, {columns}) "
        f"SELECT id, number, idempotency_key, 1, {columns} FROM old_releases"
    )
    run(
        "INSERT INTO charges SELECT r.number, c.labeler, l.capacity, c.labels "
        "FROM old_charges c JOIN old_releases r ON r.id = c.release_id "
        "JOIN old_labelers l ON l.labeler = c.labeler"
    )
    for name in reversed(_TABLES):
        run(f"DROP TABLE old_{name}")
