"""Attacks on the hook by whoever reads its metrics, answers and files: deliveries that differ in a
label alone must leave the same traces, whatever the tool sends twice.
"""

import base64
import contextlib
import copy
import hashlib
import hmac
import json
import math
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from labelguard_connectors.hook import delivery
from labelguard_connectors.hook.app import application
from labelguard_connectors.hook.limits import Limits
from labelguard_connectors.hook.served import ServedProject
from labelguard_connectors.hook.serving import Endpoints
from starlette.testclient import TestClient
from support import hooks, tools

import labelguard
from labelguard.answers.inbox import FILE
from labelguard.project import ingestion
from labelguard.project.opening import OpenProject
from labelguard.project.project import CONFIG, find

RECORDINGS = Path(__file__).parents[2] / "connectors/recordings"
KEY = b"a standard webhook's key"
TOOLS = {
    "label-studio": '\n[connectors.label-studio]\nurl = "http://127.0.0.1"\nproject = {project}\n',
    "argilla": '\n[connectors.argilla]\nurl = "http://127.0.0.1"\ndataset = "prefs"\n'
    'workspace = "labelers"\n',
}
Saved = dict[str, Any]


def label_studio():
    events = json.loads((RECORDINGS / "label_studio/events.json").read_text("utf-8"))
    return next(event for event in events if event["action"] == "ANNOTATION_UPDATED")


def argilla():
    return json.loads((RECORDINGS / "argilla/02.response.created.json").read_text("utf-8"))


RECORDED: dict[str, Callable[[], Saved]] = {"label-studio": label_studio, "argilla": argilla}


def delivery_of(tool, label):
    """A recorded delivery with another label in it, and the time that it was saved at."""
    event = copy.deepcopy(RECORDED[tool]())
    if tool == "argilla":
        event["data"]["values"]["preference"]["value"] = label
    else:
        event["annotation"]["result"][0]["value"]["selected"] = label
    return json.dumps(event).encode()


def proof(tool, body):
    """Headers of a delivery; Argilla gives every one of them an id of its own."""
    if tool == "label-studio":
        return hooks.headers()
    number, stamp = f"msg_{time.monotonic_ns()}", str(int(time.time()))
    digest = hmac.digest(KEY, f"{number}.{stamp}.".encode() + body, hashlib.sha256)
    signature = "v1," + base64.b64encode(digest).decode()
    return {"webhook-id": number, "webhook-timestamp": stamp, "webhook-signature": signature}


def create_project(directory, patch):
    """A project whose hook hears both tools."""
    made = labelguard.init(directory)
    project = label_studio()["project"]["id"]
    path = made.state / CONFIG
    tables = "".join(TOOLS.values()).replace("{project}", str(project))
    path.write_text(path.read_text() + tables)
    patch.setenv("LABELGUARD_LABEL_STUDIO_HOOK_SECRET", hooks.SECRET)
    encoded = base64.b64encode(KEY).decode()
    patch.setenv("LABELGUARD_ARGILLA_HOOK_SECRET", f"whsec_{encoded}")
    return find(made.state.parent)


def traces(made, tool, bodies):
    """What is to be seen of deliveries: answers, metrics but for times, rows and sizes of files."""
    with contextlib.closing(OpenProject.open(made).answers.open_inbox()) as inbox:
        hook = delivery.Hook(Endpoints.of(made).served, inbox, Limits(), ServedProject(made))
        with TestClient(application({"": hook})) as client:
            answers = [
                client.post(f"/hooks/{tool}", content=body, headers=proof(tool, body))
                for body in bodies
            ]
            page = client.get("/metrics").text.splitlines()
        letters = [(one.connector, one.why, one.bytes) for one in inbox.list_dead_letters()]
        with sqlite3.connect(made.state / FILE) as database:
            rows = database.execute("SELECT connector, length(body) FROM events").fetchall()
            names = database.execute("SELECT delivery FROM events").fetchall()
    done = ingestion.ingest(made)
    opened = OpenProject.open(made)
    return {
        "answers": [(one.status_code, one.content) for one in answers],
        "metrics": [one for one in page if "_seconds" not in one and "_created" not in one],
        "letters": letters,
        "rows": rows,
        "names": names,
        "ingested": done,
        "held": opened.answers.count_stored(),
        "sizes": sorted(path.stat().st_size for path in made.labels.glob("*")),
        "inbox": (made.state / FILE).stat().st_size,
    }


LABELS = {
    "label-studio": ("left", "right", "a word that is none at all", "l" * 600),
    "argilla": ("response_a", "response_b", "a word that is none at all", "l" * 600),
}


@pytest.mark.parametrize("tool", TOOLS)
def test_two_saves_of_one_time_leave_the_same_traces_whether_the_label_changed(
    tool, tmp_path, monkeypatch
):
    first, *others = LABELS[tool]
    found = []
    for number, label in enumerate((first, *others)):
        made = create_project(tmp_path / str(number), monkeypatch)
        found.append(traces(made, tool, [delivery_of(tool, first), delivery_of(tool, label)]))
    assert found[0]["answers"] == [(200, b"")] * 2
    assert len(found[0]["rows"]) == 1
    assert found == [found[0]] * len(found)


