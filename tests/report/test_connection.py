"""`connect check` shows what was compared, and nothing of what was answered."""

import json
from typing import Any

import pytest
from support import tools
from support.commands import run
from support.tools import connected

import labelguard as lg
from labelguard.errors import InvalidLabels
from labelguard.project import ingestion
from labelguard.project.project import CONFIG, find
from labelguard.report.doctor import check_connector, check_installation

_DESK = "[connectors.desk]"


@pytest.fixture
def tool(tmp_path, monkeypatch):
    return connected(lg.init(tmp_path / "p"), tmp_path, monkeypatch)


def said(project, *options):
    return run("connect", "check", "desk", *options, project=project).output


def test_it_shows_ten_answers_and_stores_nothing(tool):
    project, desk = tool
    for task in range(12):
        desk.answer("maria", task, None if task == 3 else "left")
    found = check_connector("desk", project)
    assert (found.answers, found.skipped, len(found.comparisons)) == (10, 1, 9)
    first = found.comparisons[0]
    assert (first.labeler, first.prompt) == ("maria", "prompt 0")
    assert (first.responses, first.fault) == (["left 0", "right 0"], None)
    assert not project.labels.exists()
    shown = said(project)
    for part in ("desk (desk)", "a desk", "9 comparisons, 1 skipped in 10 answers", "(hidden)"):
        assert part in shown
    assert json.loads(said(project, "--json"))["answers"] == 10


def test_ground_truths_are_counted_with_what_to_do(tool):
    project, desk = tool
    for task in range(3):
        desk.mark_truth(desk.answer("maria", task, "left")["record"])
    found = check_connector("desk", project)
    assert (found.left_out, found.comparisons) == ({"ground truth": 3}, [])
    assert '"ground_truth": false' in " ".join(said(project).split())


def test_the_same_is_shown_whatever_was_answered(tool):
    project, desk = tool
    worlds = []
    for side in ("left", "right"):
        desk.records.clear()
        desk.clock = desk.last = 0
        for task in range(5):
            desk.answer("maria", task, side, harmless=side)
        worlds.append((said(_asking(project)), said(project, "--json")))
    assert worlds[0] == worlds[1]


def _asking(project):
    """The project, whose connector reads one of two questions."""
    path = project.state / CONFIG
    text = path.read_text()
    if "question" not in text:
        path.write_text(text.replace(_DESK, f'{_DESK}\nquestion = "helpful"'))
    return find(project.state.parent)


def test_where_skips_are_hidden_among_ties_none_is_counted(tool):
    project, desk = tool
    project = _asking(project)
    path = project.state / CONFIG
    columns = 'response_a = "answer1"\nresponse_b = "answer2"'
    path.write_text(f"{path.read_text()}\n[connectors.desk.columns]\n{columns}\n")
    hidden: dict[str, Any] = {"skips": "tie", "mechanism": "rr", "accept_delta": True}
    worlds = []
    desk.answer("maria", 1, "left")
    desk.answer("maria", 2, "left")
    ingestion.pull("desk", project)
    lg.privatize(project=find(project.state.parent), **hidden)
    for side in ("left", None):
        desk.change("1", side)
        worlds.append(said(project, "--json"))
    assert worlds[0] == worlds[1]
    assert json.loads(worlds[0])["skipped"] == 0


def test_before_the_first_answer_it_says_so_and_is_no_failure(tool):
    project, _ = tool
    shown = run("connect", "check", "desk", project=project)
    assert shown.exit_code == 0
    assert "holds no answers yet" in " ".join(shown.output.split())
    assert json.loads(said(project, "--json"))["answers"] == 0


def test_what_the_tool_does_not_ask_is_said_before_the_first_answer(tool, monkeypatch):
    project, _ = tool
    about = {"questions": "harmless (label_selection), honest (label_selection)"}
    monkeypatch.setattr(tools.DeskConnector, "about", lambda desk: about)
    with pytest.raises(InvalidLabels, match=r'the tool asks no "helpful"; it asks: harmless'):
        check_connector("desk", _asking(project))


def test_tasks_that_cannot_be_read_are_said(tool):
    project, desk = tool
    desk.answer("maria", 1, "left", harmless="right")
    with pytest.raises(InvalidLabels, match="question"):
        check_connector("desk", project)


def test_what_it_notes_does_not_depend_on_what_was_answered(tool):
    project, desk = tool
    record = desk.answer("maria", 1, "left")["record"]
    before = check_connector("desk", project)
    desk.change(record, "yes")
    assert check_connector("desk", project) == before
    assert "--label-values" in before.notes[-1]


# The doctor tells each fault once.


def test_one_fault_is_told_once(used_project):
    assert all(one.ok for one in check_installation(used_project))
    (used_project.keys / "project.key").unlink()
    found = {one.name: one.detail for one in check_installation(used_project) if not one.ok}
    assert "project.key" in found.pop("keys")
    names = ("ledger", "private maps", "ingested answers", "deliveries", "budget")
    assert found == dict.fromkeys(names, "not checked: see keys")
