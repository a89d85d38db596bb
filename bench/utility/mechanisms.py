"""Every mechanism that is compared, as one function in `MECHANISMS`.

A mechanism takes a problem, ε, δ and a seed, and gives a head's margin on every pair and the label
that it would release for every training row. Randomness is a function of ε and the seed alone:
mechanisms that start from randomized response start from the same answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import gaussian
from labelguard.accounting import randomized_response as rr
from labelguard.learning import heads
from labelguard.learning.learners import HeadLearner
from labelguard.mechanisms import geometry, statistic
from labelguard.mechanisms.geometry import Basis, Shape
from labelguard.mechanisms.props_stages import ReleasedLabels, assembled, run_stages
from labelguard.planner import tuning
from labelguard.policy.bounds import rounded_bound
from labelguard.terms import LABEL_A, LABEL_B, LABEL_TIE
from utility.datasets import Labels, Problem

Floats: TypeAlias = NDArray[np.float64]

NOT_RELEASED = 255
NON_PRIVATE = "non-private"
NON_PRIVATE_WIDE = "non-private-128"
"""What a tuned choice, which may take up to 128 components, is measured against."""
SWEPT = (1, 2, 4, 8, 16, 32, 64)
_FOLDS = 5


@dataclass(frozen=True)
class Outcome:
    """`margins` (pairs,) of the head; `released` (n,), 0 or 1 or `NOT_RELEASED`, for each training
    row; `details` go into the record."""

    margins: Floats
    released: Labels
    details: dict[str, Any] = field(default_factory=dict)


Mechanism: TypeAlias = Callable[[Problem, float, float, int], Outcome]


# --- without privacy -----------------------------------------------------------------------------


def non_private(
    problem: Problem, epsilon: float, delta: float, seed: int, *, components: int | None = None
) -> Outcome:
    """The head of the raw strict labels, as wide as the fixed choice or with that many components;
    ε plays no part."""
    shape = _unwhitened(problem)
    _, z = _coordinates(problem, shape if components is None else _wide(shape, components))
    strict = problem.labels != LABEL_TIE
    pair, share = problem.rows.pair[strict], problem.rows.share()[strict]
    half = share * (problem.labels[strict] == LABEL_A) - share / 2
    pairs = len(z)
    total = np.bincount(pair, half, pairs) @ z
    weight = np.bincount(pair, share, pairs)
    theta = heads.fit_statistic(z, weight, total, problem.fixed.ridge)
    return _teacher(problem, heads.margins(z, theta))


# --- randomized response -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Answers:
    """Randomized response on some `rows`: labels 0 or 1, and their flip probabilities."""

    rows: NDArray[np.intp]
    labels: Labels
    flip_probability: Floats


def randomized_response(
    problem: Problem,
    epsilon: float,
    delta: float,
    seed: int,
    *,
    loss: Literal["forward", "robust"] = "forward",
    cap: int | None = None,
) -> Outcome:
    """A head of flipped labels; with `cap`, of at most so many labels of each labeler."""
    answers = _answers(problem, epsilon, delta, seed, cap)
    _, z = _coordinates(problem, _unwhitened(problem))
    theta = heads.fit_flipped(
        z[problem.rows.pair[answers.rows]],
        answers.labels,
        answers.flip_probability,
        problem.fixed.ridge,
        loss,
        problem.rows.share()[answers.rows],
    )
    released = np.full(len(problem.rows), NOT_RELEASED, np.uint8)
    released[answers.rows] = answers.labels
    return Outcome(heads.margins(z, theta), released, _noise_of(answers))


def props_two_stages(
    problem: Problem, epsilon: float, delta: float, seed: int, *, combine: Literal["hard", "soft"]
) -> Outcome:
    """PROPS in two stages, split by pair; the labels of the first stage stay flipped."""
    answers = _answers(problem, epsilon, delta, seed, None)
    _, coordinates = _coordinates(problem, _unwhitened(problem))
    draw = np.random.default_rng([seed, 2])
    stage = draw.integers(0, 2, len(coordinates))[problem.rows.pair]
    fold = draw.integers(0, _FOLDS, len(coordinates))[problem.rows.pair]
    labels = ReleasedLabels(
        problem.rows.pair, stage, fold, answers.labels, answers.flip_probability
    )
    learner = HeadLearner(problem.fixed.ridge)
    results = list(run_stages(coordinates, labels, learner, combine=combine))
    error = results[-1].report.error
    details = {} if error is None else {"model_error": error.rate, "model_se": error.standard_error}
    released = (assembled(results)[0] > 0.5).astype(np.uint8)
    return Outcome(results[-1].scorer(coordinates), released, _noise_of(answers) | details)


def _answers(
    problem: Problem, epsilon: float, delta: float, seed: int, cap: int | None
) -> _Answers:
    """Every labeler's own number of labels, rounded up, is the number of coins that is paid for."""
    draw = np.random.default_rng([seed, round(epsilon * 1000)])
    n, unit = len(problem.rows), problem.rows.unit
    fair, coin, order = draw.random(n) < 0.5, draw.random(n), draw.permutation(n)
    binary = np.where(problem.labels == LABEL_TIE, fair, problem.labels).astype(np.uint8)
    counts = np.bincount(unit, minlength=problem.rows.units)
    bound = rounded_bound(counts)
    rows = np.arange(n)
    if cap is not None:
        rows = np.sort(order[_number_in_unit(unit[order]) < cap])
        bound = np.minimum(bound, cap)
    epsilon0 = rr.calibrate_many(epsilon, delta, bound)
    # Thresholds are rounded up to the coin's 64 bits, which no draw here could tell.
    flips = (1 / (1 + np.exp(epsilon0)))[unit[rows]]
    return _Answers(rows, binary[rows] ^ (coin[rows] < flips), flips)


