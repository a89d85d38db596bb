"""Fine-tuning and reinforcement learning at 124M parameters, from one release at ε = 1.

    bench/gpu.sh alignment           # after `bench/gpu.sh pretrain`
    bench/gpu.sh alignment-records   # all stages with whole records private

Simulated labelers give ten labels each on one half of the dialogues; a statistic release of their
labels is the reward. Told of each stage: seconds, rows a second and the most memory that torch
held; of the policy its reward, KL and distance on held-out prompts, before and after.

Writes alignment.json; a stage that is done is not done again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from dpo.labels import STATISTIC, Budget, released
from labelguard_trainer.alignment.recipe import RlRecipe, SftRecipe
from labelguard_trainer.alignment.stages import AlignmentStage, fine_tune, train_policy

import labelguard as lg
from gpu import corpus, outputs
from labelguard.text import no_progress

BUDGET = Budget(epsilon=1.0, labels=10)
_NAME = "alignment"

T = TypeVar("T")


def configs(*, tiny: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields of `SFTConfig` and of `RLOOConfig`."""
    common = {"activation_checkpointing": False, "seed": 0}
    if tiny:
        few = {**common, "max_steps": 2, "per_device_train_batch_size": 4}
        return few, {**few, "max_completion_length": 8}
    tuning = {"learning_rate": 5e-5, "num_train_epochs": 1, "per_device_train_batch_size": 16}
    learning = {
        "learning_rate": 1e-5,
        "lr_scheduler_type": "constant",
        "max_steps": 120,
        "per_device_train_batch_size": 64,
        "per_device_eval_batch_size": 128,
        "max_completion_length": 64,
        "num_generations": 4,
    }
    return {**common, **tuning, "max_length": 512}, {**common, **learning}


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what is missing; print numbers, never a text."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--tiny", action="store_true", help="to see that it runs")
    outputs.add_argument(parser)
    options = parser.parse_args(arguments)
    pairs = corpus.corpus(tiny=options.tiny).training
    home = options.out / _NAME
    home.mkdir(parents=True, exist_ok=True)
    release = released(STATISTIC, BUDGET, pairs, 0, home)
    rows = lg.load(release, "arrow")
    tuning, learning = configs(tiny=options.tiny)
    path = options.out / f"{_NAME}.json"
    known = json.loads(path.read_text()) if path.exists() else {"machine": outputs.machine()}

    def tune() -> AlignmentStage:
        texts = rows["prompt"].to_pylist(), rows["chosen"].to_pylist()
        base = str(options.out / "base")
        return fine_tune(
            SftRecipe(config=tuning), base, *texts, home / "sft", _no_card, no_progress
        )

    def reinforce() -> AlignmentStage:
        recipe = RlRecipe(config=learning, holdout=8 / len(pairs) if options.tiny else 0.05)
        prompts = sorted(set(pairs.prompt))
        return train_policy(
            *(recipe, str(home / "sft"), lg.reward(release), prompts, home / "rl", _no_card),
            no_progress,
            identity={"epsilon": BUDGET.epsilon},
        )

    for name, stage in (("sft", tune), ("rl", reinforce)):
        if name not in known:
            known[name] = measure(stage)
            outputs.write(options.out, _NAME, known)
        print(name, known[name])


def measure(stage: Callable[[], AlignmentStage]) -> dict[str, Any]:
    """Return what a stage took, and what it says of its model."""
    result, took = watch(stage)
    return {
        **took,
        "steps_per_second": round(result.steps / took["seconds"], 3),
        "rows": result.rows,
        "before": result.before,
        "after": result.after,
    }


def watch(work: Callable[[], T]) -> tuple[T, dict[str, Any]]:
    """Return what `work` returns, its seconds and the most memory that torch held."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    result = work()
    seconds = max(round(time.perf_counter() - start, 1), 0.1)
    memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    return result, {"seconds": seconds, "memory_gib": memory and round(memory, 2)}


def _no_card(*_: Any) -> str:
    """Return an empty card: nobody else reads these models."""
    return ""


if __name__ == "__main__":
    main()
