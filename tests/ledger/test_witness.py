"""A ledger that fell back is refused: by its witnesses, and by the releases that lie beside it."""

import shutil
import sqlite3
from collections.abc import Callable

import pytest
import sqlalchemy as sa
from support import databases
from support.lives import PRICE, TABLE, first_release
from support.preferences import files

import labelguard as lg
from labelguard.errors import KeyProblem, LedgerError
from labelguard.keys.keyring import KeyRing
from labelguard.ledger import journal, schema
from labelguard.ledger.journal import Witness
from labelguard.ledger.ledger import Ledger
from labelguard.project import attempts, erasure, policies
from labelguard.project.backup import backup
from labelguard.project.opening import OpenProject, abandon
from labelguard.project.project import Project, find
from labelguard.project.restore import restore
from labelguard.report import overview

REFUSED = "not what this project last saw"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A directory with a project of two releases, and with its ledger before and after the second.

    The project has the older one.
    """
    here = tmp_path_factory.mktemp("original")
    home = first_release(here / "project")
    policies.new("next", epsilon=1, delta=1e-5, allow=["rr:uses=20,block=1"], project=home)
    shutil.copy(home.state / "ledger.sqlite3", here / "older")
    lg.privatize(TABLE, **PRICE, project=home)
    shutil.copy(home.state / "ledger.sqlite3", here / "newest")
    shutil.copy(here / "older", home.state / "ledger.sqlite3")
    return here


@pytest.fixture
def project(original, tmp_path):
    """A project whose ledger was put back to an older copy, from before its second release."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return find(tmp_path / "project")


WRITERS: dict[str, Callable[[Project], object]] = {
    "privatize": lambda home: lg.privatize(TABLE, **PRICE, project=home),
    "privatize again": lambda home: lg.privatize(TABLE, **PRICE, again=True, project=home),
    "policy activate": lambda home: policies.activate("next", home),
    "release abandon": lambda home: abandon("r0001", home),
    "backup": lambda home: backup(home.state.parent / "x.tar.zst", project=home),
    "labeler erase": lambda home: erasure.remove_labeler("worker 1", "erased", home),
}


@pytest.mark.quick("None-privatize", "state-release abandon", "keys-policy activate")
@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("removed", [None, "state", "keys"])
def test_an_older_ledger_charges_nobody(removed, writer, project):
    if removed:
        dict(zip(("state", "keys"), project.witnesses, strict=True))[removed].unlink()
    before = files(project.state)
    for _ in range(2):
        with pytest.raises(LedgerError, match=REFUSED):
            WRITERS[writer](project)
    assert dict(files(project.state).items() ^ before.items()).keys() <= {"lock", attempts.FILE}


def forget(project):
    """What was seen of the ledger is what it is now."""
    ledger = Ledger(project.ledger_url, KeyRing(project.keys))
    Witness(project.witnesses).replace(*ledger.read_head())


@pytest.mark.parametrize("writer", ["privatize", "privatize again", "backup"])
def test_where_witnesses_were_set_back_the_newer_releases_tell(writer, project):
    forget(project)
    with pytest.raises(LedgerError, match="r0002-"):
        WRITERS[writer](project)
    verdict = overview.verify(project.state)
    assert not verdict.ok and "it is an older copy" in verdict.fault


@pytest.mark.parametrize("kept", ["releases", "released"])
def test_either_directory_of_newer_releases_tells(kept, project):
    forget(project)
    other = project.private_maps if kept == "releases" else project.releases
    shutil.rmtree(next(other.glob("r0002*")))
    with pytest.raises(LedgerError, match="r0002-"):
        lg.privatize(TABLE, **PRICE, project=project)


def test_the_newest_ledger_is_taken_again(project, tmp_path):
    shutil.copy(tmp_path / "newest", project.state / "ledger.sqlite3")
    assert overview.verify(project.state).ok
    assert lg.privatize(TABLE, **PRICE, project=project).reused


@pytest.mark.slow  # on PostgreSQL
def test_a_server_that_was_restored_to_an_older_state_is_refused(tmp_path, monkeypatch):
    with databases.on("postgresql", tmp_path, monkeypatch) as url:
        home = first_release(tmp_path / "project")
        with databases.copied(url) as older:
            lg.privatize(TABLE, **PRICE, project=home)
            monkeypatch.setenv("LABELGUARD_LEDGER_URL", older)
            before = databases.dump(older)
            for act in (overview.verify, lambda state: WRITERS["privatize"](find(state))):
                with pytest.raises(LedgerError, match=REFUSED):
                    act(home.state)
            assert databases.dump(older) == before


