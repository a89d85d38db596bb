"""`labelguard plan` without an input is about what was ingested, and reads no answer."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from support.tools import connected, deliver

import labelguard as lg
from labelguard.cli.main import main
from labelguard.project.ingestion import ingest

PLAN = ("plan", "--features", "length", "--epsilons", "3", "--json")


@pytest.fixture
def tool(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return connected(lg.init(tmp_path), tmp_path, monkeypatch)


def planned(*words):
    result = CliRunner().invoke(main, [*PLAN, *words])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.mark.slow
def test_what_was_ingested_is_planned_for(tool):
    project, desk = tool
    told = [desk.answer(f"labeler {n}", task, "left") for n in range(3) for task in range(12)]
    deliver(project, *told)
    ingest(project=project)
    found = planned()
    assert found["counts"] == {"labelers": 3, "labels": 36, "pairs": 12}
    assert "--source" not in json.dumps(found["recommended"])
    named = planned("--source", "desk")
    assert named["forecasts"] == found["forecasts"]
    # The same answers turned around: the same plan, and nothing of them stays open.
    deliver(project, *(desk.change(record, "right") for record in list(desk.records)))
    ingest(project=project)
    assert planned() == found
    assert not (project.state / "work").exists()


def test_without_an_input_there_has_to_be_something(tool, tmp_path, monkeypatch):
    result = CliRunner().invoke(main, PLAN)
    assert result.exit_code == 2 and "nothing was ingested" in result.output
    empty = tmp_path / "empty"
    empty.mkdir()
    monkeypatch.chdir("/")
    monkeypatch.setenv("LABELGUARD_PROJECT", str(empty))
    result = CliRunner().invoke(main, PLAN)
    assert result.exit_code == 2 and "no INPUT was given, and" in result.output
