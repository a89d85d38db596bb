"""Probabilities of a head that noisy steps have trained mean what they say."""

import numpy as np
from labelguard_trainer.gradient import loop
from labelguard_trainer.gradient.heads import head_run
from labelguard_trainer.gradient.loop import Checkpoints, NoisyRun

from labelguard.mechanisms.statistic import Rows
from labelguard.release.protocol import Featured

PRICE = {"noise_multiplier": 5.5, "sampling_probability": 0.2, "steps": 40}


def world(units=300, labels=20, d=8):
    """Pairs, who compared them, and the log-odds by which everybody answers."""
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(900, d)) / np.sqrt(d)).astype(np.float32)
    rows = Rows(rng.integers(900, size=units * labels), np.repeat(np.arange(units), labels), units)
    true = x @ rng.normal(size=d)
    return x, rows, 2 * true / true.std()


def run(x, rows, agreement):
    seen = Featured("", None, None, x, rows)  # type: ignore[arg-type] - only of rankings are pairs asked
    return head_run(seen, rows, PRICE, "root", {}, agreement)


def test_scaled_margins_are_log_odds(tmp_path):
    x, rows, true = world()
    labels = (np.random.default_rng(2).random(len(rows)) < 1 / (1 + np.exp(-true[rows.pair]))) * 1.0
    found = run(x, rows, 0.73)
    problem = found.problem()
    course = NoisyRun.from_price(PRICE, found.clip, rows.units)
    loop.train(problem, labels, course, Checkpoints(tmp_path, 999, bytes), lambda share: None)

    def loss(margin):
        return float(np.mean(np.logaddexp(0, margin) - margin / (1 + np.exp(-true))))

    as_it_is, scaled = loss(problem.margins()), loss(found.margins(problem))
    best = min(loss(scale * problem.margins()) for scale in np.arange(0.5, 4, 0.02))
    assert scaled - best < 0.3 * (as_it_is - best)
    assert 1.2 < found.scale < 4


def test_the_scale_is_public_and_repeatable():
    x, rows, _ = world(units=40)
    assert run(x, rows, 0.73).scale == run(x, rows, 0.73).scale
    assert run(x, rows, None).scale == 1.0
    assert run(x, rows, 0.85).scale != run(x, rows, 0.6).scale
