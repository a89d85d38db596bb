"""JSONL may leave out what is null. Whether any row has a key at all may follow from the labels.

A file without a tie, or of a labeler who skipped everything, or always chose the side that is
there, lacks a column: it decided the exit code, and the journal told whether there was a tie.
"""

import json
from typing import Any

import pyarrow as pa
import pytest
from support.releases import make_release

import labelguard as lg
from labelguard.errors import LabelguardError
from labelguard.report import overview


def observe_run(home, parts, **options):
    """How a run ends, and the columns that the journal tells."""
    (home / "input").mkdir(parents=True)
    for number, rows in enumerate(parts):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (home / "input" / f"{number}.jsonl").write_text(text)
    lg.init(home)
    try:
        made = make_release(
            str(home / "input" / "*"), project=home, epsilon=3, delta=1e-5, **options
        )
    except LabelguardError as error:
        return error.exit_code, str(error).replace(str(home), "")
    journal = [entry.body.get("columns") for entry in overview.read_journal(home)]
    return 0, made.card["counts"], journal


def pair(item, **answer):
    sides = {"response_a": "yes", "response_b": "no"}
    return {"labeler_id": f"x{item % 2}", "prompt": f"question {item}", **sides, **answer}


@pytest.mark.quick("tie")
@pytest.mark.parametrize("column", ["tie", "was equal"])
def test_whether_there_is_a_tie(column, tmp_path):
    columns = {} if column == "tie" else {"tie": column}
    sound = [pair(item, label=1) for item in range(4)]
    answers: list[dict[str, Any]] = [{"label": 1}, {"label": 0.5, column: True}]
    found = [
        observe_run(tmp_path / str(n), [[*sound, pair(5, **answer)]], columns=columns)
        for n, answer in enumerate(answers)
    ]
    assert found[0] == found[1]
    assert found[0][0] == 0


@pytest.mark.slow
def test_whether_everything_was_skipped(tmp_path):
    sound = [pair(item, label=1) for item in range(4)]
    answers: list[dict[str, Any]] = [{}, {"label": 1}]
    found = [
        observe_run(tmp_path / str(n), [sound, [pair(5, **answer)]], skips="tie")
        for n, answer in enumerate(answers)
    ]
    assert found[0] == found[1]
    assert found[0][0] == 0


def observe_second_release(home, first, second, second_options, **options):
    """How the second run of a project ends, and the columns that the journal tells."""
    lg.init(home)
    try:
        for number, (rows, given) in enumerate([(first, options), (second, second_options)]):
            path = home / f"{number}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            made = make_release(str(path), project=home, epsilon=3, delta=1e-5, **given)
    except LabelguardError as error:
        return error.exit_code, str(error).replace(str(home), "")
    journal = [entry.body.get("columns") for entry in overview.read_journal(home)]
    return 0, made.card["counts"], made.card["reading"], journal


@pytest.mark.quick("label")
@pytest.mark.parametrize("role", ["label", "tie", "choice"])
def test_which_remembered_column_is_there(role, tmp_path):
    def rows(*answers, who):
        made = [{**pair(n, **a), "labeler_id": f"{who}{n % 2}"} for n, a in enumerate(answers)]
        if role == "choice":
            for row in made:
                row["responses"] = [row.pop("response_a"), row.pop("response_b")]
        return made

    was_equal: dict[str, Any] = {"was equal": True}
    column, first, week_two = {
        "label": ("vote", [{"vote": 1}] * 2, [[{}, {}], [{"vote": 0}, {}]]),
        "tie": ("was equal", [{"label": 1} | was_equal], [[{"label": 1}], [was_equal]]),
        "choice": ("choice", [{"choice": 1}] * 2, [[{}, {}], [{"choice": 2}, {}]]),
    }[role]
    coding = "first=1" if role == "choice" else "1-0"
    found = [
        observe_second_release(
            tmp_path / str(number),
            rows(*first, who="x"),
            rows(*answers, who="y"),
            {"skips": "tie", "label_values": None},
            columns={role: column},
            label_values=coding,
            skips="tie",
        )
        for number, answers in enumerate(week_two)
    ]
    assert found[0] == found[1]
    assert found[0][0] == 0


def test_whether_a_list_has_any_answer(tmp_path):
    rows = [
        {**pair(1), "annotations": [{"worker": "x", **answer}, {"worker": "y"}]}
        for answer in ({}, {"label": 1})
    ]
    for row in rows:
        del row["labeler_id"]
    found = [
        observe_run(tmp_path / str(n), [[row]], skips="tie", label_values="1-0")
        for n, row in enumerate(rows)
    ]
    assert found[0] == found[1]
    assert "a row for every person" in found[0][1]


def test_which_answer_in_a_list_is_not_a_number(tmp_path):
    found = []
    for second in (0.0, float("nan")):
        answers = [{"worker": w, "label": v} for w, v in (("x", 1.0), ("y", second))]
        row = {**pair(1), "annotations": answers}
        del row["labeler_id"]
        home = tmp_path / str(second)
        lg.init(home)
        made = make_release(
            pa.Table.from_pylist([row]),
            project=home,
            epsilon=3,
            delta=1e-5,
            skips="tie",
            label_values="1-0",
        )
        found.append(made.card["counts"])
    assert found[0] == found[1]


def test_which_side_has_no_messages(tmp_path):
    def row(item, *, first):
        sides = [[], [{"role": "assistant", "content": "no"}]]
        one, other = sides if first else sides[::-1]
        asked = {"labeler_id": f"x{item % 2}", "prompt": f"question {item}"}
        return {**asked, "chosen": one, "rejected": other}

    sound = [{"role": "assistant", "content": "yes"}]
    found = []
    for number, first in enumerate([(True, True), (True, False)]):
        rows = [row(item, first=one) for item, one in enumerate(first)]
        whole = [[{**row(7, first=True), "chosen": sound}], rows]
        found.append(observe_run(tmp_path / str(number), whole, bad_rows="quarantine"))
    assert found[0] == found[1]
    assert found[0][0] == 0


@pytest.mark.quick("score")
@pytest.mark.parametrize("role", ["prompt and side", "score"])
def test_which_side_is_there(role, tmp_path):
    def row(item, *, first, complete):
        names = ("chosen", "rejected") if first else ("rejected", "chosen")
        made: dict[str, Any] = {"labeler_id": f"x{item % 2}", "prompt": f"question {item}"}
        made |= {names[0]: "yes", f"score_{names[0]}": 1.5}
        if complete or role == "score":
            made[names[1]] = "no"
        if complete or role != "score":
            made[f"score_{names[1]}"] = item / 7
        return made

    options: dict[str, Any] = {"bad_rows": "quarantine"}
    if role == "score":
        options |= {
            "mechanism": "statistic",
            "features": "columns:score",
            "public_columns": ["score"],
            "components": 1,
        }
    sound = [row(item, first=True, complete=True) for item in range(6)]
    found = [
        observe_run(
            tmp_path / f"{first} {second}",
            [sound, [row(7, first=first, complete=False), row(8, first=second, complete=False)]],
            **options,
        )
        for first in (True, False)
        for second in (True, False)
    ]
    assert found == found[:1] * 4
    assert found[0][0] == 0
