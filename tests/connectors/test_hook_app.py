"""The hook's answers: 200 is on disk, and whatever is refused leaves no row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from labelguard_connectors.hook.app import application
from labelguard_connectors.hook.delivery import Hook
from labelguard_connectors.hook.limits import Limits
from labelguard_connectors.hook.serving import Serving
from starlette.testclient import TestClient
from support import hooks

from labelguard.ingest.inbox import Inbox
from labelguard.project import ingestion
from labelguard.project.opening import OpenProject
from labelguard.project.project import Project


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return hooks.project(tmp_path, monkeypatch)


@contextlib.contextmanager
def client(made: Project, limits: Limits | None = None) -> Iterator[tuple[TestClient, Inbox]]:
    """A client of the hook, and the inbox behind it."""
    opened = OpenProject.open(made)
    with contextlib.closing(ingestion.inbox_of(opened)) as inbox:
        app = application(Hook(Serving.of(made).served, inbox, limits or Limits()))
        with TestClient(app) as found:
            yield found, inbox


def test_what_is_answered_with_200_is_in_the_inbox_once(made: Project) -> None:
    with client(made) as (tool, inbox):
        for number in (1, 2, 1, 1):
            answer = tool.post("/hooks/clinic", content=hooks.body(number), headers=hooks.headers())
            assert (answer.status_code, answer.content) == (200, b"")
        assert inbox.waiting() == 2
    with client(made) as (tool, inbox):  # and after a restart
        tool.post("/hooks/clinic", content=hooks.body(1), headers=hooks.headers())
        assert inbox.waiting() == 2
        metrics = tool.get("/metrics").text
    assert "labelguard_hook_repeated_events_total 1.0" in metrics
    assert "labelguard_hook_waiting_events 2.0" in metrics
    assert hooks.stored(made) == {"a1": 1, "a2": 1}


def test_events_about_something_else_are_answered_and_not_stored(made: Project) -> None:
    with client(made) as (tool, inbox):
        answer = tool.post("/hooks/clinic", content=b'{"type": "other"}', headers=hooks.headers())
        assert (answer.status_code, answer.content) == (200, b"")
        assert inbox.waiting() == 0
