"""The ledger's statements, one function each; all run in the transaction of their caller."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from labelguard import block128, clock, journal, tables
from labelguard.block128 import Blocks
from labelguard.errors import LedgerError
from labelguard.policy import Policy

if TYPE_CHECKING:
    from labelguard.ledger import Event


def entries(connection: sa.Connection) -> list[journal.Entry]:
    """The journal, oldest entry first."""
    rows = connection.execute(sa.select(tables.journal).order_by(tables.journal.c.number))
    return [journal.Entry(*row) for row in rows]


def epoch(connection: sa.Connection) -> int:
    """The number of the newest job, locked until the transaction ends."""
    query = sa.select(tables.meta.c.value).where(tables.meta.c.name == "epoch").with_for_update()
    return int(connection.execute(query).scalar_one())


def next_epoch(connection: sa.Connection) -> int:
    """Begin a new epoch."""
    following = epoch(connection) + 1
    connection.execute(
        sa.update(tables.meta).where(tables.meta.c.name == "epoch").values(value=str(following))
    )
    return following


def append(connection: sa.Connection, kind: str, body: Mapping[str, Any]) -> None:
    """Add an entry to the journal's chain."""
    query = sa.select(tables.journal.c.number, tables.journal.c.digest)
    last = connection.execute(query.order_by(tables.journal.c.number.desc()).limit(1)).one_or_none()
    number, previous = (last.number + 1, last.digest) if last else (1, journal.GENESIS)
    entry = journal.entry(number, clock.now(), kind, body, previous)
    connection.execute(sa.insert(tables.journal).values(vars(entry)))


def policy_id(connection: sa.Connection, policy: Policy) -> int:
    """The stored policy's number; the first charge stores it."""
    row = connection.execute(sa.select(tables.policies)).one_or_none()
    if row is None:
        values = {"id": 1, "created_at": clock.now(), "settings": policy.to_json()}
        connection.execute(sa.insert(tables.policies).values(values))
        append(connection, "policy", {"policy": 1, "settings": json.loads(policy.to_json())})
        return 1
    if Policy.from_json(row.settings) != policy:
        raise LedgerError("the policy in the ledger is not the one this job was planned with")
    return int(row.id)


def store_prices(
    connection: sa.Connection, policy_id: int, prices: Mapping[int, int]
) -> dict[str, str]:
    """Store the price of every k that has none; returns what was stored, as text."""
    stored = set(connection.scalars(sa.select(tables.prices.c.k)))
    new = {str(k): str(price) for k, price in prices.items() if k not in stored}
    if new:
        rows = [{"policy_id": policy_id, "k": int(k), "price": price} for k, price in new.items()]
        connection.execute(sa.insert(tables.prices), rows)
    return new


def charge_labelers(connection: sa.Connection, event: Event) -> list[tuple[bytes, int, int]]:
    """Take the places of the event; returns (labeler, capacity, new labels) of who is charged."""
    known = {bytes(key) for key in connection.scalars(sa.select(tables.labelers.c.labeler))}
    rows = list(
        zip(keys(event.labelers), event.capacity.tolist(), event.charged.tolist(), strict=True)
    )
    new = [
        {"labeler": key, "capacity": capacity, "used": count}
        for key, capacity, count in rows
        if key not in known and count
    ]
    old = [{"who": key, "count": count} for key, _, count in rows if key in known and count]
    if new:
        connection.execute(sa.insert(tables.labelers), new)
    if old:
        connection.execute(
            sa.update(tables.labelers)
            .where(tables.labelers.c.labeler == sa.bindparam("who"))
            .values(used=tables.labelers.c.used + sa.bindparam("count")),
            old,
        )
    return [row for row in rows if row[2]]


def charge_release(
    connection: sa.Connection, release_id: str, charges: Sequence[tuple[bytes, int, int]]
) -> None:
    """Write down what a release charged to whom."""
    rows = [
        {"release_id": release_id, "labeler": labeler, "labels": labels}
        for labeler, _, labels in charges
    ]
    if rows:
        connection.execute(sa.insert(tables.charges), rows)


def set_state(
    connection: sa.Connection, release_id: str, expected: str, values: Mapping[str, Any]
) -> None:
    """Change a release, if it is in the expected state."""
    condition = sa.and_(tables.releases.c.id == release_id, tables.releases.c.state == expected)
    changed = connection.execute(sa.update(tables.releases).where(condition).values(**values))
    if changed.rowcount != 1:
        raise LedgerError(f"release {release_id} is not {expected}; the ledger has moved on")


def keys(labelers: Blocks) -> list[bytes]:
    """Pseudonyms as the ledger stores them."""
    data = block128.to_bytes(labelers)
    return [data[start : start + 16] for start in range(0, len(data), 16)]
