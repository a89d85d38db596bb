"""A job on object storage is killed at its steps, and its disk is lost each time."""

import contextlib
import os
import random
import shutil
import time

import pytest
from support import databases
from support.copies import copy_project
from support.crashes import PATIENCE, crash, killed, steps_of
from support.crashing import perform
from support.leaving import WHO, labels_table, remembered
from support.preferences import files, write
from support.rounds import some
from support.stored import ADDRESS, begin, keep_at, lose_disk, move_to_new_machine, serve

from labelguard.errors import ProjectBusy
from labelguard.project.opening import OpenProject
from labelguard.project.project import find
from labelguard.report import overview
from labelguard.storage.object_store import ObjectStore

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("same_in_every_process")]
OPTIONS = {"mechanism": "rr", "epsilon": 3.0, "delta": 1e-5, "workers": 1, "uses": 2}
COMMANDS = {
    "privatize": {"do": "privatize", "options": OPTIONS},
    "leave": {"do": "leave", "options": {"labeler_id": WHO, "kind": "erased"}},
}


class Rounds:
    """Projects with the same past, each with a database and a place in the bucket of its own."""

    def __init__(self, name, tmp_path, patch, stack):
        self._tmp_path, self._patch, self._stack = tmp_path, patch, stack
        stack.enter_context(serve("s3", tmp_path, patch))
        self._url = stack.enter_context(databases.fresh("postgresql", tmp_path))
        source = str(write(labels_table(), tmp_path / "labels.parquet"))
        self.command = COMMANDS[name] | {"source": source}
        self._base = begin(tmp_path / "base", patch, self._url)
        with OpenProject.hold_for_job(self._base) as opened:
            opened.ledger.begin_job()  # the place has a witness before a disk is lost
        if name == "leave":
            perform(COMMANDS["privatize"] | {"source": source}, self._base)
        variables = (name for name in os.environ if name.startswith("AWS_"))
        self._environ = {name: os.environ[name] for name in variables}
        self._environ["LABELGUARD_KEY_FILE"] = str(tmp_path / "base" / "project.key")

    def copy(self, label):
        """A project with this past; its job, and the objects below its address."""
        url = self._stack.enter_context(databases.copied(self._url))
        copy_project(self._base.state, self._tmp_path / label / "first" / ".labelguard")
        home = keep_at(find(self._tmp_path / label / "first"), f"{ADDRESS}-{label}")
        shutil.copy(self._tmp_path / "base" / "project.key", self._tmp_path / label)
        self._patch.setenv("LABELGUARD_LEDGER_URL", url)
        job = self.command | {"ledger": url, "environ": self._environ}
        store = ObjectStore(home.storage)
        past = ObjectStore(ADDRESS)
        for name in past.list():
            store.write(name, past.read(name))
        return home, job, store

    def finish(self, home):
        """Do the command in peace, once the server has noticed that the job before is gone."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return perform(self.command, home)
            except ProjectBusy:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def end_of(home, store):
    """What is in a project, its ledger and its place, but how often somebody began to work, and who
    witnessed it.
    """
    tables = databases.dump(home.ledger_url)
    tables["meta"] = [row for row in tables["meta"] if row[0] != "epoch"]
    maps = {name: files(home.state / name) for name in ("released", "releases")}
    objects = sorted(name for name in store.list() if not name.startswith("witness/"))
    return maps | tables | {"objects": objects}


@pytest.fixture(params=["privatize", pytest.param("leave", marks=pytest.mark.slow)])
def rounds(request, tmp_path, monkeypatch):
    with contextlib.ExitStack() as stack:
        yield Rounds(request.param, tmp_path, monkeypatch, stack)


@pytest.mark.slow
def test_killed_twice_on_disks_that_are_lost_it_ends_as_if_nothing_had_happened(
    rounds, monkeypatch
):
    home, _, store = rounds.copy("expected")
    rounds.finish(home)
    rounds.finish(home)  # what only the next job tidies up
    assert overview.verify(home).ok
    expected = end_of(home, store)
    trial, job, _ = rounds.copy("counted")
    total = steps_of(job | {"project": str(trial.state.parent)}, trial.state.parent, job["ledger"])
    assert total > 60
    rng = random.Random(20260101)
    for step in some(range(1, total + 1), 25):
        home, job, store = rounds.copy(f"killed-at-{step}")
        killed(job | {"project": str(home.state.parent), "kill_at": step})
        second = lose_disk(home, "second", monkeypatch)
        again = rng.randint(1, total)
        [end] = crash(job | {"project": str(second.state.parent), "kill_at": again})
        assert end["error"] == "" or "ProjectBusy" in end["error"], (step, again, end)
        third = lose_disk(second, "third", monkeypatch)
        for _ in range(2):
            rounds.finish(third)
        assert end_of(third, store) == expected, (step, again)
        assert overview.verify(third).ok
        last = move_to_new_machine(third, "last", monkeypatch)
        assert (
            OpenProject.open(last).ledger.read_head() == OpenProject.open(third).ledger.read_head()
        )
        assert end_of(last, store) == expected
        if job["do"] == "leave":
            assert not remembered(last)
