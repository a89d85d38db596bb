"""Ways to a reward model: each as a function that returns the margins of the probes."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import yaml
from datasets import Dataset
from dpo.grammar import Floats, Pairs
from dpo.labels import DELTA
from labelguard_trainer import RewardConfig, RewardTrainer
from labelguard_trainer.gradient import loop
from labelguard_trainer.gradient.language_runs import PreparedLanguage
from labelguard_trainer.gradient.loop import Checkpoints, NoisyRun
from labelguard_trainer.gradient.records import Records
from labelguard_trainer.training.settings import parse_lora
from peft import LoraConfig
from props_time import now
from transformers import PrinterCallback

import labelguard as lg
from labelguard.accounting import subsampled
from labelguard.learning.learners import LearnerOptions
from lora.problem import Problem

__all__ = ["CLEAN", "STATISTIC", "ULS", "WAYS", "Outcome", "scored"]

CLEAN, STATISTIC, ULS = "no privacy", "statistic, soft", "uls"
_SAMPLE = 32
"""Labelers whose gradients, of fair coins for labels, tell the clip norm."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Margins of the probes, shape (probes,), and what else goes into the record."""

    margins: Floats
    details: Mapping[str, Any]


def uls(problem: Problem, epsilon: float | None, directory: Path) -> Outcome:
    """Labeler-level DP-SGD on labels as they were given."""
    assert epsilon is not None
    setup = problem.setup
    return _by_gradients(problem, subsampled.calibrate(epsilon, DELTA, _q(problem), setup.steps))


def clean(problem: Problem, epsilon: float | None, directory: Path) -> Outcome:
    """The same steps without noise, as it would be without privacy."""
    assert epsilon is None
    return _by_gradients(problem, 0.0)


def soft(problem: Problem, epsilon: float | None, directory: Path) -> Outcome:
    """On the probabilities that a head gives every pair, which learned from a statistic."""
    assert epsilon is not None
    setup = problem.setup
    release = problem.released(epsilon, directory / "release")
    config = RewardConfig(
        str(directory / "training"),
        learning_rate=setup.soft_rate,
        max_steps=setup.soft_steps,
        seed=problem.seed,
        save_strategy="no",
        logging_strategy="no",
        report_to="none",
        disable_tqdm=True,
        activation_checkpointing=False,
        **_settings(problem),
    )
    trainer = RewardTrainer(
        str(problem.base),
        config,
        train_dataset=lg.load(release, "datasets"),
        peft_config=LoraConfig(task_type="SEQ_CLS", **parse_lora(setup.lora)),
    )
    trainer.remove_callback(PrinterCallback)
    start = now()
    trainer.train()
    seconds = (now() - start) / setup.soft_steps
    return Outcome(trainer.margins(_sides(problem.probes)), {"seconds_a_step": seconds})


Way: TypeAlias = Callable[[Problem, float | None, Path], Outcome]

WAYS: dict[str, Way] = {CLEAN: clean, STATISTIC: soft, ULS: uls}


def _by_gradients(problem: Problem, noise_multiplier: float) -> Outcome:
    """Noised steps on labels as they were given, by cohorts of labelers."""
    setup, labelers = problem.setup, problem.labelers
    sampled = {"sampling_probability": _q(problem), "steps": setup.steps}
    price = {**sampled, "noise_multiplier": noise_multiplier}
    with tempfile.TemporaryDirectory() as scratch:
        config = Path(scratch, "config.yaml")
        settings = {**_settings(problem), "learning_rate": setup.rate}
        config.write_text(yaml.safe_dump(settings))
        options = LearnerOptions(str(problem.base), setup.lora, str(config))
        prepared = PreparedLanguage.of("reward", problem.texts(), options)
        records = Records(problem.pair, problem.unit, labelers, setup.limit, "mean")
        model = prepared.open(records)
        coins = np.random.default_rng(0).integers(0, 2, len(problem.labels)).astype(np.float64)
        some = np.arange(min(_SAMPLE, labelers))
        clip = float(np.median(np.linalg.norm(model.gradients(some, coins), axis=1)))
        course = NoisyRun.from_price(price, clip, labelers)
        checkpoints = Checkpoints(Path(scratch), setup.steps, bytes)
        start = now()
        loop.train(model, problem.labels, course, checkpoints, lambda _: None)
        seconds = (now() - start) / setup.steps
    told = {"noise_multiplier": noise_multiplier, "parameters": model.size}
    margins = model.margins()[len(problem.pairs) :]
    return Outcome(margins, {**told, "seconds_a_step": seconds})


def _q(problem: Problem) -> float:
    return min(1.0, problem.setup.cohort / problem.labelers)


def _sides(pairs: Pairs) -> Dataset:
    return Dataset.from_dict(
        {"prompt": pairs.prompt, "chosen": pairs.first, "rejected": pairs.second}
    )


def _settings(problem: Problem) -> dict[str, Any]:
    """What a reward model's configuration and that of ULS have in common."""
    on_gpu = torch.cuda.is_available()
    return {
        "max_length": problem.setup.max_length,
        "per_device_train_batch_size": problem.setup.batch,
        "per_device_eval_batch_size": 2 * problem.setup.batch,
        "bf16": on_gpu,
        "use_cpu": not on_gpu,
    }


def scored(problem: Problem, way: str, epsilon: float | None) -> dict[str, Any]:
    """`accuracy` on the probes, `cpu_seconds`, and what the way tells."""
    start = time.process_time()
    with tempfile.TemporaryDirectory() as directory:
        outcome = WAYS[way](problem, epsilon, Path(directory))
    right = (outcome.margins > 0) == (problem.probes.advantage > 0)
    return {
        "accuracy": float(np.mean(right)),
        "cpu_seconds": round(time.process_time() - start, 1),
        **outcome.details,
    }
