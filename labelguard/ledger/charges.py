"""The ledger's statements, one function each; all run in the transaction of their caller."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from labelguard import clock
from labelguard.errors import LedgerError
from labelguard.ledger import database, journal, policies, schema
from labelguard.ledger.database import Repository, in_snapshot, in_transaction
from labelguard.ledger.records import Charge, LabelerTable, ReleaseRecord
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks

UNFINISHED = ("computing", "drawn")
# States of a release that answers its request: not given back, not given up.
LIVE = ("reserved", *UNFINISHED, "committed")


def reserve_release(
    connection: sa.Connection,
    policy_id: int,
    allowance_id: int,
    charge: Charge,
    prices: Mapping[str, Mapping[str, str]],
) -> str:
    """Charge a new release, `reserved`; return its id. `prices` are those just stored.

    Raises `LedgerError` if the same request has a release: a job that was cut off from the ledger
    may not know that another one has made it since.
    """
    own = schema.releases.c
    live = sa.and_(own.idempotency_key == charge.idempotency_key, own.state.in_(LIVE))
    earlier = connection.scalar(sa.select(own.id).where(live).limit(1))
    if earlier:
        raise LedgerError(
            f"another job has made release {earlier} of this request; run the same command again"
        )
    number = 1 + (connection.scalar(sa.select(sa.func.max(own.number))) or 0)
    settings = json.dumps(dict(charge.settings), sort_keys=True)
    at = clock.now()
    record = {
        "id": f"r{number:04d}-{charge.idempotency_key[:8]}",
        "number": number,
        "idempotency_key": charge.idempotency_key,
        "allowance_id": allowance_id,
        "state": "reserved",
        "created_at": at,
        "settings": settings,
        "charged": int(charge.charged.sum()),
    }
    connection.execute(sa.insert(schema.releases).values(record))
    digest = add_charges(connection, number, allowance_id, charge)
    body = {"release": record["id"], "mechanism": charge.mechanism}
    body |= {"policy": policy_id, "event": charge.event}
    body |= {"request": digest_request(charge.idempotency_key, settings)}
    body |= {"labels": record["charged"], "labelers": int((charge.charged > 0).sum())}
    body |= {"charges": digest, "prices": dict(prices)}
    journal.append_entry(connection, "charged", body, at)
    return str(record["id"])


def add_charges(connection: sa.Connection, number: int, allowance_id: int, charge: Charge) -> str:
    """Charge uses to release `number`; return the digest of who was charged what.

    The table's own constraint refuses a labeler more than they are allowed.
    """
    who = np.flatnonzero(charge.charged)
    who = who[blocks.sort_order(charge.labelers[who])]
    labelers, capacity, labels = charge.labelers[who], charge.capacity[who], charge.charged[who]
    columns = {"labeler": labelers, "capacity": capacity, "labels": labels}
    database.insert_columns(connection, schema.charges, {"release": number, **columns})
    own, c = schema.charges.c, schema.counters.c
    charged = sa.select(
        sa.literal(allowance_id, sa.Integer), own.labeler, own.capacity, own.labels
    ).where(own.release == number)
    names = ["allowance_id", "labeler", "capacity", "used"]
    insert = database.build_resolving_insert(connection, schema.counters)
    insert = insert.from_select(names, charged)
    connection.execute(
        insert.on_conflict_do_update(
            index_elements=[c.allowance_id, c.labeler], set_={"used": c.used + insert.excluded.used}
        )
    )
    return digest_charges(labelers, capacity, labels)


def digest_charges(labelers: Blocks, capacity: NDArray[np.int64], labels: NDArray[np.int64]) -> str:
    """Return the SHA-256 of who was charged how many uses, of which capacity: 32-byte rows."""
    rows = np.column_stack([labelers, capacity.astype(np.uint64), labels.astype(np.uint64)])
    return hashlib.sha256(rows.astype(">u8").tobytes()).hexdigest()


def digest_stored_charges(connection: sa.Connection, number: int) -> str:
    """Return the `digest_charges` of a release from the tables."""
    own = schema.charges.c
    query = sa.select(own.labeler, own.capacity, own.labels).where(own.release == number)
    labelers, (capacity, labels) = database.read_pseudonym_rows(
        connection, query.order_by(own.labeler)
    )
    return digest_charges(labelers, capacity, labels)


def digest_request(idempotency_key: str, settings: str) -> str:
    """Return the SHA-256 of a release's request, as its row has it."""
    return hashlib.sha256(f"{idempotency_key} {settings}".encode()).hexdigest()


