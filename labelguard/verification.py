"""Whether a ledger holds: the journal's chain, and every table against what the journal tells.

The chain alone would not notice an entry removed from its end, or a table that was edited; so the
journal also says how much each release charged to whom, at which prices, and what it published.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from labelguard import journal, tables

_STATES = {
    "charged": "reserved",
    "computing": "computing",
    "committed": "committed",
    "refunded": "refunded",
}


def charges_digest(charges: Iterable[tuple[bytes, int, int]]) -> str:
    """SHA-256 of who was charged how many labels: rows of (labeler, capacity, labels)."""
    digest = hashlib.sha256()
    for labeler, capacity, labels in sorted(charges):
        digest.update(labeler + capacity.to_bytes(8, "big") + labels.to_bytes(8, "big"))
    return digest.hexdigest()


def first_fault(connection: sa.Connection, entries: Sequence[journal.Entry]) -> str | None:
    """The first thing in the ledger that does not hold, or None."""
    return (
        journal.first_fault(entries)
        or _policy_fault(connection, entries)
        or _sum_fault(connection)
        or _release_fault(connection, entries)
    )


def _policy_fault(connection: sa.Connection, entries: Sequence[journal.Entry]) -> str | None:
    bodies = [(entry.kind, json.loads(entry.body)) for entry in entries]
    told = [body["settings"] for kind, body in bodies if kind == "policy"]
    stored = [
        json.loads(text) for text in connection.scalars(sa.select(tables.policies.c.settings))
    ]
    if told != stored:
        return "the policy is not the one in the journal"
    prices: dict[str, str] = {}
    for kind, body in bodies:
        prices |= body.get("prices", {}) if kind == "charged" else {}
    query = sa.select(tables.prices.c.k, tables.prices.c.price)
    if prices != {str(row.k): row.price for row in connection.execute(query)}:
        return "the prices are not those in the journal"
    return None


def _sum_fault(connection: sa.Connection) -> str | None:
    """Labelers whose places in use are not the sum of their charges."""
    sums = (
        sa.select(tables.charges.c.labeler, sa.func.sum(tables.charges.c.labels).label("total"))
        .group_by(tables.charges.c.labeler)
        .subquery()
    )
    differing = connection.scalar(
        sa.select(tables.labelers.c.labeler)
        .join(sums, sums.c.labeler == tables.labelers.c.labeler, isouter=True)
        .where(tables.labelers.c.used != sa.func.coalesce(sums.c.total, 0))
        .order_by(tables.labelers.c.labeler)
        .limit(1)
    )
    if differing is None:
        return None
    return f"labeler {bytes(differing).hex()}: the charges do not add up to what is used"


def _release_fault(connection: sa.Connection, entries: Sequence[journal.Entry]) -> str | None:
    """Releases that are not as the journal tells, in the journal's order."""
    told: dict[str, dict[str, Any]] = defaultdict(dict)
    for entry in entries:
        if entry.kind in _STATES:
            body = json.loads(entry.body)
            told[body["release"]] |= body | {"state": _STATES[entry.kind]}
    query = sa.select(tables.releases).order_by(tables.releases.c.number)
    records = {row.id: row for row in connection.execute(query)}
    for release in [*told, *(name for name in records if name not in told)]:
        record, story = records.get(release), told.get(release)
        if record is None:
            return f"release {release} is in the journal, but not among the releases"
        if story is None:
            return f"release {release} is not in the journal"
        refunded = story["state"] == "refunded"
        if (record.state, record.rows, json.loads(record.files or "null"), record.charged) != (
            story["state"],
            story.get("rows"),
            story.get("files"),
            0 if refunded else story["labels"],
        ):
            return f"release {release} is not what the journal says of it"
        charged = _charges(connection, release)
        if charged if refunded else charges_digest(charged) != story.get("charges"):
            return f"release {release}: its charges are not those in the journal"
    return None


def _charges(connection: sa.Connection, release: str) -> list[tuple[bytes, int, int]]:
    columns = (tables.charges.c.labeler, tables.labelers.c.capacity, tables.charges.c.labels)
    query = (
        sa.select(*columns)
        .join(tables.labelers, tables.labelers.c.labeler == tables.charges.c.labeler, isouter=True)
        .where(tables.charges.c.release_id == release)
    )
    return [(bytes(row[0]), row[1] or 0, row[2]) for row in connection.execute(query)]
