"""An alignment with whole records private at 124M parameters: what each stage takes.

    bench/gpu.sh alignment-records   # after `bench/gpu.sh pretrain`

Simulated people, each in one of three parts, show a response to one prompt, prefer one of two, or
ask, on one half of the dialogues; ε = 4, LoRA. Told of each stage: seconds, people that a step
draws on average, seconds of one of them, and the most memory that torch held. 20 steps of ten
people are no training of a model: they tell what more of them would take.

Writes alignment-records.json; a stage that is done is not done again.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from alignment_runs.records import train_stages
from labelguard_trainer.records.people import Part
from labelguard_trainer.records.recipe import RecordsRecipe

import labelguard as lg
from gpu import corpus, outputs
from gpu.alignment import watch
from gpu.corpus import Dialogues
from labelguard.accounting import zero_out

EPSILON, DELTA = 4.0, 1e-5
_NAME = "alignment-records"


def write(home: Path, model: Path, pairs: Dialogues, *, tiny: bool) -> Path:
    """Write a recipe and the records of three parts, one of each person; return it."""
    first = pairs.labels(np.random.default_rng(0)).astype(bool)
    sides = np.array([pairs.first, pairs.second], object)
    chosen, rejected = np.where(first, *sides), np.where(first, *sides[::-1])
    prompts = np.array(pairs.prompt, object)
    columns = {
        "demonstrations": {"prompt": prompts, "response": chosen},
        "preferences": {"prompt": prompts, "chosen": chosen, "rejected": rejected},
        "prompts": {"prompt": prompts},
    }
    parts = np.array_split(np.arange(len(pairs)), len(columns))
    for (name, texts), rows in zip(columns.items(), parts, strict=True):
        table = {"user_id": [f"u{row}" for row in rows]}
        table |= {column: values[rows].tolist() for column, values in texts.items()}
        pq.write_table(pa.table(table), home / f"{name}.parquet")
    learning = {"max_length": 128 if tiny else 512}
    answers = {"num_generations": 2 if tiny else 4, "max_completion_length": 8 if tiny else 64}
    recipe = {
        "private": "records",
        "unit": "user",
        "model": str(model),
        "epsilon": EPSILON,
        "delta": DELTA,
        "q": 0.2 if tiny else round(10 / len(parts[-1]), 6),
        "steps": 2 if tiny else 20,
        "sft": {"demonstrations": str(home / "demonstrations.parquet"), "config": {**learning}},
        "reward": {"preferences": str(home / "preferences.parquet"), "config": {**learning}},
        "rl": {"prompts": str(home / "prompts.parquet"), "config": {**learning, **answers}},
    }
    path = home / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what is missing; print numbers, never a text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--tiny", action="store_true", help="to see that it runs")
    outputs.add_argument(parser)
    options = parser.parse_args(arguments)
    pairs = corpus.corpus(tiny=options.tiny).training
    home = options.out / _NAME
    home.mkdir(parents=True, exist_ok=True)
    recipe = RecordsRecipe.read(write(home, options.out / "base", pairs, tiny=options.tiny))
    noise = zero_out.calibrate(EPSILON, DELTA, recipe.q, recipe.steps, recipe.updates)
    path = options.out / f"{_NAME}.json"
    known: dict[str, Any] = {"machine": outputs.machine(), "noise_multiplier": noise}
    if path.exists():
        known = json.loads(path.read_text())
    shutil.rmtree(home / "project", ignore_errors=True)
    stages = train_stages(recipe, lg.init(home / "project"), home / "stages", noise=noise)
    while True:
        part, took = watch(lambda: _next(stages))
        if part is None:
            return
        if part.name not in known:
            drawn = recipe.q * len(part.people)
            each = took["seconds"] / (drawn * recipe.steps)
            known[part.name] = {
                **took,
                "people": len(part.people),
                "steps": recipe.steps,
                "drawn_a_step": round(drawn, 1),
                "seconds_a_person": round(each, 3),
            }
            outputs.write(options.out, _NAME, known)
        print(part.name, known[part.name])


def _next(stages: Iterator[Part]) -> Part | None:
    return next(stages, None)


if __name__ == "__main__":
    main()
