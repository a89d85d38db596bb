"""From what an attacker saw in two worlds to a lower bound on ε, at a stated probability of error.

If every event has P(E) ≤ e^ε P'(E) + δ in neighbouring worlds, then ε ≥ ln((P(E) − δ) / P'(E)).
Every function takes `alpha`, the probability with which its bound may be too large.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelguard.accounting import ball, gaussian
from labelguard.accounting import randomized_response as rr

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_MOST_SEPARATE = 1e6
"""Standard deviations beyond which two worlds are as good as known apart."""
_MOST_SCALES = 1e4
"""Scales of ball noise, likewise."""


def proportion(hits: ArrayLike, runs: int, alpha: float) -> tuple[Floats, Floats]:
    """Lower and upper limits of probabilities, of the shape of `hits`, each wrong with `alpha`.

    Source: Clopper and Pearson 1934; exact for any probability and any number of runs.
    """
    from scipy.special import betainccinv, betaincinv

    seen = np.asarray(hits, np.float64)
    missed = runs - seen
    low = np.where(seen > 0, betaincinv(np.maximum(seen, 1), missed + 1, alpha), 0.0)
    high = np.where(missed > 0, betainccinv(seen + 1, np.maximum(missed, 1), alpha), 1.0)
    return low, high


def epsilon_of_events(
    one: ArrayLike, other: ArrayLike, runs: int, delta: float, alpha: float
) -> float:
    """The largest ε that events chosen beforehand prove, from any distribution; 0 if none does.

    `one` and `other` (events,) count how often each event occurred in `runs` runs of either world.
    Each event and its complement are tried in both directions.
    """
    each = alpha / (4 * np.size(one))
    low, high = proportion(one, runs, each)
    other_low, other_high = proportion(other, runs, each)
    largest = 0.0
    for likely, unlikely in (
        (low, other_high),
        (other_low, high),
        (1 - high, 1 - other_low),
        (1 - other_high, 1 - low),
    ):
        excess = likely - delta
        proves = (excess > 0) & (unlikely > 0)
        ratio = np.divide(excess, unlikely, out=np.ones_like(excess), where=proves)
        largest = max(largest, float(np.log(ratio).max()))
    return largest


def epsilon_of_guesses(
    right: int, guesses: int, canaries: int, delta: float, alpha: float
) -> float:
    """The ε that one run proves in which so many guesses of canaries' coins were right; 0 if none.

    Each of `canaries` had a fair coin of its own; were it otherwise, that were a neighbouring
    world. An attacker saw what was released and guessed `guesses` of the coins, whichever they
    chose. If the run is (ε, δ)-private, right guesses exceed a number with no more probability than
    answers of randomized response at ε would, but for a term in δ.

    Source: Steinke, Nasr and Jagielski 2023, theorem 5.2, with the bound computed as in appendix D.
    """
    from scipy.stats import binom

    def likely(epsilon: float) -> bool:
        """Whether as many right guesses have a probability above alpha at this ε."""
        kept = 1 / (1 + math.exp(-epsilon))
        below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, kept))
        excess = float((below / np.arange(1, right + 1)).max(initial=0.0))
        return bool(binom.sf(right - 1, guesses, kept) + 2 * canaries * delta * excess > alpha)

    if likely(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not likely(high):
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if likely(middle) else (middle, high)
    return low


def epsilon_of_flips(
    flips: ArrayLike, draws: int, labels: int, delta: float, alpha: float
) -> float:
    """The ε that `labels` answers prove, each flipped by a coin of its own; 0 if none.

    `flips` (values,) counts the flips among `draws` labels of each value: whoever flips both values
    with a probability below γ can be turned into randomized response at γ, which is priced exactly.
    """
    flip = float(proportion(flips, draws, alpha / np.size(flips))[1].max())
    if flip >= 0.5:
        return 0.0
    return rr.epsilon(math.log1p(-flip) - math.log(flip), labels, delta)


def epsilon_of_means(
    one: Floats, other: Floats, delta: float, alpha: float, noise: float | None = None
) -> float:
    """The ε that two samples of normal variables with one standard deviation prove, (runs,) each.

    The Gaussian mechanism is exactly priced by their distance (Balle and Wang 2018).
    """
    return epsilon_of_distance(distance_of_means(one, other, alpha, noise), delta)


def distance_of_means(
    one: Floats, other: Floats, alpha: float, noise: float | None = None
) -> float:
    """How far the means of two normal samples are apart at least, in standard deviations.

    The standard deviation is `noise` if that is known; else both it and the distance of the means
    are bounded, each with half of `alpha`. Below 0 if the means may be equal.
    """
    from scipy.special import ndtri

    if noise is None:
        alpha /= 2
        noise = _largest_deviation(one, other, alpha)
    if noise == 0:
        return math.inf
    distance = abs(float(one.mean() - other.mean()))
    standard_error = math.sqrt(1 / len(one) + 1 / len(other))
    # The distance has no sign: its error goes in one direction or the other.
    return distance / noise + float(ndtri(alpha / 2)) * standard_error


def epsilon_of_distance(distance: float, delta: float) -> float:
    """The ε of a Gaussian mechanism whose worlds are `distance` standard deviations apart."""
    if distance <= 0:
        return 0.0
    if distance > _MOST_SEPARATE:
        return math.inf
    return gaussian.epsilon(1 / distance, delta)


def largest_scale(total: float, number: int, alpha: float) -> float:
    """An upper confidence limit of s, of `number` exponentials of scale s that sum up to `total`.

    The sum is Gamma(number, s), as that of radii of ball noise is with d for each.
    """
    from scipy.special import gammaincinv

    return total / float(gammaincinv(number, alpha))


def epsilon_of_ball(distance: float, delta: float, components: int) -> float:
    """The ε of ball noise whose worlds are `distance` scales apart."""
    if distance == 0:
        return 0.0
    if distance > _MOST_SCALES:
        return math.inf
    return ball.epsilon(1 / distance, delta, components)


def _largest_deviation(one: Floats, other: Floats, alpha: float) -> float:
    """An upper confidence limit of the common standard deviation, by the chi-square law."""
    from scipy.special import gammaincinv

    freedom = len(one) + len(other) - 2
    squares = float(((one - one.mean()) ** 2).sum() + ((other - other.mean()) ** 2).sum())
    return math.sqrt(squares / (2 * float(gammaincinv(freedom / 2, alpha))))
