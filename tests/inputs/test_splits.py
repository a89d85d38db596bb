"""A dataset's splits are never mixed unasked, whether they are files, folders or tables."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.published import as_jsonl, as_table, pairs

from labelguard.errors import InvalidLabels
from labelguard.inputs.pairs import read_public_pairs
from labelguard.inputs.sources import resolve_input

TRAIN, TEST = as_table(pairs(["a", "b", "a"])), as_table(pairs(["b", "a"] * 4))


def files(directory, train, test):
    for name, table in ((train, TRAIN), (test, TEST)):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            pq.write_table(table, path)
        elif path.suffix == ".arrow":
            with pa.ipc.new_stream(path, table.schema) as writer:
                writer.write_table(table)
        else:
            as_jsonl(table.to_pylist(), path)
    return directory


def write_dataset_dict(directory):
    """As `DatasetDict.save_to_disk` leaves it."""
    name = "data-00000-of-00001.arrow"
    files(directory, f"train/{name}", f"held_out/{name}")
    (directory / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "held_out"]}))
    for split in ("train", "held_out"):
        state = {"_data_files": [{"filename": name}], "_split": split}
        (directory / split / "state.json").write_text(json.dumps(state))
        (directory / split / "dataset_info.json").write_text("{}")
    return directory


SHARD = "data/{}_prefs-00000-of-00001.parquet"
SPLITS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "shards": (
        "test_prefs",
        lambda path: files(path, *(SHARD.format(n) for n in ("train", "test"))),
    ),
    "files": ("test", lambda path: files(path, "train.jsonl", "test.jsonl")),
    "configurations": ("test", lambda path: files(path, "one/train.jsonl", "two/test.jsonl")),
    "folders": ("validation", lambda path: files(path, "train/x.jsonl", "validation/y.jsonl")),
    "saved to disk": ("held_out", write_dataset_dict),
    "a dictionary": ("test", lambda path: {"train": TRAIN, "test": TEST}),
}


@pytest.mark.quick("shards", "folders")
@pytest.mark.parametrize("case", SPLITS)
def test_one_of_several_splits_must_be_named(case, tmp_path):
    other, make = SPLITS[case]
    source = make(tmp_path / "set")
    message = f"splits (train[a-z_]*, {other}|{other}, train[a-z_]*); choose one, as in --split"
    with pytest.raises(InvalidLabels, match=message):
        read_public_pairs(source)
    with pytest.raises(InvalidLabels, match="'dev'"):
        read_public_pairs(source, split="dev")
    assert len(read_public_pairs(source, split=other).rows) == TEST.num_rows


def test_one_split_alone_need_not_be_named(tmp_path):
    pq.write_table(TRAIN, tmp_path / "train-00000-of-00001.parquet")
    assert len(read_public_pairs(tmp_path).rows) == TRAIN.num_rows
    assert len(read_public_pairs(tmp_path, split="train").rows) == TRAIN.num_rows
    assert len(read_public_pairs({"train": TRAIN}).rows) == TRAIN.num_rows


def test_files_that_do_not_all_look_like_splits_are_one_dataset(tmp_path):
    source = files(tmp_path, "monday.jsonl", "test.jsonl")
    assert len(resolve_input(source)) == 2
    with pytest.raises(InvalidLabels, match="--split test: the input has no splits; leave it out"):
        read_public_pairs(source, split="test")
    with pytest.raises(InvalidLabels, match="has no splits"):
        read_public_pairs(TRAIN, split="train")


def test_what_is_said_of_a_dataset_is_no_data(tmp_path):
    source = files(tmp_path, "monday.jsonl", "tuesday.jsonl")
    for name in ("card.json", "dataset_info.json", "state.json"):
        (source / name).write_text('{"rows": 3}')
    assert len(resolve_input(source)) == 2


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
