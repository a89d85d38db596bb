"""Staged rows have one order, whatever order the input came in.

Every table here is full of rows that are equal in much or all of what is public of them.
"""

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.codings import CODED
from support.releases import make_release

import labelguard as lg
from labelguard.errors import InvalidLabels
from labelguard.inputs import staged
from labelguard.inputs.columns import Reading
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.keys.keyring import KeyRing
from labelguard.learning.columns import FeatureColumn
from labelguard.ledger.records import Links
from labelguard.storage import blocks
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
    of_policy = "item" if unit == "item" else "labeler"
    reading = Reading(columns, of_policy, scores, public_columns=("score",))
    labelers = ring.hash_labelers("", ["0", "2"])
    labelers = labelers[blocks.sort_order(labelers)]
    links = Links(labelers, labelers[[0, 0]]) if unit == "linked" else None
    staged = stage(table, directory, ring, StagingOptions(reading, "", links=links))
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
            ("linked", ("nothing", "everything", "lists")),
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
        options = StagingOptions(Reading({}, values=CODED), "")
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


# Of several submissions of one label the latest counts, also where it is a skip.


OPEN: dict[str, Any] = {"mechanism": "rr", "epsilon": 2000.0, "delta": 0.0, "workers": 1}
OPEN |= {"mechanism": "rr", "uses": 3, "accept_delta": True}
EARLY, LATE, LATEST = "2026-01-01", "2026-01-02", "2026-01-03"


@pytest.fixture
def project(tmp_path):
    return lg.init(tmp_path / "p", max_epsilon=10_000.0, max_delta=0.5)


def table(*rows, **more):
    """Rows of (labeler, prompt, label, time)."""
    return pa.table(
        {
            "labeler_id": [row[0] for row in rows],
            "prompt": [row[1] for row in rows],
            "response_a": ["a"] * len(rows),
            "response_b": ["b"] * len(rows),
            "label": pa.array([row[2] for row in rows], pa.string()),
            "submitted_at": pa.array([row[3] for row in rows], pa.string()),
            **more,
        }
    )


def released(rows, project, **options):
    found = lg.load(make_release(rows, project=project, **OPEN | options))
    return sorted(found.select("prompt", "chosen").iter_rows())


def test_a_skip_takes_back_what_was_said_before_it_and_nothing_else(project):
    rows = table(
        ("maria", "p", "1", EARLY),
        ("maria", "p", None, LATE),
        ("maria", "q", None, EARLY),
        ("maria", "q", "0", LATE),
        ("otto", "p", "1", EARLY),
        ("otto", "q", None, LATEST),
    )
    assert released(rows, project) == [("p", "a"), ("q", "b")]


def test_the_order_of_rows_decides_nothing(tmp_path):
    rows = table(
        ("maria", "p", "1", EARLY), ("maria", "p", None, LATE), ("maria", "p", "0", LATEST)
    )
    for number, order in enumerate(itertools.permutations(range(3))):
        own = lg.init(tmp_path / str(number), max_epsilon=10_000.0, max_delta=0.5)
        assert released(rows.take(list(order)), own) == [("p", "b")]


def test_a_skip_at_the_same_time_counts_whatever_the_other_says(tmp_path):
    for label in ("0", "1"):
        own = lg.init(tmp_path / label, max_epsilon=10_000.0, max_delta=0.5)
        rows = table(
            ("maria", "p", label, EARLY), ("maria", "p", None, EARLY), ("otto", "p", "1", EARLY)
        )
        assert released(rows, own) == [("p", "a")]


def test_without_times_or_labelers_a_skip_is_only_a_row_without_a_label(project):
    rows = table(("maria", "p", "1", EARLY), ("maria", "p", None, LATE))
    untimed = rows.drop_columns(["submitted_at"])
    assert released(untimed, project) == [("p", "a")]


def test_single_labels_are_not_taken_back_by_others(tmp_path):
    own = lg.init(tmp_path / "own", max_epsilon=10_000.0, max_delta=0.5)
    rows = table(("maria", "p", "1", EARLY), ("otto", "p", None, LATE))
    assert released(rows.drop_columns(["labeler_id"]), own, unit="item", uses=None) == [("p", "a")]
    other = lg.init(tmp_path / "other", max_epsilon=10_000.0, max_delta=0.5)
    rows = table(("maria", "p", "1", EARLY), ("otto", "p", None, LATE), ("otto", "p", "0", EARLY))
    assert released(rows, other, unit="item", uses=None) == [("p", "a")]


def test_where_all_was_taken_back_there_is_nothing_to_release(project):
    rows = table(("maria", "p", "1", EARLY), ("maria", "p", None, LATE))
    with pytest.raises(InvalidLabels, match="no usable row"):
        make_release(rows, project=project, **OPEN)


def test_more_skips_that_take_nothing_back_are_the_same_request(project):
    rows = [("maria", "p", "1", EARLY), ("otto", "p", "0", EARLY)]
    first = make_release(table(*rows), project=project, **OPEN)
    more = [*rows, ("zoe", "p", None, LATE), ("maria", "q", None, LATE)]
    assert make_release(table(*more), project=project, **OPEN).id == first.id
    # One that takes something back is another; what was released stays in the first.
    less = [*rows, ("otto", "p", None, LATE)]
    second = make_release(table(*less), project=project, **OPEN)
    assert second.id != first.id
    assert (lg.load(first).height, lg.load(second).height) == (2, 1)


def test_of_rankings_a_skip_takes_the_whole_list_back(project):
    rows = pa.table(
        {
            "labeler_id": ["maria", "maria", "otto"],
            "prompt": ["p"] * 3,
            "responses": [["a", "b", "c"]] * 3,
            "ranks": [[1, 2, 3], None, [3, 2, 1]],
            "submitted_at": [EARLY, LATE, EARLY],
        }
    )
    found = lg.load(make_release(rows, project=project, **OPEN))
    chosen = sorted(found.select("chosen", "rejected").iter_rows())
    assert chosen == [("b", "a"), ("c", "a"), ("c", "b")]


def test_who_only_skipped_was_not_met(project):
    rows = table(("maria", "p", "1", EARLY), ("Otto", "p", None, EARLY))
    make_release(rows, project=project, **OPEN)
    # Spelled otherwise Otto is nobody the project knows: there is no double to refuse.
    rows = table(("maria", "p", "1", EARLY), ("otto", "q", "1", EARLY))
    assert released(rows, project) == [("p", "a"), ("q", "a")]


def test_a_tie_that_is_dropped_takes_back_what_was_said_before_it(project):
    rows = table(
        ("maria", "p", "1", EARLY),
        ("maria", "p", "0.5", LATE),
        ("otto", "p", "0.5", EARLY),
        ("otto", "p", "0", LATE),
    )
    dropped = {"ties": "drop", "tie_status_public": True}
    assert released(rows, project, **dropped) == [("p", "b")]
