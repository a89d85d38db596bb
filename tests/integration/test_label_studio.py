"""The connector of Label Studio on a real server: what was annotated comes in, and nothing else."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import pytest
from integration.label_studio_server import User
from labelguard_connectors.label_studio import LabelStudio
from labelguard_connectors.label_studio import rest as label_studio_rest
from support import exports
from support.receivers import Receiver, receiver

from labelguard.answers.connector import Settings
from labelguard.text import LABEL_A, LABEL_B, LABEL_SKIP

pytestmark = pytest.mark.integration
TASKS = [
    {"prompt": f"question {n}", "answer1": f"one {n}", "answer2": f"two {n}", "length_a": n}
    for n in range(7)
]
TASKS[0]["answer1"] = 'ä "quoted" \u2028 answer'


@dataclass(frozen=True)
class Scene:
    """A project in which things happened: who said what in the end, and what hooks were told."""

    project: int
    users: Sequence[User]
    said: dict[int, tuple[int, str]]  # by annotation: whose it is, left, right, skip or truth
    deleted: int
    heard: Receiver


@pytest.fixture(scope="module")
def scene(label_studio):
    """Three people answer, change their minds, skip; some of it is deleted or ground truth."""
    server = label_studio
    users = [server.user(f"annotator-{n}@example.com") for n in range(3)]
    project = server.project(TASKS)
    tasks = [int(task["id"]) for task in server.tasks(project)]
    said: dict[int, tuple[int, str]] = {}
    with receiver() as hook:
        server.add_webhook(project, hook.url, {"X-Secret": "of tests"})
        for number, task in enumerate(tasks[:6]):
            for user in users:
                side = "left" if (number + user.id) % 2 else "right"
                safer = "right" if side == "left" else "left"
                said[server.annotate(user, task, side, safer=safer)] = (user.id, side)
        first, second, third, fourth, *_ = said
        server.update(users[0], first, "right" if said[first][1] == "left" else "left")
        said[first] = (users[0].id, "right" if said[first][1] == "left" else "left")
        server.change(users[1], second, {"was_cancelled": True, "result": []})
        said[second] = (users[1].id, "skip")
        server.delete(third)
        server.change(server.admin, fourth, {"ground_truth": True})
        said[fourth] = (said[fourth][0], "truth")
        said[server.skip(users[2], tasks[6])] = (users[2].id, "skip")
        del said[third]
        yield Scene(project, users, said, third, hook)


@pytest.fixture
def connector(label_studio, scene, monkeypatch):
    """The connector of the scene's project, with the admin's token."""
    monkeypatch.setenv("LABELGUARD_PAIRS_API_KEY", label_studio.api_key)
    return LabelStudio(settings(label_studio, scene.project))


def settings(server, project):
    return Settings.from_table(
        "pairs", {"kind": "label-studio", "url": server.url + "/", "project": project}
    )


def pull(connector, cursor=""):
    return [answer for page in connector.pull(cursor) for answer in page.answers]


def side(row):
    """Which side a canonical row prefers; there sides stand in the order of their contents."""
    if row["label"] == LABEL_SKIP:
        return "skip"
    assert row["label"] in (LABEL_A, LABEL_B)
    preferred = row["first"] if row["label"] == LABEL_A else row["second"]
    return "left" if preferred in {task["answer1"] for task in TASKS} else "right"


def states(answers):
    """What bodies say about the question `better`."""
    found = {}
    for answer in answers:
        (annotation,) = json.loads(answer.body)["annotations"]
        said = [region for region in annotation["result"] if region["from_name"] == "better"]
        word = said[0]["value"]["selected"] if said else "none"
        word = "skip" if annotation["was_cancelled"] else word
        word = "truth" if annotation["ground_truth"] else word
        found[int(answer.record)] = (int(answer.labeler), word)
    return found


@pytest.mark.parametrize("size", [1, 2, 200])
def test_every_annotation_is_pulled_once_as_it_is_now(connector, scene, size, monkeypatch):
    monkeypatch.setattr(label_studio_rest, "_TASKS", size)
    monkeypatch.setattr(label_studio_rest, "_ANSWERS", size)
    answers = pull(connector)
    assert states(answers) == scene.said
    assert len(answers) == len(scene.said)


def test_hooks_tell_what_a_pull_tells(connector, scene):
    heard = [answer for event in scene.heard.bodies for answer in connector.parse_event(event)]
    assert {int(answer.record) for answer in heard if answer.is_deleted} == {scene.deleted}
    heard = [answer for answer in heard if int(answer.record) != scene.deleted]
    latest = {one.record: one for one in sorted(heard, key=lambda one: one.version)}
    assert latest == {answer.record: answer for answer in pull(connector)}


def test_the_format_reads_what_was_said(connector, scene, tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(answer.body + "\n" for answer in pull(connector)))
    rows = exports.read(path, tmp_path, question="better")
    found = sorted((row["labeler"], side(row)) for row in rows.to_dicts())
    wanted = [(str(who), word) for who, word in scene.said.values() if word != "truth"]
    assert found == sorted(wanted)
    other = exports.read(path, tmp_path, question="safer")
    assert other.height == rows.height


def test_a_later_pull_tells_what_changed_since(label_studio, connector, scene, monkeypatch):
    monkeypatch.setattr(label_studio_rest, "_OVERLAP", timedelta(0))
    server, user = label_studio, scene.users[0]
    project = server.project(TASKS[:3])
    one, other, _ = (int(task["id"]) for task in server.tasks(project))
    here = LabelStudio(settings(server, project))
    empty = list(here.pull())
    assert [page.answers for page in empty] == [[], ()]
    first = server.annotate(user, one, "left")
    second = server.annotate(user, other, "left")
    *_, last = here.pull(empty[-1].cursor)
    assert states(pull(here, empty[-1].cursor)) == {
        first: (user.id, "left"),
        second: (user.id, "left"),
    }
    server.update(user, second, "right")
    changed = list(here.pull(last.cursor))
    answers = [answer for page in changed for answer in page.answers]
    assert states(answers) == {second: (user.id, "right")}
    server.delete(second)
    assert states(pull(here, changed[-1].cursor)) == {}
    assert states(pull(here)) == {first: (user.id, "left")}
    monkeypatch.undo()
    monkeypatch.setenv("LABELGUARD_PAIRS_API_KEY", server.api_key)
    assert states(pull(here, changed[-1].cursor)) == {first: (user.id, "left")}  # by the overlap


def test_keys_of_both_kinds_are_taken(label_studio, scene, monkeypatch):
    http = label_studio.admin.http
    http.post("/api/jwt/settings", json={"legacy_api_tokens_enabled": True}).raise_for_status()
    token = http.get("/api/current-user/token").raise_for_status().json()["token"]
    monkeypatch.setenv("LABELGUARD_PAIRS_API_KEY", token)
    assert states(pull(LabelStudio(settings(label_studio, scene.project)))) == scene.said


def test_a_project_is_completed_once_every_task_is(label_studio, monkeypatch):
    monkeypatch.setenv("LABELGUARD_PAIRS_API_KEY", label_studio.api_key)
    user = label_studio.user("completes@example.com")
    project = label_studio.project(TASKS[:2])
    connector = LabelStudio(settings(label_studio, project))
    said = []
    for task in label_studio.tasks(project):
        said.append(connector.is_completed())
        label_studio.annotate(user, int(task["id"]), "left", safer="left")
    assert [*said, connector.is_completed()] == [False, False, True]
