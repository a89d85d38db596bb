"""The tables of the ledger. No labels, no prompts: counts, prices, releases and a journal.

The table `meta` holds the ledger's own settings: the number of its tables, a check value of its
key, the epoch of the newest job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from labelguard._version import __version__
from labelguard.errors import KeyProblem, LedgerError
from labelguard.ledger import database

if TYPE_CHECKING:
    from labelguard.keys.keyring import KeyRing

# Of the tables below. A change of them counts it up; a ledger with another number is refused.
VERSION = 3

metadata = sa.MetaData()
_KEY, _DIGEST, _TIME, _NUMBER = sa.LargeBinary(16), sa.String(64), sa.String(20), sa.BigInteger


def _declare_table(
    name: str,
    keys: Mapping[str, Any],
    values: Mapping[str, Any],
    *constraints: sa.schema.SchemaItem,
    optional: Mapping[str, Any] | None = None,
    **options: Any,
) -> sa.Table:
    """Return a table by the types of its columns: its primary key, what is never null, what may
    be.
    """
    columns = [
        *(sa.Column(n, kind, primary_key=True, autoincrement=False) for n, kind in keys.items()),
        *(sa.Column(n, kind, nullable=False) for n, kind in values.items()),
        *(sa.Column(n, kind) for n, kind in (optional or {}).items()),
    ]
    return sa.Table(name, metadata, *columns, *constraints, **options)


meta = _declare_table("meta", {"name": sa.String(40)}, {"value": sa.String(200)})
policies = _declare_table(
    "policies",
    {"id": sa.Integer},
    {
        "name": sa.String(64),
        "created_at": _TIME,
        "settings": sa.Text,
        # What its allowances cost together, how that was computed, and by which version.
        "quote": sa.Text,
        "state": sa.String(8),  # draft, active, closed
    },
    sa.UniqueConstraint("name"),
)
allowances = _declare_table(
    "allowances",
    {"id": sa.Integer},
    {"policy_id": sa.ForeignKey("policies.id"), "event": sa.String(12)},
    sa.UniqueConstraint("policy_id", "event"),
)
prices = _declare_table(
    "prices",
    {"allowance_id": sa.ForeignKey("allowances.id"), "k": _NUMBER},
    # JSON: numbers by name, each as text, for thresholds reach 2^63 (`pricing.format_price`).
    {"price": sa.Text},
)
# Allowances and releases of the next two are not declared as such: a million checks take seconds.
counters = _declare_table(
    "counters",
    {"allowance_id": sa.Integer, "labeler": _KEY},
    {"capacity": _NUMBER, "used": _NUMBER},
    sa.CheckConstraint("used >= 0 AND used <= capacity", name="allowance"),
    sqlite_with_rowid=False,
)


@sa.event.listens_for(counters, "after_create")
def _set_table_fill_factor(table: sa.Table, connection: sa.Connection, **_: Any) -> None:
    # For a new version of every row beside the old one: counting up touches no index. As an option
    # of the table it would load the package for PostgreSQL in every command.
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"ALTER TABLE {table.name} SET (fillfactor = 50)")


charges = _declare_table(
    "charges",
    {"release": sa.Integer, "labeler": _KEY},
    {"capacity": _NUMBER, "labels": _NUMBER},
    sqlite_with_rowid=False,
)
releases = _declare_table(
    "releases",
    {"id": sa.String(40)},
    {
        "number": sa.Integer,
        "idempotency_key": _DIGEST,
        "allowance_id": sa.ForeignKey("allowances.id"),
        "state": sa.String(12),
        "created_at": _TIME,
        "settings": sa.Text,
        "charged": _NUMBER,
    },
    sa.UniqueConstraint("number"),
    sa.Index("ix_releases_idempotency_key", "idempotency_key"),
    # From `drawn` on: `map` is a keyed digest of the private map, `drawn` how many labels it holds.
    optional={"rows": _NUMBER, "files": sa.Text, "map": _DIGEST, "drawn": _NUMBER},
)
# Linked labelers, and the one of them whose key names their unit, who is linked with themselves.
links = _declare_table("links", {"labeler": _KEY}, {"unit": _KEY})
identities = _declare_table(
    "identities",
    {"release": sa.Integer},
    # Whom a release, or a link (numbered below 0), was the first to name: for each the pseudonym
    # and the form of the id (see `keys.identities`), 16 bytes each, sorted. They are always read
    # together, and a million rows would take seconds.
    {"labelers": _NUMBER, "met": sa.LargeBinary},
)
sources = _declare_table(
    "sources",
    {"name": sa.String(200)},
    # people: first, new, known; columns: role to column, as its releases read them
    {"people": sa.String(8), "columns": sa.Text, "at": _TIME},
)
tombstones = _declare_table(
    "tombstones",
    {"labeler": _KEY},
    {"kind": sa.String(8), "at": _TIME},  # kind: retired, erased
)
# Files of ingested answers that count (see `sources`).
segments = _declare_table(
    "segments",
    {"number": sa.Integer},
    {
        "name": sa.String(32),
        "connector": sa.String(64),
        "source": sa.String(200),
        "reading": sa.Text,
        "pulled": sa.Boolean,
        "rows": _NUMBER,
        "digest": _DIGEST,
        "at": _TIME,
    },
    sa.UniqueConstraint("name"),
    optional={"cursor": sa.Text},
)
journal = _declare_table(
    "journal",
    {"number": sa.Integer},
    {
        "at": _TIME,
        "kind": sa.String(20),
        "body": sa.Text,
        "previous": _DIGEST,
        "digest": _DIGEST,
        "mac": _DIGEST,  # of the digest, under the project's key
    },
)


def create_tables(connection: sa.Connection, keys: KeyRing) -> bool:
    """Make the tables, unless they exist; return whether they are new."""
    if sa.inspect(connection).has_table(meta.name):
        return False
    metadata.create_all(connection, checkfirst=False)  # all are made in one transaction
    settings = {"schema": str(VERSION), "labelguard": __version__}
    settings |= {"key_check": keys.key_fingerprint(), "epoch": "0"}
    rows = [{"name": name, "value": value} for name, value in settings.items()]
    connection.execute(sa.insert(meta), rows)
    return True


def check_tables(connection: sa.Connection, keys: KeyRing, address: str) -> None:
    """Raise `LedgerError` unless there is a ledger with the tables of this version, `KeyProblem`
    unless these keys made it.
    """
    if not sa.inspect(connection).has_table(meta.name):
        raise database.build_missing_ledger_error(address)
    settings = {row.name: row.value for row in connection.execute(sa.select(meta))}
    if settings.get("schema") != str(VERSION):
        made_by = settings.get("labelguard", "0.2.0 or before")
        raise LedgerError(
            f"the ledger at {address} was made by labelguard {made_by}, and {__version__} reads "
            "only its own: no version before 0.4.0 was published, so nothing is converted; use "
            f"labelguard {made_by}, or begin a new project (labelguard init)"
        )
    if settings["key_check"] != keys.key_fingerprint():
        raise KeyProblem(
            f"the project key is not the one the ledger at {address} was made with: one of them is "
            "another project's; check LABELGUARD_LEDGER_URL and LABELGUARD_KEYS"
        )


def lock_epoch(connection: sa.Connection) -> int:
    """Return the number of the newest job, locked until the transaction ends."""
    query = sa.select(meta.c.value).where(meta.c.name == "epoch").with_for_update()
    return int(connection.execute(query).scalar_one())


def begin_epoch(connection: sa.Connection) -> int:
    """Begin a new epoch and return its number."""
    following = lock_epoch(connection) + 1
    change = sa.update(meta).where(meta.c.name == "epoch").values(value=str(following))
    connection.execute(change)
    return following
