"""The worker releases what was heard, when [hook.release] says so and the policy pays for it."""

import json
from functools import partial
from pathlib import Path

import pytest
from labelguard_connectors.hook.worker import Worker, release_export
from support import tools

from labelguard.answers.store import WorkerState
from labelguard.errors import ConnectorError, PolicyError, ProjectError
from labelguard.project import policies
from labelguard.project.opening import OpenProject
from labelguard.report import overview


class Clinic:
    """A project with a policy, a tool, and a worker whose days pass when it is told so."""

    def __init__(self, project, directory, patch, release, allow="rr:labels=50"):
        policies.new("clinic", project=project, epsilon=3, delta=1e-5, allow=[allow])
        policies.activate("clinic", project)
        self.project, self.desk = tools.connected(
            project, directory, patch, f"[hook.release]\n{release}"
        )
        self.day, self.task = 1, 0

    def worker(self):
        """A worker that has just been started."""
        return Worker(self.project, lambda: f"2026-11-{self.day:02}")

    def annotate(self, answers):
        """So many answers are given, and the hook hears them."""
        told = []
        for _ in range(answers):
            self.task += 1
            side = "left" if self.task % 3 else "right"
            told.append(self.desk.answer(f"worker {self.task % 4}", self.task, side))
        tools.deliver(self.project, *told)


@pytest.fixture
def make(project, tmp_path, monkeypatch):
    """A clinic with these lines of [hook.release], and what its policy allows."""
    return partial(Clinic, project, tmp_path, monkeypatch)


def rows(project):
    """How many labels each release has."""
    return [line.rows for line in overview.releases(project)]


def test_every_n_answers_there_is_a_release_of_all_so_far(make):
    clinic = make('when = "every:10"\nmechanism = "rr"')
    worker = clinic.worker()
    clinic.annotate(9)
    assert worker.turn().releases == []
    clinic.annotate(1)
    assert len(worker.turn().releases) == 1
    clinic.annotate(9)
    assert worker.turn().releases == []
    clinic.annotate(3)
    done = clinic.worker().turn()  # another worker knows how far the last one had come
    assert (len(done.releases), done.failed) == (1, [])
    assert rows(clinic.project) == [10, 22]
    assert worker.turn().releases == []


def test_every_day_there_is_a_release_if_there_is_something_new(make):
    clinic = make('when = "daily"\nmechanism = "rr"')
    worker = clinic.worker()
    clinic.annotate(5)
    assert len(worker.turn().releases) == 1
    clinic.annotate(5)
    assert worker.turn().releases == []
    clinic.day += 1
    assert len(worker.turn().releases) == 1
    clinic.day += 1
    assert worker.turn().releases == []


def test_by_hand_nothing_is_released_but_what_was_heard_is_taken_in(make):
    clinic = make('when = "manual"')
    clinic.annotate(5)
    done = clinic.worker().turn()
    assert (done.answers, done.releases) == (5, [])


@pytest.mark.slow
def test_once_a_day_what_the_hook_missed_is_read_from_the_tool(make):
    clinic = make('when = "manual"')
    worker = clinic.worker()
    clinic.desk.answer("worker 1", 1, "left")  # nobody heard it
    assert worker.turn().answers == 1
    clinic.desk.answer("worker 2", 1, "left")
    assert worker.turn().answers == 0
    clinic.day += 1
    assert worker.turn().answers == 1


def test_releases_are_published_once_and_again_after_a_failure(make, monkeypatch):
    clinic = make('when = "every:5"\nmechanism = "rr"\npush = true')
    clinic.annotate(5)
    pushed: list[str] = []

    def refuse(self, release, name, progress):
        pushed.append(name)
        raise ConnectorError("the tool is down")

    with monkeypatch.context() as patch:
        patch.setattr(tools.DeskConnector, "push", refuse)
        worker = clinic.worker()
        done = worker.turn()
        assert (len(done.releases), done.published) == (1, [])
        assert done.failed == ["push desk: the tool is down"]
        worker.turn()
        assert len(pushed) == 1  # later, not at once again
    (where,) = clinic.worker().turn().published
    assert json.loads(Path(where).read_text())["release"] == pushed[0]
    assert clinic.worker().turn().published == []


def test_no_release_is_made_where_labelers_are_exhausted(make):
    clinic = make('when = "every:8"\nmechanism = "rr"', "rr:labels=2")
    clinic.annotate(8)
    worker = clinic.worker()
    assert len(worker.turn().releases) == 1
    clinic.annotate(8)
    done = worker.turn()
    assert done.releases == []
    assert done.failed[0].startswith("release desk: ")
    assert worker.turn().failed == []


def test_a_machine_agrees_to_no_policy(project, tmp_path, monkeypatch):
    found, _ = tools.connected(project, tmp_path, monkeypatch, '[hook.release]\nwhen = "daily"')
    with pytest.raises(PolicyError, match="there is none: make one"):
        Worker(found)
    with pytest.raises(PolicyError, match="there is none: make one"):
        release_export(tmp_path / "export.json", None, found)


def test_statistics_after_so_many_answers_must_be_named_by_the_policy(make):
    clinic = make('when = "every:10"\nmechanism = "statistic"', "statistic:releases=1")
    with pytest.raises(PolicyError, match=r"and policy clinic allows 1; let a policy name"):
        clinic.worker()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('when = "hourly"', "release.when: expected manual, every:500, completed or daily"),
        ('mechanism = "magic"', "release.mechanism: expected one of"),
        ('when = "completed"', "connector desk .desk. cannot tell"),
    ],
)
def test_settings_that_cannot_be_are_refused(make, line, said):
    with pytest.raises((ProjectError, ConnectorError), match=said):
        make(line).worker()


@pytest.mark.slow
def test_completed_waits_until_the_tool_says_so(make, monkeypatch):
    said = [False]
    monkeypatch.setattr(tools.DeskConnector, "completed", lambda self: said[0], raising=False)
    clinic = make('when = "completed"\nmechanism = "rr"')
    clinic.annotate(4)
    worker = clinic.worker()
    assert worker.turn().releases == []
    said[0] = True
    assert len(worker.turn().releases) == 1
    assert worker.turn().releases == []


def test_while_another_job_holds_the_project_it_waits(make):
    clinic = make('when = "every:4"\nmechanism = "rr"')
    clinic.annotate(4)
    worker = clinic.worker()
    with OpenProject.job(clinic.project):
        done = worker.turn()
        assert (done.answers, done.releases, done.failed) == (0, [], [])
    assert len(worker.turn().releases) == 1


def test_a_file_that_is_not_the_workers_stops_it(make):
    clinic = make('when = "manual"')
    (clinic.project.state / "worker.json").write_text("[]")
    with pytest.raises(ProjectError, match="is not what a worker wrote"):
        WorkerState.read(clinic.project.state)
    assert "is not what a worker wrote" in clinic.worker().turn().failed[0]
