"""A ledger of 0.2.0 under later versions: migrated whole or not at all, once, and never back."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from support import earlier, upgrading
from support.databases import KINDS, dump, on

import labelguard as lg
from labelguard.cli.main import main
from labelguard.errors import KeyProblem, LedgerError, LedgerOutdated
from labelguard.keys.keyring import KeyRing
from labelguard.ledger import migrations, schema
from labelguard.ledger.witness import Witness
from labelguard.project import restore
from labelguard.project.backup import backup
from labelguard.project.opening import OpenProject
from labelguard.project.project import Project, find
from labelguard.project.upgrade import migrate
from labelguard.report import overview

SHAPES = {1: "cf97f514"}
"""Of the tables of each schema there was. A released one never changes; a new one gets a line."""


def shape() -> str:
    """A name of all that the tables are: columns, keys, constraints, indexes."""
    tables = [
        (
            table.name,
            [
                (c.name, str(c.type), c.nullable, c.primary_key, sorted(map(str, c.foreign_keys)))
                for c in table.columns
            ],
            sorted(
                (str(getattr(rule, "sqltext", "")), sorted(c.name for c in rule.columns))
                for rule in table.constraints
                if isinstance(rule, sa.CheckConstraint | sa.UniqueConstraint)
            ),
            sorted(tuple(c.name for c in index.columns) for index in table.indexes),
        )
        for table in schema.metadata.sorted_tables
    ]
    return hashlib.sha256(repr(tables).encode()).hexdigest()[:8]


def test_the_tables_change_only_with_their_number() -> None:
    assert SHAPES[schema.VERSION] == shape()
    assert [*SHAPES] == [*range(1, schema.VERSION + 1)]


def test_every_earlier_schema_has_a_migration() -> None:
    assert len(migrations.MIGRATIONS) == schema.VERSION - 1


@pytest.fixture(params=KINDS)
def project(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Project]:
    """A copy of the project that 0.2.0 left, its ledger on each database."""
    with on(request.param, tmp_path, monkeypatch) as url:
        home = earlier.left(tmp_path / "home")
        if url:
            earlier.moved(home, url)
        yield home


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Project:
    return earlier.left(tmp_path / "home")


def columns(project: Project) -> dict[str, list[tuple[str, object, str]]]:
    """Of every table in the database: name, nullability, type."""
    engine = sa.create_engine(project.ledger_url)
    found = sa.inspect(engine)
    result = {
        table: [(c["name"], c["nullable"], str(c["type"])) for c in found.get_columns(table)]
        for table in found.get_table_names()
    }
    engine.dispose()
    return result


def test_what_0_2_0_left_has_the_tables_of_a_new_ledger_once_a_job_has_run(
    on_sqlite: Project, tmp_path: Path
) -> None:
    with OpenProject.job(on_sqlite):
        assert columns(on_sqlite) == columns(lg.init(tmp_path / "new"))


def test_the_first_job_of_a_later_version_migrates(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dump(project.ledger_url)
    earlier.become_later(monkeypatch)
    with pytest.raises(LedgerOutdated, match="labelguard project migrate"):
        overview.budget(project)
    assert dump(project.ledger_url) == before
    command = ["project", "migrate", "--project", str(project.state), "--json"]
    for _ in range(2):  # the second changes nothing
        result = CliRunner().invoke(main, command)
        assert json.loads(result.stdout)["schema"] == 3
    after = dump(project.ledger_url)
    assert after["notes"] == [(1,), (2,)]
    assert [row[-1] for row in after["sources"]] == ["of old"] * len(before["sources"])
    entries = overview.journal(project)
    assert [entry.kind for entry in entries].count("migrated") == 1
    told = {"from": 1, "to": 3, "labelguard": lg.__version__}
    assert entries[-1].body == told
    assert overview.verify(project).ok
    assert {number for number, _ in Witness(project.witnesses).seen()} == {len(entries)}


def test_a_migration_that_is_killed_changes_nothing_and_is_done_by_the_next_job(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dump(project.ledger_url)
    killed = started(project, "die")
    killed.communicate("\n", timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert dump(project.ledger_url) == before
    earlier.become_later(monkeypatch)
    assert migrate(project).schema == 3
    assert overview.verify(project).ok


def test_of_two_processes_one_migrates(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """On PostgreSQL on two machines: only the ledger tells them of each other."""
    homes = [project, project]
    if not project.ledger_url.startswith("sqlite"):
        shutil.copytree(project.state, project.state.parent / "other" / project.state.name)
        homes[1] = find(project.state.parent / "other")
    both = [started(home) for home in homes]
    for process in both:
        assert process.stdout and process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate(timeout=60)[0] for process in both] == ["3\n"] * 2
    assert dump(project.ledger_url)["notes"] == [(1,), (2,)]
    earlier.become_later(monkeypatch)
    assert [entry.kind for entry in overview.journal(project)].count("migrated") == 1


def started(project: Project, *mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, upgrading.__file__, str(project.state), *mode],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    )


def test_a_migration_that_fails_changes_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dump(project.ledger_url)

    def fail(connection: sa.Connection) -> None:
        connection.exec_driver_sql("DROP TABLE notes")
        connection.exec_driver_sql("DROP TABLE nothing")

    earlier.become_later(monkeypatch, fail)
    with pytest.raises(LedgerError, match="nothing"):
        migrate(project)
    assert dump(project.ledger_url) == before


def test_a_newer_ledger_is_refused_by_the_version_that_can_read_it(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        earlier.become_later(later)
        later.setattr(migrations, "__version__", "0.7.1")
        migrate(project)
    before = dump(project.ledger_url)
    message = f"schema 3, and labelguard {lg.__version__} reads 1: use labelguard 0.7.1 or a later"
    for use in (overview.budget, migrate):
        with pytest.raises(LedgerError, match=message):
            use(project)
    assert dump(project.ledger_url) == before


def test_an_older_copy_or_a_forged_ledger_is_not_migrated(
    on_sqlite: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier.become_later(monkeypatch)
    before = dump(on_sqlite.ledger_url)
    Witness(on_sqlite.witnesses).replace(10_000, "0" * 64)
    with pytest.raises(LedgerError, match="it is an older copy"):
        migrate(on_sqlite)
    engine = sa.create_engine(on_sqlite.ledger_url)
    newest = "WHERE number = (SELECT max(number) FROM journal)"
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE journal SET mac = '' {newest}")
    engine.dispose()
    with pytest.raises(LedgerError, match="without the project's key"):
        migrate(on_sqlite)
    assert {**dump(on_sqlite.ledger_url), "journal": []} == {**before, "journal": []}


def test_a_number_of_the_schema_that_others_wrote_repeats_no_migration(
    on_sqlite: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a migration tells the journal anew would vouch for tables that were edited since."""
    earlier.become_later(monkeypatch)
    migrate(on_sqlite)
    monkeypatch.setattr(migrations, "MIGRATIONS", (lambda _: None,) * 2)
    before = write(on_sqlite, "UPDATE meta SET value = '1' WHERE name = 'schema'")
    with pytest.raises(LedgerError, match="schema 1, and its journal tells of 3"):
        migrate(on_sqlite)
    assert dump(on_sqlite.ledger_url) == before
    write(on_sqlite, "UPDATE journal SET body = '{\"to\": 1}' WHERE kind = 'migrated'")
    with pytest.raises(LedgerError, match="was altered"):
        migrate(on_sqlite)


