"""Intervals of a leaderboard hold as often as they say; the information matrix alone does not."""

import numpy as np
import pytest
from scipy.stats import binom

pytestmark = pytest.mark.slow
SCRIPT = "leaderboard"

WORLDS = 14
RARELY = 1e-3
"""How often a test of right intervals may fail, in theory: its seeds are fixed."""


def test_intervals_hold_where_judges_differ(bench):
    held, information, wrong = [], [], []
    for seed in range(WORLDS):
        world = bench.simulated(6, 150, "camps", seed)
        noise = bench.noise_of("ball", 3.0, 5)
        found = bench.judged(world, noise, seed)
        # Scores of one world are not independent, worlds are: one score of each is counted.
        held.append(found["first"])
        information.append(found["information"])
        wrong.append(found["wrong"])
    assert sum(held) >= binom.ppf(RARELY, WORLDS, 0.95)
    assert sum(wrong) <= binom.ppf(1 - RARELY, WORLDS, 0.05)
    assert np.mean(information) < 0.85  # the control: nominally .95, too
