"""What simulated labelers say of pairs, and what learns from it: the same for every way."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from dpo.grammar import Floats, Pairs
from dpo.labels import DELTA
from numpy.typing import NDArray

import labelguard as lg

__all__ = ["Problem", "Setup", "labelled"]

Indices = NDArray[np.intp]

FEATURES = "length+style+text"


@dataclass(frozen=True)
class Setup:
    """How a reward model learns by LoRA, whatever it learns from."""

    lora: str = "r=4,alpha=16"
    max_length: int = 160
    batch: int = 64
    """pairs at a time"""
    each: int = 10
    """labels of a labeler"""
    rate: float = 1e-2
    """of Adam in ULS"""
    steps: int = 80
    """of ULS"""
    cohort: int = 50
    """labelers in a step of ULS, on average"""
    limit: int = 5
    """records of a labeler in a step of ULS"""
    soft_rate: float = 2e-2
    """of Adam on labels that a head gives"""
    soft_steps: int = 100
    """on these, of a batch each"""


@dataclass(frozen=True, eq=False)
class Problem:
    """A base model, pairs, fresh ones to be judged by, and n labels.

    `pair` and `unit` (n,) say who labelled what, `labels` (n,) are 1 where the first side is
    preferred.
    """

    base: Path
    setup: Setup
    pairs: Pairs
    probes: Pairs
    pair: Indices
    unit: Indices
    labels: Floats
    seed: int

    @property
    def labelers(self) -> int:
        """How many there are."""
        return int(self.unit[-1]) + 1

    def texts(self) -> pa.Table:
        """Pairs, and after them the probes."""
        parts = (self.pairs, self.probes)
        names = ("prompt", "first", "second")
        return pa.concat_tables([pa.table({n: getattr(p, n) for n in names}) for p in parts])

    def released(self, epsilon: float, output: Path) -> Path:
        """A release of labels that a head gives, which learned from a statistic."""
        sides = {"prompt": "prompt", "first": "response_a", "second": "response_b"}
        taken = self.texts().take(pa.array(self.pair)).rename_columns(sides)
        table = taken.append_column("item_id", pa.array(self.pair).cast(pa.string()))
        table = table.append_column("label", pa.array(self.labels.astype(np.uint8)))
        labelers = [f"labeler {unit}" for unit in self.unit]
        with tempfile.TemporaryDirectory() as home:
            lg.privatize(
                table.append_column("labeler_id", pa.array(labelers)),
                mechanism="statistic",
                features=FEATURES,
                project=lg.init(Path(home)),
                epsilon=epsilon,
                delta=DELTA,
                output=output,
            )
        return output


def labelled(
    base: Path, setup: Setup, pairs: Pairs, probes: Pairs, labelers: int, seed: int
) -> Problem:
    """So many labelers label `setup.each` pairs each, and every pair about equally often.

    Raises ValueError unless `setup.each` divides the number of pairs: nobody labels one twice.
    """
    if len(pairs) % setup.each:
        raise ValueError(f"{setup.each} labels each do not divide {len(pairs)} pairs")
    draw = np.random.default_rng((seed, 1))
    rows = labelers * setup.each
    rounds = [draw.permutation(len(pairs)) for _ in range(-(-rows // len(pairs)))]
    pair = np.concatenate(rounds)[:rows]
    chance = 1 / (1 + np.exp(-pairs.advantage[pair]))
    said = (draw.random(rows) < chance).astype(np.float64)
    return Problem(base, setup, pairs, probes, pair, np.arange(rows) // setup.each, said, seed)
