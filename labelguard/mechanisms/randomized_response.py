"""Randomized response: the labels of a block are changed together, by secret coins.

Guarantee (`accounting.blocks`; mechanisms that compose it are priced in `labelguard.accounting`): a
block is ε0-private under `replace_labels`, computationally, against anyone who cannot read the
memory of the running release (docs/guarantees.md). Which labels are in a block, and its price, is
public. The work is the same for every outcome: how many labels change is one comparison of one
random number, and which do follows from an order of all of them. Sources: Warner 1965; Asi, Feldman
and Talwar 2022; ties: a tie becomes a random letter of its own first, which is a function of the
secret label alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting.blocks import PAIR, find_block
from labelguard.keys.coins import Coins, Purpose
from labelguard.storage.blocks import Blocks, distinct_rows, find_first_rows, order_within

NAME = "rr"
VERSION = 2
# A label that names no letter: a tie, or a choice of nothing.
NOTHING = -1


@dataclass(frozen=True)
class LabelBlocks:
    """Labels that are drawn together: row i, of n, belongs to block `of[i]`.

    `threshold` (blocks,) is the price of each block, `labels` how many it holds and `letters` the
    most that one of them is among.
    """

    of: NDArray[np.intp]
    threshold: NDArray[np.uint64]
    labels: NDArray[np.int64]
    letters: NDArray[np.int64]

    @classmethod
    def of_rows(cls, number: NDArray[np.int64], letters: NDArray[np.int64], threshold: int) -> Self:
        """Return the blocks of rows with these numbers of blocks, (n,), all at one price.

        `letters` (n,) is how many letters each label is among.
        """
        counts = np.bincount(number)
        of = (np.cumsum(counts > 0) - 1)[number]
        labels = counts[counts > 0]
        most = np.zeros(len(labels), np.int64)
        np.maximum.at(most, of, letters)
        return cls(of, np.full(len(labels), threshold, np.uint64), labels, most)

    def flip_probabilities(self) -> NDArray[np.float64]:
        """Return γ of every row, (n,)."""
        return flip_probabilities(self.threshold, self.labels, self.letters)[self.of]


def randomize(
    labels: NDArray[np.int16],
    letters: NDArray[np.int64],
    coins: Coins,
    row_keys: Blocks,
    blocks: LabelBlocks,
) -> NDArray[np.uint8]:
    """Return released labels, 0 to K − 1, (n,).

    `labels` are numbers from 0, or `NOTHING`, each among its own number of `letters` K, 2 to 256;
    `row_keys` (n, 2) are distinct. What names nothing becomes any letter, uniformly. A changed
    label becomes each other letter of its block with equal probability, and one that it is not
    among becomes any of its own. Every row draws the same coins, whatever its label.
    """
    own = letters.astype(np.uint64)
    fair = coins.draw_below(Purpose.TIE, row_keys, own)
    true = np.where(labels < 0, fair, labels.astype(np.uint64))
    changed = _choose_changed(coins, row_keys, blocks)
    if (blocks.letters == PAIR).all():  # of two letters there is one other
        return (true ^ changed).astype(np.uint8)
    among = blocks.letters.astype(np.uint64)[blocks.of]
    step = coins.draw_below(Purpose.LETTER, row_keys, among - np.uint64(1)) + np.uint64(1)
    other = coins.draw_below(Purpose.OTHER_LETTER, row_keys, own)
    letter = (true + np.where(changed, step, np.uint64(0))) % among
    return np.where(letter < own, letter, other).astype(np.uint8)


def _choose_changed(coins: Coins, row_keys: Blocks, blocks: LabelBlocks) -> NDArray[np.bool_]:
    """Return which labels change, (n,): in each block those that come first in a random order."""
    order_keys = coins.draw(Purpose.ORDER, row_keys)
    order = order_within(blocks.of, order_keys[:, 0], order_keys[:, 1])
    start = np.cumsum(blocks.labels) - blocks.labels
    changes = _count_changes(coins, row_keys[find_first_rows(blocks.of, len(start))], blocks)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    result: NDArray[np.bool_] = place - start[blocks.of] < changes[blocks.of]
    return result


def _count_changes(coins: Coins, block_keys: Blocks, blocks: LabelBlocks) -> NDArray[np.int64]:
    """Return how many labels of each block change, (blocks,); `block_keys` (blocks, 2) are
    distinct.
    """
    distinct, law = distinct_rows(blocks.threshold, blocks.labels, blocks.letters)
    changes = np.zeros(len(block_keys), np.int64)
    for number, (threshold, labels, letters) in enumerate(distinct.T.tolist()):
        alike, limits = law == number, find_block(threshold, labels, letters).change_limits
        drawn = coins.draw_bytes(Purpose.CHANGES, block_keys[alike], limits.itemsize)
        changes[alike] = np.searchsorted(limits, drawn, side="right")
    return changes


def flip_probabilities(
    threshold: NDArray[np.uint64], labels: NDArray[np.int64], letters: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return γ of labels from blocks with these thresholds, sizes and letters, (n,).

    Of more letters than two it is K/2 times the probability r of each other letter: half of what
    is drawn uniformly from all K. So it is the expected share of published pairs (released choice,
    another response) that are turned, and de-biasing by it is exact for the statistic
    Σ (φ(choice) − mean φ) (docs/guarantees.md).
    """
    distinct, law = distinct_rows(threshold, labels, letters)
    gamma = [(1 - find_block(*each).mean_sign) / 2 for each in distinct.T.tolist()]
    return np.array(gamma, np.float64)[law]
