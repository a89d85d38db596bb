"""Forward migrations: a ledger that an earlier version made gets the tables of this one.

The first job of a newer version runs them, all in one transaction, with the project and the ledger
held; what only looks refuses (`LedgerOutdated`). There is no way back: an older version refuses
tables newer than its own.

A migration is a function of a connection. It speaks SQL of its own, not that of `schema`, which
describes the newest tables only, and must do on SQLite and PostgreSQL. What the journal tells of a
table (see `verification`) it tells again, if the table's digest changes, once it has found the one
of before in the journal: else it would vouch for a table that others edited. `meta` and `journal`
are read before anything is migrated: their columns stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from labelguard._version import __version__
from labelguard.errors import LedgerError
from labelguard.ledger import database, journal, meta, schema
from labelguard.ledger.witness import Witness

if TYPE_CHECKING:
    from labelguard.keys.keyring import KeyRing

Migration = Callable[[sa.Connection], None]
MIGRATIONS: tuple[Migration, ...] = ()
"""The first one leads from schema 1 to 2, the next from 2 to 3, the last to `schema.VERSION`."""


def migrate(url: str, keys: KeyRing, witnesses: Sequence[Path] = ()) -> tuple[int, int]:
    """Bring a ledger's tables up to date; the numbers of their schema before and now.

    Only for who holds the project. Raises `ProjectBusy` if a job on another machine holds the
    ledger, `LedgerError` for one that is newer, written by others, or older than what `witnesses`
    have seen, `KeyProblem` for another key; then nothing was changed.
    """
    engine = journal.signing(database.connect(url), keys)
    address = database.address(engine.url)
    witness = Witness(witnesses)
    try:
        with (
            database.exclusive(engine, meta.EXCLUSIVE),
            database.writing(engine) as connection,
        ):
            meta.epoch(connection)  # writers stand in line here
            before = meta.check(connection, keys, address).schema
            journal.check_head(connection, address)
            witness.check(connection, address)
            if before == schema.VERSION:
                return before, before
            _check_number(connection, before, address)
            meta.next_epoch(connection)  # a job that knows the tables of before writes no more
            for migration in MIGRATIONS[before - 1 :]:
                migration(connection)
            meta.set_meta(connection, "schema", str(schema.VERSION))
            meta.set_meta(connection, "labelguard", __version__)
            body = {"from": before, "to": schema.VERSION, "labelguard": __version__}
            journal.append(connection, "migrated", body)
            head = journal.head(connection)
        witness.note(*head)
        return before, schema.VERSION
    finally:
        engine.dispose()


def _check_number(connection: sa.Connection, number: int, address: str) -> None:
    """Raise `LedgerError` unless the journal, which nobody else can write, tells the same number.

    With one that was set back, migrations would run again over tables they made.
    """
    entries = journal.entries(connection)
    broken = journal.first_fault(entries) or journal.first_forged(entries, journal.mac(connection))
    if broken:
        raise LedgerError(f"the ledger at {address} does not hold: {broken}; put a true copy back")
    bodies = [json.loads(one.body) for one in entries if one.kind in ("created", "migrated")]
    told = bodies[-1].get("to") or bodies[-1].get("schema", 1)  # 0.2.0 did not tell it
    if told != number:
        raise LedgerError(
            f"the ledger at {address} says that its tables are of schema {number}, and its journal "
            f"tells of {told}: others wrote it; put a true copy back"
        )
