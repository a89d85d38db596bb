"""Splits of a dataset are never mixed unasked, and a directory is no input."""

import pytest
from support.published import as_jsonl, as_table, pairs

from labelguard.errors import InvalidLabels
from labelguard.inputs.pairs import read_public_pairs

TRAIN, TEST = as_table(pairs(["a", "b", "a"])), as_table(pairs(["b", "a"] * 4))


def test_one_of_several_splits_must_be_named():
    source = {"train": TRAIN, "test": TEST}
    with pytest.raises(InvalidLabels, match="splits train, test; choose one, as in --split train"):
        read_public_pairs(source)
    with pytest.raises(InvalidLabels, match=r"no split is called .tset. .did you mean .test."):
        read_public_pairs(source, split="tset")
    assert len(read_public_pairs(source, split="test").rows) == TEST.num_rows
    with pytest.raises(InvalidLabels, match="found dict"):
        read_public_pairs({})


def test_one_split_alone_need_not_be_named():
    assert len(read_public_pairs({"train": TRAIN}).rows) == TRAIN.num_rows
    with pytest.raises(InvalidLabels, match="--split test: the input has no splits; leave it out"):
        read_public_pairs(TRAIN, split="test")


def test_a_directory_is_refused_with_how_its_files_are_named(tmp_path):
    (tmp_path / "labeler_id=7").mkdir()
    as_jsonl(pairs(["a"]), tmp_path / "labeler_id=7" / "x.jsonl")
    for source in (tmp_path / "labeler_id=7", str(tmp_path / "*")):
        with pytest.raises(InvalidLabels, match=r"labeler_id=7 is a directory; name its files, as"):
            read_public_pairs(source)
    assert len(read_public_pairs(str(tmp_path / "**" / "*.jsonl")).rows) == 1
    nameless = [{k: v for k, v in row.items() if k != "labeler_id"} for row in pairs(["a"])]
    as_jsonl(nameless, tmp_path / "labeler_id=7" / "x.jsonl")
    with pytest.raises(InvalidLabels, match="no column labeler_id"):
        read_public_pairs(str(tmp_path / "*" / "*.jsonl"))


def test_a_dataset_is_read_in_its_own_order_and_selection():
    datasets = pytest.importorskip("datasets")
    rows = pairs(["a", "b", "a", "b"])
    dataset = datasets.Dataset.from_list(rows)
    assert read_public_pairs(dataset).table.equals(read_public_pairs(as_table(rows)).table)
    half = dataset.select([3, 1]).with_format("numpy", columns=["prompt"])
    assert sorted(read_public_pairs(half).table["prompt"].to_pylist()) == [
        "What of 1?",
        "What of 3?",
    ]
    both = datasets.DatasetDict({"train": dataset, "test": half})
    with pytest.raises(InvalidLabels, match="splits train, test; choose one, as in --split"):
        read_public_pairs(both)
    assert read_public_pairs(both, split="train").table.equals(read_public_pairs(dataset).table)
    with pytest.raises(InvalidLabels, match="load it without streaming=True"):
        read_public_pairs(dataset.to_iterable_dataset())
