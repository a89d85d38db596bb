"""Which rows of a release are kept out of training, to evaluate on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from labelguard.errors import LabelguardError

__all__ = ["held_out"]

_TAG = b"labelguard/holdout/1:"


def held_out(item_ids: Sequence[str], share: float) -> NDArray[np.bool_]:
    """Which rows are held out, shape (n,): all rows of about a `share` of the items.

    A function of the item's id alone: the rows of one item stay together (a model that has seen a
    pair is no judge of its other labels), an item that is held out of one release is held out of
    the next, and what is held out tells nothing. Stages of PROPS go by other bits.

    Raises `LabelguardError` unless 0 <= share < 1.
    """
    if not 0 <= share < 1:
        raise LabelguardError(f"holdout must be in [0, 1), found {share:g}")
    line = int(share * 2**64)
    whose = {item: _place(item) < line for item in set(item_ids)}
    return np.fromiter((whose[item] for item in item_ids), bool, len(item_ids))


def _place(item: str) -> int:
    """A number below 2^64, as good as uniform over items."""
    return int.from_bytes(hashlib.sha256(_TAG + item.encode()).digest()[:8], "big")
