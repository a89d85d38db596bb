"""How noise and accuracy of gradient mechanisms depend on labels per labeler: aup-rlhf, simulated.

    python bench/gradient_effects.py                # under five minutes; --markdown for the docs

*Effective noise* is the deviation of the mean of all steps' noise, as a norm over all coordinates,
beside the norm of the mean gradient at θ = 0 (tables 1 and 2 of aup-rlhf; theirs are of a language
model, in units that the paper does not name: trends can be compared, values cannot). There are as
many labels in all, so that labelers who give more are fewer. `aup` is as published: its noise has
a factor √(8 ln(e^ε T/δ)) besides τ, without which it is shown too, and promises nothing then. τ is
the least one at which 90% of pairs of labelers' mean gradients lie within it.

*Accuracy* is the share of fresh pairs on which a head prefers what the planted θ does, by labels of
each of as many labelers (the trend of table 7).

Labelers share one θ, as the paper's theorems assume. δ = 1e-5, q = .2, 100 steps.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from labelguard_trainer.gradient.aup import AupRun
from labelguard_trainer.gradient.heads import (
    ComparisonRecords,
    HeadProblem,
    choose_clip_norm,
    compute_step_averaged_noise_deviation,
)
from numpy.typing import NDArray
from utility import tables
from utility.datasets import Problem
from utility.gradients import Configuration, adaptive, uls
from utility.mechanisms import non_private, randomized_response, statistic_with
from utility.outcomes import Outcome

from labelguard.accounting import subsampled
from labelguard.mechanisms.geometry import Shape
from labelguard.mechanisms.statistic import Rows

DELTA, PROBABILITY, STEPS = 1e-5, 0.2, 100
DIMENSIONS, PAIRS = 16, 4000
EPSILONS = (1.0, 3.0, 8.0)
LABELS, PER_LABELER = 50_000, (5, 10, 20, 50, 500)
LABELERS, MORE = 200, (10, 100, 250, 500)
SEEDS, EPSILON = 10, 1.0
NEAR = 0.9

_TUNED = tuple(
    Configuration(rate, distance, DIMENSIONS)
    for rate, distance in product((0.3, 1.0, 3.0), (0.5, 1.0, 2.0))
)


def simulated(labelers: int, per_labeler: int, seed: int) -> tuple[Problem, NDArray[np.float64]]:
    """Labels by Bradley and Terry's model; and the planted reward of every pair."""
    rng = np.random.default_rng([seed, labelers, per_labeler])
    x = rng.standard_normal((PAIRS, DIMENSIONS)).astype(np.float32) / math.sqrt(DIMENSIONS)
    theta = rng.standard_normal(DIMENSIONS)
    reward = 3 * (x @ (theta / np.linalg.norm(theta))) * math.sqrt(DIMENSIONS) / 2
    unit = np.repeat(np.arange(labelers), per_labeler)
    half = PAIRS // 2  # the other half is fresh
    pair = rng.integers(half, size=len(unit))
    labels = (rng.random(len(unit)) < 1 / (1 + np.exp(-reward[pair]))).astype(np.uint8)
    fresh = np.arange(half, PAIRS)
    wanted = (reward[fresh] > 0).astype(np.uint8)
    rows = Rows(pair, unit, labelers)
    shape = Shape(components=DIMENSIONS)
    return Problem(x, rows, labels, fresh, wanted, fresh * 0, shape), reward


# --- effective noise -----------------------------------------------------------------------------


