"""Fixtures that several test files share."""

from __future__ import annotations

from pathlib import Path

import pytest

import labelguard
from labelguard.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A fresh project."""
    return labelguard.init(tmp_path / "project")
