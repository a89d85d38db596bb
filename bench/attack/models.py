"""Models on labels whose owners are attacked, each trained twice, and what they say of the pairs.

A seed has two *worlds*: the same pairs, the same labels of all other labelers, and labels of the
targets that are fair coins, drawn anew in each. The model of one world is attacked with that of the
other at hand, trained with the same seed, and the other way round.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset
from dpo import base, labels, scoring, training
from dpo.grammar import Floats
from dpo.labels import RR, STATISTIC
from dpo.runs import code_digest
from dpo.training import Problem
from labelguard_trainer import RewardConfig, RewardTrainer
from labelguard_trainer.training.dpo import REFERENCE
from numpy.typing import NDArray
from transformers import PrinterCallback, set_seed

RAW = "raw labels"
DPO, REWARD, ROWS = "DPO", "reward model", "the rows themselves"
"""Subjects of the attack; the last reads a release without a model, which cannot know more."""
_MODEL = base.Size(pairs=320, probes=300, sentences=(3, 5), batch=16)
_TINY = base.Size(24, 8, seeds=1, width=16, layers=1, steps=3, sentences=(3, 5), batch=8)


@dataclass(frozen=True)
class Size:
    """How much is computed: the first `targets` labelers are attacked, of `labels` labels each."""

    model: base.Size = _MODEL
    targets: int = 32
    labels: int = 4
    epochs: tuple[int, ...] = (2, 10)
    learning_rate: float = 1e-3
    epsilons: tuple[float, ...] = (1.0, 4.0, 8.0)

    @property
    def attacked(self) -> int:
        """How many pairs the targets have: the first ones."""
        return self.targets * self.labels


TINY = Size(_TINY, targets=3, epochs=(1,), epsilons=(8.0,))


@dataclass(frozen=True)
class Run:
    """One line of results; no ε where there is no privacy, no epochs without a model."""

    model: str
    epochs: int
    labels: str
    epsilon: float | None
    seed: int

    def key(self, size: Size) -> str:
        """A digest of settings and of the code that decides the numbers."""
        code = [code_digest(), Path(__file__).read_text(encoding="utf-8")]
        text = json.dumps([asdict(self), asdict(size), code], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def runs(size: Size) -> Iterator[Run]:
    """All of them, seed by seed."""
    private = [(name, epsilon) for name in (RR, STATISTIC) for epsilon in size.epsilons]
    models = [(model, epochs) for model in (DPO, REWARD) for epochs in size.epochs]
    for seed in range(size.model.seeds):
        for name, epsilon in [(RAW, None), *private]:
            for model, epochs in models if epsilon is None else [(ROWS, 0), *models]:
                yield Run(model, epochs, name, epsilon, seed)


def attack(run: Run, size: Size, directory: Path) -> dict[str, Any]:
    """The record of a run: of both worlds the targets' labels, what is known of them, and margins.

    `accuracy` is that on fresh pairs, and None where there is no model.
    """
    problem = _problem(run, size, directory)
    start = time.process_time()
    answers = [_labels(problem, size, world) for world in range(2)]
    datasets, margins, known = zip(*_rows(problem, run, size, answers), strict=True)
    accuracy = None
    if run.model != ROWS:
        every = np.array([_TRAIN[run.model](problem, dataset) for dataset in datasets])
        margins, fresh = np.split(every, [size.attacked], axis=1)
        accuracy = float(np.mean((fresh > 0) == (problem.probes.advantage > 0)))
    return {
        "key": run.key(size),
        **asdict(run),
        "accuracy": accuracy,
        "cpu_seconds": round(time.process_time() - start, 1),
        "answers": [_signs(values == 1, size).tolist() for values in answers],
        "known": np.array(known).tolist(),
        "margins": np.round(margins, 5).tolist(),
    }


def _problem(run: Run, size: Size, directory: Path) -> Problem:
    """A problem whose scored pairs are those of the targets, and after them fresh ones."""
    problem = base.problem(size.model, run.seed, directory)
    more = {"learning_rate": size.learning_rate, "num_train_epochs": run.epochs}
    scored = pa.concat_tables([problem.tokens.slice(0, size.attacked), problem.probe_tokens])
    return replace(problem, settings={**problem.settings, **more}, probe_tokens=scored)


def _labels(problem: Problem, size: Size, world: int) -> NDArray[np.uint8]:
    values = labels.raw(problem.pairs, problem.seed)
    coins = np.random.default_rng((problem.seed, 3, world))
    values[: size.attacked] = coins.integers(0, 2, size.attacked)
    return values


def _rows(
    problem: Problem, run: Run, size: Size, answers: list[NDArray[np.uint8]]
) -> Iterator[tuple[Dataset, Floats, Floats]]:
    """Of each world a data set to train on, and of the targets' pairs two columns.

    The first says how far a row is from ½, above 0 for the first side; the second is ±1, the label
    that went into the row, or, as rows of a statistic are a head's, into its sum.

    Flips of others' labels are the same in both worlds: an attacker may know all that was released
    of them. A statistic has one noise for all labelers, which is drawn in each world.
    """
    others = None
    for world, values in enumerate(answers):
        pair, first, noise = np.arange(len(values)), values == 1, {}
        known = first
        if run.epsilon is not None:
            path = problem.directory / f"{run.labels}-e{run.epsilon:g}-s{run.seed}-{world}"
            budget = labels.Budget(run.epsilon, size.labels)
            labels.privatize(run.labels, budget, problem.pairs, values, path)
            pair, first, noise = training.read_rows(problem, path)
        if run.labels != STATISTIC:
            others = first[size.attacked :] if others is None else others
            known = first = np.concatenate([first[: size.attacked], others])
        dataset = training.with_noise(scoring.sides(problem.tokens, pair, first), noise)
        probability = np.nan_to_num(noise.get("label_probability", np.ones(len(pair))), nan=1.0)
        lean = _signs(first, size) * (probability[: size.attacked] - 0.5)
        yield dataset, lean, _signs(known, size)


def _signs(first: NDArray[np.bool_], size: Size) -> Floats:
    """Of the targets' pairs, +1 for the first side and −1 for the second."""
    return np.where(first[: size.attacked], 1.0, -1.0)


def _train_dpo(problem: Problem, dataset: Dataset) -> Floats:
    with tempfile.TemporaryDirectory() as scratch:
        return training.train_dpo(problem, dataset, "auto", Path(scratch)).margins


def _train_reward(problem: Problem, dataset: Dataset) -> Floats:
    """A reward model by the same settings, but for the one that DPO alone has."""
    settings = {name: value for name, value in problem.settings.items() if name != "beta"}
    private = "flip_probability" in dataset.column_names
    settings |= {"seed": problem.seed, "non_private": not private}
    set_seed(problem.seed)  # the head is new
    with tempfile.TemporaryDirectory() as scratch:
        config = RewardConfig(scratch, **scoring.QUIET, **settings)
        trainer = RewardTrainer(str(problem.base), config, train_dataset=_merge(dataset))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return trainer.margins(_merge(scoring.as_written(problem.probe_tokens)))


def _merge(dataset: Dataset) -> Dataset:
    """The data set with prompt and response as one text."""

    def merge(row: dict[str, Any]) -> dict[str, Any]:
        return {side: [*row["prompt_ids"], *row[side]] for side in ("chosen_ids", "rejected_ids")}

    return dataset.map(merge, remove_columns=["prompt_ids", *REFERENCE])


_TRAIN: dict[str, Callable[[Problem, Dataset], Floats]] = {DPO: _train_dpo, REWARD: _train_reward}