HOSTILE = (
    *(math.nan, math.inf, "\ud800", None, True, 7, [], {}, "", [["left"]], {"selected": "left"}),
    json.loads("[" * 50 + "]" * 50),
)


@pytest.mark.parametrize("tool", TOOLS)
def test_a_label_of_whatever_kind_leaves_the_same_traces(tool, tmp_path, monkeypatch):
    found = []
    for number, label in enumerate((LABELS[tool][0], *HOSTILE)):
        made = create_project(tmp_path / str(number), monkeypatch)
        found.append(traces(made, tool, [delivery_of(tool, label)]))
    assert found == [found[0]] * len(found)


@pytest.mark.parametrize(
    "result",
    [
        *("left", 7, {}, [None], [7], [[]], [{}], [{"type": 3}], [{"type": "pairwise"}]),
        [{"type": "pairwise", "from_name": ["x"], "to_name": "a", "value": {"selected": "left"}}],
        [{"type": "pairwise", "from_name": "\ud800", "to_name": "a", "value": {}}],
        *(None, []),
    ],
)
def test_a_result_that_is_none_is_an_answer_without_a_label(result, tmp_path, monkeypatch):
    made = create_project(tmp_path, monkeypatch)
    event = label_studio()
    event["annotation"]["result"] = result
    found = traces(made, "label-studio", [json.dumps(event).encode()])
    assert found["answers"] == [(200, b"")]
    assert found["letters"] == []


def test_every_delivery_that_is_not_understood_is_a_letter_whatever_was_said(tmp_path, monkeypatch):
    found = []
    for number, second in enumerate(("left", "right", "neither of the two")):
        made = create_project(tmp_path / str(number), monkeypatch)
        bodies = []
        for label in ("left", second):
            event = json.loads(delivery_of("label-studio", label))
            event["annotation"]["updated_at"] = "yesterday"
            bodies.append(json.dumps(event).encode())
        found.append(traces(made, "label-studio", bodies))
    assert [status for status, _ in found[0]["answers"]] == [422, 422]
    assert len(found[0]["letters"]) == 2
    assert found == [found[0]] * len(found)


@pytest.mark.parametrize("tool", TOOLS)
def test_what_was_ingested_is_not_ingested_again_with_another_label(tool, tmp_path, monkeypatch):
    """What comes of a version that was ingested waits no more."""
    made = create_project(tmp_path, monkeypatch)
    first, other, *_ = LABELS[tool]
    traces(made, tool, [delivery_of(tool, first)])
    again = traces(made, tool, [delivery_of(tool, other)])
    assert (again["ingested"].answers, again["held"].waiting) == (0, 0)


def read_labels(made):
    """The labels that count."""
    directory = made.state.parent / f"written {time.monotonic_ns()}"
    (path,) = OpenProject.open(made).answers.export_source("desk", directory)
    return [
        json.loads(line)["annotations"][0]["result"][0]["value"]["selected"]
        for line in path.read_text("utf-8").splitlines()
    ]


def save_again(desk, record, side):
    """Another answer saved at the very time of the last one."""
    desk.clock -= 1
    return desk.change(record, side)


@pytest.mark.parametrize("drained", [False, True])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_reading_the_whole_tool_mends_two_saves_of_one_time(drained, order, tmp_path, monkeypatch):
    made, desk = tools.connected(labelguard.init(tmp_path / "p"), tmp_path, monkeypatch)
    saves = [desk.answer("maria", 1, "left"), save_again(desk, "1", "right")]
    for number in order:  # of which the first that comes counts
        tools.deliver(made, saves[number])
        if drained:
            ingestion.ingest(made)
    ingestion.ingest(made)
    assert read_labels(made) == [("left", "right")[order[0]]]
    assert ingestion.reconcile("desk", made).answers == 1
    assert read_labels(made) == ["right"]
    assert ingestion.reconcile("desk", made).answers == 0  # and once


def test_reading_the_whole_tool_tells_nothing_of_which_label_changed(tmp_path, monkeypatch):
    found = []
    for number, second in enumerate(("left", "right")):
        where = tmp_path / str(number)
        where.mkdir()
        made, desk = tools.connected(labelguard.init(where / "p"), where, monkeypatch)
        saves = [desk.answer("maria", 1, "left"), save_again(desk, "1", second)]
        other = desk.answer("maria", 2, "left")
        tools.deliver(made, *saves, other)
        done = ingestion.reconcile("desk", made)
        sizes = sorted(path.stat().st_size for path in made.labels.glob("*"))
        found.append((done, OpenProject.open(made).answers.count_stored(), sizes))
    assert found[0] == found[1]
    assert found[0][0].answers == 3  # two that were heard, and the one that came twice
