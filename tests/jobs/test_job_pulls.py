"""Jobs whose labels come from a tool: pulled by the run, or heard by a hook before it."""

import threading

import pytest
import yaml
from support.job_projects import desk
from support.tools import connected, deliver

import labelguard as lg
from labelguard.errors import ConnectorError
from labelguard.jobs import run as runs
from labelguard.jobs import start
from labelguard.jobs.dry_run import dry_run
from labelguard.jobs.run import retrain
from labelguard.jobs.state import JobState
from labelguard.project import locking
from labelguard.project.locking import waiting as patient


@pytest.fixture
def pulled(tmp_path, monkeypatch):
    """A job that pulls from a tool with twelve answers."""
    made = desk(tmp_path / "desk")
    project, tool = connected(lg.find(made.path), tmp_path, monkeypatch)
    answer(tool, range(12))
    return made, project, tool


def answer(tool, numbers):
    for number in numbers:
        tool.answer(f"annotator {number % 3}", number, "left" if number % 2 else "right")


def test_a_run_pulls_what_is_new_and_releases_it(pulled):
    small, _, tool = pulled
    small.asks(input=None, pull=["desk"])
    assert retrain(small.job).new_labels == 12
    assert retrain(small.job).outcome == "unchanged"
    answer(tool, range(12, 24))
    assert retrain(small.job).new_labels == 12 and small.charged() == 24


def test_a_job_of_what_was_pulled_pulls(pulled):
    small, *_ = pulled
    small.asks(input=None, pull=["desk"])
    retrain(small.job)
    small.job.unlink()
    start.write_job(small.job, small.path)
    found = yaml.safe_load(small.job.read_text())
    assert (found["pull"], found["source"]) == (["desk"], "desk") and "input" not in found
    assert not dry_run(small.job).releases


def test_what_a_hook_heard_is_released_without_a_pull(pulled):
    small, project, tool = pulled
    events = [tool.answer(f"annotator {n % 3}", n, "left") for n in range(20, 33)]
    deliver(project, *events)
    small.asks(input=None)
    assert retrain(small.job).new_labels == 13


def test_a_connector_that_there_is_not_is_said_before_anything_is_pulled(pulled, monkeypatch):
    small, *_ = pulled
    monkeypatch.setattr(runs.ingestion, "pull", lambda *_: pytest.fail("it pulled"))
    small.asks(input=None, pull=["desk", "nowhere"])
    with pytest.raises(ConnectorError, match="nowhere"):
        retrain(small.job)


def test_a_tool_that_is_down_fails_the_run_and_the_next_one_goes_on(pulled, monkeypatch):
    small, *_ = pulled
    small.asks(input=None, pull=["desk"])

    def down(*_):
        raise ConnectorError("it is down")

    with monkeypatch.context() as patch, pytest.raises(ConnectorError):
        patch.setattr(runs.ingestion, "pull", down)
        retrain(small.job)
    assert small.history()[0].why == "pull failed"  # no kind: it may be a label's
    assert retrain(small.job).outcome == "promoted"


def test_a_start_that_waits_begins_when_the_other_has_ended(pulled, monkeypatch):
    small, project, _ = pulled
    held, said, ended = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(locking, "pause", lambda seconds: ended.wait(10))

    def hold():
        with JobState(project, "job").lock():
            held.set()
            said.wait(10)
        ended.set()

    other = threading.Thread(target=hold)
    project.jobs.mkdir(mode=0o700)
    other.start()
    held.wait(10)
    with patient(lambda text: said.set()):
        assert retrain(small.job).outcome == "promoted"
    other.join()
    assert said.is_set()
