"""A tool that accepts and never answers, or byte by byte, stops no other job, and not for long."""

import contextlib
import socket
import threading
from dataclasses import dataclass, field

import pytest
from labelguard_connectors import http

import labelguard as lg
from labelguard.errors import ConnectorError
from labelguard.project import ingestion
from labelguard.project.opening import OpenProject
from labelguard.project.project import CONFIG, Project, find

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
    with OpenProject.job(project):  # at once, or this raises `ProjectBusy`
        assert not refused
    reading.join(10)
    assert "cannot be reached (ReadTimeout)" in refused[0]
