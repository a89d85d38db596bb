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
        world = bench.simulated(6, 25, 1.0, seed)
        noise = bench.noise_of("ball", 3.0, 5)
        found = bench.judged(world, noise, seed)
        # Scores of one world are not independent, worlds are: one score of each is counted.
        held.append(found["first"])
        information.append(found["information"])
        wrong.append(found["wrong_order"])
    assert sum(held) >= binom.ppf(RARELY, WORLDS, 0.95)
    assert sum(wrong) <= binom.ppf(1 - RARELY, WORLDS, 0.05)
    assert np.mean(information) < 0.85  # the control: nominally .95, too


def test_the_bench_reads_tables_of_comparisons(bench):
    import polars as pl

    frame = pl.DataFrame(
        {
            "model_a": ["a", "b", "c", "a"] * 30,
            "model_b": ["b", "c", "a", "a"] * 30,
            "label": [1, 1, 0, 1] * 30,
            "tie": [False] * 120,
            "labeler_id": [f"j{row % 10}" for row in range(120)],
        }
    )
    world = bench._world(frame, "model_a", "model_b")
    assert world.names == ("a", "b", "c") and len(world.rows) == 90
    score = world.plain()
    assert score[0] > score[1] > score[2]
    assert bench._order((world, "gaussian", 100.0, 0)) == 1.0
