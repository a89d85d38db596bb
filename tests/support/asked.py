"""Public pairs with features, and who labels them: what plans are made from."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labelguard.mechanisms.statistic import Rows


def features(pairs: int, d: int = 40, least: float = 0.1) -> NDArray[np.float32]:
    """Pairs whose features have standard deviations from 1 down to the least."""
    drawn = np.random.default_rng(0).standard_normal((pairs, d)) * np.geomspace(1, least, d)
    return drawn.astype(np.float32)


def asked(labelers: int, each: int, pairs: int, seed: int = 0) -> Rows:
    """Every labeler labels as many pairs, drawn at random."""
    rng = np.random.default_rng(seed)
    unit = np.repeat(np.arange(labelers), each)
    return Rows(rng.integers(pairs, size=len(unit)), unit, labelers)
