"""The gradient mechanisms on linear heads, by the code of a release (`prepare_head_run`).

A release takes every choice from public columns by closed forms. Beside it are references of the
kind that papers report: the best of 32 configurations by held-out accuracy, found on the first
split and then kept for the others. Nobody could do that without paying for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeAlias

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
from utility.datasets import Problem
from utility.outcomes import Mechanism, Outcome, by_teacher

__all__ = [
    "AUP_HINDSIGHT",
    "CHOSEN_BY",
    "ELS",
    "GRADIENT",
    "ULS",
    "ULS_HINDSIGHT",
    "Configuration",
    "adaptive",
    "tuned",
    "uls",
]

Price: TypeAlias = Mapping[str, Any]

ULS, ELS, ULS_BEST, AUP_BEST = "uls", "els", "uls-best-of-32", "aup-best-of-32"
ULS_HINDSIGHT, AUP_HINDSIGHT = "uls-hindsight", "aup-hindsight"

CHOSEN_BY = {ULS_HINDSIGHT: ULS_BEST, AUP_HINDSIGHT: AUP_BEST}
"""Whose choice on the first split a mechanism takes over on the others."""

_NO_FEATURES = PairFeatures([], [])  # those of a problem are given


@dataclass(frozen=True)
class Configuration:
    """What a reference tunes: a scalar learning rate, a clip norm (of `aup`: τ) in median norms of
    labels at random, principal components, and steps."""

    rate: float
    clip: float
    components: int
    steps: int = 100

    def of(self, run: HeadRun) -> HeadRun:
        """A run with this rate and clip norm."""
        return replace(run, rate=np.full(len(run.rate), self.rate), clip=run.clip * self.clip)

    def given(self) -> dict[str, Any]:
        """Principal components as they are."""
        return {"components": self.components, "whitening": 0}


_OF_ULS = tuple(
    Configuration(*each) for each in product((0.3, 1.0, 3.0, 10.0), (0.5, 1.0), (4, 64), (50, 200))
)
_OF_AUP = tuple(
    Configuration(*each) for each in product((0.1, 0.3, 1.0, 3.0), (0.5, 1.0, 2.0, 4.0), (4, 16))
)


@dataclass(frozen=True)
class _Task:
    """A problem as head runs see it: `labels` (n,) are those of `rows`, 0, ½ or 1."""

    x: np.ndarray
    rows: Rows
    labels: np.ndarray
    pairs: DistinctPairs

    @classmethod
    def of(cls, problem: Problem) -> _Task:
        """Of the training labelers; the pairs of rankings as comparisons."""
        labels = np.where(problem.labels == LABEL_TIE, 0.5, problem.labels == LABEL_A)
        rows = replace(problem.rows, ranking=None, size=None)
        return cls(problem.x, rows, labels, _pairs(np.arange(len(problem.x))))


# --- mechanisms ----------------------------------------------------------------------------------


def uls(
    problem: Problem,
    epsilon: float,
    delta: float,
    seed: int,
    *,
    weighting: Weighting = "root",
) -> Outcome:
    """User-wise DP-SGD as a release makes it."""
    task = _Task.of(problem)
    price = _uls_price(epsilon, delta, UlsOptions().sampling(_counts(problem)))
    with _seeded("uls", epsilon, seed):
        return _trained(problem, task, price, weighting, {})


def uls_tuned(
    problem: Problem, epsilon: float, delta: float, seed: int, *, configuration: Configuration
) -> Outcome:
    """User-wise DP-SGD with means of gradients, as the papers have it, and tuned."""
    usual = UlsOptions().sampling(_counts(problem))
    price = _uls_price(epsilon, delta, replace(usual, steps=configuration.steps))
    with _seeded("uls", epsilon, seed):
        return _trained(problem, _Task.of(problem), price, "mean", {}, configuration)


def els(
    problem: Problem,
    epsilon: float,
    delta: float,
    seed: int,
    *,
    accountant: Literal["replace-labels", "zero-out", "group"],
) -> Outcome:
    """Example-level DP-SGD of bounded labels, priced for labelers in one of three ways.

    `zero-out` is that adjacency's (ε, δ), which says less: at the same numbers a labeler whose
    labels are replaced is protected by (2ε, (1 + e^ε) δ) only.
    """
    sampling = ElsOptions().sampling(_counts(problem))
    assert sampling.records is not None
    q, steps, records = sampling.probability, sampling.steps, sampling.records
    if accountant == "group":
        noise = group.calibrate(epsilon, delta, q, steps, records)
    elif accountant == "zero-out":
        # The conversion, backwards.
        noise = mixture.calibrate(2 * epsilon, delta * (1 + np.exp(epsilon)), q, steps, records)
    else:
        noise = mixture.calibrate(epsilon, delta, q, steps, records)
    whole = _Task.of(problem)
    own, rows = select_rows_and_number_units(whole.rows, sampling, by_record=True)
    task = replace(whole, rows=rows, labels=whole.labels[own])
    price = _price(noise, sampling)
    with _seeded("els", epsilon, seed):
        outcome = _trained(problem, task, price, "mean", {})
    return replace(outcome, details=outcome.details | {"records": records})


def adaptive(
    problem: Problem, epsilon: float, delta: float, seed: int, *, configuration: Configuration
) -> Outcome:
    """AUP-RLHF as published, whose guarantee is unproven, with τ and a learning rate tuned."""
    task = _Task.of(problem)
    sampling = AupOptions().sampling(_counts(problem))
    noise = subsampled.calibrate(epsilon / 2, delta / 2, sampling.probability, sampling.steps)
    price = {**_price(noise, sampling), "epsilon": epsilon, "delta": delta}
    run = _run(task, price, "mean", configuration.given())
    made = replace(run, rate=np.full(len(run.rate), configuration.rate)).problem()
    course = AupRun.from_price(price, configuration.clip * run.clip, task.rows.units)
    with _seeded("aup", epsilon, seed):
        done = aup.train(made, task.labels, course, lambda share: None)
    margins = heads.margins(run.basis.coordinates(problem.x), made.theta)
    return by_teacher(problem, margins, _details(run, price) | {"steps_done": done})


@dataclass(frozen=True)
class _Best:
    """The configuration whose head is most accurate on held-out labelers; its details name it."""

    mechanism: Any
    configurations: tuple[Configuration, ...] = field(repr=False)

    def __call__(self, problem: Problem, epsilon: float, delta: float, seed: int) -> Outcome:
        best, accurate = None, -1.0
        for configuration in self.configurations:
            found = self.mechanism(problem, epsilon, delta, seed, configuration=configuration)
            accuracy = heads.accuracy(found.margins[problem.held_pair], problem.held_labels)
            if accuracy > accurate:
                details = found.details | {"configuration": asdict(configuration)}
                best, accurate = replace(found, details=details), accuracy
        assert best is not None
        return best


def tuned(name: str, details: Mapping[str, Any]) -> Mechanism:
    """A mechanism of `CHOSEN_BY` with the configuration in the details of the one that chose it."""
    mechanism = {ULS_HINDSIGHT: uls_tuned, AUP_HINDSIGHT: adaptive}[name]
    return partial(mechanism, configuration=Configuration(**details["configuration"]))


GRADIENT: dict[str, Any] = {
    ULS: uls,
    "uls-mean": partial(uls, weighting="mean"),
    ULS_BEST: _Best(uls_tuned, _OF_ULS),
    ULS_HINDSIGHT: None,
    ELS: partial(els, accountant="replace-labels"),
    "els-zero-out": partial(els, accountant="zero-out"),
    "els-group": partial(els, accountant="group"),
    AUP_BEST: _Best(adaptive, _OF_AUP),
    AUP_HINDSIGHT: None,
}
"""By name; None: see `tuned`."""


# --- shared --------------------------------------------------------------------------------------


def _trained(
    problem: Problem,
    task: _Task,
    price: Price,
    weighting: Weighting,
    given: Mapping[str, Any],
    configuration: Configuration | None = None,
) -> Outcome:
    """A whole run, and its head on the pairs of the problem."""
    if configuration:
        run = configuration.of(_run(task, price, weighting, configuration.given()))
    else:
        run = _run(task, price, weighting, given, Prior())
    made = run.problem()
    course = NoisyRun.from_price(price, run.clip, task.rows.units)
    nowhere = Checkpoints(
        Path("nowhere"), course.steps, bytes
    )  # nothing is kept before the last step
    loop.train(made, task.labels, course, nowhere, lambda share: None)
    margins = run.scale * heads.margins(run.basis.coordinates(problem.x), made.theta)
    return by_teacher(problem, margins, {**_details(run, price), "scale": run.scale})


def _run(
    task: _Task,
    price: Price,
    weighting: Weighting,
    given: Mapping[str, Any],
    prior: Prior | None = None,
) -> HeadRun:
    seen = Featured("given", task.pairs, _NO_FEATURES, task.x, task.rows)
    return prepare_head_run(seen, task.rows, price, weighting, given, prior)


def _uls_price(epsilon: float, delta: float, sampling: Sampling) -> Price:
    q, steps = sampling.probability, sampling.steps
    return _price(subsampled.calibrate(epsilon, delta, q, steps), sampling)


def _price(noise: float, sampling: Sampling) -> dict[str, Any]:
    return {
        "noise_multiplier": noise,
        "sampling_probability": sampling.probability,
        "steps": sampling.steps,
    }


def _counts(problem: Problem) -> np.ndarray:
    """Labels of each labeler."""
    return np.bincount(problem.rows.unit, minlength=problem.rows.units)


def _details(run: HeadRun, price: Price) -> dict[str, Any]:
    return {
        "components": len(run.rate),
        "noise_multiplier": price["noise_multiplier"],
        "clip": run.clip,
    }


@contextmanager
def _seeded(name: str, epsilon: float, seed: int) -> Iterator[None]:
    """The secrets of a run from ε and the seed alone: what is public may be repeated."""
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


def _pairs(pair: np.ndarray) -> DistinctPairs:
    """What a head run reads of pairs: whose they are."""
    items = np.stack([pair, pair], axis=1).astype(np.uint64)
    none = pa.chunked_array([], pa.string())
    empty = np.zeros(0, np.intp)
    return DistinctPairs(pa.table({}), none, items, items, pair * 0, empty, empty)
