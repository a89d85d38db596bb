"""What a project would lose without a word: deliveries of another project, sources not added."""

import json

import pytest
from labelguard_connectors.hook import logs
from labelguard_connectors.hook.serving import RetryResult, dead_letters, retry
from labelguard_connectors.hook.worker import Worker
from support import hooks, tools
from support.clients import client
from support.commands import run

import labelguard as lg
from labelguard.answers.connector import Page, Unreadable
from labelguard.project import ingestion, policies
from labelguard.project.linking import add_source
from labelguard.project.opening import OpenProject
from labelguard.project.project import CONFIG, find
from labelguard.report import doctor


def label_studio_event(project):
    return {"action": "ANNOTATIONS_DELETED", "project": {"id": project}, "annotations": [{"id": 5}]}


def check(project, name):
    return next(one for one in doctor.check_installation(project) if one.name == name)


@pytest.fixture
def clinic(project, monkeypatch):
    table = '[connectors.clinic]\nkind = "label-studio"\nurl = "https://x.org"\nproject = 1\n'
    with (project.state / CONFIG).open("a") as file:
        file.write(f"\n{table}")
    monkeypatch.setenv("LABELGUARD_CLINIC_HOOK_SECRET", hooks.SECRET)
    return find(project.state.parent)


def test_deliveries_of_another_project_of_the_tool_are_told_once(clinic, capfd):
    logs.configure()
    with client(clinic) as (tool, _):
        for number in (77, 77, 78):
            body = json.dumps(label_studio_event(number))
            assert tool.post("/hooks/clinic", content=body, headers=hooks.headers()).is_success
        page, status = tool.get("/metrics").text, tool.get("/status").json()
        assert 'labelguard_hook_ignored_deliveries_total{connector="clinic"} 3.0' in page
        said = status["ignored"]["clinic"]
        assert ["project 77," in said[0], "project 78," in said[1], len(said)] == [True, True, 2]
    lines = [line for line in capfd.readouterr().err.splitlines() if "ignored" in line]
    assert len(lines) == 2 and all("labelguard.toml names 1" in line for line in lines)
    shown = check(clinic, "deliveries")
    assert (
        shown.notice and "clinic ignores deliveries: the delivery is of project 78" in shown.detail
    )
    with client(clinic) as (tool, _):  # started again
        assert not check(clinic, "deliveries").notice
        body = json.dumps(label_studio_event(1))
        assert tool.post("/hooks/clinic", content=body, headers=hooks.headers()).is_success
        assert 'deliveries_total{connector="clinic"} 0.0' in tool.get("/metrics").text
        assert tool.get("/status").json()["ignored"] == {}


def test_a_source_that_was_not_added_is_said_and_released_once_it_is(
    project, tmp_path, monkeypatch
):
    policies.new("clinic", project=project, epsilon=3, delta=1e-5, allow=["rr:uses=4,block=1"])
    policies.activate("clinic", project)
    row = {"prompt": "p", "response_a": "a", "response_b": "b", "labeler_id": "z", "label": 1}
    lg.privatize([row], project=project, mechanism="rr")
    table = '[hook.release]\nwhen = "every:1"\nmechanism = "rr"'
    connected, desk = tools.connected(project, tmp_path, monkeypatch, table)
    shown = check(connected, "ingested answers")
    assert shown.ok and shown.notice and "labelguard source add desk" in shown.detail
    tools.deliver(connected, desk.answer("ann", 1, "left"))
    worker = Worker(connected)
    assert worker.turn().failed and not worker.turn().failed  # later, not at once
    add_source("desk", "new", connected)
    assert len(worker.turn().releases) == 1
    assert not check(connected, "ingested answers").notice


def test_dead_letters_are_discarded_by_their_numbers(tmp_path, monkeypatch):
    made = hooks.project(tmp_path, monkeypatch)
    with client(made) as (tool, _):
        for body in (b"[]", b"1", b"{"):
            assert tool.post("/hooks/clinic", content=body, headers=hooks.headers()).is_error
    command = ("hook", "dead-letters", "--discard")
    assert "there is no dead letter 9" in run(*command, "1", "9", code=1, project=made).stderr
    shown = run(*command, "1", "3", project=made)
    assert shown.stdout == "Discarded 2 dead letters (deliveries that could not be read).\n"
    assert [letter.number for letter in dead_letters(made)] == [2]


def test_what_a_pull_could_not_read_is_read_again_by_a_retry(project, tmp_path, monkeypatch):
    monkeypatch.setenv("LABELGUARD_DESK_HOOK_SECRET", hooks.SECRET)
    made, desk = tools.connected(project, tmp_path, monkeypatch)
    for task in (1, 2):
        desk.answer("ann", task, "left")
    whole = tools.DeskConnector.pull

    def pull(self, cursor=""):
        for page in whole(self, cursor):
            kept = [one for one in page.answers if one.record != "1"]
            left = [Unreadable(one.record, "too large") for one in page.answers if one not in kept]
            yield Page(kept, page.cursor, left)

    with monkeypatch.context() as patch:
        patch.setattr(tools.DeskConnector, "pull", pull)
        assert ingestion.pull("desk", made).answers == 1
        assert [one.why for one in dead_letters(made)] == ["answer 1: too large"]
        still = retry(made)
        assert (still.understood, len(still.left)) == (0, 1)
    assert ingestion.pull("desk", made).answers == 0  # it goes on from where it was
    assert [one.bytes for one in dead_letters(made)] == [0]
    assert retry(made) == RetryResult(1, [])
    assert dead_letters(made) == [] and OpenProject.open(made).answers.count_stored().answers == 2
