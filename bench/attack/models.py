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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from datasets import Dataset
from dpo import base, labels, scoring, training
from dpo.base import Size as Model
from dpo.grammar import Floats
from dpo.labels import RR, STATISTIC, Budget
from dpo.training import Problem
from labelguard_trainer import RewardConfig, RewardTrainer
from labelguard_trainer.training.dpo import REFERENCE
from numpy.typing import NDArray
from transformers import PrinterCallback, set_seed

__all__ = ["DPO", "RAW", "REWARD", "ROWS", "TINY", "Run", "Size", "attack", "runs"]

RAW = "raw labels"
DPO, REWARD, ROWS = "DPO", "reward model", "the rows themselves"
"""What is attacked; the last reads a release without a model, which none can surpass by much."""
WORLDS = (0, 1)


_MODEL = Model(pairs=320, probes=300, sentences=(3, 5), batch=16)


@dataclass(frozen=True)
class Size:
    """How much is computed: the first `targets` labelers are attacked, of `labels` labels each."""

    model: Model = _MODEL
    targets: int = 32
    labels: int = 4
    epochs: tuple[int, ...] = (2, 10)
    learning_rate: float = 1e-3
    epsilons: tuple[float, ...] = (1.0, 4.0, 8.0)

    @property
    def attacked(self) -> int:
        """How many pairs the targets have: the first ones."""
        return self.targets * self.labels


