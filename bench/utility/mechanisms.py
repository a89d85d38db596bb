"""The mechanisms that are compared, by name.

A mechanism takes a problem, ε, δ and a seed. It gives the margins of a head on every pair, and the
label that it would release for every training row. Its randomness is a function of ε and the seed:
mechanisms that start from randomized response start from the same answers. They read raw labels,
as a benchmark on public research data may.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from labelguard.accounting import gaussian
from labelguard.accounting import randomized_response as rr
from labelguard.accounting.blocks import MOST_LABELS, Block, find_block
from labelguard.learning import heads
from labelguard.learning.learners import HeadLearner
from labelguard.mechanisms import geometry, statistic
from labelguard.mechanisms.geometry import Basis, Shape
from labelguard.mechanisms.noise import Noise
from labelguard.mechanisms.props_stages import ReleasedLabels, join_stages, run_stages
from labelguard.mechanisms.randomized_response import compute_largest_eigenvalue
from labelguard.mechanisms.statistic import Bounds
from labelguard.planner import calibration, components
from labelguard.text import LABEL_A, LABEL_TIE
from utility.gradients import GRADIENT
from utility.problems import (
    NOT_RELEASED,
    Floats,
    Ids,
    Labels,
    Mechanism,
    Outcome,
    Problem,
    label_by_head,
)

NON_PRIVATE = "no privacy"
CAPS = (1, 2, 3, 4, 8, 16, 64)
"""Bounds of randomized response: labels that each labeler may give at most."""
_FOLDS = 5


def learn_without_privacy(problem: Problem, epsilon: float, delta: float, seed: int) -> Outcome:
    """Fit a head of up to 128 components to the raw strict labels."""
    z = _coordinates(problem, replace(problem.fixed, components=128, whitening=0))[1]
    strict = problem.labels != LABEL_TIE
    pair, share = problem.rows.pair[strict], problem.rows.row_weights()[strict]
    half = share * (problem.labels[strict] == LABEL_A) - share / 2
    total = np.bincount(pair, half, len(z)) @ z
    theta = heads.fit_statistic(z, np.bincount(pair, share, len(z)), total, problem.fixed.ridge)
    return label_by_head(problem, heads.margins(z, theta))


# --- randomized response -------------------------------------------------------------------------


@dataclass(frozen=True)
class _Answers:
    """Flipped labels of some `rows`: 0 or 1, γ, and the largest eigenvalue of their block."""

    rows: Ids
    labels: Labels
    flip_probability: Floats
    noise: Floats


def randomize(
    problem: Problem, epsilon: float, delta: float, seed: int, *, cap: int | None = None
) -> Outcome:
    """Fit a head to flipped labels; with `cap`, to at most so many labels of each labeler."""
    answers = _answer(problem, epsilon, delta, seed, cap)
    z = _coordinates(problem, replace(problem.fixed, whitening=0))[1]
    theta = heads.fit_flipped(
        z[problem.rows.pair[answers.rows]],
        answers.labels,
        answers.flip_probability,
        problem.fixed.ridge,
        "forward",
        problem.rows.row_weights()[answers.rows],
    )
    released = np.full(len(problem.rows), NOT_RELEASED, np.uint8)
    released[answers.rows] = answers.labels
    return Outcome(heads.margins(z, theta), released)


def learn_in_stages(
    problem: Problem,
    epsilon: float,
    delta: float,
    seed: int,
    *,
    combine: Literal["hard", "soft"],
) -> Outcome:
    """Run PROPS in two stages of labelers; the labels of the first stay flipped."""
    answers = _answer(problem, epsilon, delta, seed, None)
    z = _coordinates(problem, replace(problem.fixed, whitening=0))[1]
    draw, unit = np.random.default_rng([seed, 2]), problem.rows.unit[answers.rows]
    labels = ReleasedLabels(
        problem.rows.pair[answers.rows],
        unit,
        draw.integers(0, 2, problem.rows.units)[unit],
        draw.integers(0, _FOLDS, problem.rows.units)[unit],
        answers.labels,
        answers.flip_probability,
        answers.noise,
    )
    results = list(run_stages(z, labels, HeadLearner(problem.fixed.ridge), combine=combine))
    released = np.full(len(problem.rows), NOT_RELEASED, np.uint8)
    released[answers.rows] = join_stages(results)[0] > 0.5
    return Outcome(results[-1].scorer(z), released)


def _answer(problem: Problem, epsilon: float, delta: float, seed: int, cap: int | None) -> _Answers:
    """Return the answers of one release, which flips all labels of a labeler as one block.

    A release draws whole numbers from a secret. These are drawn in floating point from a seed by
    the same law: the number of flips of a block, then the rows that they fall on.
    """
    rng = np.random.default_rng([seed, round(epsilon * 1000)])
    n, unit = len(problem.rows), problem.rows.unit
    binary = np.where(problem.labels == LABEL_TIE, rng.random(n) < 0.5, problem.labels)
    rows = np.flatnonzero(_places(unit, rng)[0] < min(MOST_LABELS, cap or MOST_LABELS))
    place, size = _places(unit[rows], rng)
    threshold = rr.threshold(rr.calibrate(epsilon, delta, 1))
    changes = np.zeros(len(rows), np.int64)
    flips, noise = np.zeros((2, len(rows)))
    for labels in np.unique(size):
        law, those = find_block(threshold, int(labels)), np.flatnonzero(size == labels)
        units, which = np.unique(unit[rows][those], return_inverse=True)
        drawn = rng.choice(labels + 1, len(units), p=count_law(law))
        changes[those], flips[those] = drawn[which], law.flip_probability
        noise[those] = compute_largest_eigenvalue(law.mean_sign, law.mean_sign_product, labels)
    return _Answers(rows, binary[rows].astype(np.uint8) ^ (place < changes), flips, noise)


def count_law(law: Block) -> Floats:
    """Return P(j labels of a block are flipped), j = 0 … m."""
    odds = (rr.COIN_RANGE - law.threshold) / law.threshold
    weight = binom.pmf(np.arange(law.labels + 1), law.labels, 0.5)
    weight[: law.likely_change_limit + 1] *= odds
    return np.asarray(weight / weight.sum())


def _places(unit: Ids, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the place of each row among its unit's, in random order, and their number."""
    _, which, counts = np.unique(unit, return_inverse=True, return_counts=True)
    order = np.lexsort((rng.random(len(unit)), which))
    place = np.empty(len(unit), np.int64)
    place[order] = np.arange(len(unit)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place, counts[which]


def tabulate_information(epsilons: tuple[float, ...], delta: float) -> Iterator[list[str]]:
    """Yield m, and for each ε γ and m(1−2γ)² of a block of m labels and (in brackets) m coins."""
    for labels in (1, 3, 8, 50, 200):
        cells = [str(labels)]
        for epsilon in epsilons:
            law = find_block(rr.threshold(rr.calibrate(epsilon, 0.0, 1)), labels)
            coin = 1 - 2 * rr.flip_probability(rr.calibrate(epsilon, delta, labels))
            block, coins = (labels * signal**2 for signal in (law.mean_sign, coin))
            cell = f"{law.flip_probability:.4f}, {block:.3f} ({coins:.3f})"
            cells.append(cell.replace("0.", "."))
        yield cells


# --- the statistic -------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReleasedStatistic:
    """A statistic release, before its head is scaled; `margins` are those of every pair."""

    basis: Basis
    shape: Shape
    bounds: Bounds
    noise: Noise
    deviation: float
    margins: Floats

    def calibrate(self, problem: Problem, *prior: Any) -> float:
        """Return the scale of the head."""
        release = (self.basis, self.shape, self.bounds, self.deviation, self.noise.kind)
        return calibration.calibrate_head(problem.x, problem.rows, *release, *prior)


def release_statistic(
    problem: Problem,
    epsilon: float,
    delta: float,
    seed: int,
    shape: Shape | None = None,
    noise: Noise | None = None,
) -> ReleasedStatistic:
    """Release a statistic and fit its head; shape and noise are planned unless they are given."""
    x, rows = problem.x, problem.rows
    if shape is None or noise is None:
        noises = components.make_noise_chooser(epsilon, delta)
        shape = components.Directions.of_features(x, rows).choose_shape(noises)
        noise = noises(shape.components)
    basis, z = _coordinates(problem, shape)
    bounds = statistic.compute_bounds(z, rows, shape.clip_quantile)
    grid = statistic.choose_grid(bounds, len(basis.metric), noise)
    total = statistic.clip_and_sum_labels(z, rows, problem.labels, bounds, grid.step)
    nonce = hashlib.sha256(f"{epsilon} {seed}".encode()).digest()
    released = np.asarray(statistic.add_noise(total, grid, nonce) * grid.step, np.float64)
    weight = statistic.sum_pair_weights(rows, bounds, len(z))
    penalty = shape.ridge * basis.metric**2
    ridge = statistic.compute_noise_aware_ridge(z, weight, penalty, grid.deviation)
    margins = heads.margins(z, heads.fit_statistic(z, weight, released, ridge))
    return ReleasedStatistic(basis, shape, bounds, noise, grid.deviation, margins)


def learn_from_statistic(problem: Problem, epsilon: float, delta: float, seed: int) -> Outcome:
    """Release a statistic as `privatize` plans it: shape, kind of noise and scale."""
    made = release_statistic(problem, epsilon, delta, seed)
    details = {"components": len(made.basis.metric), "noise": made.noise.kind}
    return label_by_head(problem, made.calibrate(problem) * made.margins, details)


def learn_from_fixed_statistic(
    problem: Problem, epsilon: float, delta: float, seed: int
) -> Outcome:
    """Release a statistic with the fixed shape of the set and Gaussian noise."""
    noise = Noise("gaussian", gaussian.calibrate(epsilon, delta))
    made = release_statistic(problem, epsilon, delta, seed, problem.fixed, noise)
    return label_by_head(problem, made.margins)


def _coordinates(problem: Problem, shape: Shape) -> tuple[Basis, NDArray[np.float32]]:
    """Return the public basis of the training labelers' pairs, and every pair in it."""
    basis = geometry.choose_basis(geometry.compute_spectrum(problem.x, problem.counts()), shape)
    return basis, basis.coordinates(problem.x)


MECHANISMS: dict[str, Mechanism] = {
    NON_PRIVATE: learn_without_privacy,
    "rr": randomize,
    **{f"rr-cap-{cap}": partial(randomize, cap=cap) for cap in CAPS},
    "props-hard": partial(learn_in_stages, combine="hard"),
    "props-soft": partial(learn_in_stages, combine="soft"),
    "statistic": learn_from_statistic,
    "statistic-fixed": learn_from_fixed_statistic,
    **GRADIENT,
}
