"""What guesses of coins prove of a run: the bound by which the audit of gradients goes."""

import math

import numpy as np
from scipy.stats import binom


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
