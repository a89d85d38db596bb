"""Staged rows have one order, whatever order the input came in.

Every table here is full of rows that are equal in much or all of what is public of them.
"""

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from labelguard.inputs import staged
from labelguard.inputs.columns import Reading
from labelguard.inputs.groups import read_groups
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.keys.keyring import KeyRing
from labelguard.learning.columns import FeatureColumn
from labelguard.storage import buckets as segments

ROWS = 150
COLUMNS: dict[str, tuple[str, ...]] = {
    "nothing": (),
    "times": ("submitted_at",),
    "records": ("record_id",),
    "given ids": ("item_id",),
    "rankings": ("ranking_id",),
    "scores": ("score_a", "score_b"),
    "questions": ("question",),
    "everything": ("submitted_at", "record_id", "item_id", "ranking_id", "score_a", "score_b"),
}


def export(columns, seed=0):
    """Labels of few labelers on few pairs, again and again."""
    rng = np.random.default_rng(seed)
    item = rng.integers(0, 4, ROWS)
    table: dict[str, Any] = {
        "labeler_id": rng.integers(0, 3, ROWS).astype(str),
        "prompt": [f"question {i}" for i in item],
        "response_a": ["yes"] * ROWS,
        "response_b": [f"no {i % 2}" for i in item],
        "label": rng.choice([0, 0.5, 1], ROWS),
    }
    for name in columns:
        table[name] = rng.integers(0, 2, ROWS)
    if "submitted_at" in columns:
        table["submitted_at"] = pa.array(table["submitted_at"], mask=rng.random(ROWS) < 0.2)
    return pa.table(table)


def ranked(seed=0):
    rng = np.random.default_rng(seed)
    item = rng.integers(0, 3, ROWS)
    table = {
        "labeler_id": rng.integers(0, 3, ROWS).astype(str),
        "prompt": [f"question {i}" for i in item],
        "responses": [list(rng.permutation([f"one {i}", "two", "three"])) for i in item],
        "ranks": rng.integers(1, 3, (ROWS, 3)).tolist(),
    }
    return pa.table(table)


def staged_rows(table, directory, unit="labeler"):
    """What is kept of every row, in order, but its running number in the input."""
    ring = KeyRing.public()
    names = table.column_names
    columns = {"question": "question"} if "question" in names else {}
    scores = (FeatureColumn("score"),) if "score_a" in names else ()
    reading = Reading(columns, unit, scores, public_columns=("score",))
    members = pa.table({"labeler_id": ["0", "2"], "group_id": ["g", "g"]})
    groups = read_groups(members, ring, "")[0] if unit == "group" else None
    staged = stage(table, directory, ring, StagingOptions(reading, "", groups=groups))
    buckets = [segments.read_bucket(staged.rows_directory, n) for n in range(segments.BUCKETS)]
    return [row for one in buckets if one is not None for row in one.drop("row").to_pylist()]


def shuffles(table):
    """The table in other orders, sorted by its labels among them."""
    rng = np.random.default_rng(1)
    label = "ranks" if "ranks" in table.column_names else "label"
    by_label = sorted(range(len(table)), key=table[label].to_pylist().__getitem__)
    orders = [by_label, by_label[::-1], rng.permutation(len(table)), rng.permutation(len(table))]
    return [table.take(pa.array(order)) for order in orders]


@pytest.mark.quick("nothing-labeler", "questions-labeler", "lists-labeler")
@pytest.mark.parametrize(
    ("columns", "unit"),
    [
        pytest.param(columns, unit, marks=[] if columns in both else pytest.mark.slow)
        for unit, both in (
            ("labeler", (*COLUMNS, "lists")),
            ("group", ("nothing", "everything", "lists")),
            ("item", ("nothing", "everything", "lists")),
        )
        for columns in (*COLUMNS, "lists")
    ],
)
def test_the_order_of_the_input_moves_no_staged_row(columns, unit, tmp_path):
    table = ranked() if columns == "lists" else export(COLUMNS[columns])
    expected = staged_rows(table, tmp_path / "0", unit)
    assert len(expected) == (3 * ROWS if columns == "lists" else ROWS)
    for number, shuffled in enumerate(shuffles(table)):
        assert staged_rows(shuffled, tmp_path / f"{number + 1}", unit) == expected


@pytest.mark.quick("nothing")
@pytest.mark.parametrize("columns", ["nothing", "times", "everything"])
def test_labels_come_last_in_the_order(columns, tmp_path):
    """Other labels change no other column of any row."""
    table = export(COLUMNS[columns])
    other = table.set_column(4, "label", pa.array(1 - table["label"].to_numpy()))
    one, two = (staged_rows(t, tmp_path / str(n)) for n, t in enumerate((table, other)))
    assert one != two
    for row in [*one, *two]:
        del row["label"]
    assert one == two


@pytest.mark.quick("author_hi")
@pytest.mark.parametrize("left_out", ["author_hi", "submitted", "tiebreak", "label"])
def test_an_order_that_looks_at_some_columns_only_is_found(left_out, tmp_path, monkeypatch):
    omitted = {left_out, left_out.replace("hi", "lo")}
    if left_out != "label":
        omitted.add("tiebreak")  # it stands for every public column
    kept = tuple(name for name in staged._KEYS if name not in omitted)
    monkeypatch.setattr(staged, "_KEYS", kept)
    columns = {"author_hi": "nothing", "label": "nothing"}.get(left_out, "everything")
    unit = "item" if left_out == "author_hi" else "labeler"
    table = export(COLUMNS[columns])
    expected = staged_rows(table, tmp_path / "0", unit)
    found = [staged_rows(t, tmp_path / f"{n + 1}", unit) for n, t in enumerate(shuffles(table))]
    assert any(rows != expected for rows in found)


@pytest.mark.parametrize("recorded", [False, True])
def test_of_several_choices_of_one_labeler_one_is_taken_whole(recorded, tmp_path):
    def latest(choices):
        rows = [
            {"labeler_id": "v", "prompt": "p", "responses": ["a", "b", "c", "d"], "choice": choice}
            | ({"record_id": f"r{choice}"} if recorded else {})
            for choice in choices
        ]
        path = tmp_path / f"{choices}"
        options = StagingOptions(Reading({}), "")
        staged = stage(pa.Table.from_pylist(rows), path, KeyRing.public(), options)
        found = [segments.read_bucket(staged.rows_directory, b) for b in range(segments.BUCKETS)]
        (table,) = [table for table in found if table is not None]
        assert "submission" not in table.column_names
        # The last of equal keys is the latest.
        return tuple(table["label"].to_pylist()[len(choices) - 1 :: len(choices)])

    submitted = {choice: latest([choice]) for choice in range(4)}
    for one, other in itertools.combinations(range(4), 2):
        taken = latest([one, other])
        assert taken in (submitted[one], submitted[other])
        assert taken == latest([other, one])
