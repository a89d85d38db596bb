"""Attacks on an alignment of whole records by what somebody writes, which nothing may show."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from labelguard_trainer.records.recipe import RecordsRecipe
from labelguard_trainer.records.stages import RecordStage, read_readable_records
from support.whole_records import RECIPE, SFT, follow
from transformers import AutoTokenizer

from labelguard.errors import LabelguardError
from labelguard.project.opening import OpenProject

NO_TEXT = b"\xff\xfe \xed\xa0\x80"


def put(text, part, column):
    """Write bytes in place of the first text of a column."""
    table = pq.read_table(f"{part}.parquet")
    values = table[column].combine_chunks().cast(pa.binary()).to_pylist()
    values[0] = text
    data = pa.array(values, pa.binary())
    texts = pa.StringArray.from_buffers(len(data), *data.buffers()[1:])
    place = table.schema.get_field_index(column)
    pq.write_table(table.set_column(place, column, texts), f"{part}.parquet")


def widened(name, **changes):
    """Copy the base model to a directory of that name, with other tokens or settings."""
    shutil.copytree(Path("base").resolve(), name)
    tokenizer = AutoTokenizer.from_pretrained(name)
    tokenizer.add_tokens(changes.pop("tokens", []))
    for key, value in changes.items():
        setattr(tokenizer, key, value)
    tokenizer.save_pretrained(name)
    return name


def charged():
    return OpenProject.open("project").ledger.releases.usage().get("records", [])


def test_bytes_that_are_no_text_are_a_null_record_and_no_error(records):
    """Parquet does not check UTF-8: `UnicodeDecodeError` told that somebody was there."""
    put(NO_TEXT, "demonstrations", "response")
    put(NO_TEXT, "preferences", "rejected")
    put(NO_TEXT, "prompts", "prompt")
    assert not follow().reused


def texts(*values):
    return pa.array(values, pa.large_string())


@pytest.mark.parametrize("raised", [ValueError, MemoryError, type("Panic", (BaseException,), {})])
def test_a_record_at_which_a_tokenizer_fails_is_null_and_moves_no_other(raised):
    def read(columns):
        if "zebra" in columns[0].to_pylist():
            raise raised("zebra")
        return pa.table({"size": [len(text) for text in columns[0].to_pylist()]})

    table, readable = read_readable_records(read, [texts("a", "zebra", "ccc")])
    assert table["size"].to_pylist() == [1, 0, 3]
    assert readable.tolist() == [True, False, True]


def test_a_token_that_the_model_has_no_row_for_is_told_of_before_anybody_pays(records):
    """Whoever wrote it ended training by an IndexError, after everybody had paid."""
    put(b"a <zebra> here", "demonstrations", "response")
    with pytest.raises(LabelguardError, match="tokens beyond the 258 of its model"):
        follow(recipe=SFT, model=widened("wide", tokens=["<zebra>"]))
    assert charged() == []


def test_a_public_reward_that_cannot_judge_is_told_of_before_anybody_pays(records):
    recipe = {name: RECIPE[name] for name in RECIPE if name != "sft"}
    for reward, told in (
        (widened("wide", tokens=["<zebra>"]), "tokens beyond the 258"),
        ("nowhere", "nowhere"),
    ):
        with pytest.raises(LabelguardError, match=told):
            follow(recipe=recipe, reward={"public": reward})
    assert charged() == []


def test_a_long_text_is_told_by_no_warning(records, capfd):
    put(b"zebra " * 1000, "demonstrations", "response")
    follow(recipe=SFT, model=widened("short", model_max_length=16))
    told = capfd.readouterr()
    assert told.out + told.err == ""


@pytest.mark.parametrize("name", ["sft", "reward", "rl"])
def test_as_much_memory_as_anybody_may_take_is_tried_out_before(records, monkeypatch, name):
    """Memory that does not suffice for somebody's records would tell of them by an error."""
    Path("recipe.yaml").write_text(str(RECIPE))
    recipe = RecordsRecipe.read(Path("recipe.yaml"))
    stage = RecordStage.of(name, "base", {**recipe.decisive(name)}, 8, 1)
    shapes = []
    forward = torch.nn.Embedding.forward

    def watched(self, ids):
        shapes.append(tuple(ids.shape))
        return forward(self, ids)

    monkeypatch.setattr(torch.nn.Embedding, "forward", watched)
    stage.rehearse()
    rehearsed = set(shapes)
    shapes.clear()
    some = [texts(*("zebra " * 5000,) * 8)] * 3
    problem = stage.problem(
        some, np.zeros(8, np.intp), np.ones(8, bool), 1, lambda p, r: torch.zeros(len(r))
    )
    problem.bound_gradient_norms(np.arange(1), np.ones(8))
    prompts = {shape for shape in shapes if name != "rl" or shape[1] > 250}
    assert prompts and prompts <= rehearsed


