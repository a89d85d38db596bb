"""Which runs there are, and the line that is kept of each when it is finished."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets.utils.logging import disable_progress_bar
from transformers.utils import logging

from dpo import base, labels
from dpo.base import Size
from dpo.labels import Budget
from dpo.training import VARIANTS

CLEAN, REFERENCE = "clean", "RR, forward"
"""Without privacy, and what the others are compared with."""
FEW = ("RR, forward", "RR, robust", "RR, plain", "PROPS, hard", "PROPS, soft", "teacher")
MANY = ("RR, forward", "teacher")
BUDGETS = ((Budget(1.0, 2), FEW), (Budget(4.0, 2), FEW), (Budget(1.0, 10), MANY))
"""At ten labels of each labeler, nothing is left for the others to work with."""


@dataclass(frozen=True)
class Run:
    """One line of results; there is no budget where there is no privacy."""

    labels: str
    budget: Budget | None
    seed: int

    def key(self, size: Size) -> str:
        """A digest of settings and of the code that decides the numbers."""
        text = json.dumps([asdict(self), asdict(size), code_digest()], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def __str__(self) -> str:
        paid = f", ε = {self.budget.epsilon:g}, m = {self.budget.labels}" if self.budget else ""
        return f"{self.labels}{paid}, seed {self.seed}"


def runs(size: Size, *, tiny: bool) -> Iterator[Run]:
    """All of them, those of one release after each other; `tiny`: of the first budget."""
    for seed in range(size.seeds):
        yield Run(CLEAN, None, seed)
        for budget, names in BUDGETS[: 1 if tiny else None]:
            for name in names:
                yield Run(name, budget, seed)


def prepare(wanted: list[Run], size: Size, directory: Path) -> None:
    """Make what several runs read: base model, tokens, releases."""
    quietly_on_one_core()
    for seed in sorted({run.seed for run in wanted}):
        problem = base.problem(size, seed, directory)
        for run in wanted:
            if run.seed == seed and run.budget is not None:
                teacher = run.labels == "teacher"
                problem.release(labels.STATISTIC if teacher else labels.RR, run.budget)


def finished(run: Run, size: Size, directory: Path) -> dict[str, Any]:
    """The record of a run: accuracy on probes, CPU time, and what the kind of labels tells."""
    quietly_on_one_core()
    problem = base.problem(size, run.seed, directory)
    start = time.process_time()
    with tempfile.TemporaryDirectory() as scratch:
        outcome = VARIANTS[run.labels](problem, run.budget, Path(scratch))
    right = (outcome.margins > 0) == (problem.probes.advantage > 0)
    return {
        "key": run.key(size),
        "labels": run.labels,
        "budget": run.budget and asdict(run.budget),
        "seed": run.seed,
        "accuracy": float(np.mean(right)),
        "cpu_seconds": round(time.process_time() - start, 1),
        **outcome.details,
    }


def quietly_on_one_core() -> None:
    torch.set_num_threads(1)
    disable_progress_bar()
    logging.disable_progress_bar()
    logging.set_verbosity_error()


@cache
def code_digest() -> str:
    """A digest of the sources that decide the numbers."""
    digest = hashlib.sha256()
    for name in ("grammar.py", "base.py", "labels.py", "scoring.py", "training.py"):
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()[:12]
