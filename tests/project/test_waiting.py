"""A job that waits for a project begins when the one before it ends; others are told at once."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.commands import run

from labelguard.errors import ProjectBusy
from labelguard.ledger.policies import Ceiling
from labelguard.project import policy_facts
from labelguard.project import project as projects
from labelguard.project.opening import OpenProject

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
        with OpenProject.job(self._project):
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


def test_it_is_busy_for_who_does_not_wait(holder, project_on_each):
    with pytest.raises(ProjectBusy, match="another labelguard job works in"):
        change(project_on_each)
    with projects.waiting():
        change(project_on_each)


def test_waiting_is_said_once_and_ends_with_what_was_asked(holder, project_on_each):
    said: list[str] = []
    with projects.waiting(said.append):
        change(project_on_each)
    assert said == ["waiting for another labelguard job to end"]
    with projects.waiting(said.append):
        change(project_on_each)
    assert len(said) == 1


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
