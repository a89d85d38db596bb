"""Several questions about one pair are several labels; without a question nothing changes."""

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from support import preferences
from support.codings import NUMBERS, choose_values
from support.preferences import (
    LAYOUTS,
    STATISTIC,
    Public,
    chosen,
    opinions,
    pairs,
    public,
    rankings,
    spent,
)
from support.releases import make_release
from support.scenarios import ALL, SCENARIOS
from support.worlds import differences

import labelguard as lg
from labelguard.errors import InvalidLabels
from labelguard.inputs.columns import Reading
from labelguard.inputs.pairs import find_distinct_pairs, read_public_pairs
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.keys.keyring import KeyRing

PRICE: dict[str, Any] = {"epsilon": 3, "delta": 1e-5, "block": 1, "uses": 3}
ASKED = public(labelers=3, per_labeler=5, items=8)
RANKS = opinions(len(ASKED), 1)
HELPFUL, SAFE = "more helpful?", "safer?"
NAMED = {"question": "question"}
NAME_IT = ("--columns", "question=question")


def ask(table, question):
    """The table with one question for all its rows."""
    return table.append_column("question", pa.array([question] * len(table)))


def ask_both(table):
    return pa.concat_tables([ask(table, HELPFUL), ask(table, SAFE)])


def stage_table(here, table, question=None, named=False, **columns):
    here.mkdir()
    place = here.parent / "keys"  # of all inputs of a test
    keys = KeyRing(place) if place.exists() else KeyRing.create(place)
    asked = "question" in getattr(table, "column_names", ()) and "question" not in columns.values()
    columns |= NAMED if named or (asked and question is None) else {}
    reading = Reading(columns, "item", question=question, values=choose_values(table))
    return stage(table, here / "input", keys, StagingOptions(reading, "files"))


def items(here, table, question=None, **columns):
    return find_distinct_pairs(stage_table(here, table, question, **columns)).items.tolist()