def read_charges(connection: sa.Connection, number: int) -> tuple[Blocks, NDArray[np.int64]]:
    """Return who was charged for a release, by pseudonym (n, 2), and how many uses (n,)."""
    own = schema.charges.c
    query = sa.select(own.labeler, own.labels).where(own.release == number)
    who, (labels,) = database.read_pseudonym_rows(connection, query.order_by(own.labeler))
    return who, labels


def refund_release(connection: sa.Connection, record: ReleaseRecord) -> None:
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
    facts = {"labels": record.charged}
    change_state(connection, record.id, ["reserved"], "refunded", facts, {"charged": 0})


def count_units_by_usage(connection: sa.Connection) -> dict[str, list[tuple[int, int, int]]]:
    """Return (capacity, used, number of units) of each kind of event, under the policy in force."""
    c, usage = schema.counters.c, {}
    active = policies.find_active(connection)
    for event, identity in (active.allowance_ids if active else {}).items():
        query = sa.select(c.capacity, c.used, sa.func.count())
        query = query.where(c.allowance_id == identity).group_by(c.capacity, c.used)
        rows = connection.execute(query.order_by(c.capacity, c.used))
        usage[event] = [(int(row[0]), int(row[1]), int(row[2])) for row in rows]
    return usage


def read_uses(connection: sa.Connection, labeler: bytes) -> list[Any]:
    """Return what a pseudonym used of each allowance it was charged to, oldest policy first."""
    c, a, p = schema.counters.c, schema.allowances.c, schema.policies.c
    query = (
        sa.select(c.labeler, p.name, p.state, a.event, c.capacity, c.used)
        .join_from(schema.counters, schema.allowances, a.id == c.allowance_id)
        .join(schema.policies, p.id == a.policy_id)
        .where(c.labeler == labeler)
        .order_by(a.id)
    )
    return list(connection.execute(query))


def read_releases(
    connection: sa.Connection, condition: sa.ColumnElement[bool] | None = None
) -> list[ReleaseRecord]:
    """Return all releases, or those that meet a condition, oldest first."""
    own, allowances = schema.releases.c, schema.allowances.c
    query = (
        sa.select(*(column for column in own if column.name != "allowance_id"))
        .add_columns(allowances.policy_id, allowances.event)
        .join_from(schema.releases, schema.allowances, allowances.id == own.allowance_id)
        .where(sa.true() if condition is None else condition)
        .order_by(own.number)
    )
    return [
        ReleaseRecord(
            **row._asdict()
            | {"settings": json.loads(row.settings), "files": json.loads(row.files or "{}")}
        )
        for row in connection.execute(query)
    ]


def change_state(
    connection: sa.Connection,
    release_id: str,
    expected: Sequence[str],
    state: str,
    facts: Mapping[str, Any] | None = None,
    values: Mapping[str, Any] | None = None,
) -> None:
    """Bring a release from one of the expected states into another, with other `values` of its row.

    Its journal entry holds `facts` as well. Raises `LedgerError` in any other state.
    """
    condition = sa.and_(schema.releases.c.id == release_id, schema.releases.c.state.in_(expected))
    change = sa.update(schema.releases).where(condition).values(state=state, **(values or {}))
    if connection.execute(change).rowcount != 1:
        raise LedgerError(
            f"release {release_id} is not {' or '.join(expected)}; the ledger has moved on"
        )
    journal.append_entry(connection, state, {"release": release_id, **(facts or {})})


def replace_map_digests(connection: sa.Connection, maps: Mapping[str, str]) -> None:
    """Record new digests of private maps that somebody who left was taken out of."""
    own = schema.releases
    for release, digest in maps.items():
        connection.execute(sa.update(own).where(own.c.id == release).values(map=digest))
    journal.append_entry(connection, "rewritten", {"maps": dict(maps)})