def noises(per_labeler: int) -> dict[tuple[str, float], float]:
    """Effective noise by mechanism and ε, with the same number of labels in all."""
    labelers = LABELS // per_labeler
    problem, _ = simulated(labelers, per_labeler, 0)
    records = ComparisonRecords.of(problem.x, problem.rows)
    weight = records.weigh_by_unit("mean")
    made = HeadProblem(records, weight, np.ones(DIMENSIONS), choose_clip_norm(records, weight))
    gradients = made.gradients(np.arange(labelers), problem.labels.astype(np.float64))
    mean = float(np.linalg.norm(gradients.mean(axis=0, dtype=np.float64)))
    clip, distance = choose_clip_norm(records, weight), _distance(gradients)
    beside = math.sqrt(DIMENSIONS) / mean
    found = {}
    for epsilon in EPSILONS:
        price: dict[str, Any] = {"sampling_probability": PROBABILITY, "steps": STEPS}
        of_uls = subsampled.calibrate(epsilon, DELTA, PROBABILITY, STEPS)
        noise = (
            compute_step_averaged_noise_deviation({**price, "noise_multiplier": of_uls}, labelers)
            * clip
        )
        of_aup = subsampled.calibrate(epsilon / 2, DELTA / 2, PROBABILITY, STEPS)
        budget = {"noise_multiplier": of_aup, "epsilon": epsilon, "delta": DELTA}
        course = AupRun.from_price({**price, **budget}, distance, labelers)
        published = course.deviation / math.sqrt(STEPS)
        factor = math.sqrt(8 * (epsilon + math.log(STEPS / DELTA)))
        found["uls", epsilon] = noise * beside
        found["aup", epsilon] = published * beside
        found["aup without its factor", epsilon] = published / factor * beside
    return found


def _distance(gradients: NDArray[np.float32]) -> float:
    """τ, from a thousand pairs of labelers."""
    rng = np.random.default_rng(0)
    one, other = rng.integers(len(gradients), size=(2, 2000))
    apart = one != other
    lengths = np.linalg.norm(gradients[one[apart]] - gradients[other[apart]], axis=1)
    return float(np.quantile(lengths, NEAR))


# --- accuracy ------------------------------------------------------------------------------------

Run = Callable[[Problem, float, float, int], Outcome]

MECHANISMS: dict[str, Run] = {
    "no privacy": non_private,
    "statistic, Gaussian": partial(statistic_with, kind="gaussian"),
    "uls": uls,
    "uls, means": partial(uls, weighting="mean"),
    "randomized response": randomized_response,
}


def accuracy(run: Run, problem: Problem, seed: int) -> float:
    """The share of fresh pairs whose preferred side a head tells."""
    margins = run(problem, EPSILON, DELTA, seed).margins[problem.held_pair]
    right = np.where(margins == 0, 0.5, (margins > 0) == problem.held_labels)
    return float(right.mean())


def accuracies(per_labeler: int) -> dict[str, list[float]]:
    """By mechanism, one of every seed; `aup` with the best of nine configurations on the first."""
    found: dict[str, list[float]] = {}
    best: Run | None = None
    for seed in range(SEEDS):
        problem, _ = simulated(LABELERS, per_labeler, seed)
        if best is None:
            tuned = [partial(adaptive, configuration=each) for each in _TUNED]
            best = max(tuned, key=lambda run: accuracy(run, problem, 0))
        for name, run in {**MECHANISMS, "aup, tuned in hindsight": best}.items():
            found.setdefault(name, []).append(accuracy(run, problem, seed))
    return found


# --- tables --------------------------------------------------------------------------------------


def effective_noise() -> tables.Table:
    """By mechanism, ε and labels per labeler."""
    by_count = {count: noises(count) for count in PER_LABELER}
    table = [["effective noise", *(f"m = {count}" for count in PER_LABELER)]]
    for name, epsilon in by_count[PER_LABELER[0]]:
        cells = [f"{by_count[count][name, epsilon]:.3f}" for count in PER_LABELER]
        table.append([f"{name}, ε = {epsilon:g}", *cells])
    return table


def contributions() -> tables.Table:
    """By mechanism and labels of each labeler."""
    by_count = {count: accuracies(count) for count in MORE}
    table = [[f"accuracy, ε = {EPSILON:g}", *(f"m = {count}" for count in MORE)]]
    for name in by_count[MORE[0]]:
        cells = []
        for count in MORE:
            values = np.array(by_count[count][name])
            error = values.std(ddof=1) / math.sqrt(len(values))
            cells.append(f"{values.mean():.3f} ± {error:.3f}")
        table.append([name, *cells])
    return table


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--markdown", action="store_true", help="tables for the documentation")
    as_text = tables.markdown if parser.parse_args().markdown else tables.plain
    print(f"{LABELS:,} labels in all, m of each labeler:\n\n{as_text(effective_noise())}\n")
    print(f"{LABELERS} labelers of m labels each:\n\n{as_text(contributions())}")


if __name__ == "__main__":
    main()
