"""Public pairs with features, and who labels them: what plans are made from."""

import numpy as np

from labelguard.mechanisms.statistic import Rows


def features(pairs, d=40, least=0.1):
    """Pairs whose features have standard deviations from 1 down to the least."""
    drawn = np.random.default_rng(0).standard_normal((pairs, d)) * np.geomspace(1, least, d)
    return drawn.astype(np.float32)


def asked(labelers, each, pairs, seed=0):
    """Every labeler labels so many pairs, drawn at random."""
    rng = np.random.default_rng(seed)
    unit = np.repeat(np.arange(labelers), each)
    return Rows(rng.integers(pairs, size=len(unit)), unit, labelers)


def heavy_tailed(labelers, pairs):
    """A few labelers give hundreds of labels, most give few."""
    drawn = np.random.default_rng(1).lognormal(2, 1.3, labelers)
    return asked(labelers, np.ceil(drawn).astype(int), pairs)
