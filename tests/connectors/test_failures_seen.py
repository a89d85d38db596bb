"""A release that a machine fails to make is seen: in metrics, doctor, /status and the report."""

import json
import time

import pytest
from labelguard_connectors.hook.worker import Worker
from support import tools
from support.clients import client

import labelguard as lg
from labelguard.errors import InvalidLabels
from labelguard.project import attempts, policies
from labelguard.report import doctor
from labelguard.report.page import write


def served(project):
    """What the hook's metrics say of releases, and /status."""
    with client(project, serves=False) as (tool, _):
        lines = tool.get("/metrics").text.splitlines()
        status = tool.get("/status").json()
    own = ("labelguard_releases", "labelguard_last")
    values = (line.rsplit(" ", 1) for line in lines if line.startswith(own))
    return {name: float(value) for name, value in values}, status


def test_a_failing_worker_is_seen_until_a_release_succeeds(project, tmp_path, monkeypatch):
    policies.new("clinic", project=project, epsilon=3, delta=1e-5, allow=["rr:labels=1"])
    policies.activate("clinic", project)
    table = '[hook.release]\nwhen = "every:1"\nmechanism = "rr"'
    project, desk = tools.connected(project, tmp_path, monkeypatch, table)
    tools.deliver(project, desk.answer("ann", 1, "left"))
    assert len(Worker(project).turn().releases) == 1
    good, status = served(project)
    assert set(good.values()) >= {0} and good["labelguard_last_release_timestamp"] > 1.7e9
    assert status["releases"] == "ok"

    tools.deliver(project, desk.answer("ann", 2, "left"))
    assert Worker(project).turn().failed
    bad, status = served(project)
    assert bad['labelguard_releases_failed_total{reason="budget"}'] == 1
    assert "1 attempt failed" in status["releases"]
    first = doctor.examine(project)[0]
    assert not first.ok and "lack" in first.detail
    write(tmp_path / "report.json", project=project)
    assert "Releases fail" in (tmp_path / "report.json").read_text()

    tools.deliver(project, desk.answer("bob", 3, "left"))
    lg.privatize(project=project, mechanism="rr", exhausted="drop")
    after, status = served(project)
    assert after == bad | {"labelguard_last_release_timestamp": pytest.approx(time.time(), abs=60)}
    assert status["releases"] == "ok"
    assert doctor.examine(project)[0].name != "releases"


def test_of_a_files_label_outside_the_domain_no_trace_is_kept(project):
    row = {"prompt": "p", "response_a": "a", "response_b": "b", "labeler_id": "ann"}
    with pytest.raises(InvalidLabels):
        lg.privatize([row | {"label": "neither"}], project=project, mechanism="rr", epsilon=1)
    assert attempts.read(project) == attempts.Attempts()
    with pytest.raises(InvalidLabels):
        lg.privatize([row], project=project, mechanism="rr", epsilon=1)
    kept = json.loads((project.state / attempts.FILE).read_bytes())
    assert kept["failed"] == {"input": 1}
