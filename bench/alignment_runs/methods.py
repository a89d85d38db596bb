"""Ways from the same labels to a better model, and the record of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from labelguard_trainer import train
from labelguard_trainer.alignment.recipe import RlRecipe, SftRecipe
from labelguard_trainer.alignment.stages import fine_tune, train_policy

import labelguard as lg
from alignment_runs import language
from alignment_runs.problem import TOKENS, Problem, sample, summarize
from labelguard.analysis.reward import ReleaseReward
from labelguard.text import no_progress

_RATES = {"sft": 1e-3, "rl": 5e-4, "dpo": 5e-4}
_COMMON = {"use_cpu": True, "bf16": False, "activation_checkpointing": False}
Record = dict[str, Any]


def _no_card(*_: Any) -> str:
    """Return an empty card: nobody else reads these models."""
    return ""


def start(problem: Problem, epsilon: float) -> Path:
    """Return the model after supervised fine-tuning on what the release prefers; made once."""
    rows = lg.load(problem.release(epsilon), "arrow")
    config = {
        **_COMMON,
        "learning_rate": _RATES["sft"],
        "num_train_epochs": 1,
        "per_device_train_batch_size": problem.scale.model.batch,
        "seed": problem.seed,
    }
    output = problem.directory / f"sft-{epsilon:g}"
    texts = rows["prompt"].to_pylist(), rows["chosen"].to_pylist()
    fine_tune(SftRecipe(config=config), str(problem.base), *texts, output, _no_card, no_progress)
    return output


def untrained(problem: Problem, epsilon: float) -> Record:
    """The language model as it is."""
    return summarize(
        problem.measure(problem.base, start(problem, epsilon), problem.teacher(epsilon))
    )


def tuned(problem: Problem, epsilon: float) -> Record:
    """Supervised fine-tuning alone."""
    model = start(problem, epsilon)
    return summarize(problem.measure(model, model, problem.teacher(epsilon)))


def reinforced(problem: Problem, epsilon: float) -> Record:
    """Reinforcement learning with the reward of the release."""
    return _reinforce(problem, epsilon, problem.teacher(epsilon), "rl")


def reinforced_without_privacy(problem: Problem, epsilon: float) -> Record:
    """The same with the reward of a head that saw the labels without noise."""
    return _reinforce(problem, epsilon, problem.exact_teacher(epsilon), "rl-exact")


def _reinforce(problem: Problem, epsilon: float, reward: ReleaseReward, name: str) -> Record:
    scale, output = problem.scale, problem.directory / f"{name}-{epsilon:g}"

    def with_truth(
        prompts: list[str], completions: list[str], log_metric: Any = None, **_: Any
    ) -> list[float]:
        log_metric("truth", float(language.true_rewards(prompts, completions).mean()))
        return reward(prompts, completions)

    config = {
        **_COMMON,
        "learning_rate": _RATES["rl"],
        "lr_scheduler_type": "constant",
        "max_steps": scale.steps,
        "per_device_train_batch_size": scale.responses,
        "num_generations": 4,
        "max_completion_length": TOKENS,
        "beta": 0.05,
        "logging_steps": max(scale.steps // 30, 1),
        "seed": problem.seed,
    }
    recipe = RlRecipe(config=config, holdout=0)
    begin = start(problem, epsilon)
    train_policy(
        *(recipe, str(begin), with_truth, sorted(set(problem.pairs.prompt)), output),
        *(_no_card, no_progress),
        identity={"reward": name, "epsilon": epsilon},
    )
    lines = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    curve = [
        (line["kl"] * line["completions/mean_length"], line["truth"], line["reward"])
        for line in lines
        if "truth" in line
    ]
    measured = problem.measure(output, begin, problem.teacher(epsilon))
    return {**summarize(measured), "curve": curve}


def preferred(problem: Problem, epsilon: float) -> Record:
    """DPO on the rows of the release."""
    output, begin = problem.directory / f"dpo-{epsilon:g}", start(problem, epsilon)
    if not output.exists():
        config = problem.directory / "dpo.yaml"
        settings = {
            **_COMMON,
            "learning_rate": _RATES["dpo"],
            "beta": 0.1,
            "num_train_epochs": 1,
            "per_device_train_batch_size": problem.scale.model.batch,
            "seed": problem.seed,
        }
        config.write_text(yaml.safe_dump(settings))
        train("dpo", problem.release(epsilon), begin, output=output, config=config, holdout=0)
    return summarize(problem.measure(output, begin, problem.teacher(epsilon)))


def best_of(problem: Problem, epsilon: float) -> Record:
    """The best of several responses of the fine-tuned model, by the reward of the release."""
    begin, teacher, count = start(problem, epsilon), problem.teacher(epsilon), problem.scale.samples
    prompts, responses, _ = sample(begin, problem.prompts, count, problem.seed)
    scores = teacher.score(prompts, responses).reshape(-1, count)
    truth = language.true_rewards(prompts, responses).reshape(-1, count)
    rows = np.arange(len(scores))
    best = scores.argmax(axis=1)
    chosen = [responses[row * count + column] for row, column in enumerate(best)]
    curve = []
    for n in [2**k for k in range(count.bit_length()) if 2**k <= count]:
        column = scores[:, :n].argmax(axis=1)
        kl = np.log(n) - (n - 1) / n
        curve.append(
            (float(kl), float(truth[rows, column].mean()), float(scores[rows, column].mean()))
        )
    return {
        "rewards": truth[rows, best].round(3).tolist(),
        "kl": curve[-1][0],
        "teacher": curve[-1][2],
        "distance": float(teacher.distances(problem.prompts, chosen).mean()),
        "curve": curve,
    }


METHODS: Mapping[str, Callable[[Problem, float], Record]] = {
    "untrained": untrained,
    "SFT": tuned,
    "best-of-N": best_of,
    "DPO": preferred,
    "RL": reinforced,
    "RL, no privacy": reinforced_without_privacy,
}