def read_heavy_users(
    connection: sa.Connection, event: str, percent: int, most: int
) -> list[tuple[str, int, int]]:
    """Return pseudonym, capacity and uses of up to `most` units that used `percent` or more.

    Under the policy in force; the largest share comes first.
    """
    active = policies.find_active(connection)
    if active is None or event not in active.allowance_ids:
        return []
    c = schema.counters.c
    query = (
        sa.select(c.labeler, c.capacity, c.used)
        .where(c.allowance_id == active.allowance_ids[event], c.used * 100 >= c.capacity * percent)
        .order_by((c.used * 1.0 / c.capacity).desc(), c.labeler)
        .limit(most)
    )
    return [(row.labeler.hex(), row.capacity, row.used) for row in connection.execute(query)]


def read_labelers(
    connection: sa.Connection, event: str, excluding: ReleaseRecord | None = None
) -> LabelerTable:
    """Return what all units may use, and have used, of a kind of event under the policy in force.

    `excluding` takes one release's charges back out.
    """
    active = policies.find_active(connection)
    counters = schema.counters.c
    query = (
        sa.select(counters.labeler, counters.capacity, counters.used)
        .where(counters.allowance_id == (active.allowance_ids.get(event) if active else None))
        .order_by(counters.labeler)
    )
    labelers, (capacity, used) = database.read_pseudonym_rows(connection, query)
    if active and excluding and (excluding.policy_id, excluding.event) == (active.id, event):
        who, labels = read_charges(connection, excluding.number)
        used[blocks.find_positions(labelers, who)] -= labels
    return LabelerTable(labelers, capacity, used)


def read_charged_units(connection: sa.Connection) -> Blocks:
    """Return the pseudonyms of all units that were ever charged, sorted, shape (n, 2)."""
    own = schema.counters.c.labeler
    return database.read_pseudonym_rows(connection, sa.select(own).distinct().order_by(own))[0]


def count_uses_by_release(connection: sa.Connection, units: Blocks) -> dict[int, int]:
    """Return how many uses each release, by its number, charged to any of these units, (n, 2)."""
    own, releases = schema.charges.c, schema.releases.c
    query = (
        sa.select(own.release, sa.func.sum(own.labels).label("uses"))
        # With the releases spelled out the table's key serves, whatever the number of charges.
        .where(own.release.in_(sa.select(releases.number)))
        .where(own.labeler.in_(blocks.to_list(blocks.unique(units)[0])))
        .group_by(own.release)
        .order_by(own.release)
    )
    return {int(row.release): int(row.uses) for row in connection.execute(query)}


def find_release_of_request(
    connection: sa.Connection, idempotency_key: str
) -> ReleaseRecord | None:
    """Return the release (not given back or abandoned) that this very request made before."""
    own = schema.releases.c
    condition = sa.and_(own.idempotency_key == idempotency_key, own.state.in_(LIVE))
    return next(iter(read_releases(connection, condition)), None)


def find_release_by_id(connection: sa.Connection, release_id: str) -> ReleaseRecord | None:
    """Return one release by its id."""
    return next(iter(read_releases(connection, schema.releases.c.id == release_id)), None)


class ReleaseRepository(Repository):
    """The releases of a ledger, and who was charged for them."""

    all = in_snapshot(read_releases)
    get = in_snapshot(find_release_by_id)
    find = in_snapshot(find_release_of_request)
    charges = in_snapshot(read_charges)
    labelers = in_snapshot(read_labelers)
    usage = in_snapshot(count_units_by_usage)
    heavy_users = in_snapshot(read_heavy_users)
    charged_units = in_snapshot(read_charged_units)
    count_uses_by_release = in_snapshot(count_uses_by_release)
    replace_map_digests = in_transaction(replace_map_digests)

    def list_committed(self) -> list[ReleaseRecord]:
        """Return the releases that are complete, oldest first."""
        return [record for record in self.all() if record.state == "committed"]

    def find_committed(self, release_id: str) -> ReleaseRecord:
        """Return the committed release of an id, which may be shortened, or raise `LedgerError`."""
        matches = [record for record in self.all() if record.id.startswith(release_id)]
        done = [record for record in matches if record.state == "committed"]
        if len(done) != 1:
            state = f" (it is {matches[0].state})" if len(matches) == 1 else ""
            many = f"{release_id!a} names {len(done)} committed releases"
            none = f"no committed release {release_id!a}{state}"
            raise LedgerError(f"{many if done else none}; see: labelguard release list")
        return done[0]
