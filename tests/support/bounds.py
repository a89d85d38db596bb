"""Lower bounds on ε from what an attacker saw in two worlds, or guessed in one.

If every event has P(E) ≤ e^ε P'(E) + δ in neighbouring worlds, then ε ≥ ln((P(E) − δ) / P'(E)).
Every function takes `alpha`, the probability with which its bound may be too large.
"""

import math

import numpy as np
from scipy.special import betainccinv, betaincinv, gammaincinv, ndtri
from scipy.stats import binom

from labelguard.accounting import ball, gaussian

# Probability that an audit condemns a mechanism that keeps its claim, over noise and coins.
FALSE_ALARM = 1e-6

# Beyond so many deviations, or scales of ball noise, two worlds are as good as known apart.
_FAR = 1e4


def bound_probabilities(hits, runs, alpha):
    """Return lower and upper limits of probabilities, each wrong with probability `alpha`.

    Source: Clopper and Pearson 1934; exact for any probability and any number of runs.
    """
    hits = np.asarray(hits, np.float64)
    missed = runs - hits
    low = np.where(hits > 0, betaincinv(np.maximum(hits, 1), missed + 1, alpha), 0.0)
    high = np.where(missed > 0, betainccinv(hits + 1, np.maximum(missed, 1), alpha), 1.0)
    return low, high


def epsilon_of_events(first, second, runs, delta, alpha):
    """Return the largest ε that events chosen beforehand prove, from any distribution; 0 if none.

    `first` and `second` (events,) count how often each event occurred in `runs` runs of either
    world. Each event and its complement are tried in both directions.
    """
    share = alpha / (4 * np.size(first))
    low, high = bound_probabilities(first, runs, share)
    other_low, other_high = bound_probabilities(second, runs, share)
    likely = np.stack([low, other_low, 1 - high, 1 - other_high]) - delta
    unlikely = np.stack([other_high, high, 1 - other_low, 1 - low])
    ratio = np.divide(likely, unlikely, out=np.ones_like(likely), where=unlikely > 0)
    return float(np.log(ratio.max(initial=1.0)))


def epsilon_of_thresholds(first, second, thresholds, delta, alpha):
    """Return the ε proven by how often values (runs,) of two worlds exceed each threshold."""
    above = [
        len(values) - np.searchsorted(np.sort(values), thresholds, side="right")
        for values in (first, second)
    ]
    return epsilon_of_events(*above, len(first), delta, alpha)


def epsilon_of_means(first, second, delta, alpha, noise=None):
    """Return the ε proven by two samples (runs,) of normal variables of one standard deviation.

    The Gaussian mechanism is exactly priced by their distance (Balle and Wang 2018).
    """
    return epsilon_of_distance(bound_distance(first, second, alpha, noise), delta)


def bound_distance(first, second, alpha, noise=None):
    """Return a lower limit of the distance of two normal samples' means, in standard deviations.

    The standard deviation is `noise` if that is known. Else both it and the distance of the means
    are bounded, each with half of `alpha`. Below 0 if the means may be equal.
    """
    if noise is None:
        # An upper limit of the common standard deviation, by the chi-square law.
        alpha /= 2
        squares = sum(((sample - sample.mean()) ** 2).sum() for sample in (first, second))
        noise = math.sqrt(squares / (2 * gammaincinv((len(first) + len(second) - 2) / 2, alpha)))
    if noise == 0:
        return math.inf
    standard_error = math.sqrt(1 / len(first) + 1 / len(second))
    # The distance has no sign: its error goes in one direction or the other.
    return abs(first.mean() - second.mean()) / noise + ndtri(alpha / 2) * standard_error


def epsilon_of_distance(distance, delta, components=None):
    """Return the ε of Gaussian noise whose worlds are `distance` standard deviations apart.

    Where there are `components`, that of ball noise whose worlds are `distance` scales apart.
    """
    if distance <= 0:
        return 0.0
    if distance > _FAR:
        return math.inf
    if components is None:
        return gaussian.epsilon(1 / distance, delta)
    return ball.epsilon(1 / distance, delta, components)


def epsilon_of_guesses(right, guesses, canaries, delta, alpha):
    """Return the ε that one run with `right` guesses of canaries' coins proves; 0 if none.

    Each of `canaries` had a fair coin of its own; were it otherwise, that were a neighbouring
    world. An attacker saw what was released and guessed `guesses` of the coins, whichever they
    chose. If the run is (ε, δ)-private, right guesses exceed a number with no more probability than
    answers of randomized response at ε would, but for a term in δ.

    Source: Steinke, Nasr and Jagielski 2023, theorem 5.2, with the bound computed as in appendix D.
    """

    def is_likely(epsilon):
        """Return True if as many right guesses have a probability above alpha at this ε."""
        truthful = 1 / (1 + math.exp(-epsilon))
        below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, truthful))
        excess = float((below / np.arange(1, right + 1)).max(initial=0.0))
        return bool(binom.sf(right - 1, guesses, truthful) + 2 * canaries * delta * excess > alpha)

    if is_likely(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while not is_likely(high):
        low, high = high, 2 * high
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_likely(middle) else (middle, high)
    return low
