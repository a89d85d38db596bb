"""A ledger that was set back is refused if it lacks a release on disk; an anchor tells the rest."""

import contextlib
import shutil
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support import databases
from support.commands import run
from support.databases import EACH, copy_of, on
from support.lives import PRICE, TABLE, first_release
from support.preferences import dump, files
from support.releases import make_release

import labelguard as lg
from labelguard.errors import KeyProblem, LedgerError, ProjectBusy
from labelguard.ledger.policies import Ceiling
from labelguard.project import attempts, erasure, linking, policies, policy_facts
from labelguard.project import project as projects
from labelguard.project.backup import backup
from labelguard.project.opening import OpenProject, abandon
from labelguard.project.project import Project, find
from labelguard.project.restore import restore
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
    make_release(TABLE, **PRICE, project=home)
    shutil.copy(home.state / "ledger.sqlite3", here / "newest")
    shutil.copy(here / "older", home.state / "ledger.sqlite3")
    return here


@pytest.fixture
def project(original, tmp_path):
    """A project whose ledger was put back to an older copy, from before its second release."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return find(tmp_path / "project")


WRITERS: dict[str, Callable[[Project], object]] = {
    "privatize": lambda home: make_release(TABLE, **PRICE, project=home),
    "privatize again": lambda home: make_release(TABLE, **PRICE, again=True, project=home),
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
        make_release(TABLE, **PRICE, project=project)


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
    assert make_release(TABLE, **PRICE, project=project).reused


@pytest.mark.slow  # on PostgreSQL
def test_a_server_that_was_restored_to_an_older_state_is_refused(tmp_path, monkeypatch):
    with databases.on("postgresql", tmp_path, monkeypatch) as url:
        home = first_release(tmp_path / "project")
        with databases.copied(url) as older:
            make_release(TABLE, **PRICE, project=home)
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


# The life of a project: whatever happens to it, it holds, remembers every charge, and goes on.
#
# One project with one release is made once; every test has a copy, to which one event happens.
#
# A job that waits for a project begins when the one before it ends; others are told at once.

Act = Callable[[Project, Path], Project]
SHOWN = ["prompt", "chosen", "rejected", "item_id", "flip_probability"]


def _backed_up(home, here):
    backup(here / "backup.tar.zst", project=home)
    return home


def _restore(home, here):
    made = backup(here / "backup.tar.zst", project=home)
    restore(made.path, here / "restored", keys=home.keys, nothing_since=True)
    return find(here / "restored")


def _leaving(kind):
    def act(home, here):
        erasure.remove_labeler("somebody new", kind, home, never_seen=True)
        return home

    return act


EVENTS: dict[str, Act] = {
    "a backup": _backed_up,
    "a restore": _restore,
    "somebody retires": _leaving("retired"),
    "somebody is erased": _leaving("erased"),
}


@pytest.fixture(scope="module", params=EACH)
def project_with_a_life(request, tmp_path_factory):
    """A project with one release of 50 labels, on each database."""
    directory = tmp_path_factory.mktemp("life")
    with pytest.MonkeyPatch.context() as patch, on(request.param, directory, patch) as url:
        yield first_release(directory / "project"), url


@pytest.fixture
def home(project_with_a_life, tmp_path, monkeypatch):
    """A copy of it."""
    with copy_of(*project_with_a_life, tmp_path / "project", monkeypatch) as copy:
        yield copy


@contextlib.contextmanager
def after(name, home, here, patch):
    """The project after an event; a restored one has a database of its own."""
    here.mkdir()
    kind = "sqlite" if home.ledger_url.startswith("sqlite") else "postgresql"
    if name != "a restore" or kind == "sqlite":
        yield EVENTS[name](home, here)
        return
    made = backup(here / "backup.tar.zst", project=home)
    with on(kind, here, patch):
        restore(made.path, here / "restored", keys=home.keys, nothing_since=True)
        yield find(here / "restored")


def rows(release):
    return set(lg.load(release).select(SHOWN).rows())


@pytest.mark.quick("sqlite-a backup", "sqlite-somebody retires")
@pytest.mark.parametrize("event", EVENTS)
def test_after_it_nothing_is_drawn_or_charged_anew_and_more_can_come(
    event, home, tmp_path, monkeypatch
):
    [record] = overview.list_releases(home.state)
    published = files(home.releases / record.id)
    spent = overview.read_budget(home.state).allowances
    with after(event, home, tmp_path / "event", monkeypatch) as later:
        assert overview.verify(later.state).ok
        assert overview.read_budget(later.state).allowances == spent
        again = make_release(TABLE.slice(0, 50), **PRICE, project=later)
        assert again.reused and files(again.path) == published
        more = make_release(TABLE, **PRICE, project=later)
        assert more.card["counts"]["charged"] == 7
        assert rows(again) <= rows(more)
        total = overview.read_budget(later.state).lifetime
        assert (total.epsilon, total.delta) == (3.0, 1e-5)
        assert overview.verify(later.state).ok


@pytest.mark.quick("a backup")
@pytest.mark.parametrize("event", EVENTS)
def test_during_a_job_it_does_not_happen(event, used_project, tmp_path):
    before = files(used_project.state)
    (tmp_path / "event").mkdir()
    with used_project.lock(), pytest.raises(ProjectBusy):
        EVENTS[event](used_project, tmp_path / "event")
    assert dict(files(used_project.state).items() ^ before.items()).keys() <= {"lock"}
    assert not [*(tmp_path / "event").iterdir()]


def test_a_ledger_that_does_not_hold_is_not_backed_up(used_project, tmp_path):
    with sqlite3.connect(used_project.state / "ledger.sqlite3") as connection:
        connection.execute("UPDATE counters SET used = used - 1")
    before = dump(used_project.state)
    with pytest.raises(LedgerError, match=r"not backed up: .*do not add up"):
        _backed_up(used_project, tmp_path)
    assert dump(used_project.state) == before and not [*tmp_path.glob("*.zst")]


PATIENCE = 60


def change(project):
    """A job that is done in a moment: it raises the ceiling."""
    present = policy_facts.show_ceiling(project).ceiling
    policy_facts.raise_ceiling(Ceiling(present.epsilon + 1, present.delta), project)


class Holder:
    """Holds a project until somebody waits for it."""

    def __init__(self, project):
        self.held, self.waited = threading.Event(), threading.Event()
        self._project = project

    def hold(self):
        with OpenProject.hold_for_job(self._project):
            self.held.set()
            return self.waited.wait(PATIENCE)


@pytest.fixture
def holder(project_on_each, monkeypatch):
    """Somebody who holds the project, and lets it go once another job pauses for it."""
    holder = Holder(project_on_each)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(holder.hold)
        assert holder.held.wait(PATIENCE)

        def pause(seconds):
            holder.waited.set()
            held.result(PATIENCE)

        monkeypatch.setattr(projects, "pause", pause)
        yield holder
        holder.waited.set()


def test_a_command_waits_if_it_is_told_to(holder, project_on_each):
    asked = ("project", "ceiling", "--raise", "50,0.001", "--yes")
    run(*asked, project=project_on_each, code=4)
    done = run(*asked, "--wait", project=project_on_each)
    assert "labelguard: waiting for another labelguard job to end\n" in done.stderr


def test_who_interrupts_it_began_nothing(holder, project_on_each, monkeypatch):
    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(projects, "pause", interrupted)
    with pytest.raises(KeyboardInterrupt), projects.waiting():
        change(project_on_each)
    with pytest.raises(ProjectBusy):  # it is the other's still, and nobody waits any more
        change(project_on_each)
