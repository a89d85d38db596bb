"""What may happen to the hook's worker, and to what it keeps."""

import json
import sqlite3

import pytest
from labelguard_connectors.hook.worker import Worker, release_export
from support import hooks, tools

from labelguard.answers.inbox import FILE
from labelguard.project import policies


@pytest.fixture
def connected(project, tmp_path, monkeypatch):
    policies.new("clinic", project=project, epsilon=3, delta=1e-5, allow=["rr:labels=50"])
    policies.activate("clinic", project)
    config = '[hook.release]\nwhen = "every:4"\nmechanism = "rr"\npush = true'
    return tools.connected(project, tmp_path, monkeypatch, config)


def test_an_error_that_nobody_foresaw_neither_ends_the_worker_nor_is_repeated(
    connected, monkeypatch, capfd
):
    project, desk = connected
    tools.deliver(project, *[desk.answer(f"worker {i}", i, "left") for i in range(4)])

    def stumble(*_):
        raise KeyError(hooks.LABEL)

    monkeypatch.setattr(tools.DeskConnector, "push", stumble)
    done = Worker(project).turn()
    assert (len(done.releases), done.failed) == (1, ["push desk: KeyError"])
    assert hooks.LABEL not in "".join(capfd.readouterr())


def test_the_length_of_what_waits_does_not_tell_a_label(connected):
    project, desk = connected
    record = desk.answer("worker 1", 1, "left")["record"]
    tools.deliver(project, desk.change(record, "left"), desk.change(record, "right"))
    inbox = sqlite3.connect(project.state / FILE)
    lengths = [length for (length,) in inbox.execute("SELECT length(body) FROM events")]
    inbox.close()
    assert len(lengths) == 2
    assert lengths[0] == lengths[1]


def test_an_export_that_is_released_does_not_let_the_worker_publish_again(connected):
    project, desk = connected
    tools.deliver(project, *[desk.answer(f"worker {i}", i, "left") for i in range(4)])
    assert len(Worker(project).turn().published) == 1
    desk.answer("worker 9", 9, "left")  # only in the export
    export = project.state.parent / "export.json"
    export.write_text(json.dumps([own["body"] for own in desk.records.values()]))
    assert release_export(export, None, project).where
    assert release_export(export, None, project).where is None
    assert Worker(project).turn().published == []
