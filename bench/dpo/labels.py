"""Releases of simulated labelers' labels, by the commands that anybody would use."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import labelguard as lg
from dpo.grammar import Pairs
from labelguard.accounting import randomized_response as rr
from labelguard.accounting.blocks import find_block

DELTA = 1e-5
FEATURES = "text+length"
RR, STATISTIC = "rr", "statistic"


@dataclass(frozen=True)
class Budget:
    """Each labeler gives `labels` labels, and is promised (`epsilon`, `DELTA`) for all of them."""

    epsilon: float
    labels: int

    @property
    def flip_probability(self) -> float:
        """γ of randomized response, which flips the labels of a labeler together."""
        threshold = rr.threshold(rr.calibrate(self.epsilon, DELTA, 1))
        return find_block(threshold, self.labels).flip_probability

    def signal(self, pairs: int) -> float:
        """(1−2γ)√n: what is left of n labels, in standard deviations of a coin."""
        return (1 - 2 * self.flip_probability) * float(np.sqrt(pairs))


def raw(pairs: Pairs, seed: int) -> NDArray[np.uint8]:
    """What labelers say, shape (n,): 1 where the first side is preferred."""
    return pairs.labels(np.random.default_rng((seed, 1)))


def table(pairs: Pairs, values: NDArray[np.uint8], budget: Budget) -> pa.Table:
    """Labels of shape (n,), each labeler's after each other, as an input of `privatize`."""
    rows = len(pairs)
    return pa.table(
        {
            "item_id": [str(row) for row in range(rows)],
            "prompt": pairs.prompt,
            "response_a": pairs.first,
            "response_b": pairs.second,
            "label": values,
            "labeler_id": [f"labeler {row // budget.labels}" for row in range(rows)],
        }
    )


def released(mechanism: str, budget: Budget, pairs: Pairs, seed: int, directory: Path) -> Path:
    """The directory of a release; it is drawn once, and then the same for all that train on it."""
    name = f"{mechanism}-m{budget.labels}-e{budget.epsilon:g}-s{seed}"
    return privatize(mechanism, budget, pairs, raw(pairs, seed), directory / name)


def privatize(
    mechanism: str, budget: Budget, pairs: Pairs, values: NDArray[np.uint8], path: Path
) -> Path:
    """`path`, with a release of the `table` of these labels."""
    if path.exists():
        return path
    options = {RR: {}, STATISTIC: {"features": FEATURES}}
    with tempfile.TemporaryDirectory() as home:
        lg.privatize(
            table(pairs, values, budget),
            mechanism=mechanism,
            project=lg.init(Path(home)),
            epsilon=budget.epsilon,
            delta=DELTA,
            output=path,
            **options[mechanism],
        )
    return path
