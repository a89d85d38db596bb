"""Whoever answers in a tool, replays what it told, or swaps sealed files resets nothing."""

from __future__ import annotations

import shutil
import time
from typing import Any

import pytest
from support.tools import connected, deliver

import labelguard as lg
from labelguard.answers.segments import Segments
from labelguard.errors import InvalidLabels, ProjectError
from labelguard.ledger import segmentbook
from labelguard.project import erasure, ingestion
from labelguard.project.opening import OpenProject
from labelguard.report import overview

HALF: dict[str, Any] = {"mechanism": "rr", "epsilon": 1.0, "delta": 1e-5, "workers": 1}
HALF |= {"uses": 2}


@pytest.fixture
def tool(tmp_path, monkeypatch):
    return connected(lg.init(tmp_path / "p"), tmp_path, monkeypatch)


def values(project):
    """What was released last: rows without their ids."""
    found = lg.load(lg.privatize(project=project, **HALF))
    return sorted(found.select("prompt", "chosen").iter_rows())


def uses(project, who):
    """How many uses a labeler was charged."""
    opened = OpenProject.open(project)
    table = opened.ledger.releases.labelers("rr")
    return int(table.of(opened.keys.labeler_keys("desk", [who]))[1][0])


@pytest.mark.quick("changed")
@pytest.mark.parametrize("again", ["changed", "deleted and recreated", "skipped and unskipped"])
def test_answering_again_draws_no_new_coin(again, tool):
    project, desk = tool
    for task in range(30):
        deliver(project, desk.answer("maria", task, "left"))
    ingestion.ingest(project)
    before = values(project)
    spent = uses(project, "maria")
    for number in range(1, 31):
        if again == "changed":
            deliver(project, desk.change(str(number), "left"))
        elif again == "deleted and recreated":
            deliver(project, desk.delete(str(number)), desk.answer("maria", number - 1, "left"))
        else:
            deliver(project, desk.change(str(number), None), desk.change(str(number), "left"))
    deliver(project, desk.answer("otto", 99, "left"))
    ingestion.ingest(project)
    after = values(project)
    assert [row for row in after if row[0] != "prompt 99"] == before
    assert uses(project, "maria") == spent == 1


def test_an_old_event_that_comes_again_turns_nothing_back(tool, monkeypatch):
    project, desk = tool
    first = desk.answer("maria", 1, "left")
    deliver(project, first)
    ingestion.ingest(project)
    skipped = desk.change("1", None)
    deliver(project, skipped)
    ingestion.ingest(project)
    assert deliver(project, first) == 0
    # A week later it is no longer known as a delivery: its version tells.
    week = time.time() + 8 * 86_400
    monkeypatch.setattr(time, "time", lambda: week)
    ingestion.ingest(project)
    assert deliver(project, first) == 1
    assert ingestion.ingest(project).known == 1
    with pytest.raises(InvalidLabels, match="answers of desk: no control tag was answered"):
        lg.privatize(project=project, **HALF)


def test_a_segment_of_another_project_or_from_before_an_erasure_is_refused(tool, tmp_path):
    project, desk = tool
    deliver(project, *(desk.answer(who, 1, "left") for who in ("maria", "otto")))
    ingestion.ingest(project)
    [path] = project.labels.iterdir()
    before = tmp_path / "before"
    shutil.copy(path, before)
    erasure.remove_labeler("desk:maria", "erased", project)
    shutil.copy(before, path)  # whoever kept a copy puts Maria's labels back
    assert "not the one that the ledger lists" in (overview.verify(project).fault or "")
    with pytest.raises(ProjectError, match="not the one that the ledger lists"):
        lg.privatize(project=project, **HALF)


def test_tables_cannot_change_places_within_or_between_segments(tool):
    project, desk = tool
    for task in range(2):
        deliver(project, desk.answer(f"worker {task}", task, "left"))
        ingestion.ingest(project)
    opened = OpenProject.open(project)
    held = Segments(project.labels, opened.keys)
    with opened.ledger.snapshot() as connection:
        one, other = segmentbook.records(connection)
    shutil.copy(project.labels / f"{one.name}.segment", project.labels / f"{other.name}.segment")
    with pytest.raises(ProjectError, match="not the one"):
        held.read(other)


def test_the_size_of_a_segment_does_not_follow_its_labels(tool):
    project, desk = tool
    for task in range(40):
        desk.answer("maria", task, "left" if task % 3 else "right")
    ingestion.pull("desk", project)
    for task in range(40):  # the same pairs; what is said of them compresses otherwise
        desk.answer("otto", task, "left")
    ingestion.pull("desk", project)
    sizes = {path.stat().st_size for path in project.labels.iterdir()}
    assert len(sizes) == 1
