"""Every mechanism that is compared, as one function in `MECHANISMS`.

A mechanism takes a problem, ε, δ and a seed, and gives a head's margin on every pair and the label
that it would release for every training row. Randomness is a function of ε and the seed alone:
mechanisms that start from randomized response start from the same answers.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import ball, gaussian
from labelguard.accounting import randomized_response as rr
from labelguard.accounting.blocks import MOST_LABELS
from labelguard.learning import heads
from labelguard.learning.learners import HeadLearner
from labelguard.mechanisms import geometry, statistic
from labelguard.mechanisms.geometry import Basis, Shape
from labelguard.mechanisms.noise import Noise, NoiseKind
from labelguard.mechanisms.props_stages import ReleasedLabels, join_stages, run_stages
from labelguard.planner import calibration, tuning
from labelguard.planner import components as components_of
from labelguard.text import LABEL_A, LABEL_TIE
from utility import joint
from utility.datasets import Labels, Problem
from utility.gradients import GRADIENT
from utility.outcomes import NOT_RELEASED, Mechanism, Outcome, by_teacher

Floats: TypeAlias = NDArray[np.float64]

NON_PRIVATE = "non-private"
NON_PRIVATE_WIDE = "non-private-128"
"""What a tuned choice, which may take up to 128 components, is measured against."""
RR, RR_COINS, PLANNED = "rr", "rr-coins", "statistic-planned"
CAPS = (1, 2, 3, 4, 8, 16, 64)
"""Bounds of randomized response: labels that each labeler may give at most."""
Draw: TypeAlias = Literal["joint", "coins"]
SWEPT = (2, 4, 8, 16, 32)
NOISES: tuple[NoiseKind, ...] = ("gaussian", "ball")
_FOLDS = 5
FORECASTS = 5
"""Splits that are forecast too."""


# --- without privacy -----------------------------------------------------------------------------


def non_private(
    problem: Problem, epsilon: float, delta: float, seed: int, *, components: int | None = None
) -> Outcome:
    """The head of the raw strict labels, as wide as the fixed choice or with that many components;
    ε plays no part."""
    shape = _unwhitened(problem)
    _, z = _coordinates(problem, shape if components is None else _wide(shape, components))
    strict = problem.labels != LABEL_TIE
    pair, share = problem.rows.pair[strict], problem.rows.row_weights()[strict]
    half = share * (problem.labels[strict] == LABEL_A) - share / 2
    pairs = len(z)
    total = np.bincount(pair, half, pairs) @ z
    weight = np.bincount(pair, share, pairs)
    theta = heads.fit_statistic(z, weight, total, problem.fixed.ridge)
    return by_teacher(problem, heads.margins(z, theta))


# --- randomized response -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Answers:
    """Randomized response on some `rows`: labels 0 or 1, and how they were flipped."""

    rows: NDArray[np.intp]
    labels: Labels
    flip_probability: Floats
    noise: Floats


def randomized_response(
    problem: Problem,
    epsilon: float,
    delta: float,
    seed: int,
    *,
    loss: Literal["forward", "robust"] = "forward",
    cap: int | None = None,
    draw: Draw = "joint",
) -> Outcome:
    """A head of flipped labels; with `cap`, of at most so many labels of each labeler."""
    answers = _answers(problem, epsilon, delta, seed, cap, draw)
    _, z = _coordinates(problem, _unwhitened(problem))
    theta = heads.fit_flipped(
        z[problem.rows.pair[answers.rows]],
        answers.labels,
        answers.flip_probability,
        problem.fixed.ridge,
        loss,
        problem.rows.row_weights()[answers.rows],
    )
    released = np.full(len(problem.rows), NOT_RELEASED, np.uint8)
    released[answers.rows] = answers.labels
    return Outcome(heads.margins(z, theta), released, _noise_of(problem, answers))


def props(
    problem: Problem,
    epsilon: float,
    delta: float,
    seed: int,
    *,
    combine: Literal["hard", "soft"],
    stages: int = 2,
) -> Outcome:
    """PROPS in stages that are split by labeler; the labels of the first stage stay flipped."""
    answers = _answers(problem, epsilon, delta, seed, None, "joint")
    _, coordinates = _coordinates(problem, _unwhitened(problem))
    draw, unit = np.random.default_rng([seed, 2]), problem.rows.unit[answers.rows]
    labels = ReleasedLabels(
        problem.rows.pair[answers.rows],
        unit,
        draw.integers(0, stages, problem.rows.units)[unit],
        draw.integers(0, _FOLDS, problem.rows.units)[unit],
        answers.labels,
        answers.flip_probability,
        answers.noise,
    )
    learner = HeadLearner(problem.fixed.ridge)
    results = list(run_stages(coordinates, labels, learner, combine=combine, stages=stages))
    error = results[-1].report.error
    details = {} if error is None else {"model_error": error.rate, "model_se": error.standard_error}
    released = np.full(len(problem.rows), NOT_RELEASED, np.uint8)
    released[answers.rows] = join_stages(results)[0] > 0.5
    return Outcome(results[-1].scorer(coordinates), released, _noise_of(problem, answers) | details)


def _answers(
    problem: Problem, epsilon: float, delta: float, seed: int, cap: int | None, draw: Draw
) -> _Answers:
    """What one release draws of each labeler's labels: a block, or as many coins.

    Of the labels that a block has no room for none is released.
    Coins are priced by each labeler's own number of labels, which is less than any policy for all
    would cost: whatever else is compared with them is compared with the best of them.
    """
    rng = np.random.default_rng([seed, round(epsilon * 1000)])
    n, unit = len(problem.rows), problem.rows.unit
    binary = np.where(problem.labels == LABEL_TIE, rng.random(n) < 0.5, problem.labels)
    most = n if draw == "coins" else MOST_LABELS
    rows = joint.bound(unit, min(most, cap or most), rng)
    mine = unit[rows]
    if draw == "joint":
        drawn = joint.draw_blocks(mine, rr.threshold(rr.calibrate(epsilon, delta, 1)), rng)
    else:
        _, unit_of, counts = np.unique(mine, return_inverse=True, return_counts=True)
        epsilon0 = np.array([rr.calibrate(epsilon, delta, k) for k in counts.tolist()])
        # Thresholds are rounded up to the coin's 64 bits, which no draw here could tell.
        drawn = joint.draw_coins((1 / (1 + np.exp(epsilon0)))[unit_of], rng)
    labels = binary[rows].astype(np.uint8) ^ drawn.flipped
    return _Answers(rows, labels, drawn.flip_probability, drawn.noise)


def _noise_of(problem: Problem, answers: _Answers) -> dict[str, Any]:
    information = float(np.square(1 - 2 * answers.flip_probability).sum())
    return {
        "mean_flip_probability": float(answers.flip_probability.mean()),
        "information": information / problem.rows.units,
    }


# --- the statistic -------------------------------------------------------------------------------


def statistic_fixed(problem: Problem, epsilon: float, delta: float, seed: int) -> Outcome:
    """The statistic with the public choice of the dataset and Gaussian noise."""
    noise = Noise("gaussian", gaussian.calibrate(epsilon, delta))
    return _released_statistic(problem, problem.fixed, noise, epsilon, seed)


def statistic_of(
    problem: Problem,
    epsilon: float,
    delta: float,
    seed: int,
    *,
    components: int,
    kind: NoiseKind,
) -> Outcome:
    """The statistic with that many components and noise of that kind."""
    if kind == "ball":
        noise = Noise(kind, ball.calibrate(epsilon, delta, components), components)
    else:
        noise = Noise(kind, gaussian.calibrate(epsilon, delta))
    return _released_statistic(problem, Shape(components), noise, epsilon, seed)


def statistic_with(
    problem: Problem, epsilon: float, delta: float, seed: int, *, kind: NoiseKind
) -> Outcome:
    """The statistic as planned for noise of one kind."""
    gaussians = Noise("gaussian", gaussian.calibrate(epsilon, delta))

    def noises(components: int) -> Noise:
        if kind == "gaussian":
            return gaussians
        return Noise(kind, ball.calibrate(epsilon, delta, components), components)

    shape = components_of.Directions.of_features(problem.x, problem.rows).choose_shape(noises)
    return _released_statistic(problem, shape, noises(shape.components), epsilon, seed)


def statistic_planned(problem: Problem, epsilon: float, delta: float, seed: int) -> Outcome:
    """The statistic as a release makes it: planned, with the smaller noise, and calibrated."""
    x, rows = problem.x, problem.rows
    noises = components_of.make_noise_chooser(epsilon, delta)
    shape = components_of.Directions.of_features(x, rows).choose_shape(noises)
    noise = noises(shape.components)
    outcome = _released_statistic(problem, shape, noise, epsilon, seed, calibrate=True)
    facts = {"shape": asdict(shape), "noise_kind": noise.kind}
    outcome = replace(outcome, details=outcome.details | facts)
    if seed >= FORECASTS:
        return outcome
    found = tuning.forecast(x, rows, [epsilon], delta, growth=False)
    clean, promised = found[0], next(f for f in found if f.mechanism == statistic.NAME)
    promises = {
        "forecast_accuracy": promised.accuracy.mean,
        "forecast_label_error": promised.label_error.mean,
        "forecast_loss": clean.accuracy.mean - promised.accuracy.mean,
    }
    return replace(outcome, details=outcome.details | promises)


def _released_statistic(
    problem: Problem,
    shape: Shape,
    noise: Noise,
    epsilon: float,
    seed: int,
    *,
    calibrate: bool = False,
) -> Outcome:
    """One statistic release, and the head of it."""
    basis, z = _coordinates(problem, shape)
    bounds = statistic.compute_bounds(z, problem.rows, shape.clip_quantile)
    grid = statistic.choose_grid(bounds, len(basis.metric), noise)
    total = statistic.clip_and_sum_labels(z, problem.rows, problem.labels, bounds, grid.step)
    nonce = hashlib.sha256(f"{epsilon} {seed}".encode()).digest()
    released = np.asarray(statistic.add_noise(total, grid, nonce) * grid.step, np.float64)
    weight = statistic.sum_pair_weights(problem.rows, bounds, len(z))
    penalty = shape.ridge * basis.metric**2
    ridge = statistic.compute_noise_aware_ridge(z, weight, penalty, grid.deviation)
    theta = heads.fit_statistic(z, weight, released, ridge)
    details = {"components": len(basis.metric), "noise": grid.deviation}
    scale = 1.0
    if calibrate:
        scale = calibration.calibrate_head(
            problem.x, problem.rows, basis, shape, bounds, grid.deviation, noise.kind
        )
        details |= {"scale": scale}
    return by_teacher(problem, scale * heads.margins(z, theta), details)


# --- shared --------------------------------------------------------------------------------------


def _coordinates(problem: Problem, shape: Shape) -> tuple[Basis, NDArray[np.float32]]:
    """The public basis of the training labelers' pairs, and every pair in it."""
    basis = geometry.choose_basis(geometry.compute_spectrum(problem.x, problem.counts()), shape)
    return basis, basis.coordinates(problem.x)


