"""Which runs there are, and the line that is kept of each when it is finished."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from datasets.utils.logging import disable_progress_bar
from dpo import base, grammar
from dpo.base import PROBES_SEED
from dpo.base import Size as Model
from dpo.grammar import STYLE_AND_TOPIC, Preference
from transformers.utils import logging

from lora.problem import Setup, labelled
from lora.training import CLEAN, STATISTIC, ULS, scored

__all__ = ["TINY", "Run", "Size", "finished", "quietly", "runs"]

PREFERENCES = {
    "style and topic": STYLE_AND_TOPIC,
    "topic, in other words": Preference(style=0.0, in_other_words=True),
}
"""Of the second nothing can be said without the prompt, or by the words that they share."""


_MODEL, _SETUP = Model(width=32, sentences=(3, 5)), Setup()


@dataclass(frozen=True)
class Size:
    """How much is computed."""

    model: Model = _MODEL
    setup: Setup = _SETUP
    labelers: tuple[int, ...] = (200, 2_000)
    epsilons: tuple[float, ...] = (1.0, 3.0, 8.0)
    seeds: int = 2


TINY = Size(
    Model(pairs=48, probes=16, width=16, layers=1, steps=3, sentences=(3, 5)),
    Setup(batch=8, each=4, steps=2, cohort=4, limit=2, soft_steps=2),
    labelers=(12,),
    epsilons=(8.0,),
    seeds=1,
)


@dataclass(frozen=True)
class Run:
    """One line of results; there is no ε where there is no privacy."""

    preference: str
    labelers: int
    way: str
    epsilon: float | None
    seed: int

    def key(self, size: Size) -> str:
        """A digest of settings and of the code that decides the numbers."""
        text = json.dumps([asdict(self), asdict(size.model), asdict(size.setup), _code()])
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def runs(size: Size) -> Iterator[Run]:
    """All of them, seed by seed."""
    for seed in range(size.seeds):
        for preference in PREFERENCES:
            for labelers in size.labelers:
                yield Run(preference, labelers, CLEAN, None, seed)
                for epsilon in size.epsilons:
                    yield Run(preference, labelers, STATISTIC, epsilon, seed)
                    yield Run(preference, labelers, ULS, epsilon, seed)


def finished(run: Run, size: Size, directory: Path) -> dict[str, Any]:
    """The record of a run."""
    model, preference = size.model, PREFERENCES[run.preference]
    pairs, probes = (
        grammar.pairs(count, seed, model.sentences, preference)
        for count, seed in ((model.pairs, run.seed), (model.probes, PROBES_SEED))
    )
    path = base.pretrained(model, directory)
    problem = labelled(path, size.setup, pairs, probes, run.labelers, run.seed)
    return {"key": run.key(size), **asdict(run), **scored(problem, run.way, run.epsilon)}


def quietly() -> None:
    """On one core, and without bars."""
    torch.set_num_threads(1)
    disable_progress_bar()
    logging.disable_progress_bar()
    logging.set_verbosity_error()


@cache
def _code() -> str:
    here = Path(__file__).parent
    names = ("dpo/grammar.py", "dpo/base.py", "lora/problem.py", "lora/training.py")
    digest = hashlib.sha256()
    for name in names:
        digest.update((here.parent / name).read_bytes())
    return digest.hexdigest()[:12]
