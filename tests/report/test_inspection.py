"""What `inspect` says of an input: what was understood, who gave labels, and never which."""

import json
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import exports, published, tools
from support.codings import choose_coding
from support.commands import FIRST, run
from support.preferences import LAYOUTS, opinions, pairs, public
from support.releases import make_release
from support.tools import connected

import labelguard as lg
from labelguard.errors import InvalidLabels
from labelguard.project import ingestion
from labelguard.project.project import CONFIG, find
from labelguard.report.doctor import check_connector, check_installation
from labelguard.report.inspection import Bar

ASKED = public()
RANKS = opinions(len(ASKED), 1)


def inspect(*arguments):
    return run("inspect", *arguments).output


@pytest.mark.quick("pairs-.parquet", "chosen-.jsonl")
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_labels_and_the_order_of_rows_do_not_matter(layout, suffix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path(f"labels{suffix}")
    seen = set()
    for seed in (1, 2):
        table = LAYOUTS[layout](ASKED, opinions(len(ASKED), seed))
        rows = pl.DataFrame(table).sample(fraction=1, shuffle=True, seed=seed)
        exports.write(path, rows.to_dicts())
        seen.add((inspect(path.name), inspect(path.name, "--json")))
    assert len(seen) == 1
    ((text, _),) = seen
    assert "labelguard privatize" in text


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_a_column_declared_public_is_there_and_tells_no_label(suffix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    labels = pairs(ASKED, RANKS)
    models = [["small"] * len(labels)] * 2
    for end, column in zip(("_a", "_b"), models, strict=True):
        labels = labels.append_column("model" + end, [column])
    path = exports.write(tmp_path / f"labels{suffix}", labels.to_pylist())
    lg.init("study")
    told = {"modell": r"no column modell \(did you mean 'model'", "label": "column label tells"}
    for name, message in told.items():
        for call in (lg.inspect, partial(make_release, project="study", mechanism="rr", epsilon=3)):
            with pytest.raises(InvalidLabels, match=message):
                call(path, public_columns=[name])
    for name in ("model", "model_a"):
        assert lg.inspect(path, public_columns=[name]).labels == len(ASKED)
    battles = pa.Table.from_pylist(published.SHAPES["votes"].rows(["a", "b"]))
    sides = pa.Table.from_pylist(published.SHAPES["mixed"].rows(["a", "b"]))
    for table, name in ((battles, "winner"), (sides, "chosen")):
        with pytest.raises(InvalidLabels, match=f"column {name} tells labels"):
            lg.inspect(table, public_columns=[name])


def test_two_spellings_of_one_labeler_are_told_as_a_release_refuses_them(tmp_path):
    rows = pairs(ASKED, RANKS).to_pylist()
    rows = [row | {"labeler_id": f"JUDGE_{row['labeler_id']}"} for row in rows]
    assert not lg.inspect(pa.Table.from_pylist(rows)).notes
    rows[0]["labeler_id"] = rows[0]["labeler_id"].lower()
    table, study = pa.Table.from_pylist(rows), lg.init(tmp_path / "study")
    with pytest.raises(InvalidLabels, match="differ only in how they are written") as refused:
        make_release(table, mechanism="rr", epsilon=3, project=study)
    assert lg.inspect(table).notes == (f"a release refuses this: {refused.value}",)


def test_what_can_be_counted_is_counted():
    table = pa.concat_tables([pairs(ASKED, RANKS), pairs(ASKED, RANKS).slice(0, 3)])
    rows = table.to_pylist()
    rows += [rows[0] | {"prompt": None}, rows[0] | {"response_b": rows[0]["response_a"]}]
    rows += [rows[0] | {"labeler_id": " "}] * 2
    found = lg.inspect(pa.Table.from_pylist(rows))
    assert (found.rows, found.bad_rows, found.identical_sides) == (len(rows), 3, 1)
    assert str(found.bad_row_reason).startswith("column labeler_id: expected an id")
    assert (found.repeated, found.labels) == (3, len(ASKED))
    assert found.pairs == len(set(ASKED.item.tolist()))
    assert found.labelers is not None
    assert (found.labelers.count, found.labelers.least, found.labelers.most) == (7, 12, 12)
    assert found.labelers.histogram == (Bar(8, 15, 7),)
    assert len(found.examples) == 3


@pytest.mark.parametrize("role", ["choice", "ranks"])
@pytest.mark.parametrize("named", [True, False])
def test_a_choice_or_ranking_is_one_answer_however_many_pairs_it_compares(role, named, tmp_path):
    answer = {"choice": 1, "ranks": [2, 1, 3, 4]}[role]
    who = [{"labeler_id": f"w{n % 2}"} if named else {} for n in range(6)]
    rows = [
        {"prompt": f"p{n}", "responses": ["a", "b", "c", "d"], role: answer} | who[n]
        for n in range(6)
    ]
    path = exports.write(tmp_path / "labels.jsonl", rows)
    found = lg.inspect(path)
    assert (found.rows, found.labels, found.comparisons, found.pairs) == (6, 6, 36, 36)
    assert not named or (found.labelers and found.labelers.most == 3)
    kind = {"choice": "choices", "ranks": "rankings"}[role]
    (line,) = [one for one in inspect(str(path)).splitlines() if one.startswith(kind)]
    assert line.split(maxsplit=1)[1] == "6 (36 pairs) of 36 distinct pairs"


def test_columns_of_labels_are_named_but_not_read():
    table = pairs(ASKED, RANKS).rename_columns({"label": "verdict", "prompt": "task"})
    columns = {"label": "verdict", "prompt": "task"}
    found = lg.inspect(table, columns=columns)
    roles = {role.role: (role.column, role.read) for role in found.roles}
    assert roles["prompt"] == ("task", True) and roles["label"] == ("verdict", False)
    assert found.format == "pairs"


def test_without_labelers_the_rest_is_shown_with_what_privatize_would_say(tmp_path):
    path = tmp_path / "labels.parquet"
    pq.write_table(pairs(ASKED, RANKS, labelers=False), path)
    found = lg.inspect(path, label_values=choose_coding(path))
    project = lg.init(tmp_path / "project")
    with pytest.raises(lg.errors.InvalidLabels) as refused:
        make_release(path, epsilon=3, delta=1e-5, project=project)
    assert found.problems == (str(refused.value),)
    assert found.labelers is None and found.next == () and found.labels == len(ASKED)
    assert "A release would be refused: " in inspect(str(path))


GIVEN = ["a", "b", "tie", "b", "a", "b"]


@pytest.mark.quick("pairs-.parquet", "hh-rlhf-.parquet", "helpsteer-.jsonl")
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@pytest.mark.parametrize("shape", published.SHAPES)
def test_a_valid_file_of_any_published_format_is_given_its_next_commands(shape, suffix, tmp_path):
    path = exports.write(tmp_path / f"labels{suffix}", published.SHAPES[shape].rows(GIVEN))
    columns = {"labeler_id": published.SHAPES[shape].labeler}
    options = {"columns": columns, "label_values": choose_coding(path)}
    if shape == "binarized":  # `messages` is the dialogue with the preferred response
        [problem] = lg.inspect(path, **options).problems
        assert "--ignore-columns messages" in problem and "prompt=messages" not in problem
        options["ignore_columns"] = ["messages"]
    found = lg.inspect(path, **options)
    assert found.format == published.SHAPES[shape].format
    assert found.problems == () and found.next != ()


@pytest.mark.slow
def test_the_commands_it_names_run_as_they_stand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [row | {"labeler_id": f"{row['labeler_id']}'s"} for row in exports.answers()]
    rows += [rows[0] | {"prompt": None}]
    table = pa.Table.from_pylist(rows).rename_columns({"prompt": "what was asked?"})
    name = "labels of 'ours' $HOME.parquet"
    pq.write_table(table, name)
    found = json.loads(inspect(name, "--columns", "prompt=what was asked?", "--json"))
    assert [shlex.split(command)[1] for command in found["next"]] == ["plan", "init", "privatize"]
    for command in found["next"]:
        words = shlex.split(command)[1:]
        run(*words, *(FIRST if words[0] == "privatize" else ()))
    again = json.loads(inspect(name, "--columns", "prompt=what was asked?", "--json"))
    assert [shlex.split(command)[1] for command in again["next"]] == ["plan", "privatize"]


def test_an_export_is_shown_with_its_question(tmp_path):
    path = exports.write(tmp_path / "e.jsonl", exports.argilla_flat(exports.answers()))
    found = lg.inspect(path, question=exports.NAME)
    assert found.format == "argilla" and found.problems == ()
    assert [question.name for question in found.questions] == [exports.NAME]
    assert found.labelers is not None and found.labelers.count == 4
    assert all("--question preference" in command for command in found.next[-1:])


# `connect check` shows what was compared, and nothing of what was answered.

_DESK = "[connectors.desk]"


@pytest.fixture
def tool(tmp_path, monkeypatch):
    return connected(lg.init(tmp_path / "p"), tmp_path, monkeypatch)


def check_tool(project, *options):
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
    shown = check_tool(project)
    for part in ("desk (desk)", "a desk", "9 comparisons, 1 skipped in 10 answers", "(hidden)"):
        assert part in shown
    assert json.loads(check_tool(project, "--json"))["answers"] == 10


def test_ground_truths_are_counted_with_what_to_do(tool):
    project, desk = tool
    for task in range(3):
        desk.mark_truth(desk.answer("maria", task, "left")["record"])
    found = check_connector("desk", project)
    assert (found.left_out, found.comparisons) == ({"ground truth": 3}, [])
    assert '"ground_truth": false' in " ".join(check_tool(project).split())


def test_the_same_is_shown_whatever_was_answered(tool):
    project, desk = tool
    worlds = []
    for side in ("left", "right"):
        desk.records.clear()
        desk.clock = desk.last = 0
        for task in range(5):
            desk.answer("maria", task, side, harmless=side)
        worlds.append((check_tool(_asking(project)), check_tool(project, "--json")))
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
    project = find(project.state.parent)
    hidden: dict[str, Any] = {"skips": "tie", "mechanism": "rr", "accept_delta": True}
    worlds = []
    desk.answer("maria", 1, "left")
    desk.answer("maria", 2, "left")
    ingestion.pull("desk", project)
    make_release(project=project, **hidden)
    for side in ("left", None):
        desk.change("1", side)
        worlds.append(check_tool(project, "--json"))
    assert worlds[0] == worlds[1]
    assert json.loads(worlds[0])["skipped"] == 0


def test_before_the_first_answer_it_says_so_and_is_no_failure(tool):
    project, _ = tool
    shown = run("connect", "check", "desk", project=project)
    assert shown.exit_code == 0
    assert "holds no answers yet" in " ".join(shown.output.split())
    assert (
        json.loads(run("connect", "check", "desk", "--json", project=project).output)["answers"]
        == 0
    )


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
    names = ("ledger", "private maps", "sources", "ingested answers", "deliveries", "budget")
    assert found == dict.fromkeys(names, "not checked: see keys")
