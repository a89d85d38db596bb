"""The gradient mechanisms on linear heads, by the code of a release (`prepare_head_run`).

A release takes every choice from public columns by closed forms. Beside it stand references as
papers report them: the best of 32 configurations by held-out accuracy, chosen on the first split
and used on the others. Nobody could do that without paying for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from labelguard_trainer.gradient import aup, loop
from labelguard_trainer.gradient.aup import AupRun
from labelguard_trainer.gradient.heads import HeadRun, prepare_head_run
from labelguard_trainer.gradient.loop import Checkpoints, NoisyRun
from labelguard_trainer.gradient.mechanism import select_rows_and_number_units
from labelguard_trainer.gradient.options import AupOptions, ElsOptions, UlsOptions, Weighting

from labelguard.accounting import group, mixture, subsampled
from labelguard.budget.event_kind import Sampling
from labelguard.inputs.pairs import DistinctPairs
from labelguard.keys import keyring
from labelguard.learning import heads
from labelguard.learning.features import PairFeatures
from labelguard.mechanisms.statistic import Rows
from labelguard.planner.prior import Prior
from labelguard.release.protocol import Featured
from labelguard.text import LABEL_A, LABEL_TIE
from utility.problems import Floats, Mechanism, Outcome, Problem, label_by_head

Price = Mapping[str, Any]


@dataclass(frozen=True)
class Configuration:
    """The choices of a reference: a learning rate, a clip norm (of `aup`: τ) in median norms of
    random labels, principal components as they are, and steps."""

    rate: float
    clip: float
    components: int
    steps: int = 100


def descend(
    problem: Problem,
    epsilon: float,
    delta: float,
    seed: int,
    configuration: Configuration | None = None,
) -> Outcome:
    """Run user-wise DP-SGD as a release does; tuned, it takes means of gradients as papers do."""
    sampling = UlsOptions().sampling(_count_labels(problem))
    if configuration:
        sampling = replace(sampling, steps=configuration.steps)
    noise = subsampled.calibrate(epsilon, delta, sampling.probability, sampling.steps)
    weighting: Weighting = "mean" if configuration else "root"
    with _seeded("uls", epsilon, seed):
        rows, labels = _read_rows(problem)
        return _train(problem, rows, labels, _price(noise, sampling), weighting, configuration)


def descend_by_label(
    problem: Problem, epsilon: float, delta: float, seed: int, *, accountant: Any = mixture
) -> Outcome:
    """Run example-level DP-SGD on bounded labels, priced for labelers by an accountant."""
    sampling = ElsOptions().sampling(_count_labels(problem))
    noise = accountant.calibrate(
        epsilon, delta, sampling.probability, sampling.steps, sampling.records
    )
    whole, labels = _read_rows(problem)
    own, rows = select_rows_and_number_units(whole, sampling, by_record=True)
    with _seeded("els", epsilon, seed):
        return _train(problem, rows, labels[own], _price(noise, sampling), "mean", None)


def descend_adaptively(
    problem: Problem, epsilon: float, delta: float, seed: int, configuration: Configuration
) -> Outcome:
    """Run AUP-RLHF as published, whose guarantee is unproven, with τ and a learning rate tuned."""
    rows, labels = _read_rows(problem)
    sampling = AupOptions().sampling(_count_labels(problem))
    noise = subsampled.calibrate(epsilon / 2, delta / 2, sampling.probability, sampling.steps)
    price = {**_price(noise, sampling), "epsilon": epsilon, "delta": delta}
    run = _prepare(problem, rows, price, "mean", configuration)
    made = replace(run, rate=np.full(len(run.rate), configuration.rate)).problem()
    course = AupRun.from_price(price, configuration.clip * run.clip, rows.units)
    with _seeded("aup", epsilon, seed):
        steps = aup.train(made, labels, course, lambda share: None)
    margins = heads.margins(run.basis.coordinates(problem.x), made.theta)
    return label_by_head(problem, margins, {"steps": steps})


# --- tuned in hindsight --------------------------------------------------------------------------

_ULS_GRID = product((0.3, 1.0, 3.0, 10.0), (0.5, 1.0), (4, 64), (50, 200))
_AUP_GRID = product((0.1, 0.3, 1.0, 3.0), (0.5, 1.0, 2.0, 4.0), (4, 16))
HINDSIGHT: dict[str, tuple[Any, list[Configuration]]] = {
    "uls-hindsight": (descend, [Configuration(*each) for each in _ULS_GRID]),
    "aup-hindsight": (descend_adaptively, [Configuration(*each) for each in _AUP_GRID]),
}


def choose(name: str, problem: Problem, epsilon: float, delta: float, seed: int) -> Outcome:
    """Return the outcome that is best on held-out labelers; its details name the configuration."""
    mechanism, configurations = HINDSIGHT[name]
    best, highest = None, -1.0
    for configuration in configurations:
        outcome = mechanism(problem, epsilon, delta, seed, configuration)
        accuracy = heads.accuracy(outcome.margins[problem.held_pair], problem.held_labels)
        if accuracy > highest:
            details = outcome.details | {"configuration": asdict(configuration)}
            best, highest = replace(outcome, details=details), accuracy
    assert best is not None
    return best


def with_configuration(name: str, configuration: Mapping[str, Any]) -> Mechanism:
    """Return a mechanism of `HINDSIGHT` with the configuration that `choose` named."""
    return partial(HINDSIGHT[name][0], configuration=Configuration(**configuration))


GRADIENT: dict[str, Mechanism] = {
    "uls": descend,
    "els": descend_by_label,
    "els-group": partial(descend_by_label, accountant=group),
    **{name: partial(choose, name) for name in HINDSIGHT},
}


# --- shared --------------------------------------------------------------------------------------


def _read_rows(problem: Problem) -> tuple[Rows, Floats]:
    """Return the training rows, rankings as comparisons, and their labels: 0, ½ or 1."""
    labels = np.where(problem.labels == LABEL_TIE, 0.5, problem.labels == LABEL_A)
    return replace(problem.rows, ranking=None, size=None), labels


def _train(
    problem: Problem,
    rows: Rows,
    labels: Floats,
    price: Price,
    weighting: Weighting,
    configuration: Configuration | None,
) -> Outcome:
    """Run all steps, and return the head on the pairs of the problem."""
    run = _prepare(problem, rows, price, weighting, configuration)
    if configuration:
        rate = np.full(len(run.rate), configuration.rate)
        run = replace(run, rate=rate, clip=run.clip * configuration.clip)
    made = run.problem()
    course = NoisyRun.from_price(price, run.clip, rows.units)
    nowhere = Checkpoints(Path("nowhere"), course.steps, bytes)  # the last step is never written
    loop.train(made, labels, course, nowhere, lambda share: None)
    margins = run.scale * heads.margins(run.basis.coordinates(problem.x), made.theta)
    return label_by_head(problem, margins, {"components": len(run.rate)})


def _prepare(
    problem: Problem,
    rows: Rows,
    price: Price,
    weighting: Weighting,
    configuration: Configuration | None,
) -> HeadRun:
    shape = {"components": configuration.components, "whitening": 0} if configuration else {}
    prior = None if configuration else Prior()
    seen = Featured("given", _number_pairs(problem), PairFeatures([], []), problem.x, rows)
    return prepare_head_run(seen, rows, price, weighting, shape, prior)


def _price(noise: float, sampling: Sampling) -> dict[str, Any]:
    return {
        "noise_multiplier": noise,
        "sampling_probability": sampling.probability,
        "steps": sampling.steps,
    }


def _count_labels(problem: Problem) -> np.ndarray:
    return np.bincount(problem.rows.unit, minlength=problem.rows.units)


@contextmanager
def _seeded(name: str, epsilon: float, seed: int) -> Iterator[None]:
    """Make the secrets of a run a function of ε and the seed."""
    before, drawn = keyring.random_bytes, 0

    def known(count: int) -> bytes:
        nonlocal drawn
        drawn += 1
        return hashlib.shake_256(f"{name} {epsilon} {seed} {drawn}".encode()).digest(count)

    keyring.random_bytes = known
    try:
        yield
    finally:
        keyring.random_bytes = before


def _number_pairs(problem: Problem) -> DistinctPairs:
    """Return what a head run reads of pairs: their numbers."""
    pair = np.arange(len(problem.x))
    items = np.stack([pair, pair], axis=1).astype(np.uint64)
    none = pa.chunked_array([], pa.string())
    empty = np.zeros(0, np.intp)
    return DistinctPairs(pa.table({}), none, items, items, pair * 0, empty, empty)