def test_of_a_text_no_more_is_read_than_a_stage_could_take(records):
    Path("recipe.yaml").write_text(str(RECIPE))
    recipe = RecordsRecipe.read(Path("recipe.yaml"))
    for name in ("sft", "reward", "rl"):
        stage = RecordStage.of(name, "base", {**recipe.decisive(name)}, 8, 1)
        tokenizer = AutoTokenizer.from_pretrained("base")
        table = stage._tokenize_records(tokenizer, [texts("x" * 1_000_000)] * 3)
        assert table.nbytes < 8 * 3 * 64 * stage.config["max_length"]


def problem_of(name, written, reward=None):
    """A stage's problem on two records of each of three people; `written` is what the second has.

    Coins are the same each time.
    """
    Path("recipe.yaml").write_text(str(RECIPE))
    recipe = RecordsRecipe.read(Path("recipe.yaml"))
    stage = RecordStage.of(name, "base", {**recipe.decisive(name)}, 8, 2)
    values = ["tea is good", "rain", written, written, "no, never", "salt and bread"]
    columns = [texts(*(value or "" for value in values)) for _ in range(3)]
    columns[1] = texts(*(f"{value or ''}!" for value in values))
    present = np.array([value is not None for value in values])
    judge = reward or (lambda prompt, responses: torch.arange(float(len(responses))))
    unit = np.array([0, 0, 1, 1, 2, 2])
    problem = stage.problem(columns, unit, present, 3, judge)
    if name == "rl":
        problem._make_secret = lambda: bytes(32)
    return problem


def summed(problem, *people):
    return problem.clipped_sum(np.array(people), np.ones(6), 0.1)


@pytest.mark.parametrize("name", ["sft", "reward", "rl"])
@pytest.mark.parametrize("written", ["x" * 4000, "", "\x00<pad><eos>", "tea"])
def test_what_others_add_is_the_same_to_the_last_bit_whoever_is_beside_them(records, name, written):
    null, there = problem_of(name, None), problem_of(name, written)
    others = summed(null, 0, 2)
    assert others.abs().sum() > 0
    assert torch.equal(summed(null, 0, 1, 2), others), "a null person adds zero"
    own = summed(there, 1)
    assert torch.equal(summed(there, 0, 1, 2) - own, summed(there, 0, 2))
    assert torch.equal(summed(there, 0, 2), others)
    assert float(own.norm()) <= 0.1


@pytest.mark.parametrize("worth", [float("nan"), float("inf"), 1e30])
def test_a_reward_that_is_no_number_poisons_no_sum(records, worth):
    def reward(prompt, responses):
        mine = bytes(prompt[:5]) == b"zebra"[:5] or 89 in prompt
        return torch.arange(float(len(responses))) * (worth if mine else 1.0)

    there, null = problem_of("rl", "zebra", reward), problem_of("rl", None, reward)
    total = summed(there, 0, 1, 2)
    assert bool(total.isfinite().all())
    assert float((total - summed(null, 0, 2)).norm()) <= 0.1 * (1 + 1e-12)
