"""The ledger's statements, one function each; all run in the transaction of their caller."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.dialects import postgresql, sqlite

from labelguard import clock
from labelguard.budget import pricing
from labelguard.budget.event_kind import Price
from labelguard.errors import LedgerError
from labelguard.ledger import database, journal, schema
from labelguard.ledger.records import Charge, ReleaseRecord
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks

UNFINISHED = ("computing", "drawn")
# States of a release that answers its request: not given back, not given up.
LIVE = ("reserved", *UNFINISHED, "committed")


def store_prices(
    connection: sa.Connection, allowance_id: int, prices: Mapping[int, Price]
) -> dict[str, dict[str, str]]:
    """Store the price of every k that has none yet; returns what is new, as the journal has it."""
    query = sa.select(schema.prices.c.k).where(schema.prices.c.allowance_id == allowance_id)
    stored = set(connection.scalars(query))
    new = {k: pricing.format_price(price) for k, price in prices.items() if k not in stored}
    if new:
        rows = [
            {"allowance_id": allowance_id, "k": k, "price": json.dumps(price, sort_keys=True)}
            for k, price in new.items()
        ]
        connection.execute(sa.insert(schema.prices), rows)
    return {str(k): price for k, price in new.items()}


def reserve(
    connection: sa.Connection,
    policy_id: int,
    allowance_id: int,
    asked: Charge,
    prices: Mapping[str, Mapping[str, str]],
) -> str:
    """Charge a new release, `reserved`; its id. `prices` are those just stored.

    Raises `LedgerError` if the same request has a release: a job that was cut off from the ledger
    may not know that another one has made it since.
    """
    own = schema.releases.c
    live = sa.and_(own.idempotency_key == asked.idempotency_key, own.state.in_(LIVE))
    made = connection.scalar(sa.select(own.id).where(live).limit(1))
    if made:
        raise LedgerError(
            f"another job has made release {made} of this very request; run the same command again"
        )
    number = 1 + (connection.scalar(sa.select(sa.func.max(own.number))) or 0)
    settings = json.dumps(dict(asked.settings), sort_keys=True)
    record = {
        "id": f"r{number:04d}-{asked.idempotency_key[:8]}",
        "number": number,
        "idempotency_key": asked.idempotency_key,
        "allowance_id": allowance_id,
        "state": "reserved",
        "created_at": clock.now(),
        "settings": settings,
        "charged": int(asked.charged.sum()),
    }
    connection.execute(sa.insert(schema.releases).values(record))
    digest = charge(connection, number, allowance_id, asked)
    body = {"release": record["id"], "mechanism": asked.mechanism}
    body |= {"policy": policy_id, "event": asked.event}
    body |= {"request": request_digest(asked.idempotency_key, settings)}
    body |= {"labels": record["charged"], "labelers": int((asked.charged > 0).sum())}
    journal.append(connection, "charged", body | {"charges": digest, "prices": dict(prices)})
    return str(record["id"])


def charge(connection: sa.Connection, number: int, allowance_id: int, asked: Charge) -> str:
    """Charge uses to release `number`; the digest of who was charged what.

    The table's own constraint refuses a labeler more than they are allowed.
    """
    who = np.flatnonzero(asked.charged)
    who = who[blocks.order(asked.labelers[who])]
    labelers, capacity, labels = asked.labelers[who], asked.capacity[who], asked.charged[who]
    columns = {"labeler": labelers, "capacity": capacity, "labels": labels}
    database.insert(connection, schema.charges, {"release": number, **columns})
    own, c = schema.charges.c, schema.counters.c
    taken = sa.select(
        sa.literal(allowance_id, sa.Integer), own.labeler, own.capacity, own.labels
    ).where(own.release == number)
    dialect = connection.dialect.name
    make = postgresql.insert if dialect == "postgresql" else sqlite.insert
    names = ["allowance_id", "labeler", "capacity", "used"]
    insert = make(schema.counters).from_select(names, taken)
    connection.execute(
        insert.on_conflict_do_update(
            index_elements=[c.allowance_id, c.labeler],
            set_={"used": c.used + insert.excluded.used},
        )
    )
    return charges_digest(labelers, capacity, labels)


def charges_digest(labelers: Blocks, capacity: NDArray[np.int64], labels: NDArray[np.int64]) -> str:
    """SHA-256 of who was charged how many labels: 32-byte rows, sorted by labeler (n, 2)."""
    rows = np.column_stack([labelers, capacity.astype(np.uint64), labels.astype(np.uint64)])
    return hashlib.sha256(rows.astype(">u8").tobytes()).hexdigest()


def release_digest(connection: sa.Connection, number: int) -> str:
    """`charges_digest` of what a release charged, as the tables have it."""
    own = schema.charges.c
    query = sa.select(own.labeler, own.capacity, own.labels).where(own.release == number)
    labelers, (capacity, labels) = database.keyed(connection, query.order_by(own.labeler))
    return charges_digest(labelers, capacity, labels)


def request_digest(idempotency_key: str, settings: str) -> str:
    """Of what a release was asked for, as its row has it."""
    return hashlib.sha256(f"{idempotency_key} {settings}".encode()).hexdigest()


def of_release(connection: sa.Connection, number: int) -> tuple[Blocks, NDArray[np.int64]]:
    """Who was charged for a release, by pseudonym (n, 2), and how many uses (n,)."""
    own = schema.charges.c
    query = sa.select(own.labeler, own.labels).where(own.release == number)
    who, (labels,) = database.keyed(connection, query.order_by(own.labeler))
    return who, labels


def refund(connection: sa.Connection, record: ReleaseRecord) -> None:
    """Give back what a reserved release was charged."""
    row = sa.select(schema.releases.c.allowance_id).where(schema.releases.c.id == record.id)
    allowance_id = connection.execute(row).scalar_one()
    own, c = schema.charges.c, schema.counters.c
    connection.execute(
        sa.update(schema.counters)
        .where(c.allowance_id == allowance_id, own.release == record.number)
        .where(own.labeler == c.labeler)
        .values(used=c.used - own.labels)
    )
    connection.execute(sa.delete(schema.charges).where(own.release == record.number))
    # Nobody's k is fixed by a release that did not happen.
    connection.execute(
        sa.delete(schema.counters).where(c.allowance_id == allowance_id, c.used == 0)
    )
    told = {"labels": record.charged}
    advance(connection, record.id, ["reserved"], "refunded", told, {"charged": 0})


def usage(
    connection: sa.Connection, allowance_ids: Mapping[str, int]
) -> dict[str, list[tuple[int, int, int]]]:
    """For each kind of event, how many units have which (capacity, used)."""
    c = schema.counters.c
    found = {}
    for event, identity in allowance_ids.items():
        query = sa.select(c.capacity, c.used, sa.func.count())
        query = query.where(c.allowance_id == identity).group_by(c.capacity, c.used)
        rows = connection.execute(query.order_by(c.capacity, c.used))
        found[event] = [(int(row[0]), int(row[1]), int(row[2])) for row in rows]
    return found


def uses(connection: sa.Connection, labeler: bytes) -> list[Any]:
    """What a pseudonym has used of every allowance it was charged to, oldest policy first."""
    c, a, p = schema.counters.c, schema.allowances.c, schema.policies.c
    query = (
        sa.select(c.labeler, p.name, p.state, a.event, c.capacity, c.used)
        .join_from(schema.counters, schema.allowances, a.id == c.allowance_id)
        .join(schema.policies, p.id == a.policy_id)
        .where(c.labeler == labeler)
        .order_by(a.id)
    )
    return list(connection.execute(query))


def releases(connection: sa.Connection, condition: sa.ColumnElement[bool]) -> list[ReleaseRecord]:
    """Releases that meet a condition, oldest first."""
    own, allowances = schema.releases.c, schema.allowances.c
    query = (
        sa.select(*(column for column in own if column.name != "allowance_id"))
        .add_columns(allowances.policy_id, allowances.event)
        .join_from(schema.releases, schema.allowances, allowances.id == own.allowance_id)
        .where(condition)
        .order_by(own.number)
    )
    return [
        ReleaseRecord(
            **row._asdict()
            | {"settings": json.loads(row.settings), "files": json.loads(row.files or "{}")}
        )
        for row in connection.execute(query)
    ]


def advance(
    connection: sa.Connection,
    release_id: str,
    expected: Sequence[str],
    state: str,
    told: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
) -> None:
    """Bring a release from one of the expected states into another, with other `values` of its row.

    The journal tells of it, with what else is `told`. Raises `LedgerError` in any other state.
    """
    condition = sa.and_(schema.releases.c.id == release_id, schema.releases.c.state.in_(expected))
    change = sa.update(schema.releases).where(condition).values(state=state, **(values or {}))
    if connection.execute(change).rowcount != 1:
        raise LedgerError(
            f"release {release_id} is not {' or '.join(expected)}; the ledger has moved on"
        )
    journal.append(connection, state, {"release": release_id, **(told or {})})


def replace_maps(connection: sa.Connection, maps: Mapping[str, str]) -> None:
    """Rows of somebody who left were taken out of these private maps: their new digests."""
    own = schema.releases
    for release, digest in maps.items():
        connection.execute(sa.update(own).where(own.c.id == release).values(map=digest))
    journal.append(connection, "rewritten", {"maps": dict(maps)})


def near(
    connection: sa.Connection, allowance_id: int, percent: int, most: int
) -> list[tuple[str, int, int]]:
    """Of units that used so many percent or more: pseudonym, capacity and used of up to `most`.

    Those who used the largest share come first.
    """
    c = schema.counters.c
    query = (
        sa.select(c.labeler, c.capacity, c.used)
        .where(c.allowance_id == allowance_id, c.used * 100 >= c.capacity * percent)
        .order_by((c.used * 1.0 / c.capacity).desc(), c.labeler)
        .limit(most)
    )
    return [(row.labeler.hex(), row.capacity, row.used) for row in connection.execute(query)]
