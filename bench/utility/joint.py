"""Flips as randomized response draws them, by numpy: all of a labeler's together, or each alone.

What a release draws in whole numbers from a secret is drawn here in floating point from a seed, by
the same law: the number of flips of a block, then which of its rows they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from labelguard.accounting import randomized_response as rr
from labelguard.accounting.blocks import Block, find_block
from labelguard.mechanisms.joint_flips import coin_variance, compute_largest_eigenvalue

Floats = NDArray[np.float64]
SIZES = (1, 2, 3, 8, 16, 50, 200)


def count_law(law: Block) -> Floats:
    """P(j labels of a block of two letters are flipped), j = 0 … m."""
    odds = (rr.COIN_RANGE - law.threshold) / law.threshold
    weight = binom.pmf(np.arange(law.labels + 1), law.labels, 0.5)
    weight[: law.likely_change_limit + 1] *= odds
    return np.asarray(weight / weight.sum())


@dataclass(frozen=True, eq=False)
class Drawn:
    """Which rows are flipped, their γ, and the largest eigenvalue of their block, each (n,)."""

    flipped: NDArray[np.bool_]
    flip_probability: Floats
    noise: Floats


def draw_blocks(unit: NDArray[np.intp], threshold: int, rng: np.random.Generator) -> Drawn:
    """Flips of blocks that hold all rows of a unit, 4,096 at most."""
    place, size = _places(unit, rng)
    changes = np.zeros(len(unit), np.int64)
    flips, noise = np.zeros((2, len(unit)))
    for labels in np.unique(size):
        law, rows = find_block(threshold, int(labels)), np.flatnonzero(size == labels)
        units, which = np.unique(unit[rows], return_inverse=True)
        drawn = rng.choice(labels + 1, len(units), p=count_law(law))
        changes[rows], flips[rows] = drawn[which], law.flip_probability
        noise[rows] = compute_largest_eigenvalue(law.mean_sign, law.mean_sign_product, labels)
    return Drawn(place < changes, flips, noise)


def draw_coins(flip_probability: Floats, rng: np.random.Generator) -> Drawn:
    """Flips of every row on its own."""
    flipped = rng.random(len(flip_probability)) < flip_probability
    return Drawn(flipped, flip_probability, coin_variance(flip_probability))


def bound(unit: NDArray[np.intp], most: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """At most so many rows of each unit, at random."""
    return np.flatnonzero(_places(unit, rng)[0] < most)


def information_table(
    epsilons: Sequence[float], delta: float, sizes: Sequence[int] = SIZES
) -> list[list[str]]:
    """What m labels of a labeler tell: t, γ and m(1−2γ)² of a block; in brackets, of m coins."""
    table = [["labels", *(f"ε = {epsilon:g}: t, γ, told (coins)" for epsilon in epsilons)]]
    for labels in sizes:
        cells = []
        for epsilon in epsilons:
            law = find_block(rr.threshold(rr.calibrate(epsilon, 0.0, 1)), labels)
            coin = 1 - 2 * rr.flip_probability(rr.calibrate(epsilon, delta, labels))
            told, alone = (labels * signal**2 for signal in (law.mean_sign, coin))
            gamma = f"{law.flip_probability:.4f}"
            cells.append(f"{law.likely_change_limit}, {gamma}, {told:.3f} ({alone:.3f})")
        table.append([str(labels), *(cell.replace("0.", ".") for cell in cells)])
    return table


def _places(
    unit: NDArray[np.intp], rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The place of each row among its unit's, in random order, and how many there are."""
    _, which, counts = np.unique(unit, return_inverse=True, return_counts=True)
    order = np.lexsort((rng.random(len(unit)), which))
    place = np.empty(len(unit), np.int64)
    place[order] = np.arange(len(unit)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place, counts[which]
