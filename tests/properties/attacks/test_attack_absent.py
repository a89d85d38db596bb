"""JSONL may leave out what is null. Whether any row has a key at all may follow from the labels.

A file without a tie, or of a labeler who skipped everything, or always chose the side that is
there, lacks a column: it decided the exit code, and the journal told whether there was a tie.
"""

import json
from typing import Any

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
