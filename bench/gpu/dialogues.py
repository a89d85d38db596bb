"""Dialogues of `hh_rlhf_test.parquet`, with a planted preference mixed into their labels.

The texts are offensive in places: nothing here, and nothing that uses it, prints or stores one
outside the directory of results. The file has no labeler ids; labelers are simulated.

A model of this size, trained from scratch on eight thousand dialogues, hardly learns what people
preferred in them. So that there is something to learn, the label of a share `PLANTED` of the pairs
is which response is longer and has longer words, by a smooth utility. Others keep the file's label.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch
from planted.grammar import Floats, Ids, Labels, Pairs

if TYPE_CHECKING:
    from language_models import Setup

LENGTH = 512
PLANTED = 0.7
_FILE = "hh_rlhf_test.parquet"


@dataclass(frozen=True)
class Dialogues(Pairs):
    """Pairs whose `advantage` is the planted one; `human` (n,) is 1 where people chose first."""

    human: Labels

    def label(self, rows: Ids, generator: np.random.Generator) -> Labels:
        """Return the planted preference of some pairs, and the file's label of the others."""
        planted = generator.random(len(rows)) < PLANTED
        preferred = np.where(planted, self.advantage[rows] > 0, self.human[rows])
        return preferred.astype(np.uint8)

    def take(self, rows: Ids) -> Dialogues:
        """Return some of the pairs."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return Dialogues(**{name: _take(column, rows) for name, column in columns.items()})


@dataclass(frozen=True)
class Corpus:
    """Disjoint parts: pairs that labelers see, texts to pretrain on besides, and fresh pairs."""

    training: Dialogues
    others: Dialogues
    probes: Dialogues


def load_corpus(*, tiny: bool) -> Corpus:
    """Return the file's dialogues, without those that are too long for the model.

    Raises FileNotFoundError without the file in the directory LABELGUARD_SHARED_DATA.
    """
    path = Path(os.environ.get("LABELGUARD_SHARED_DATA", "../shared/data")) / _FILE
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; set LABELGUARD_SHARED_DATA to its directory")
    every = _read(path, longest=150 if tiny else 1_600)
    order = np.random.default_rng(0).permutation(len(every))[: 72 if tiny else None]
    probes = 8 if tiny else 512
    half = probes + (len(order) - probes) // 2
    parts = (order[probes:half], order[half:], order[:probes])
    return Corpus(*(every.take(rows) for rows in parts))


def setup_for(setup: Setup, pairs: int, *, tiny: bool) -> Setup:
    """Return how a table's models learn from so many dialogues: by usual rates, not tuned."""
    on_gpu = torch.cuda.is_available()
    shared = {"max_length": LENGTH, "bf16": on_gpu, "use_cpu": not on_gpu}
    batch = {"per_device_train_batch_size": 4 if tiny else 16, "per_device_eval_batch_size": 32}
    few = {"max_steps": 1} if tiny else {}
    rate = 5e-5 if setup.kind == "dpo" else 2e-4
    learning = {**setup.learning, **shared, **batch, **few, "learning_rate": rate}
    noisy = {**shared, **batch, "learning_rate": 1e-3} if setup.noisy else {}
    small = {"cohort": 3, "steps": 1} if tiny else {}
    lora = setup.lora and ("r=2,alpha=4" if tiny else "r=8,alpha=16")
    changed = {"learning": learning, "noisy": noisy, "lora": lora, "pairs": pairs, **small}
    return replace(setup, seeds=1, **changed)


def _read(path: Path, longest: int) -> Dialogues:
    """Return pairs of two different answers, of at most `longest` bytes with their prompt."""
    answers = ("response_a", "response_b")
    shortest = pl.min_horizontal(pl.col(answers).str.len_bytes())
    length = pl.col("prompt").str.len_bytes() + pl.max_horizontal(pl.col(answers).str.len_bytes())
    table = pl.read_parquet(path).filter(
        (shortest > 0) & (pl.col("response_a") != pl.col("response_b")) & (length <= longest)
    )
    first, second = (table[name].to_list() for name in answers)
    advantage = _utility(table["response_a"]) - _utility(table["response_b"])
    human = table["label"].to_numpy().astype(np.uint8)
    return Dialogues(table["prompt"].to_list(), first, second, advantage, human)


def _utility(answers: pl.Series) -> Floats:
    words = answers.str.count_matches(r"\S+").to_numpy()
    letters = answers.str.count_matches(r"[A-Za-z]").to_numpy()
    return np.asarray(2 * np.log1p(words) + letters / np.maximum(words, 1), np.float64)


def _take(column: Any, rows: Ids) -> Any:
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]
