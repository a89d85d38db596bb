"""The ledger's own settings: the number of its tables, its key, the newest job's epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from labelguard._version import __version__
from labelguard.errors import KeyProblem, LedgerError
from labelguard.ledger import schema

if TYPE_CHECKING:
    from labelguard.keys.keyring import KeyRing

# What is held, besides the project, by who works with a ledger on PostgreSQL.
EXCLUSIVE = "labelguard ledger"


def create(connection: sa.Connection, keys: KeyRing) -> bool:
    """Make the tables, unless they exist; whether they are new."""
    if sa.inspect(connection).has_table(schema.meta.name):
        return False
    schema.metadata.create_all(connection, checkfirst=False)  # all are made in one transaction
    found = {"schema": str(schema.VERSION), "labelguard": __version__}
    found |= {"key_check": keys.check_value(), "epoch": "0"}
    rows = [{"name": name, "value": value} for name, value in found.items()]
    connection.execute(sa.insert(schema.meta), rows)
    return True


def check(connection: sa.Connection, keys: KeyRing, address: str) -> None:
    """Raise `LedgerError` unless there is a ledger with the tables of this version, `KeyProblem`
    unless these keys made it.
    """
    if not sa.inspect(connection).has_table(schema.meta.name):
        raise LedgerError(
            f"no ledger at {address}: a project without one has lost it; if it lives in "
            "a database, set LABELGUARD_LEDGER_URL"
        )
    found = {row.name: row.value for row in connection.execute(sa.select(schema.meta))}
    if found.get("schema") != str(schema.VERSION):
        raise LedgerError(
            f"the ledger at {address} has tables of schema {found.get('schema')}, and labelguard "
            f"{__version__} reads {schema.VERSION}: use what made it, {found.get('labelguard')}"
        )
    if found["key_check"] != keys.check_value():
        raise KeyProblem(f"the project key is not the one the ledger at {address} was made with")


def epoch(connection: sa.Connection) -> int:
    """The number of the newest job, locked until the transaction ends."""
    query = sa.select(schema.meta.c.value).where(schema.meta.c.name == "epoch").with_for_update()
    return int(connection.execute(query).scalar_one())


def next_epoch(connection: sa.Connection) -> int:
    """Begin a new epoch."""
    following = epoch(connection) + 1
    set_meta(connection, "epoch", str(following))
    return following


def set_meta(connection: sa.Connection, name: str, value: str) -> None:
    """Change one of the ledger's own settings."""
    connection.execute(sa.update(schema.meta).where(schema.meta.c.name == name).values(value=value))
