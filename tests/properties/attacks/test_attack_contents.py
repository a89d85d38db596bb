"""Attacks on `--unit item`: what is compared is renamed, moved or dressed up to buy fresh coins.

Every attack releases the same comparison again and again, and reads the label off the majority.
"""

import contextlib
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from support.releases import make_release

import labelguard as lg
from labelguard.errors import LabelguardError
from labelguard.project import policies

PAIRS, NIGHTS = 120, 9
ITEM: dict[str, Any] = {"unit": "item", "mechanism": "rr", "epsilon": 1, "delta": 1e-5}
# A label answered once at ε = 1 is guessed right with probability e/(1 + e) = .731; the rate over
# 120 pairs exceeds .86 with a probability of 3e-4. By the majority of 9 fresh answers .935 are
# guessed right: an attack that succeeds is seen with a probability of .998.
HIGHEST = 0.86


def truth():
    """PRIVATE: which of two answers is preferred, of every pair."""
    return np.random.default_rng(7).integers(0, 2, PAIRS)


def table(label, **columns):
    """One label for every pair."""
    numbers = [str(number) for number in range(PAIRS)]
    frame = {
        "prompt": [f"Question {n}?" for n in numbers],
        "response_a": [f"yes, {n}" for n in numbers],
        "response_b": [f"no, {n}" for n in numbers],
        "label": label,
    }
    return pl.DataFrame(frame | columns, strict=False)


def accuracy(project, night, **options):
    """Of the majority of all that was released over the nights, pair by pair."""
    rng = np.random.default_rng(0)
    votes = np.zeros(PAIRS)
    for number in range(NIGHTS):
        try:
            release = make_release(night(number, rng), project=project, **ITEM | options)
        except LabelguardError:
            continue  # refused: nothing is learnt
        for row in lg.load(release).iter_rows(named=True):
            said = "".join(text_of(row["chosen"]).split()).lower()
            pair = int(said.partition(",")[2])
            votes[pair] += 1 if said.startswith("yes") else -1
    decided = np.where(votes == 0, rng.random(PAIRS) < 0.5, votes > 0)
    return float((decided == truth()).mean())


def text_of(side):
    return side if isinstance(side, str) else "".join(message["content"] for message in side)


def sorted_by_content(number, rng):
    """Labels of the attacker's own before it, one more every night: its place in the file moves."""
    own = [table([place % 2] * PAIRS) for place in range(number)]
    return pl.concat([*own, table(truth())])


def renamed_ids(number, rng):
    """The same labels under new item ids."""
    return table(truth(), item_id=[f"night {number}, {pair}" for pair in range(PAIRS)])


def renamed_labelers(number, rng):
    """The same labels by new labelers."""
    return table(truth(), labeler_id=[f"somebody {number}"] * PAIRS)


def renamed_records(number, rng):
    """The same labels as new records."""
    return table(truth(), record_id=[f"record {number} {pair}" for pair in range(PAIRS)])


def another_question(number, rng):
    """The same labels as answers to another question."""
    return table(truth(), question=[f"Better in the sense of {number}?"] * PAIRS)


NIGHTLY = [sorted_by_content, renamed_ids, renamed_labelers, renamed_records, another_question]


@pytest.mark.quick("renamed_ids")
@pytest.mark.parametrize("night", NIGHTLY)
def test_the_same_comparison_buys_no_fresh_coins(night, tmp_path):
    lg.init(tmp_path)
    options = {"columns": {"question": "question"}} if night is another_question else {}
    assert accuracy(tmp_path, night, **options) < HIGHEST


def chats(frame):
    """The same texts as chats with roles and names."""
    columns = frame.to_dict(as_series=False)
    for name in ("prompt", "response_a", "response_b"):
        role = "user" if name == "prompt" else "assistant"
        columns[name] = [[{"role": role, "content": t, "name": "x"}] for t in columns[name]]
    return pa.table(columns)


VARIANTS: dict[str, Callable[[pl.DataFrame], Any]] = {
    "white space": lambda f: f.with_columns(pl.col("prompt") + "  \n"),
    "case": lambda f: f.with_columns(pl.col("prompt").str.to_uppercase()),
    "invisible characters": lambda f: f.with_columns(pl.col("response_a") + "\u200d\ufe0f"),
    "compatible characters": lambda f: f.with_columns(pl.col("prompt").str.replace("Q", "\uff31")),
    "a chat": chats,
    "where the prompt ends": lambda f: f.with_columns(
        prompt=pl.col("prompt").str.slice(0, 4),
        response_a=pl.col("prompt").str.slice(4) + pl.col("response_a"),
        response_b=pl.col("prompt").str.slice(4) + pl.col("response_b"),
    ),
    "sides exchanged": lambda f: f.rename({"response_a": "response_b", "response_b": "response_a"}),
    "ids": lambda f: f.with_columns(item_id="prompt"),
    "a labeler": lambda f: f.with_columns(labeler_id=pl.lit("somebody")),
    "an attached column": lambda f: f.with_columns(model_a=pl.lit("m"), model_b=pl.lit("n")),
}


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """A project that released the plain table."""
    made = tmp_path_factory.mktemp("released")
    lg.init(made)
    make_release(table(truth()), project=made, **ITEM)
    return made


@pytest.mark.quick("white space", "invisible characters")
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_content_in_another_dress_is_the_same_unit(variant, released, tmp_path):
    shutil.copytree(released, tmp_path, dirs_exist_ok=True)
    other = VARIANTS[variant](table(truth()))
    before = count_uses(tmp_path)
    with contextlib.suppress(LabelguardError):  # or it is refused
        make_release(other, project=tmp_path, **ITEM)
    assert count_uses(tmp_path) == before


def count_uses(project):
    """Places in use."""
    from labelguard.report import overview

    return sum(one.used for one in overview.read_budget(project).allowances)


@pytest.mark.slow
def test_a_released_content_without_labelers_takes_further_labels_only_by_again(tmp_path):
    lg.init(tmp_path)
    policies.new("p", epsilon=1, delta=1e-5, allow=["rr:uses=2"], unit="item", project=tmp_path)
    policies.activate("p", tmp_path)
    options = {"mechanism": "rr", "project": tmp_path}
    make_release(table(truth()), **options)
    twice = pl.concat([table(truth()), table(1 - truth())])
    later = make_release(twice, **options)
    assert later.card["counts"]["rows"] == PAIRS and later.card["counts"]["charged"] == 0
    again = make_release(twice, again=True, **options)
    assert again.card["counts"]["charged"] == PAIRS and again.card["counts"]["rows"] == 2 * PAIRS


def test_labels_of_a_content_share_its_places_whoever_gave_them(tmp_path):
    lg.init(tmp_path)
    crowd = pl.concat(
        [table(truth(), labeler_id=[f"worker {worker}"] * PAIRS) for worker in range(5)]
    )
    release = make_release(crowd, project=tmp_path, max_labels_per_labeler=2, **ITEM)
    counts = lg.load(release).group_by("item_id").len()["len"]
    assert set(counts) == {2} and release.card["counts"]["dropped_by_bound"] == 3 * PAIRS