def _unwhitened(problem: Problem) -> Shape:
    """The fixed choice on principal axes as they are, where the ridge is one number."""
    return replace(problem.fixed, whitening=0)


def _wide(shape: Shape, components: int) -> Shape:
    return replace(shape, components=components)


CAPPED: dict[str, Mechanism] = {
    f"rr-cap-{cap}": partial(randomized_response, cap=cap) for cap in CAPS
}
COINS: dict[str, Mechanism] = {
    RR_COINS: partial(randomized_response, draw="coins"),
    **{f"rr-coins-cap-{cap}": partial(randomized_response, cap=cap, draw="coins") for cap in CAPS},
}
"""Every label a coin of its own; of one label a labeler it is the same as a block."""
SWEEP: dict[str, Mechanism] = {
    f"{kind}-{components}": partial(statistic_of, components=components, kind=kind)
    for components in SWEPT
    for kind in NOISES
}

WITHOUT_BUDGET = (NON_PRIVATE, NON_PRIVATE_WIDE)

MECHANISMS: dict[str, Mechanism] = {
    NON_PRIVATE: non_private,
    NON_PRIVATE_WIDE: partial(non_private, components=128),
    RR: randomized_response,
    "rr-robust": partial(randomized_response, loss="robust"),
    **CAPPED,
    **COINS,
    "props-hard": partial(props, combine="hard"),
    "props-soft": partial(props, combine="soft"),
    "props-hard-3": partial(props, combine="hard", stages=3),
    "props-soft-3": partial(props, combine="soft", stages=3),
    "statistic": statistic_fixed,
    PLANNED: statistic_planned,
    "statistic-gaussian": partial(statistic_with, kind="gaussian"),
    "statistic-ball": partial(statistic_with, kind="ball"),
    **SWEEP,
    **GRADIENT,
}
