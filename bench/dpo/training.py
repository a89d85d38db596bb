"""Every kind of labels that is compared, as a function that trains on them and scores the probes.

All runs of a seed see the same pairs in the same order, and those that start from randomized
response the same released labels.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
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
from dpo import base, labels
from dpo.base import Size
from dpo.grammar import Pairs
from dpo.labels import Budget
from labelguard.learning.learners import LearnerOptions
from labelguard.mechanisms.props_stages import ReleasedLabels, run_stages
from labelguard.terms import silent

Floats: TypeAlias = NDArray[np.float64]

_FOLDS = 5
_NOISE = ("label_probability", "flip_probability", "residual_flip_estimate")
_TEXTS = ("prompt", "first", "second")
_SETTINGS = (
    "beta",
    "learning_rate",
    "num_train_epochs",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "warmup_steps",
    "max_length",
    "activation_checkpointing",
    "bf16",
    "use_cpu",
    "seed",
)


@dataclass(frozen=True, eq=False)
class Problem:
    """One seed's pairs and the probes, as texts and as tokens, and the base model."""

    size: Size
    seed: int
    directory: Path
    base: Path
    pairs: Pairs
    tokens: pa.Table
    probes: Pairs
    probe_tokens: pa.Table

    @classmethod
    def of(cls, size: Size, seed: int, directory: Path) -> Problem:
        """Made, or read where it was made before."""
        model = base.pretrained(size, directory)
        pairs, probes = base.training_pairs(size, seed), base.probe_pairs(size)
        tokens = base.scored(f"pairs-s{seed}", pairs, model, size, directory)
        probe_tokens = base.scored("probes", probes, model, size, directory)
        return cls(size, seed, directory, model, pairs, tokens, probes, probe_tokens)

    def release(self, mechanism: str, budget: Budget) -> Path:
        """The directory of a release of this seed's labels."""
        return labels.released(mechanism, budget, self.pairs, self.seed, self.directory)


Measured: TypeAlias = tuple[Floats, dict[str, Any]]
"""Margins of the probes, shape (probes,), and what else goes into the record."""
Variant: TypeAlias = Callable[[Problem, Budget | None], Measured]


def clean(problem: Problem, budget: Budget | None) -> Measured:
    """Labels as they were given: no privacy."""
    first = labels.raw(problem.pairs, problem.seed).astype(bool)
    return _dpo(problem, _sides(problem.tokens, np.arange(len(first)), first), "auto")


def on_release(
    problem: Problem, budget: Budget | None, *, mechanism: str, loss: str = "auto"
) -> Measured:
    """DPO on a release, with the loss that its card asks for or another."""
    assert budget is not None
    pair, first, rows = _read(problem, problem.release(mechanism, budget))
    dataset = _sides(problem.tokens, pair, first)
    for name in _NOISE:
        dataset = dataset.add_column(name, rows[name])
    return _dpo(problem, dataset, loss)


def props(problem: Problem, budget: Budget | None, *, combine: Literal["hard", "soft"]) -> Measured:
    """PROPS in two stages on the labels of randomized response."""
    assert budget is not None
    pair, first, rows = _read(problem, problem.release(labels.RR, budget))
    draw = np.random.default_rng((problem.seed, 2))
    released = ReleasedLabels(
        pair,
        draw.integers(0, 2, len(problem.pairs))[pair],
        draw.integers(0, _FOLDS, len(problem.pairs))[pair],
        first.astype(np.uint8),
        rows["flip_probability"],
    )
    with tempfile.TemporaryDirectory() as scratch:
        prepared = learners.dpo(_all_texts(problem), _options(problem, Path(scratch)))
        learner = prepared.open(Path(scratch), silent)
        results = list(run_stages(prepared.inputs, released, learner, combine=combine))
        margins = results[-1].scorer(prepared.inputs[len(problem.pairs) :])
        later = pair[results[-1].rows]
        votes = results[0].scorer(prepared.inputs[later]) > 0
    error = results[-1].report.error
    assert error is not None
    return margins, {
        "estimated_error": error.rate,
        "standard_error": error.standard_error,
        "true_error": float(np.mean(votes != labels.raw(problem.pairs, problem.seed)[later])),
    }


def _read(problem: Problem, release: Path) -> tuple[NDArray[np.intp], NDArray[np.bool_], Any]:
    """Of a release's rows, in the order of their pairs: pair, first side preferred, noise."""
    table = lg.load(release, "arrow")
    pair = np.array(table["item_id"].to_pylist(), np.intp)
    table, pair = table.take(pa.array(np.argsort(pair))), np.sort(pair)
    chosen = table["chosen"].to_pylist()
    first = np.array([problem.pairs.first[k] == text for k, text in zip(pair, chosen, strict=True)])
    return pair, first, {name: table[name].to_numpy() for name in _NOISE}


def _sides(tokens: pa.Table, pair: NDArray[np.intp], first: NDArray[np.bool_]) -> Dataset:
    """A tokenized data set with the reference's log-probabilities."""
    ids, reference = (
        pa.concat_arrays([chunk for name in names for chunk in tokens[name].chunks])
        for names in (("first_ids", "second_ids"), ("ref_first", "ref_second"))
    )
    chosen, rejected = (
        pa.array(pair + np.where(wanted, 0, tokens.num_rows)) for wanted in (first, ~first)
    )
    columns = {
        "prompt_ids": tokens["prompt_ids"].take(pa.array(pair)),
        "chosen_ids": ids.take(chosen),
        "rejected_ids": ids.take(rejected),
        "ref_chosen_logps": reference.take(chosen),
        "ref_rejected_logps": reference.take(rejected),
    }
    return Dataset(pa.table(columns))


def _dpo(problem: Problem, dataset: Dataset, loss: str) -> Measured:
    with tempfile.TemporaryDirectory() as scratch:
        config = base.dpo_config(
            problem.size,
            Path(scratch),
            seed=problem.seed,
            preference_loss=loss,
            non_private=not set(_NOISE) & set(dataset.column_names),
        )
        trainer = DPOTrainer(str(problem.base), config, train_dataset=dataset)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        every = np.arange(len(problem.probes))
        probes = _sides(problem.probe_tokens, every, np.ones(len(every), bool))
        return trainer.margins(probes), {"steps": trainer.state.global_step}


def _all_texts(problem: Problem) -> pa.Table:
    """Pairs, and after them the probes: what the learner may be asked about."""
    parts = (problem.pairs, problem.probes)
    return pa.concat_tables([pa.table({n: getattr(p, n) for n in _TEXTS}) for p in parts])


def _options(problem: Problem, scratch: Path) -> LearnerOptions:
    shared = asdict(base.dpo_config(problem.size, scratch, seed=problem.seed))
    config = scratch / "config.yaml"
    config.write_text(yaml.safe_dump({name: shared[name] for name in _SETTINGS}))
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
