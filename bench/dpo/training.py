"""Every kind of labels that is compared, as a function that trains on them and scores the probes.

All runs of a seed see the same pairs in the same order, and those that start from randomized
response the same released labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import yaml
from datasets import Dataset
from labelguard_trainer import DPOTrainer
from labelguard_trainer.training import learners
from numpy.typing import NDArray
from transformers import PrinterCallback

import labelguard as lg
from dpo import labels, scoring
from dpo.grammar import Pairs
from dpo.labels import Budget
from labelguard.learning.learners import LearnerOptions
from labelguard.mechanisms.joint_flips import FlippedRows
from labelguard.mechanisms.props_stages import ReleasedLabels, run_stages
from labelguard.release.writer import read_card
from labelguard.text import no_progress

Floats: TypeAlias = NDArray[np.float64]

_FOLDS = 5
_NOISE = ("label_probability", "flip_probability", "residual_flip_estimate")
_TEXTS = ("prompt", "first", "second")


@dataclass(frozen=True, eq=False)
class Problem:
    """One seed's pairs and the probes, as texts and as `scoring.scored`, and a base model.

    `settings` are fields of `DPOConfig`; releases are kept in `directory`.
    """

    seed: int
    directory: Path
    base: Path
    settings: Mapping[str, Any]
    pairs: Pairs
    tokens: pa.Table
    probes: Pairs
    probe_tokens: pa.Table

    def release(self, mechanism: str, budget: Budget) -> Path:
        """The directory of a release of this seed's labels."""
        return labels.released(mechanism, budget, self.pairs, self.seed, self.directory)


@dataclass(frozen=True, eq=False)
class Outcome:
    """Margins of the probes, shape (probes,), and what else goes into the record."""

    margins: Floats
    details: Mapping[str, Any]


Variant: TypeAlias = Callable[[Problem, Budget | None, Path], Outcome]
"""Trains, and leaves the model in the directory `model` of the path."""


def clean(problem: Problem, budget: Budget | None, output: Path) -> Outcome:
    """Labels as they were given: no privacy."""
    first = labels.raw(problem.pairs, problem.seed).astype(bool)
    every = np.arange(len(first))
    return train_dpo(problem, scoring.sides(problem.tokens, every, first), "auto", output)


def on_release(
    problem: Problem, budget: Budget | None, output: Path, *, mechanism: str, loss: str = "auto"
) -> Outcome:
    """DPO on a release, with the loss that its card asks for or another."""
    assert budget is not None
    pair, first, noise = read_rows(problem, problem.release(mechanism, budget))
    dataset = with_noise(scoring.sides(problem.tokens, pair, first), noise)
    return train_dpo(problem, dataset, loss, output)


def props(
    problem: Problem, budget: Budget | None, output: Path, *, combine: Literal["hard", "soft"]
) -> Outcome:
    """PROPS in two stages of labelers, on the labels of randomized response."""
    assert budget is not None
    release = problem.release(labels.RR, budget)
    pair, first, noise = read_rows(problem, release)
    draw, unit = np.random.default_rng((problem.seed, 2)), pair // budget.labels
    flips = FlippedRows.of(
        noise["flip_probability"], read_card(release)["flip_probability"]["blocks"]
    )
    released = ReleasedLabels(
        pair,
        unit,
        draw.integers(0, 2, len(problem.pairs))[unit],
        draw.integers(0, _FOLDS, len(problem.pairs))[unit],
        first.astype(np.uint8),
        flips.flip_probability,
        flips.noise,
    )
    prepared = learners.dpo(_all_texts(problem), _options(problem, output))
    learner = prepared.open(output / "stages", no_progress)
    results = list(run_stages(prepared.inputs, released, learner, combine=combine))
    margins = results[-1].scorer(prepared.inputs[len(problem.pairs) :])
    later = pair[results[-1].rows]
    votes = results[0].scorer(prepared.inputs[later]) > 0
    (model,) = prepared.files(results[-1].scorer, output / "stages")
    model.rename(output / "model")
    error = results[-1].report.error
    assert error is not None
    details = {
        "estimated_error": error.rate,
        "standard_error": error.standard_error,
        "true_error": float(np.mean(votes != labels.raw(problem.pairs, problem.seed)[later])),
    }
    return Outcome(margins, details)


def read_rows(
    problem: Problem, release: Path
) -> tuple[NDArray[np.intp], NDArray[np.bool_], dict[str, Floats]]:
    """Of a release's rows, in the order of their pairs: pair, first side preferred, noise."""
    table = lg.load(release, "arrow")
    pair = np.array(table["item_id"].to_pylist(), np.intp)
    table, pair = table.take(pa.array(np.argsort(pair))), np.sort(pair)
    chosen = table["chosen"].to_pylist()
    first = np.array([problem.pairs.first[k] == text for k, text in zip(pair, chosen, strict=True)])
    return pair, first, {name: table[name].to_numpy() for name in _NOISE}


def with_noise(dataset: Dataset, noise: Mapping[str, Floats]) -> Dataset:
    """The data set with what a release says of its rows."""
    for name, values in noise.items():
        dataset = dataset.add_column(name, values)
    return dataset


def train_dpo(problem: Problem, dataset: Dataset, loss: str, output: Path) -> Outcome:
    """DPO on tokenized rows; rows without noise are raw labels."""
    config = scoring.dpo_config(
        problem.settings,
        output / "training",
        seed=problem.seed,
        preference_loss=loss,
        non_private=not set(_NOISE) & set(dataset.column_names),
    )
    trainer = DPOTrainer(str(problem.base), config, train_dataset=dataset)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trainer.save_model(str(output / "model"))
    margins = trainer.margins(scoring.as_written(problem.probe_tokens))
    return Outcome(margins, {"steps": trainer.state.global_step})


def _all_texts(problem: Problem) -> pa.Table:
    """Pairs, and after them the probes: what the learner may be asked about."""
    parts = (problem.pairs, problem.probes)
    return pa.concat_tables([pa.table({n: getattr(p, n) for n in _TEXTS}) for p in parts])


def _options(problem: Problem, output: Path) -> LearnerOptions:
    output.mkdir(parents=True, exist_ok=True)
    config = output / "config.yaml"
    config.write_text(yaml.safe_dump({**problem.settings, "seed": problem.seed}))
    return LearnerOptions(model=str(problem.base), lora=None, config=str(config))


VARIANTS: dict[str, Variant] = {
    "clean": clean,
    "RR, forward": partial(on_release, mechanism=labels.RR),
    "RR, robust": partial(on_release, mechanism=labels.RR, loss="robust"),
    "RR, plain": partial(on_release, mechanism=labels.RR, loss="plain"),
    "PROPS, hard": partial(props, combine="hard"),
    "PROPS, soft": partial(props, combine="soft"),
    "teacher": partial(on_release, mechanism=labels.STATISTIC),
}
