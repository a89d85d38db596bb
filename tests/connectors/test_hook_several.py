"""One server for several projects: what opens one never opens another, and nothing is mixed up."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys

import httpx2
import pytest
from labelguard_connectors.hook import server
from labelguard_connectors.hook.app import application
from labelguard_connectors.hook.delivery import Hook
from labelguard_connectors.hook.limits import Limits
from labelguard_connectors.hook.served import ServedProject
from labelguard_connectors.hook.serving import Endpoints
from starlette.testclient import TestClient
from support import hooks
from support.pages import DOCS

from labelguard.errors import ConnectorError, LabelguardError
from labelguard.project.opening import OpenProject
from labelguard.project.project import CONFIG, find

_STANDING = re.compile(r'"project": "(\w+)", .*"event": "release status"')
SECRETS = {"clinic": "of-the-clinic-and-long-enough", "survey": "of-the-survey-and-long-enough"}


@pytest.fixture
def projects(tmp_path, monkeypatch):
    """Two projects in directories of their own, each with a connector called after it."""
    made = {}
    for name, secret in SECRETS.items():
        (tmp_path / "made" / name).mkdir(parents=True)
        hooks.project(tmp_path / "made" / name, monkeypatch, name=name)
        (tmp_path / "made" / name / "project").rename(tmp_path / name)
        monkeypatch.setenv(f"LABELGUARD_{name.upper()}_HOOK_SECRET", secret)
        made[name] = find(tmp_path / name)
    return made


@pytest.fixture
def client(projects):
    with contextlib.ExitStack() as stack:
        served = {}
        for name, made in projects.items():
            inbox = stack.enter_context(
                contextlib.closing(OpenProject.open(made).answers.open_inbox())
            )
            endpoints = Endpoints.of(made).served
            served[name] = Hook(endpoints, inbox, Limits(), ServedProject(made))
        yield stack.enter_context(TestClient(application(served)))


def deliver(client, path, secret, number=1):
    answer = client.post(path, content=hooks.body(number), headers=hooks.headers(secret))
    return answer.status_code


def test_a_delivery_is_in_the_inbox_of_its_project_alone(client, projects):
    for number, (name, secret) in enumerate(SECRETS.items()):
        assert deliver(client, f"/hooks/{name}/{name}", secret, number) == 200
    assert [hooks.stored(made) for made in projects.values()] == [{"a0": 1}, {"a1": 1}]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/hooks/survey/survey", 401),
        ("/hooks/survey/clinic", 404),
        ("/hooks/clinic/survey", 404),
        ("/hooks/clinic", 404),
        ("/hooks/clinic/", 404),
        ("/hooks//clinic", 404),
        ("/hooks/nobody/clinic", 404),
        ("/hooks/clinic/clinic/", 404),
        ("/hooks/survey/%2e%2e/clinic/clinic", 404),
        ("/hooks/clinic%2Fclinic", 200),
        ("/clinic/hooks/clinic", 404),
    ],
)
def test_the_secret_of_one_project_opens_no_other(path, status, client, projects):
    assert deliver(client, path, SECRETS["clinic"]) == status
    assert hooks.stored(projects["survey"]) == {}
    assert hooks.stored(projects["clinic"]) == ({"a1": 1} if status == 200 else {})


def test_what_is_watched_is_told_by_project(client):
    for number in range(3):
        deliver(client, "/hooks/clinic/clinic", SECRETS["clinic"], number)
    deliver(client, "/hooks/survey/survey", "a wrong secret, and a long one")
    assert client.get("/readyz").status_code == client.get("/healthz").status_code == 200
    status = client.get("/status").json()
    assert {name: one["waiting_events"] for name, one in status.items()} == {
        "clinic": 3,
        "survey": 0,
    }
    page = client.get("/metrics").text
    assert 'labelguard_hook_events_total{project="clinic"} 3.0' in page
    assert 'deliveries_total{connector="survey",project="survey",status="401"} 1.0' in page
    families = re.findall(r"(?m)^# TYPE (\S+)", page)
    assert len(families) == len(set(families)) > 10
    assert "/hooks/{project}/{connector}" in client.get("/openapi.json").json()["paths"]


def test_a_secret_that_two_projects_share_is_refused_and_not_shown(projects, monkeypatch):
    monkeypatch.setenv("LABELGUARD_SURVEY_HOOK_SECRET", f"{'x' * 20} {SECRETS['clinic']}")
    with pytest.raises(ConnectorError, match="survey has a secret of clinic as well") as error:
        server.serve(*projects.values(), port=0)
    assert SECRETS["clinic"] not in str(error.value)


@pytest.mark.parametrize("again", ["same", "link", "state", "another of this name", "odd name"])
def test_projects_that_cannot_be_told_apart_are_refused(again, projects, tmp_path):
    clinic = tmp_path / "clinic"
    other = {
        "same": clinic,
        "link": tmp_path / "link",
        "state": clinic / ".labelguard",
        "another of this name": tmp_path / "elsewhere" / "clinic",
        "odd name": tmp_path / "a b",
    }[again]
    if again == "link":
        other.symlink_to(clinic)
    elif not other.exists():
        other.parent.mkdir(exist_ok=True)
        (tmp_path / "survey").rename(other)
    with pytest.raises(ConnectorError, match=r"two projects are called|cannot stand in an address"):
        server.serve(clinic, other, port=0)


def test_a_ledger_of_one_project_serves_no_other(projects, tmp_path, monkeypatch):
    monkeypatch.setenv("LABELGUARD_LEDGER_URL", f"sqlite:///{tmp_path / 'shared.sqlite3'}")
    with pytest.raises(LabelguardError):
        server.serve(*projects.values(), port=0)


def test_a_secret_file_that_is_empty_is_said_of_every_project(projects, tmp_path, monkeypatch):
    (tmp_path / "secret").touch(mode=0o600)
    for name in SECRETS:
        monkeypatch.delenv(f"LABELGUARD_{name.upper()}_HOOK_SECRET")
        monkeypatch.setenv(f"LABELGUARD_{name.upper()}_HOOK_SECRET_FILE", str(tmp_path / "secret"))
    with pytest.raises(ConnectorError, match=r"^clinic: .* hook_secret is empty: .*; survey: .*"):
        server.serve(*projects.values(), port=0)


def test_settings_that_cannot_be_are_said_of_their_project(projects):
    with (projects["survey"].state / CONFIG).open("a") as file:
        file.write('\n[hook.release]\nmechanism = "magic"\n')
    opened = [find(made.state.parent) for made in projects.values()]
    with pytest.raises(ConnectorError, match=r"^survey: .*mechanism: expected one of"):
        server.serve(*opened, port=0, worker=["true"])


def test_the_command_of_the_page_serves_both_with_a_worker_each(projects, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "connectors.md").read_text(encoding="utf-8")
    [line] = re.findall(r"(?m)^labelguard (serve --project .*)$", page)
    command = [sys.executable, "-m", "labelguard", *shlex.split(line), "--port", "0", "--json"]
    started = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    with started as process:
        assert process.stderr and process.stdout
        lines, standing = [], set[str]()
        for text in process.stderr:
            lines.append(text)
            standing |= set(_STANDING.findall(text))
            if len(standing) == 2 and any("startup complete" in line for line in lines):
                break
        [address] = re.findall(r"http://127\.0\.0\.1:\d+", "".join(lines))
        for name, secret in SECRETS.items():
            answer = httpx2.post(
                f"{address}/hooks/{name}/{name}",
                content=hooks.body(1),
                headers=hooks.headers(secret),
            )
            assert answer.status_code == 200
        process.terminate()
        summary = json.loads(process.stdout.read())
        rest = process.stderr.read()
    assert standing == {"clinic", "survey"}  # without a policy, and each by its name
    assert summary["connectors"] == ["clinic/clinic", "survey/survey"]
    assert (summary["deliveries"], summary["events"], started.returncode) == (2, 2, 0)
    assert not any(secret in "".join(lines) + rest for secret in SECRETS.values())
