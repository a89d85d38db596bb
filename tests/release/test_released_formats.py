"""Releases of published formats: what is said of them, who is charged, what is set aside."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support.published import SHAPES, as_table

import labelguard
from labelguard.cli.main import main
from labelguard.errors import InvalidLabels
from labelguard.inputs.pairs import read_pairs
from labelguard.project.erasure import remove_labeler

CHOSEN = ("chosen", "rejected")
WANTED = ["a", "b", "tie", "b", "a", "b"]


def release(project, rows, **options):
    return labelguard.privatize(as_table(rows), project=project, epsilon=3, delta=1e-5, **options)


def arena_rows():
    return SHAPES["arena"].rows(WANTED)


def test_labels_that_a_format_reads_are_those_of_plain_pairs(project):
    """A file of scores, and the same labels as plain pairs, buy the same coins once."""
    assert release(project, SHAPES["scores"].rows(WANTED)).card["counts"]["rows"] == 6
    again = release(project, SHAPES["pairs"].rows(WANTED))
    assert again.reused or again.card["counts"]["charged"] == 0


def test_the_battles_of_the_page_are_read_as_it_says(tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
    (battle,) = re.findall(r"```csv\n(.*?)```", page, re.DOTALL)
    (command,) = re.findall(r"\$ labelguard (privatize arena_rows.csv .*)", page)
    monkeypatch.chdir(tmp_path)
    Path("arena_rows.csv").write_text(battle, encoding="utf-8")
    labelguard.init()
    done = CliRunner().invoke(main, [*command.split(), "--accept-little-use", "--json"])
    assert done.exit_code == 0, done.output
    rows = labelguard.load(json.loads(done.stdout)["path"], "polars")
    first = {row["prompt"][0]["content"]: row for row in rows.to_dicts()}
    assert set(first) == {"Name a prime.", "Is it late?", "Say hello."}
    said = {side[0]["content"]: side for side in (first["Name a prime."][s] for s in CHOSEN)}
    assert [m["content"] for m in said["9."]] == ["9.", "Another?", "Sorry, 7."]
    features = {"features": "source:model", "public_columns": ["model"], "unit": "item"}
    assert read_pairs("arena_rows.csv", **features).table["source_model_first"][0].as_py() == "small"


def test_values_of_labels_that_a_format_fixes_cannot_be_named(project):
    with pytest.raises(InvalidLabels, match=r"arena.*--label-values"):
        release(project, arena_rows(), label_values="a=model_a,b=model_b")
    release(project, SHAPES["pairs"].rows(["a", "b"]), label_values="A=1,B=0,tie=0.5")


def test_bad_battles_are_set_aside_and_leave_with_their_judge(project):
    bad = [row | {"tstamp": "yesterday"} if n == 1 else row for n, row in enumerate(arena_rows())]
    rows = [row | {"tstamp": str(row["tstamp"])} for row in bad]
    with pytest.raises(InvalidLabels, match="table row 2: column tstamp: expected a time"):
        release(project, rows)
    made = release(project, rows, bad_rows="quarantine")
    (aside,) = (project.quarantine / made.id).iterdir()
    assert pq.read_table(aside)["judge"].to_pylist() == ["w1"]
    remove_labeler("w1", "erased", project)
    assert not aside.exists()


def test_a_flagged_tie_is_a_tie_whatever_fills_the_label(project):
    rows = [row | {"tie": n % 2 == 0} for n, row in enumerate(SHAPES["pairs"].rows(["a"] * 6))]
    flipped = [row | {"label": 0} if row["tie"] else row for row in rows]
    options = {"ties": "drop", "tie_status_public": True}
    made = release(project, rows, **options)
    assert release(project, flipped, **options).reused
    assert made.card["counts"]["rows"] == 3
