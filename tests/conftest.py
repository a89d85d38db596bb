"""Fixtures that several test files share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import databases

import labelguard
from labelguard.project.project import Project


@pytest.fixture(autouse=True)
def _no_ledger_of_yours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger that the environment names is not for tests."""
    monkeypatch.delenv("LABELGUARD_LEDGER_URL", raising=False)


@pytest.fixture(autouse=True)
def _no_projects_of_yours(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list of projects that you made is not for tests, nor are your keys."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    for name in ("LABELGUARD_KEY_FILE", "LABELGUARD_KEY_COMMAND"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A fresh project."""
    return labelguard.init(tmp_path / "project")


@pytest.fixture(params=databases.KINDS)
def ledger_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of an empty database for a ledger, on SQLite and on PostgreSQL."""
    with databases.fresh(request.param, tmp_path) as url:
        yield url


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[str]:
    """The URL of an empty PostgreSQL database."""
    with databases.fresh("postgresql", tmp_path) as url:
        yield url


@pytest.fixture
def project_on_each(ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A fresh project with its ledger on SQLite, and one with its ledger on PostgreSQL."""
    # By the test's own monkeypatch, so that what a test sets on top is undone before this.
    monkeypatch.setenv("LABELGUARD_LEDGER_URL", ledger_url)
    return labelguard.init(tmp_path / "project")
