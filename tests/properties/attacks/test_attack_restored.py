"""A restore never forgets a budget: policies of every kind are closed, lost, paid and followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import labelguard as lg
from labelguard.errors import PolicyError
from labelguard.project import policies
from labelguard.project.backup import backup
from labelguard.project.project import find
from labelguard.project.restore import restore
from labelguard.report import overview

KINDS: list[dict[str, Any]] = [
    {"unit": "item"},
    {"unit": "group"},
    {"skips": "tie"},
    {"assignment_reactive": True},
]


@pytest.mark.quick("kind0")
@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_policy_is_paid_for_whatever_its_kind(kind: dict[str, Any], tmp_path: Path) -> None:
    project = lg.init(tmp_path / "project")
    price: dict[str, Any] = {"delta": 1e-5, "allow": ["rr:labels=3"]}
    policies.new("one", epsilon=1, **price, **kind, project=project)
    policies.activate("one", project)
    made = backup(tmp_path / "backup.tar.zst", project=project)
    restore(made.path, tmp_path / "again", keys=project.keys)
    again = find(tmp_path / "again")
    assert overview.budget(again.state).lifetime.epsilon == 1
    policies.new("lost", epsilon=2, **price, **kind, project=again)
    policies.activate("lost", again)
    policies.close(again)
    assert overview.budget(again.state).lifetime.epsilon == 3
    policies.new("two", epsilon=1, **price, **kind, project=again)
    policies.activate("two", again)
    assert overview.budget(again.state).lifetime.epsilon == 4
    if "assignment_reactive" not in kind:
        return
    policies.new("three", epsilon=1, **price, project=again)
    with pytest.raises(PolicyError, match="assignment reacts"):
        policies.activate("three", again)
