"""An account whose answers are very large stops nobody: they are answers like others, and tasks
that are too large are dead letters.

A tool that accepts and never answers, or byte by byte, stops no other job, and not for long.
"""

import contextlib
import json
import socket
import threading
from dataclasses import dataclass, field

import pytest
from labelguard_connectors import http
from labelguard_connectors.hook.serving import dead_letters
from labelguard_connectors.label_studio import LabelStudio
from labelguard_connectors.label_studio import rest as label_studio_rest
from support import hooks
from support.clients import client, post
from support.releases import make_release

import labelguard as lg
from labelguard.errors import ConnectorError
from labelguard.project import ingestion
from labelguard.project.opening import OpenProject
from labelguard.project.project import CONFIG, Project, find

TABLE = '\n[connectors.label-studio]\nurl = "http://127.0.0.1"\nproject = 1\nquestion = "pref"\n'
HONEST, SWOLLEN = 6, 4


@pytest.fixture
def made(tmp_path, monkeypatch):
    project = lg.init(tmp_path / "p")
    path = project.state / CONFIG
    path.write_text(path.read_text() + TABLE)
    monkeypatch.setenv("LABELGUARD_LABEL_STUDIO_HOOK_SECRET", hooks.SECRET)
    return find(project.state.parent)


def region():
    return {
        "id": "r",
        "type": "pairwise",
        "from_name": "pref",
        "to_name": "answer1",
        "value": {"selected": "left"},
    }


def task(number, regions=1, prompt="prompt"):
    """A task with one annotation."""
    own = {
        "id": number,
        "task": number,
        "completed_by": number % 3 + 1,
        "updated_at": "2026-11-21T08:29:20.150969Z",
        "result": [region()] * regions,
    }
    data = {"prompt": f"{prompt} {number}", "answer1": f"one {number}", "answer2": f"two {number}"}
    return {"id": number, "data": data, "annotations": [own], "updated_at": own["updated_at"]}


def tasks(prompt="prompt"):
    """Those of honest accounts, and of one that sends 10,000 regions at a time."""
    honest = [task(n) for n in range(1, HONEST + 1)]
    return honest + [task(HONEST + n, 10_000, prompt) for n in range(1, SWOLLEN + 1)]


def event(own):
    told = {"action": "ANNOTATION_CREATED", "project": 1, "annotation": own["annotations"][0]}
    return json.dumps({**told, "task": {"id": own["id"], "data": own["data"]}}).encode()


def test_a_swollen_answer_that_is_delivered_is_released_like_all_others(made):
    with client(made) as (tool, _):
        found = [post(tool, event(one), "label-studio")[0] for one in tasks()]
    ingestion.ingest(made)
    release = make_release(project=made, mechanism="rr", epsilon=1, delta=1e-5, workers=1)
    assert len(lg.load(release)) == HONEST + SWOLLEN
    assert found == [200] * (HONEST + SWOLLEN)
    assert dead_letters(made) == []


def list_tasks(found):
    """Label Studio's data manager with these tasks."""

    def page(filters, order, size, _):
        if order.startswith("-"):
            return list(found[:1])
        after = next(one["value"] for one in filters if one["filter"] == "filter:tasks:id")
        return [one for one in found if one["id"] > after][:size]

    return page


@pytest.mark.slow
def test_a_swollen_task_that_is_pulled_is_a_letter_once_and_all_others_are_released(
    made, monkeypatch
):
    there = tasks()

    def pull(_, cursor=""):
        return label_studio_rest.pull_pages(list_tasks(there), cursor)

    monkeypatch.setattr(LabelStudio, "pull", pull)
    there[HONEST:] = [task(n) for n in range(HONEST + 1, HONEST + SWOLLEN + 1)]
    assert ingestion.pull("label-studio", made).answers == HONEST + SWOLLEN
    there[:] = tasks("x" * (2 << 20))
    for _ in range(2):
        # They are in the tool: what was known of them counts still.
        assert ingestion.reconcile("label-studio", made).deleted == 0
        found = dead_letters(made)
        assert len(found) == SWOLLEN
        assert found[0].why == (
            f"answer {HONEST + 1}: Label Studio task: expected a task of at most 2,097,152 bytes"
        )
    release = make_release(project=made, mechanism="rr", epsilon=1, delta=1e-5, workers=1)
    assert len(lg.load(release)) == HONEST + SWOLLEN
    there[HONEST:] = []
    ingestion.reconcile("label-studio", made, accept_deletions=True)
    assert dead_letters(made) == []


_START = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n"


@dataclass
class Tool:
    """A server that takes every request, and answers with `drops` or nothing."""

    url: str
    drops: bytes
    asked: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def serve(self, listener):
        while not self.ended.is_set():
            with contextlib.suppress(OSError):
                taken, _ = listener.accept()
                threading.Thread(target=self.answer, args=(taken,), daemon=True).start()

    def answer(self, taken):
        with contextlib.suppress(OSError), taken:
            taken.recv(65_536)
            self.asked.set()
            taken.sendall(_START if self.drops else b"")
            while not self.ended.wait(0.02):
                taken.sendall(self.drops)


@pytest.fixture(params=[b"", b" "], ids=["silent", "slow"])
def tool(request):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        found = Tool(f"http://127.0.0.1:{listener.getsockname()[1]}", request.param)
        threading.Thread(target=found.serve, args=(listener,), daemon=True).start()
        yield found
        found.ended.set()


@pytest.mark.quick("slow-label-studio", "silent-argilla")
@pytest.mark.parametrize(
    "table",
    ['kind = "label-studio"\nproject = 1', 'kind = "argilla"\nworkspace = "w"\ndataset = "d"'],
    ids=["label-studio", "argilla"],
)
def test_while_a_tool_is_silent_others_work_and_then_it_is_given_up(
    tool, table, tmp_path, monkeypatch
):
    monkeypatch.setattr(http, "SECONDS", 0.7)
    monkeypatch.setenv("LABELGUARD_TOOL_API_KEY", "a-key")
    made = lg.init(tmp_path / "p")
    with (made.state / CONFIG).open("a") as file:
        file.write(f'\n[connectors.tool]\nurl = "{tool.url}"\n{table}\n')
    project: Project = find(made.state.parent)
    refused: list[str] = []

    def pull():
        with pytest.raises(ConnectorError) as error:
            ingestion.pull("tool", project)
        refused.append(str(error.value))

    reading = threading.Thread(target=pull)
    reading.start()
    assert tool.asked.wait(30)
    with OpenProject.hold_for_job(project):  # at once, or this raises `ProjectBusy`
        assert not refused
    reading.join(10)
    assert "cannot be reached (ReadTimeout)" in refused[0]
