"""Dialogues of `hh_rlhf_test.parquet`, with a planted preference mixed into their labels.

The texts are offensive in places: nothing here, and nothing that uses it, prints or stores one
outside the directory of results. The file has no labeler ids; labelers are simulated.

A model of this size, trained from scratch on eight thousand dialogues, hardly learns what people
preferred in them. So that there is something to learn, the label of a share `PLANTED` of the pairs
is which response is longer and has longer words, by a smooth utility; others keep the file's label.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from dpo.grammar import Floats, Pairs
from numpy.typing import NDArray

PLANTED = 0.7
_FILE = "hh_rlhf_test.parquet"


@dataclass(frozen=True)
class Dialogues(Pairs):
    """Pairs whose `advantage` is the planted one; `human` (n,) is 1 where people chose first."""

    human: NDArray[np.uint8]

    def labels(self, generator: np.random.Generator) -> NDArray[np.uint8]:
        """What simulated labelers say: the planted preference of some pairs, else the file's."""
        planted = generator.random(len(self)) < PLANTED
        return np.where(planted, self.advantage > 0, self.human).astype(np.uint8)

    def take(self, rows: NDArray[np.intp]) -> Dialogues:
        """Some of the pairs."""
        columns = {field.name: getattr(self, field.name) for field in fields(self)}
        return Dialogues(**{name: _taken(column, rows) for name, column in columns.items()})


@dataclass(frozen=True)
class Corpus:
    """Disjoint parts: what labelers see, what the judge learns from, and what neither has seen."""

    training: Dialogues
    judging: Dialogues
    probes: Dialogues


def corpus(*, tiny: bool) -> Corpus:
    """The file's dialogues, those too long for the model's 512 positions left out.

    Raises FileNotFoundError without the file: it is looked for in `LABELGUARD_SHARED_DATA`.
    """
    path = Path(os.environ.get("LABELGUARD_SHARED_DATA", "../shared/data")) / _FILE
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; set LABELGUARD_SHARED_DATA to its directory")
    every = _dialogues(path, longest=150 if tiny else 1_600)
    order = np.random.default_rng(0).permutation(len(every))
    order, probes = order[: 72 if tiny else None], 8 if tiny else 512
    half = probes + (len(order) - probes) // 2
    return Corpus(*(every.take(part) for part in _parts(order, probes, half)))


def _parts(order: NDArray[np.intp], probes: int, half: int) -> list[NDArray[np.intp]]:
    return [order[probes:half], order[half:], order[:probes]]


def _dialogues(path: Path, longest: int) -> Dialogues:
    """Pairs with two different answers, of at most `longest` characters with their prompt."""
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


def _taken(column: Any, rows: NDArray[np.intp]) -> Any:
    return column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]