def test_a_ledger_of_another_project_is_called_that(tmp_path, monkeypatch):
    homes = [lg.init(tmp_path / f"p{number}", max_epsilon=number) for number in (3, 4)]
    monkeypatch.setenv("LABELGUARD_LEDGER_URL", f"sqlite:///{homes[1].state / 'ledger.sqlite3'}")
    with pytest.raises(KeyProblem, match="another project's; check LABELGUARD_LEDGER_URL"):
        overview.verify(homes[0])
    with pytest.raises(LedgerError, match="holds the ledger of another project"):
        lg.init(tmp_path / "third")
    monkeypatch.setenv("LABELGUARD_KEYS", str(homes[1].keys))
    with pytest.raises(LedgerError, match="or it is another project's: check LABELGUARD_LEDGER"):
        overview.verify(homes[0])


def test_who_looks_at_a_ledger_that_is_missing_makes_none(project):
    path = project.state / "ledger.sqlite3"
    path.unlink()
    for look in (overview.verify, overview.read_budget):
        with pytest.raises(LedgerError, match=r"no ledger at .* set LABELGUARD_LEDGER_URL"):
            look(project)
    assert not path.exists()


def test_a_ledger_whose_end_was_rewritten_is_refused(project, tmp_path):
    """As long as the one that was seen, and another in its last entry."""
    shutil.copy(tmp_path / "newest", project.state / "ledger.sqlite3")
    ledger = Ledger(project.ledger_url, KeyRing(project.keys))
    number, _ = ledger.read_head()
    with ledger.transaction() as connection:  # as another copy of the project would
        connection.execute(sa.delete(schema.journal).where(schema.journal.c.number == number))
        journal.append_entry(connection, "refunded", {})
    with pytest.raises(LedgerError, match=REFUSED):
        overview.verify(project.state)


def test_an_older_ledger_put_back_while_it_is_open_is_noticed(project, tmp_path):
    path = project.state / "ledger.sqlite3"
    shutil.copy(tmp_path / "newest", path)
    ledger = OpenProject.open(project).ledger
    shutil.copy(tmp_path / "older", path)
    with pytest.raises(LedgerError):
        ledger.begin_job()


def test_a_witness_that_fell_behind_is_no_fault(project, tmp_path):
    """A crash between the ledger's commit and the witness's file."""
    path = project.state / "ledger.sqlite3"
    shutil.copy(tmp_path / "older", path)
    number, digest = _head(tmp_path / "older")
    for seen in project.witnesses:
        seen.write_text(f"{number} {digest}\n")
    shutil.copy(tmp_path / "newest", path)
    assert overview.verify(project.state).ok
    lg.privatize(TABLE, **PRICE, again=True, exhausted="drop", project=project)
    assert {seen.read_text() for seen in project.witnesses} == {
        "{} {}\n".format(*OpenProject.open(project).ledger.read_head())
    }


def _head(path):
    with sqlite3.connect(path) as connection:
        query = "SELECT number, digest FROM journal ORDER BY number DESC LIMIT 1"
        found: tuple[int, str] = connection.execute(query).fetchone()
    return found


@pytest.mark.quick("", "5")
@pytest.mark.parametrize("content", ["", "x", "5", "5 a b", "\xff"])
def test_a_damaged_witness_is_refused(content, project, tmp_path):
    shutil.copy(tmp_path / "newest", project.state / "ledger.sqlite3")
    project.witnesses[1].write_text(content)
    with pytest.raises(LedgerError, match="is damaged"):
        overview.verify(project.state)


@pytest.mark.parametrize("lost", [0, 1])
def test_one_witness_guards_and_the_other_is_written_again(lost, tmp_path):
    home = lg.init(tmp_path / "project")
    newest = Ledger(home.ledger_url, KeyRing(home.keys)).read_head()[1]
    assert {path.read_text() for path in home.witnesses} == {f"1 {newest}\n"}
    home.witnesses[lost].unlink()
    lg.privatize(TABLE, **PRICE, project=home)
    assert home.witnesses[0].read_text() == home.witnesses[1].read_text()


def test_without_witnesses_nothing_is_opened_and_a_restored_project_has_new_ones(
    used_project, tmp_path
):
    made = backup(tmp_path / "backup.tar.zst", project=used_project)
    for path in used_project.witnesses:
        path.unlink()
    with pytest.raises(LedgerError, match="labelguard project restore"):
        overview.read_budget(used_project.state)
    restore(made.path, tmp_path / "again", keys=used_project.keys, nothing_since=True)
    again = find(tmp_path / "again")
    assert again.witnesses[0].read_text() == again.witnesses[1].read_text()
    assert overview.verify(again.state, made.anchor).ok
    assert lg.privatize(TABLE.slice(0, 50), **PRICE, project=again).reused