@pytest.mark.quick("pairs")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_pair_under_two_questions_is_two_labels_with_a_place_each(layout, project):
    table = LAYOUTS[layout](ASKED, RANKS)
    release = make_release(ask_both(table), columns=NAMED, project=project, **PRICE)
    labels = 2 * len(ASKED) * (3 if layout == "rankings" else 1)
    assert release.card["counts"]["duplicates"] == 0
    assert spent(project) == labels
    frame = lg.load(release)
    assert sorted(frame["question"]) == [HELPFUL] * (labels // 2) + [SAFE] * (labels // 2)
    ids = frame.group_by("question").agg(pl.col("item_id").unique())["item_id"]
    assert not set(ids[0]) & set(ids[1])


def test_a_label_is_one_of_its_question_whatever_dataset_it_is_in(project):
    def release_counts(table, **options):
        release = make_release(table, project=project, **PRICE, **options)
        return lg.load(release), release.card["counts"]["charged"]

    table = pairs(ASKED, RANKS)
    # A column that nobody named is no question.
    plain, _ = release_counts(ask(table, SAFE), ignore_columns=["question"])
    assert "question" not in plain.columns
    first, charged = release_counts(ask(table, SAFE), columns=NAMED)
    assert charged == len(ASKED)
    assert not set(plain["item_id"]) & set(first["item_id"])
    other = ask(table, SAFE).append_column("source", pa.array(["second"] * len(table)))
    second, charged = release_counts(other.take(pa.array(np.arange(3, 15))), columns=NAMED)
    assert charged == 0 and set(second.rows()) <= set(first.rows())
    assert release_counts(ask(table, HELPFUL), columns=NAMED)[1] == len(ASKED)


@pytest.mark.quick("given ids-pairs")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("named", [True, False], ids=["given ids", "ids of contents"])
def test_a_column_and_one_name_for_all_rows_give_the_same_items(layout, named, tmp_path):
    table = LAYOUTS[layout](ASKED, RANKS)
    if named:
        table = table.append_column("item_id", pa.array([f"item {i}" for i in ASKED.item]))
    column = stage_table(tmp_path / "column", ask(table, SAFE))
    name = stage_table(tmp_path / "name", table, SAFE)
    assert column.public_digest == name.public_digest
    one, two = find_distinct_pairs(column), find_distinct_pairs(name)
    assert one.questions is not None and set(one.questions.to_pylist()) == {SAFE}
    for attribute in ("items", "contents", "table", "ids", "questions"):
        found, expected = getattr(one, attribute), getattr(two, attribute)
        same = found.equals(expected) if hasattr(found, "equals") else (found == expected).all()
        assert same, attribute
    assert items(tmp_path / "other", table, HELPFUL) != one.items.tolist()
    assert items(tmp_path / "none", table) != one.items.tolist()


def test_questions_of_every_type_are_told_by_their_text(tmp_path):
    table = pairs(ASKED, RANKS)
    texts = pa.array(["7"] * len(table))
    kinds = [texts, texts.cast(pa.int8()), texts.cast(pa.uint64()), texts.dictionary_encode()]
    found = [
        items(tmp_path / str(n), table.append_column("question", kind))
        for n, kind in enumerate(kinds)
    ]
    assert found == found[:1] * len(kinds)
    assert items(tmp_path / "named", table, "7") == found[0]


@pytest.mark.quick("chosen-question")
@pytest.mark.parametrize("role", ["question", "item_id"])
@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_which_text_was_chosen_is_no_name_of_anything(role, side, project):
    """It would be published with the pair, and tell the label."""
    with pytest.raises(InvalidLabels, match=f"column {side} is {side}, which is private"):
        make_release(chosen(ASKED, RANKS), columns={role: side}, project=project, **PRICE)


def test_a_column_of_another_role_is_no_question(tmp_path):
    table = pairs(ASKED, RANKS)
    renamed = table.rename_columns({"prompt": "question"})
    assert items(tmp_path / "a", renamed, prompt="question") == items(tmp_path / "b", table)
    assert items(tmp_path / "c", renamed, SAFE, prompt="question") == items(
        tmp_path / "d", table, SAFE
    )


@pytest.mark.parametrize("missing", [None, ""])
def test_a_row_without_its_question_or_its_id_is_a_bad_row(missing, project, tmp_path):
    rows = ask(pairs(ASKED, RANKS), SAFE).to_pylist()
    rows[3]["question"] = missing
    table = pa.Table.from_pylist(rows)
    with pytest.raises(InvalidLabels, match="row 4: column question: expected an id, found null"):
        make_release(table, columns=NAMED, project=project, **PRICE)
    release = make_release(table, columns=NAMED, project=project, bad_rows="quarantine", **PRICE)
    assert release.card["counts"]["set_aside"] == 1
    assert release.card["counts"]["charged"] == len(ASKED) - 1
    ids = pa.array([missing, *("x" * n for n in range(1, len(ASKED)))])
    with pytest.raises(InvalidLabels, match="row 1: column item_id: expected an id"):
        stage_table(tmp_path / "a", pairs(ASKED, RANKS).append_column("item_id", ids), SAFE)


def test_a_question_is_told_once(tmp_path):
    table = pairs(ASKED, RANKS)
    with pytest.raises(InvalidLabels, match=r"column question says which question.*question"):
        stage_table(tmp_path / "a", ask(table, SAFE), SAFE, named=True)
    with pytest.raises(InvalidLabels, match="no column 'question'"):
        stage_table(tmp_path / "b", [ask(table, SAFE), table], named=True)
    with pytest.raises(InvalidLabels, match="column question: expected text or whole numbers"):
        stage_table(tmp_path / "c", ask(table, 1.5))
    for name in ("", "a\nb", "\0", "\udcff"):
        with pytest.raises(InvalidLabels, match="question expects a name"):
            Reading({}, question=name)


def test_an_id_stands_for_one_content_under_each_question(tmp_path):
    table = pairs(Public(np.zeros(4, np.int64), np.arange(4)), opinions(4, 1))
    table = table.append_column("item_id", pa.array(["x", "x", "y", "y"]))
    apart = table.append_column("question", pa.array(["1", "2", "1", "2"]))
    ids = find_distinct_pairs(stage_table(tmp_path / "apart", apart)).ids.to_pylist()
    assert sorted(ids) == ["x#1", "x#2", "y#1", "y#2"]
    with pytest.raises(InvalidLabels, match=r"id 'x#1' stands for several contents \(2 such ids\)"):
        find_distinct_pairs(stage_table(tmp_path / "one", ask(table, "1")))


def test_names_of_items_cannot_be_confused(tmp_path):
    parts = [("a#b", "c"), ("a", "b#c"), ("a%23b", "c"), ("a", "b%23c"), ("a%", "#")]
    table = pairs(Public(np.zeros(5, np.int64), np.arange(5)), opinions(5, 1))
    for name, values in zip(("item_id", "question"), zip(*parts, strict=True), strict=True):
        table = table.append_column(name, pa.array(values))
    distinct = find_distinct_pairs(stage_table(tmp_path / "x", table))
    assert len(set(distinct.ids.to_pylist())) == len(parts)


def test_pairs_are_told_apart_by_question_and_look_alike():
    table = pairs(ASKED, RANKS)
    read, plain = (
        read_public_pairs(ask_both(table), columns=NAMED, label_values=NUMBERS),
        read_public_pairs(table, label_values=NUMBERS),
    )
    assert len(read.table) == 2 * len(plain.table) and len(read.rows) == 2 * len(plain.rows)
    assert read.table.column_names == plain.table.column_names
    assert read.questions is not None and plain.questions is None
    assert read_public_pairs(table, question=SAFE, label_values=NUMBERS).questions is not None


def test_further_pairs_say_their_question_too(project):
    further = pairs(Public(np.zeros(4, np.int64), np.arange(50, 54)), opinions(4, 1))
    release = make_release(
        ask_both(pairs(ASKED, RANKS)),
        columns=NAMED,
        project=project,
        also=ask(further.drop_columns(["label", "tie", "labeler_id"]), SAFE),
        epsilon=3,
        delta=1e-5,
        **STATISTIC,
    )
    assert lg.load(release)["question"].null_count() == 0


def rankings_with_questions(asked, ranks, *, labelers=True):
    table = rankings(asked, ranks, labelers=labelers)
    return table.append_column("question", pa.array([i % 3 for i in range(len(asked))]))


def pairs_with_questions(asked, ranks, *, labelers=True):
    table = pairs(asked, ranks, labelers=labelers)
    return table.append_column("question", pa.array([f"question {i % 2}" for i in asked.labeler]))


@pytest.mark.quick("pairs_with_questions")
@pytest.mark.parametrize("make", [pairs_with_questions, rankings_with_questions])
def test_nothing_but_released_labels_depends_on_raw_labels_under_questions(
    make, tmp_path, monkeypatch
):
    monkeypatch.setitem(preferences.LISTED, "questions", make)
    scenario = SCENARIOS["bound"]
    runs = [replace(one, options=(*one.options, *NAME_IT)) for one in scenario.runs]
    asking = replace(scenario, runs=tuple(runs))
    assert differences(tmp_path, "questions", asking, ALL) == []
