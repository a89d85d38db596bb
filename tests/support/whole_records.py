"""Whole records of people in files, and recipes that align models on them."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from labelguard_trainer.records.align import align_records
from support import tiny_models

PEOPLE = 12
RL = {"num_generations": 2, "max_completion_length": 4}
RECIPE = {
    "private": "records",
    "unit": "user",
    "model": "base",
    "epsilon": 4.0,
    "delta": 1e-5,
    "q": 0.5,
    "steps": 2,
    "sft": {"demonstrations": "demonstrations.parquet"},
    "reward": {"preferences": "preferences.parquet"},
    "rl": {"prompts": "prompts.parquet", "config": RL},
}
SFT = {name: RECIPE[name] for name in RECIPE if name not in ("reward", "rl")}


def write(name, who, **columns):
    """Write records of these people to a file of this name."""
    pq.write_table(pa.table({"user_id": pa.array(who), **columns}), f"{name}.parquet")


def write_all(same=False, people=PEOPLE):
    """Write records of three parts, two of each person; with `same` of the same people."""
    texts = tiny_models.planted(2 * people)
    for part, columns in (
        ("demonstrations", {"prompt": "prompt", "response": "chosen"}),
        ("preferences", {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected"}),
        ("prompts", {"prompt": "prompt"}),
    ):
        letter = "u" if same else part[:3]
        who = [f"{letter}{row % people}" for row in range(2 * people)]
        write(part, who, **{name: texts[column] for name, column in columns.items()})


def follow(output=None, project="project", recipe=None, **terms):
    """Follow a recipe, `RECIPE` if none is given, with some of its terms replaced."""
    settings = {**(RECIPE if recipe is None else recipe), **terms}
    Path("recipe.yaml").write_text(yaml.safe_dump(settings))
    return align_records("recipe.yaml", output=output, project=project)