def _number_in_unit(unit: NDArray[np.intp]) -> NDArray[np.intp]:
    """0, 1, 2, … along the rows of each labeler."""
    order = np.argsort(unit, kind="stable")
    _, starts, counts = np.unique(unit[order], return_index=True, return_counts=True)
    number = np.empty(len(unit), np.intp)
    number[order] = np.arange(len(unit)) - np.repeat(starts, counts)
    return number


def _noise_of(answers: _Answers) -> dict[str, Any]:
    return {"mean_flip_probability": float(answers.flip_probability.mean())}


# --- the statistic -------------------------------------------------------------------------------


def statistic_fixed(
    problem: Problem, epsilon: float, delta: float, seed: int, *, components: int | None = None
) -> Outcome:
    """The statistic with the public choice of the dataset, or with that many components."""
    shape = problem.fixed if components is None else _wide(problem.fixed, components)
    return _released_statistic(problem, shape, epsilon, delta, seed)


def statistic_tuned(problem: Problem, epsilon: float, delta: float, seed: int) -> Outcome:
    """The statistic with the choice that simulated labels recommend, and what they promise."""
    found = tuning.forecast(problem.x, problem.rows, [epsilon], delta, growth=False)
    clean, promised = found[0], next(f for f in found if f.mechanism == statistic.NAME)
    assert promised.shape is not None  # a statistic's forecast has one
    outcome = _released_statistic(problem, promised.shape, epsilon, delta, seed)
    promises = {
        "forecast_accuracy": promised.accuracy.mean,
        "forecast_label_error": promised.label_error.mean,
        "forecast_loss": clean.accuracy.mean - promised.accuracy.mean,
        "shape": asdict(promised.shape),
    }
    return replace(outcome, details=outcome.details | promises)


def _released_statistic(
    problem: Problem, shape: Shape, epsilon: float, delta: float, seed: int
) -> Outcome:
    """One statistic release, and the head of it."""
    basis, z = _coordinates(problem, shape)
    components = len(basis.metric)
    bounds = statistic.bounds(z, problem.rows, shape.clip_quantile)
    coarse = statistic.step_ratio(gaussian.calibrate(epsilon, delta))
    sigma = gaussian.calibrate(
        epsilon, delta - gaussian.discretisation_delta(epsilon, components, coarse)
    )
    grid = statistic.grid(bounds, components, sigma)
    total = statistic.exact_sum(z, problem.rows, problem.labels, bounds, grid.step)
    nonce = hashlib.sha256(f"{epsilon} {seed}".encode()).digest()
    released = statistic.noisy(total, grid, nonce) * grid.step
    weight = statistic.pair_weights(problem.rows, bounds, len(z))
    noise = grid.scale * grid.step
    penalty = shape.ridge * basis.metric**2
    ridge = statistic.noise_aware_ridge(z, weight, penalty, noise)
    theta = heads.fit_statistic(z, weight, released, ridge)
    return _teacher(problem, heads.margins(z, theta), {"components": components, "noise": noise})


# --- shared --------------------------------------------------------------------------------------


def _coordinates(problem: Problem, shape: Shape) -> tuple[Basis, NDArray[np.float32]]:
    """The public basis of the training labelers' pairs, and every pair in it."""
    basis = geometry.basis(geometry.spectrum(problem.x, problem.counts()), shape)
    return basis, basis.coordinates(problem.x)


def _unwhitened(problem: Problem) -> Shape:
    """The fixed choice on principal axes as they are, where the ridge is one number."""
    return replace(problem.fixed, whitening=0)


def _wide(shape: Shape, components: int) -> Shape:
    return replace(shape, components=components)


def _teacher(problem: Problem, margins: Floats, details: dict[str, Any] | None = None) -> Outcome:
    """The head labels every row."""
    labels = np.where(margins > 0, LABEL_A, LABEL_B).astype(np.uint8)
    return Outcome(margins, labels[problem.rows.pair], details or {})


SWEEP: dict[str, Mechanism] = {
    f"statistic-{components}": partial(statistic_fixed, components=components)
    for components in SWEPT
}

WITHOUT_BUDGET = (NON_PRIVATE, NON_PRIVATE_WIDE)

MECHANISMS: dict[str, Mechanism] = {
    NON_PRIVATE: non_private,
    NON_PRIVATE_WIDE: partial(non_private, components=128),
    "rr": randomized_response,
    "rr-robust": partial(randomized_response, loss="robust"),
    "rr-cap-64": partial(randomized_response, cap=64),
    "props-hard": partial(props_two_stages, combine="hard"),
    "props-soft": partial(props_two_stages, combine="soft"),
    "statistic": statistic_fixed,
    "statistic-tuned": statistic_tuned,
    **SWEEP,
}
