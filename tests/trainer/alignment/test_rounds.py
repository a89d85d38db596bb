"""The loop closed: a policy writes, people label, labels are released, the policy learns again."""

from pathlib import Path

import polars as pl
import pytest
import yaml
from labelguard_trainer.alignment.align import align
from support import tiny_models
from support.releases import make_release
from transformers import AutoModelForCausalLM, AutoTokenizer, set_seed

import labelguard as lg
from labelguard.errors import BudgetExceeded
from labelguard.release.model_card import find_learned_releases
from labelguard.report import overview

LABELERS = 12
RL = {
    "max_steps": 3,
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-2,
    "max_completion_length": 12,
}


@pytest.fixture
def study():
    """A project whose labelers may be asked three times, a model, prompts."""
    tiny_models.saved("base")
    prompts = [f"{topic} {number}?" for topic in tiny_models.TOPICS for number in range(9)]
    pl.DataFrame({"prompt": prompts}).write_parquet("prompts.parquet")
    return lg.init("study")


def write_labels(model, number, *, turn=False):
    """What people say of pairs that a model wrote: the longer response is better.

    Who gets which pair follows from the order of the pairs, and so from releases alone; `turn` has
    everybody say the opposite.
    """
    pairs = write_pairs(str(model), number).with_row_index()
    longer = pl.col("response_a").str.len_chars() > pl.col("response_b").str.len_chars()
    return pairs.select(
        pl.format(f"{number}-{{}}", "index").alias("item_id"),
        "prompt",
        "response_a",
        "response_b",
        (longer ^ turn).cast(pl.UInt8).alias("label"),
        pl.format("w{}", pl.col("index") % LABELERS).alias("labeler_id"),
    ).to_arrow()


def write_pairs(model, seed):
    """Two different responses of a model to each prompt that it gives two to."""
    tokenizer = AutoTokenizer.from_pretrained(model, padding_side="left")
    prompts = pl.read_parquet("prompts.parquet")["prompt"].to_list()
    ids = tokenizer(prompts, return_tensors="pt", padding=True)
    set_seed(seed)
    network = AutoModelForCausalLM.from_pretrained(model)
    written = network.generate(**ids, do_sample=True, max_new_tokens=12, num_return_sequences=2)
    new = tokenizer.batch_decode(written[:, ids["input_ids"].shape[1] :], skip_special_tokens=True)
    columns = {"prompt": prompts, "response_a": new[::2], "response_b": new[1::2]}
    return pl.DataFrame(columns).filter(pl.col("response_a") != pl.col("response_b"))


def release_labels(table, project):
    """One of the three releases that the policy pays for."""
    price = {"epsilon": 3.0, "delta": 1e-5, "uses": 3}
    return make_release(table, mechanism="statistic", features="length", project=project, **price)


def write_recipe(release, model):
    """A recipe of reinforcement learning alone."""
    recipe = {"release": str(release), "model": str(model), "prompts": "prompts.parquet"}
    recipe["rl"] = {"config": RL, "holdout": 0.2}
    Path("recipe.yaml").write_text(yaml.safe_dump(recipe))
    return "recipe.yaml"


@pytest.mark.slow
def test_three_rounds_are_paid_for_by_one_policy_and_the_card_names_each(study):
    model, releases = Path("base"), []
    for number in range(3):
        release = release_labels(write_labels(model, number), study)
        releases.append(release.id)
        output = Path(f"round-{number}")
        [stage] = align(write_recipe(release.id, model), output=output, project=study).stages
        model = output / "rl"
        assert stage.after["reward"] != stage.before["reward"]
        assert [one.release for one in find_learned_releases(str(model), private=True)] == releases
    assert [line.charged for line in overview.list_releases(study)] == [LABELERS] * 3
    with pytest.raises(BudgetExceeded):
        release_labels(write_labels(model, 3), study)


@pytest.mark.slow
def test_what_is_asked_next_depends_on_what_was_released_alone(study):
    table, other = (write_labels("base", 0, turn=turn) for turn in (False, True))
    assert table.drop_columns("label") == other.drop_columns("label")
    assert table["label"] != other["label"]
    release = release_labels(table, study)
    copy = release.path.rename("copy")  # beside no project, and no raw label
    for name in ("one", "two"):
        align(write_recipe(copy, "base"), output=name)
    assert write_labels("one/rl", 1) == write_labels("two/rl", 1)
