"""A restore never forgets a budget: policies of every kind can be lost, paid for and followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import labelguard as lg
from labelguard.errors import PolicyError
from labelguard.project import policies
from labelguard.project.backup import backup
from labelguard.project.project import find
from labelguard.project.restore import parse_since, restore
from labelguard.report import overview

KINDS: list[dict[str, Any]] = [
    {"unit": "item"},
    {"unit": "item", "ties": "ternary"},
    {"unit": "group"},
    {"skips": "tie"},
    {"assignment_reactive": True},
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_policy_is_paid_for_whatever_its_kind(kind: dict[str, Any], tmp_path: Path) -> None:
    """Contents as units could not be restored but by the word that no policy was lost."""
    project = lg.init(tmp_path / "project")
    price: dict[str, Any] = {"epsilon": 1, "delta": 1e-5, "allow": ["rr:labels=3"]}
    policies.new("one", **price, **kind, project=project)
    policies.activate("one", project)
    made = backup(tmp_path / "backup.tar.zst", project=project)
    since = parse_since(None, ["2,1e-5"], False)
    restore(made.path, tmp_path / "again", since=since, keys=project.keys)
    again = find(tmp_path / "again")
    assert overview.budget(again.state).lifetime.epsilon == 3
    policies.new("two", **price, **kind, project=again)
    policies.activate("two", again)
    assert overview.budget(again.state).lifetime.epsilon == 4
    if "assignment_reactive" not in kind:
        return
    policies.new("three", **price, project=again)
    with pytest.raises(PolicyError, match="assignment reacts"):
        policies.activate("three", again)
