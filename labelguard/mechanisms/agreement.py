"""Agreement, estimated from labels that were flipped with known probabilities.

Let s in {−1, 1} be the side that a labeler prefers, a tie counting as a coin's answer, and x the
released one: flipped with probability γ, so E x = a·s with a = 1 − 2γ, for each label on its own.
What is estimated concerns the labels themselves, as they lie behind a release; its error is that of
the coins alone, and is therefore known, whatever the labels are.

An interval is that of the normal distribution, widened by the most that one coin can move the
estimate away from its mean: nothing where labels are many, everything where there is one. The
normal one alone would hold in 4 cases of 5 only where few coins decide, however many labels there
are: γ may be small.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["AgreementEstimate", "between_labelers", "with_gold"]

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


def between_labelers(
    item: ArrayLike, x: ArrayLike, flip_probability: ArrayLike
) -> AgreementEstimate | None:
    """Estimate how often two labels of one item agree; None if no item has two that say anything.

    `item` names each label's item, `x` is ±1 and `flip_probability` γ, shape (n,) each. For two
    labels of one item E x_r x_s = a_r a_s s_r s_s. Each pair is weighted by the inverse of its
    variance, (a_r a_s)², which makes

        Ê = Σ a_r x_r a_s x_s / Σ a_r² a_s²       over all pairs r < s of one item,

    unbiased for the mean of s_r s_s with these weights, and agreement (1 + Ê)/2. Given the labels,
    items are independent. With p = a², e₂(p) = Σ_{r<s} p_r p_s, the variance of an item's sum is

        Σ_{r<s} p_r p_s (1 − p_r p_s) + 2 Σ_r p_r (1 − p_r) Σ_{s<t, not r} p_s p_t s_s s_t

    and largest where all agree: that bound is taken. It needs power sums of p only. One coin moves
    an item's sum by a_r (1 + a_r) Σ_{s≠r} a_s at most.
    """
    _, where = np.unique(np.asarray(item), return_inverse=True)
    x, a = np.asarray(x, np.float64), 1 - 2 * np.asarray(flip_probability, np.float64)
    labels, others = np.bincount(where), np.bincount(where, a)[where] - a
    one, two, three, four = (np.bincount(where, a ** (2 * power)) for power in (1, 2, 3, 4))
    pairs = (one**2 - two) / 2
    information = float(pairs.sum())
    if not (labels > 1).any() or information <= 0:
        return None
    summed = (np.bincount(where, a * x) ** 2 - one) / 2
    together = pairs * (one - two) - one * (two - three) + (three - four)
    variance = pairs - (two**2 - four) / 2 + 2 * together
    return _interval_of_mean(
        float(summed.sum()) / information,
        math.sqrt(max(0.0, float(variance.sum()))) / information,
        _step(a, others) / information,
        comparisons=int((labels * (labels - 1) // 2).sum()),
        items=int((labels > 1).sum()),
    )


def with_gold(
    item: ArrayLike, x: ArrayLike, gold: ArrayLike, flip_probability: ArrayLike
) -> AgreementEstimate | None:
    """Estimate how often labels agree with public answers `gold`, ±1, (n,); None if no label tells.

    Ê = Σ a_r x_r g_r / Σ a_r², weighted by the inverse of the variance, and agreement (1 + Ê)/2 is
    1 − γ̂ of PROPS eq. 8. Its variance, Σ p_r (1 − p_r) / (Σ p_r)² with p = a², is exact. One coin
    moves the sum by a_r (1 + a_r) at most.
    """
    x, g = np.asarray(x, np.float64), np.asarray(gold, np.float64)
    a = 1 - 2 * np.asarray(flip_probability, np.float64)
    information = float(a @ a)
    if information <= 0:
        return None
    return _interval_of_mean(
        float(a @ (x * g)) / information,
        math.sqrt(float(a**2 @ (1 - a**2))) / information,
        _step(a, np.ones(len(a))) / information,
        comparisons=len(x),
        items=len(np.unique(np.asarray(item))),
    )


def _step(a: Floats, weight: Floats) -> float:
    """Return the most that one a·x can be off its mean, times its weight; where γ = 0 it is not
    off.
    """
    return float((a * (1 + a) * weight)[a < 1].max(initial=0.0))


def _interval_of_mean(
    mean: float, error: float, step: float, *, comparisons: int, items: int
) -> AgreementEstimate:
    """Return the estimate from a mean of ±1 with its standard error, and the most that one coin can
    move it.
    """
    agreement, error = (1 + mean) / 2, error / 2
    reach = _QUANTILE * error + step / 2
    low, high = (min(1.0, max(0.0, agreement + side * reach)) for side in (-1, 1))
    return AgreementEstimate(agreement, low, high, error, reach, comparisons, items)
