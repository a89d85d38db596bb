"""Pairs as mechanisms with features see them: distinct, without labels, whoever compared them."""

import os
import tempfile

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from support.codings import NUMBERS, read_pairs
from support.preferences import LAYOUTS, RESPONSES, opinions, pairs, public, rankings

from labelguard.errors import InvalidLabels

ASKED = public()
RANKS = opinions(len(ASKED), 1)


def read_scored(table, name="score", **options):
    """Pairs with a number of each response that was declared public."""
    declared = {"features": f"columns:{name}", "public_columns": [name]}
    return read_pairs(table, **{"format": "pairs"} | declared | options)


def same(one, two):
    columns = ("pair", "unit", "ranking", "size")
    return one.table.equals(two.table) and all(
        np.array_equal(getattr(one.rows, name), getattr(two.rows, name)) for name in columns
    )


@pytest.mark.quick("pairs")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_labels_do_not_matter_not_even_whether_they_are_there(layout):
    table = LAYOUTS[layout](ASKED, RANKS)
    bare = table.drop_columns([n for n in ("label", "tie", "ranks") if n in table.column_names])
    read = read_pairs(bare)
    assert same(read, read_pairs(table))
    assert same(read, read_pairs(LAYOUTS[layout](ASKED, opinions(len(ASKED), 2))))


def test_a_label_column_by_another_name_is_dropped_too():
    table = pairs(ASKED, RANKS).rename_columns({"label": "verdict"})
    bare = table.drop_columns(["verdict", "tie"])
    coded = {"label_values": NUMBERS}
    assert same(read_pairs(table, columns={"label": "verdict"}, **coded), read_pairs(bare))
    assert same(read_pairs(bare, columns={"label": "verdict"}), read_pairs(bare))


def test_every_item_is_one_pair_whichever_side_comes_first():
    table = pairs(ASKED, RANKS)
    read = read_pairs(table)
    assert read.table.num_rows == len(np.unique(ASKED.item))
    swapped = table.rename_columns({"response_a": "response_b", "response_b": "response_a"})
    assert same(read_pairs(swapped), read)
    assert same(read_pairs(pa.concat_tables([table, swapped.select(table.column_names)])), read)


def test_rows_tell_who_compared_which_pair():
    read = read_pairs(pairs(ASKED, RANKS))
    prompts = np.array(read.table["prompt"].to_pylist())[read.rows.pair]
    found = {frozenset(prompts[read.rows.unit == unit]) for unit in range(read.rows.units)}
    asked = [ASKED.item[ASKED.labeler == labeler] for labeler in np.unique(ASKED.labeler)]
    assert found == {frozenset(f"question {item}" for item in items) for items in asked}
    assert len(read.rows) == len(ASKED)


def test_a_ranking_is_all_its_pairs_with_its_size():
    read = read_pairs(rankings(ASKED, RANKS))
    each = RESPONSES * (RESPONSES - 1) // 2
    assert read.table.num_rows == len(np.unique(ASKED.item)) * each
    assert len(read.rows) == len(ASKED) * each
    assert read.rows.size is not None and set(read.rows.size.tolist()) == {RESPONSES}
    assert read.rows.ranking is not None
    assert np.bincount(read.rows.ranking).tolist() == [each] * len(ASKED)


def test_a_repeated_comparison_counts_once():
    table = pairs(ASKED, RANKS)
    assert same(
        read_pairs(pa.concat_tables([table, table.slice(0, 20)])),
        read_pairs(table),
    )


def test_without_labelers_every_row_counts_and_contents_are_units():
    read = read_pairs(pairs(ASKED, RANKS, labelers=False), unit="item")
    assert len(read.rows) == len(ASKED)
    assert read.rows.units == len(read.table) == len(np.unique(ASKED.item))
    uncharged = read_pairs(pairs(ASKED, RANKS, labelers=False), unit="none")
    assert uncharged.table.equals(read.table)


def test_a_numeric_property_of_responses_is_carried_as_a_difference():
    names = ("prompt", "response_a", "response_b", "score_a", "score_b", "labeler_id")
    rows = [("p", "x", "y", 1.0, 4.0, "u"), ("p", "y", "x", 5.0, 2.0, "v")]
    rows.append(("q", "x", "z", 2.0, 2.5, "u"))
    table = pl.DataFrame(rows, schema=names, orient="row")
    read = read_scored(table)
    # x comes before y and z: each difference is that of the first side in canonical order.
    assert sorted(read.table["feature_score"].to_pylist()) == [-3.0, -0.5]
    assert sorted(np.bincount(read.rows.pair)) == [1, 2]
    sides = {"response_a": "chosen", "response_b": "rejected"}
    chosen = table.rename(sides | {"score_a": "score_chosen", "score_b": "score_rejected"})
    assert same(read_scored(chosen), read)


