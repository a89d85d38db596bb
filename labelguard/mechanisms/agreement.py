"""Agreement, estimated from labels that were flipped with known probabilities.

Let y in {−1, 1} be the side that a labeler prefers, a tie counting as a coin's answer, and x the
released one: flipped with probability γ, so E x = a·y with a = 1 − 2γ. Flips of different units are
independent; those of one block (`accounting.blocks`) are not, and `blocks` of a release's card tell
how far. What is estimated concerns the labels themselves, as they lie behind a release; its error
is that of the flips alone, and is therefore known, whatever the labels are.

An interval is that of the normal distribution, widened by the most that one block can move the
estimate away from its mean: nothing where units are many, everything where there is one. The normal
one alone would hold in 4 cases of 5 only where few flips decide, however many labels there are: γ
may be small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelguard.mechanisms.randomized_response import BlockLaws, FlippedRows

Floats: TypeAlias = NDArray[np.float64]

_QUANTILE = 1.959964  # of the normal distribution, for 95 %


@dataclass(frozen=True)
class AgreementEstimate:
    """Share of answers that agree, with a 95 % interval."""

    # the estimate; unbiased, so it may lie below 0 or above 1
    agreement: float
    # lower end of the interval, at least 0
    low: float
    # upper end, at most 1
    high: float
    # of the estimate: a bound that holds whatever the labels are, made of public counts
    standard_error: float
    # how far the interval goes to either side, where nothing cuts it off
    reach: float
    # how many pairs of answers were compared
    comparisons: int
    # of how many items
    items: int


def estimate_between_labelers(
    item: ArrayLike, x: ArrayLike, flip_probability: ArrayLike, blocks: BlockLaws = ()
) -> AgreementEstimate | None:
    """Estimate how often two labels of one item agree; None if no item has two that say anything.

    `item` names each label's item, `x` is ±1 and `flip_probability` γ, shape (n,) each. Labels of
    one item are of different units: E x_r x_s = a_r a_s y_r y_s. Each pair is weighted by about the
    inverse of its variance, (a_r a_s)², which makes

        Ê = Σ a_r x_r a_s x_s / Σ a_r² a_s²       over all pairs r < s of one item,

    unbiased for the mean of y_r y_s with these weights, and agreement (1 + Ê)/2. With x = y(a + e)
    a product is its mean, parts linear in e_r and in e_s, and e_r e_s: uncorrelated, as e of
    different units are. Of the covariance of one unit's e no eigenvalue exceeds `noise`
    (`joint_flips.compute_largest_eigenvalue`), so that the sum over pairs has at most the variance

        Σ_r p_r noise_r (Σ_{s≠r} p_s)² + Σ_{r<s} p_r noise_r p_s noise_s,      p = a²,

    which it has where all labels agree and each was flipped alone. One flip moves an item's sum by
    a_r (1 + a_r) Σ_{s≠r} a_s at most.
    """
    _, where = np.unique(np.asarray(item), return_inverse=True)
    rows = FlippedRows.of(flip_probability, blocks)
    x, a = np.asarray(x, np.float64), 1 - 2 * rows.flip_probability
    labels, others = np.bincount(where), np.bincount(where, a)[where] - a
    p = a**2
    one, two = np.bincount(where, p), np.bincount(where, p**2)
    pairs = (one**2 - two) / 2
    information = float(pairs.sum())
    if not (labels > 1).any() or information <= 0:
        return None
    summed = (np.bincount(where, a * x) ** 2 - one) / 2
    noisy = p * rows.noise
    both = (np.bincount(where, noisy) ** 2 - np.bincount(where, noisy**2)) / 2
    variance = float(noisy @ (one[where] - p) ** 2 + both.sum())
    return _agreement_interval_of_mean_sign(
        float(summed.sum()) / information,
        math.sqrt(max(0.0, variance)) / information,
        _largest_block_shift(a, others, rows.size) / information,
        comparisons=int((labels * (labels - 1) // 2).sum()),
        items=int((labels > 1).sum()),
    )


def estimate_with_items_as_units(
    item: ArrayLike, x: ArrayLike, flip_probability: ArrayLike, blocks: BlockLaws = ()
) -> AgreementEstimate | None:
    """Estimate the same where an item is the unit: its labels are one block; None as above.

    Then E x_r x_s = c2 y_r y_s, and with weights c2² Ê = Σ c2 x_r x_s / Σ c2² over the pairs of
    each block. Labels of an item with different γ are of two releases, and are not compared; nor
    are those of more than one block of a size. Products of one block may all move together: their
    sum has at most the variance k²(1 − c2²) of k equal ones. Blocks of c2 = 0 tell nothing.
    """
    rows = FlippedRows.of(flip_probability, blocks)
    names = np.unique(np.asarray(item), return_inverse=True)[1]
    keys = np.stack([names, np.unique(rows.flip_probability, return_inverse=True)[1]])
    _, first, where = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    where = where.ravel()
    labels, second = np.bincount(where), rows.second[first]
    pairs = np.where(labels <= rows.size[first], labels * (labels - 1) / 2, 0)
    information = float(pairs @ second**2)
    if information <= 0:
        return None
    sums = np.where(pairs > 0, (np.bincount(where, np.asarray(x, np.float64)) ** 2 - labels) / 2, 0)
    variance = float((second * pairs) ** 2 @ (1 - second**2))
    move = np.abs(second) * pairs * (1 + np.abs(second))
    return _agreement_interval_of_mean_sign(
        float(second @ sums) / information,
        math.sqrt(variance) / information,
        float(move[second < 1].max(initial=0.0)) / information,
        comparisons=int(pairs.sum()),
        items=len(np.unique(names[first][pairs > 0])),
    )


def estimate_with_gold(
    item: ArrayLike,
    x: ArrayLike,
    gold: ArrayLike,
    flip_probability: ArrayLike,
    blocks: BlockLaws = (),
) -> AgreementEstimate | None:
    """Estimate how often labels agree with public answers `gold`, ±1, (n,); None if no label tells.

    Ê = Σ a_r x_r g_r / Σ a_r², and agreement (1 + Ê)/2 is 1 − γ̂ of PROPS eq. 8. Its variance is at
    most Σ a_r² noise_r / (Σ a_r²)², and that exactly where each label was flipped alone. One flip
    moves the sum by a_r (1 + a_r) at most.
    """
    rows = FlippedRows.of(flip_probability, blocks)
    x, g = np.asarray(x, np.float64), np.asarray(gold, np.float64)
    a = 1 - 2 * rows.flip_probability
    information = float(a @ a)
    if information <= 0:
        return None
    return _agreement_interval_of_mean_sign(
        float(a @ (x * g)) / information,
        math.sqrt(float(a**2 @ rows.noise)) / information,
        _largest_block_shift(a, np.ones(len(a)), rows.size) / information,
        comparisons=len(x),
        items=len(np.unique(np.asarray(item))),
    )


def _largest_block_shift(a: Floats, weight: Floats, size: NDArray[np.int64]) -> float:
    """Return the most that the a·x of one block can be off their mean, times their weight; where
    γ = 0 they are not off.
    """
    together = np.minimum(size, len(size))
    return float((together * a * (1 + a) * weight)[a < 1].max(initial=0.0))


def _agreement_interval_of_mean_sign(
    mean: float, error: float, step: float, *, comparisons: int, items: int
) -> AgreementEstimate:
    """Return the estimate from a mean of ±1 with its standard error, and the most that one coin can
    move it.
    """
    agreement, error = (1 + mean) / 2, error / 2
    reach = _QUANTILE * error + step / 2
    low, high = (min(1.0, max(0.0, agreement + side * reach)) for side in (-1, 1))
    return AgreementEstimate(agreement, low, high, error, reach, comparisons, items)
