"""Projects as earlier versions left them (`tests/fixtures`), and ledgers of versions to come."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import pytest
import sqlalchemy as sa

from labelguard.ledger import database, migrations, schema
from labelguard.project import backup
from labelguard.project.project import STATE, Project, find

FIXTURES = Path(__file__).parents[1] / "fixtures"
LEFT = FIXTURES / "project-0.2.0"
FIRST = 25
"""So many rows of its labels were released."""


def left(directory: Path) -> Project:
    """A copy of the project that 0.2.0 left, with the rights that git does not keep."""
    state = directory / STATE
    shutil.copytree(LEFT / "state", state)
    for path in (state, *state.rglob("*")):
        path.chmod(0o700 if path.is_dir() else 0o600)
    (state / ".gitignore").write_text("*\n")
    (state / "quarantine").mkdir(mode=0o700)
    return find(directory)


def labels() -> pl.DataFrame:
    """What it released the first rows of."""
    return pl.read_parquet(LEFT / "labels.parquet")


def moved(project: Project, url: str) -> None:
    """Its ledger, copied into an empty database."""
    source = database.connect(f"sqlite:///{project.state / 'ledger.sqlite3'}")
    target = database.connect(url)
    with source.connect() as rows, database.writing(target) as connection:
        backup.copy_tables(rows, connection)
    source.dispose()
    target.dispose()


def add_notes(connection: sa.Connection) -> None:
    """A migration: a table is made anew with one more column, and one is new."""
    connection.exec_driver_sql("ALTER TABLE sources ADD COLUMN note VARCHAR(20)")
    connection.exec_driver_sql("UPDATE sources SET note = 'of old'")
    connection.exec_driver_sql("CREATE TABLE notes (number INTEGER PRIMARY KEY)")
    connection.exec_driver_sql("INSERT INTO notes VALUES (1)")


def add_mark(connection: sa.Connection) -> None:
    """The next one, which needs the one before."""
    connection.exec_driver_sql("INSERT INTO notes SELECT number + 1 FROM notes")


def become_later(patch: pytest.MonkeyPatch, *more: migrations.Migration) -> None:
    """From here on this is the version after the next, whose schema is 3, or with `more` 4."""
    found = (add_notes, add_mark, *more)
    patch.setattr(migrations, "MIGRATIONS", found)
    patch.setattr(schema, "VERSION", 1 + len(found))