def test_a_new_ledger_is_not_migrated_from_a_number_before_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier.become_later(monkeypatch)
    made = lg.init(tmp_path)
    write(made, "UPDATE meta SET value = '2' WHERE name = 'schema'")
    with pytest.raises(LedgerError, match="schema 2, and its journal tells of 3"):
        migrate(made)


def test_a_job_of_before_a_migration_writes_no_more(
    on_sqlite: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that lost its connection, and with it the lock, would go on with the tables it knew."""
    ledger = OpenProject.open(on_sqlite).ledger
    epoch = ledger.begin_job()
    earlier.become_later(monkeypatch)
    migrate(on_sqlite)
    with pytest.raises(LedgerError), ledger.transaction(epoch):
        pass


def write(project: Project, statement: str) -> dict[str, list[tuple[object, ...]]]:
    """Change a ledger as somebody does who can write its database; all that is in it then."""
    engine = sa.create_engine(project.ledger_url)
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()
    return dump(project.ledger_url)


def test_another_key_migrates_nothing(
    on_sqlite: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier.become_later(monkeypatch)
    KeyRing.create(tmp_path / "keys")
    with pytest.raises(KeyProblem, match="not the one the ledger"):
        migrations.migrate(on_sqlite.ledger_url, KeyRing(tmp_path / "keys"))


@pytest.mark.parametrize("whole", [True, False])
def test_a_backup_of_0_2_0_is_migrated_as_it_is_restored(
    on_sqlite: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """The anchor of that time still shows whether anything followed."""
    saved = earlier.LEFT / "backup.tar.zst"
    anchor = overview.anchor(on_sqlite).anchor
    earlier.become_later(monkeypatch)
    since = restore.parse_since(anchor if whole else None, [], not whole, whole)
    done = restore.restore(saved, tmp_path / "back", since=since, keys=on_sqlite.keys)
    assert (done.complete, done.backup_anchor) == (whole, anchor)
    assert done.closed == ([] if whole else ["weekly"])
    home = find(tmp_path / "back")
    assert [entry.kind for entry in overview.journal(home)][-2 if whole else -3] == "migrated"
    assert overview.verify(home, anchor).ok
    backup(tmp_path / "new.tar.zst", project=home)
