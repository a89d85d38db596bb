"""Randomized response: each label is flipped with a fixed probability by a secret coin.

Guarantee (mechanisms that compose it are priced in `labelguard.accounting`): with flip probability
γ = 1/(1 + e^ε0), a labeler with at most k coins is (ε, δ(ε))-protected under `replace_labels`,
computationally, against anyone who cannot read the memory of the running release
(docs/guarantees.md). Source: Warner 1965; aup-rlhf section 4; ties: a tie
becomes a fair coin of its own first, which is a function of the secret label alone. Choices of the
best of K responses: `accounting.kary`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labelguard.keys.coins import Coins, Purpose
from labelguard.storage.blocks import Blocks
from labelguard.text import LABEL_TIE

NAME = "rr"
VERSION = 1


def randomize(
    labels: NDArray[np.uint8], coins: Coins, row_keys: Blocks, threshold: NDArray[np.uint64]
) -> NDArray[np.uint8]:
    """Binary randomized response.

    `labels` are 0, 1 or 2 (tie), shape (n,); `row_keys` (n, 2) are distinct. A row is flipped iff
    its coin is below its `threshold` ⌈γ·2^64⌉. Every row is treated alike: two coins are drawn
    whatever its label.
    Returns released labels, 0 or 1.
    """
    fair = (coins.draw(Purpose.TIE, row_keys) >> np.uint64(63)).astype(np.uint8)
    flip = (coins.draw(Purpose.FLIP, row_keys) < threshold).astype(np.uint8)
    binary = np.where(labels == LABEL_TIE, fair, labels).astype(np.uint8)
    return binary ^ flip


def randomize_choices(
    chosen: NDArray[np.int16],
    coins: Coins,
    row_keys: Blocks,
    threshold: NDArray[np.uint64],
    options: NDArray[np.int64],
) -> NDArray[np.uint8]:
    """K-ary randomized response on choices, each among its own number of `options`.

    `chosen` are numbers from 0, or -1 where none is named, shape (n,), `options` 2 to 256;
    `row_keys` (n, 2) are distinct. A choice that names nothing becomes any, uniformly. A choice
    changes iff its coin is below its `threshold`, a multiple of K − 1, and then becomes each of
    the others with equal probability. Every row is treated alike: two coins are drawn whatever is
    chosen. Returns released choices, 0 to K − 1.
    """
    among = options.astype(np.uint64)
    fair = coins.draw(Purpose.TIE, row_keys) % among
    coin = coins.draw(Purpose.CHOICE, row_keys)
    one = np.uint64(1)
    step = np.where(coin < threshold, one + coin % (among - one), np.uint64(0))
    true = np.where(chosen < 0, fair, chosen.astype(np.uint64))
    return ((true + step) % among).astype(np.uint8)