TINY = Size(
    Model(pairs=24, probes=8, seeds=1, width=16, layers=1, steps=3, sentences=(3, 5), batch=8),
    targets=3,
    epochs=(1,),
    epsilons=(8.0,),
)


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
        text = json.dumps([asdict(self), asdict(size), _code()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def runs(size: Size) -> Iterator[Run]:
    """All of them, seed by seed."""
    private = [(name, epsilon) for name in (RR, STATISTIC) for epsilon in size.epsilons]
    for seed in range(size.model.seeds):
        for name, epsilon in private:
            yield Run(ROWS, 0, name, epsilon, seed)
        for model in (DPO, REWARD):
            for epochs in size.epochs:
                for name, epsilon in [(RAW, None), *private]:
                    yield Run(model, epochs, name, epsilon, seed)


@dataclass(frozen=True, eq=False)
class Rows:
    """What is trained on in one world; of the targets' pairs, two columns of shape (pairs,).

    `lean`: how far a row is from ½, above 0 for the first side. `known`: ±1, the label that went
    into the row; of a statistic, whose rows are a head's, the label that went into the sum.
    """

    dataset: Dataset
    lean: Floats
    known: Floats


def attack(run: Run, size: Size, directory: Path) -> dict[str, Any]:
    """The record of a run: of both worlds the targets' labels, what is known of them, and margins.

    `accuracy` is that on fresh pairs, and None where there is no model.
    """
    problem = _problem(run, size, directory)
    start = time.process_time()
    answers = [_labels(problem, size, world) for world in WORLDS]
    worlds = _rows(problem, run, size, answers)
    accuracy = None
    if run.model == ROWS:
        margins = [rows.lean for rows in worlds]
    else:
        every = np.array([_TRAIN[run.model](problem, rows.dataset) for rows in worlds])
        margins = list(every[:, : size.attacked])
        right = (every[:, size.attacked :] > 0) == (problem.probes.advantage > 0)
        accuracy = float(np.mean(right))
    return {
        "key": run.key(size),
        **asdict(run),
        "accuracy": accuracy,
        "cpu_seconds": round(time.process_time() - start, 1),
        "answers": [_signs(values == 1, size).tolist() for values in answers],
        "known": [rows.known.tolist() for rows in worlds],
        "margins": [np.round(values, 5).tolist() for values in margins],
    }


def _problem(run: Run, size: Size, directory: Path) -> Problem:
    """A problem whose scored pairs are those of the targets, and after them fresh ones."""
    problem = base.problem(size.model, run.seed, directory)
    settings = {
        **problem.settings,
        "learning_rate": size.learning_rate,
        "num_train_epochs": run.epochs,
    }
    scored = pa.concat_tables([problem.tokens.slice(0, size.attacked), problem.probe_tokens])
    return replace(problem, settings=settings, probe_tokens=scored)


def _labels(problem: Problem, size: Size, world: int) -> NDArray[np.uint8]:
    values = labels.raw(problem.pairs, problem.seed)
    coins = np.random.default_rng((problem.seed, 3, world))
    values[: size.attacked] = coins.integers(0, 2, size.attacked)
    return values


def _rows(problem: Problem, run: Run, size: Size, answers: list[NDArray[np.uint8]]) -> list[Rows]:
    """The rows of both worlds.

    Flips of others' labels are the same in both: an attacker may know all that was released of
    them. A statistic has one noise for all labelers, which is drawn in each world.
    """
    if run.epsilon is None:
        every = np.arange(len(problem.pairs))
        return [_join(problem, size, every, values == 1, {}, values == 1) for values in answers]
    budget, worlds, others = Budget(run.epsilon, size.labels), [], None
    for world, values in zip(WORLDS, answers, strict=True):
        path = problem.directory / f"{run.labels}-e{run.epsilon:g}-s{run.seed}-{world}"
        release = labels.privatize(run.labels, budget, problem.pairs, values, path)
        pair, first, noise = training.read_rows(problem, release)
        known = values == 1
        if run.labels == RR:
            others = first[size.attacked :] if others is None else others
            known = first = np.concatenate([first[: size.attacked], others])
        worlds.append(_join(problem, size, pair, first, noise, known))
    return worlds


def _join(
    problem: Problem,
    size: Size,
    pair: NDArray[np.intp],
    first: NDArray[np.bool_],
    noise: Mapping[str, Floats],
    known: NDArray[np.bool_],
) -> Rows:
    dataset = training.with_noise(scoring.sides(problem.tokens, pair, first), noise)
    probability = np.nan_to_num(noise.get("label_probability", np.ones(len(pair))), nan=1.0)
    lean = _signs(first, size) * (probability[: size.attacked] - 0.5)
    return Rows(dataset, lean, _signs(known, size))


def _signs(first: NDArray[np.bool_], size: Size) -> Floats:
    """Of the targets' pairs, +1 for the first side and −1 for the second."""
    return np.where(first[: size.attacked], 1.0, -1.0)


def _train_dpo(problem: Problem, dataset: Dataset) -> Floats:
    with tempfile.TemporaryDirectory() as scratch:
        return training.train_dpo(problem, dataset, "auto", Path(scratch)).margins


def _train_reward(problem: Problem, dataset: Dataset) -> Floats:
    """A reward model by the same settings, but for those that DPO alone has."""
    settings = {k: v for k, v in problem.settings.items() if k != "beta"}
    set_seed(problem.seed)  # the head is new
    with tempfile.TemporaryDirectory() as scratch:
        config = RewardConfig(
            scratch,
            **scoring.QUIET,
            **settings,
            seed=problem.seed,
            non_private="flip_probability" not in dataset.column_names,
        )
        trainer = RewardTrainer(str(problem.base), config, train_dataset=_merge(dataset))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        return trainer.margins(_merge(scoring.as_written(problem.probe_tokens)))


def _merge(dataset: Dataset) -> Dataset:
    """The data set with prompt and response as one text."""

    def merge(row: dict[str, Any]) -> dict[str, Any]:
        sides = ("chosen_ids", "rejected_ids")
        return {side: [*row["prompt_ids"], *row[side]] for side in sides}

    return dataset.map(merge, remove_columns=["prompt_ids", *REFERENCE])


_Train: TypeAlias = Callable[[Problem, Dataset], Floats]
_TRAIN: dict[str, _Train] = {DPO: _train_dpo, REWARD: _train_reward}


@cache
def _code() -> str:
    here = Path(__file__).parent
    names = ("grammar.py", "base.py", "labels.py", "scoring.py", "training.py")
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for name in names:
        digest.update((here.parent / "dpo" / name).read_bytes())
    return digest.hexdigest()[:12]
