"""A ledger that was set back is refused if it lacks a release on disk; an anchor tells the rest."""

import shutil
from collections.abc import Callable

import pytest
from support import databases
from support.lives import PRICE, TABLE, first_release
from support.preferences import files

import labelguard as lg
from labelguard.errors import KeyProblem, LedgerError
from labelguard.project import attempts, erasure, linking, policies
from labelguard.project.backup import backup
from labelguard.project.opening import abandon
from labelguard.project.project import Project, find
from labelguard.report import overview

REFUSED = "not in the ledger: it is an older copy"


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
    "people link": lambda home: linking.link_two_ids("somebody", "worker 1", home),
    "release abandon": lambda home: abandon("r0001", home),
    "backup": lambda home: backup(home.state.parent / "x.tar.zst", project=home),
    "labeler erase": lambda home: erasure.remove_labeler("worker 1", "erased", home),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_an_older_ledger_charges_nobody_and_is_not_written(writer, project):
    before = files(project.state)
    for _ in range(2):
        with pytest.raises(LedgerError, match=REFUSED):
            WRITERS[writer](project)
    assert dict(files(project.state).items() ^ before.items()).keys() <= {"lock", attempts.FILE}
    verdict = overview.verify(project.state)
    assert not verdict.ok and "it is an older copy" in verdict.fault


@pytest.mark.parametrize("kept", ["releases", "released"])
def test_either_directory_of_newer_releases_tells(kept, project):
    other = project.private_maps if kept == "releases" else project.releases
    shutil.rmtree(next(other.glob("r0002*")))
    with pytest.raises(LedgerError, match="r0002-"):
        lg.privatize(TABLE, **PRICE, project=project)


def test_an_older_ledger_without_a_release_since_is_noticed_by_an_anchor_alone(project, tmp_path):
    """The limit: a policy that was put into force is forgotten, and only an anchor tells."""
    path = project.state / "ledger.sqlite3"
    shutil.copy(tmp_path / "newest", path)
    policies.activate("next", project)
    anchor = overview.verify(project.state).anchor
    shutil.copy(tmp_path / "newest", path)
    assert overview.verify(project.state).ok
    verdict = overview.verify(project.state, anchor)
    assert not verdict.ok and "does not hold entry" in verdict.fault


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
            with pytest.raises(LedgerError, match=REFUSED):
                WRITERS["privatize"](home)
            assert databases.dump(older) == before


def test_a_ledger_of_another_project_is_called_that(tmp_path, monkeypatch):
    homes = [lg.init(tmp_path / f"p{number}", max_epsilon=number) for number in (3, 4)]
    monkeypatch.setenv("LABELGUARD_LEDGER_URL", f"sqlite:///{homes[1].state / 'ledger.sqlite3'}")
    with pytest.raises(KeyProblem, match="another project's; check LABELGUARD_LEDGER_URL"):
        overview.verify(homes[0])
    with pytest.raises(LedgerError, match="holds the ledger of another project"):
        lg.init(tmp_path / "third")


def test_who_looks_at_a_ledger_that_is_missing_makes_none(project):
    path = project.state / "ledger.sqlite3"
    path.unlink()
    for look in (overview.verify, overview.read_budget):
        with pytest.raises(LedgerError, match=r"no ledger at .* set LABELGUARD_LEDGER_URL"):
            look(project)
    assert not path.exists()