def test_a_numeric_property_of_ranked_responses_is_a_list():
    row = {"prompt": "p", "responses": ["a", "b", "c"], "ranks": [1, 2, 3], "labeler_id": "u"}
    read = read_scored(pl.DataFrame([row | {"score": [1.0, 2.0, 4.0]}]), format="auto")
    assert read.table["feature_score"].to_pylist() == [-1.0, -3.0, -2.0]
    with pytest.raises(InvalidLabels, match="expected a finite number for every response"):
        read_scored(pl.DataFrame([row | {"score": [1.0, 2.0]}]), format="auto")


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
def test_a_numeric_property_that_is_no_number_is_refused(bad):
    columns = {"prompt": ["p"], "response_a": ["x"], "response_b": ["y"], "labeler_id": ["u"]}
    table = pl.DataFrame(columns | {"score_a": [bad], "score_b": [1.0]})
    table = table.with_columns(pl.col("score_a").cast(pl.Float64))
    with pytest.raises(InvalidLabels, match="row 1: column of a feature: expected a finite"):
        read_scored(table)


def test_a_missing_or_private_property_is_named():
    table = pairs(ASKED, RANKS)
    with pytest.raises(InvalidLabels, match="no column height_a and height_b for"):
        read_scored(table, "height")
    renamed = table.rename_columns({"label": "height_a"})
    both = renamed.append_column("height_b", renamed["height_a"])
    with pytest.raises(InvalidLabels, match="no column height_a and height_b for"):
        read_scored(both, "height", columns={"label": "height_a"})


def test_unusable_rows_can_be_left_out_and_are_counted():
    table = pairs(ASKED, RANKS).to_pylist()
    table[3]["prompt"] = None
    bad = pa.Table.from_pylist(table)
    with pytest.raises(InvalidLabels, match="row 4: column prompt"):
        read_pairs(bad)
    read = read_pairs(bad, bad_rows="quarantine")
    assert read.skipped == 1 and len(read.rows) == len(ASKED) - 1


def test_equal_properties_do_not_tell_which_side_was_chosen():
    row = {"prompt": "p", "labeler_id": "u", "score_chosen": 2.0, "score_rejected": 2.0}
    for sides in ({"chosen": "x", "rejected": "y"}, {"chosen": "y", "rejected": "x"}):
        read = read_scored(pl.DataFrame([row | sides]))
        assert not np.signbit(read.table["feature_score"].to_numpy()[0])


def test_equal_texts_are_put_in_order_by_their_properties_not_by_their_order():
    row = {"prompt": "p", "labeler_id": "u", "ranks": [1, 2, 3]}
    one = row | {"responses": ["aa", "aa", "c"], "score": [1.0, 2.0, 5.0]}
    two = row | {"responses": ["aa", "aa", "c"], "score": [2.0, 1.0, 5.0]}
    assert same(*(read_scored(pl.DataFrame([row]), format="auto") for row in (one, two)))


def test_rankings_are_told_apart_although_they_share_a_ranking_id():
    table = rankings(ASKED, RANKS).append_column("ranking_id", pa.array(["all"] * len(ASKED)))
    assert same(read_pairs(table), read_pairs(rankings(ASKED, RANKS)))


def test_one_id_of_two_contents_is_refused():
    two = ASKED.item < 2
    ids = np.where(two, "one", ASKED.item.astype(str))
    assert len(np.unique(ASKED.item[two])) == 2
    table = pairs(ASKED, RANKS).append_column("item_id", pa.array(ids.tolist()))
    with pytest.raises(InvalidLabels, match="id 'one' stands for several contents"):
        read_pairs(table)


def test_pairs_have_the_ids_that_were_given():
    ids = pa.array([f"item {i}" for i in ASKED.item])
    read = read_pairs(pairs(ASKED, RANKS).append_column("item_id", ids))
    prompts = read.table["prompt"].to_pylist()
    assert [f"question {i[5:]}" for i in read.ids.to_pylist()] == prompts


def test_what_is_read_lies_where_nobody_else_looks_and_is_gone_afterwards(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = []

    def progress(step, share):
        [directory] = tmp_path.iterdir()
        seen.append((directory.stat().st_mode & 0o777, any(directory.iterdir())))

    umask = os.umask(0)
    try:
        read_pairs(pairs(ASKED, RANKS), progress=progress)
        with pytest.raises(InvalidLabels):
            read_pairs(
                pairs(ASKED, RANKS).drop_columns(["prompt"]),
                columns={"item_id": "who"},
                progress=progress,
            )
    finally:
        os.umask(umask)
    assert seen and set(seen) == {(0o700, True)}
    assert not list(tmp_path.iterdir())
