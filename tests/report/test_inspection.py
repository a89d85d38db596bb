"""What `inspect` says of an input: what was understood, who gave labels, and never which."""

import json
import shlex
from functools import partial
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import exports, published
from support.commands import FIRST, run
from support.preferences import LAYOUTS, opinions, pairs, public

import labelguard as lg
from labelguard.errors import InvalidLabels
from labelguard.report.inspection import Bar

ASKED = public()
RANKS = opinions(len(ASKED), 1)


def said(*arguments):
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
        seen.add((said(path.name), said(path.name, "--json")))
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
        for call in (lg.inspect, partial(lg.privatize, project="study", mechanism="rr", epsilon=3)):
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
        lg.privatize(table, mechanism="rr", epsilon=3, project=study)
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
    (line,) = [one for one in said(str(path)).splitlines() if one.startswith(kind)]
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
    found = lg.inspect(path)
    project = lg.init(tmp_path / "project")
    with pytest.raises(lg.errors.InvalidLabels) as refused:
        lg.privatize(path, epsilon=3, delta=1e-5, project=project)
    assert found.problems == (str(refused.value),)
    assert found.labelers is None and found.next == () and found.labels == len(ASKED)
    assert "A release would be refused: " in said(str(path))


GIVEN = ["a", "b", "tie", "b", "a", "b"]


@pytest.mark.quick("pairs-.parquet", "hh-rlhf-.parquet", "helpsteer-.jsonl")
@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
@pytest.mark.parametrize("shape", published.SHAPES)
def test_a_valid_file_of_any_published_format_is_given_its_next_commands(shape, suffix, tmp_path):
    path = exports.write(tmp_path / f"labels{suffix}", published.SHAPES[shape].rows(GIVEN))
    found = lg.inspect(path, columns={"labeler_id": published.SHAPES[shape].labeler})
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
    found = json.loads(said(name, "--columns", "prompt=what was asked?", "--json"))
    assert [shlex.split(command)[1] for command in found["next"]] == ["plan", "init", "privatize"]
    for command in found["next"]:
        words = shlex.split(command)[1:]
        run(*words, *(FIRST if words[0] == "privatize" else ()))
    again = json.loads(said(name, "--columns", "prompt=what was asked?", "--json"))
    assert [shlex.split(command)[1] for command in again["next"]] == ["plan", "privatize"]


def test_an_export_is_shown_with_its_question(tmp_path):
    path = exports.write(tmp_path / "e.jsonl", exports.argilla_flat(exports.answers()))
    found = lg.inspect(path, question=exports.NAME)
    assert found.format == "argilla" and found.problems == ()
    assert [question.name for question in found.questions] == [exports.NAME]
    assert found.labelers is not None and found.labelers.count == 4
    assert all("--question preference" in command for command in found.next[-1:])
