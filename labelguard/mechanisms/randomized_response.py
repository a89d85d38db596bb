"""Randomized response: the labels of a block are changed together, by secret coins.

Guarantee (`accounting.blocks`; mechanisms that compose it are priced in `labelguard.accounting`): a
block is ε0-private under `replace_labels`, computationally, against anyone who cannot read the
memory of the running release (docs/guarantees.md). Which labels are in a block, and its price, is
public. The work is the same for every outcome: how many labels change is one comparison of one
random number, and which do follows from an order of all of them. Sources: Warner 1965; Asi, Feldman
and Talwar 2022; ties: a tie becomes a fair coin first, which is a function of the secret label
alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from labelguard.accounting.blocks import find_block
from labelguard.keys.coins import Coins, Purpose
from labelguard.storage.blocks import Blocks, distinct_rows, find_first_rows, order_within
from labelguard.text import LABEL_TIE

NAME = "rr"
VERSION = 2


@dataclass(frozen=True)
class LabelBlocks:
    """Labels that are drawn together: row i, of n, belongs to block `of[i]`.

    `threshold` (blocks,) is the price of each block, and `labels` how many it holds.
    """

    of: NDArray[np.intp]
    threshold: NDArray[np.uint64]
    labels: NDArray[np.int64]

    @classmethod
    def of_rows(cls, number: NDArray[np.int64], threshold: int) -> Self:
        """Return the blocks of rows with these numbers of blocks, (n,), all at one price."""
        counts = np.bincount(number)
        labels = counts[counts > 0]
        of = (np.cumsum(counts > 0) - 1)[number]
        return cls(of, np.full(len(labels), threshold, np.uint64), labels)

    def flip_probabilities(self) -> NDArray[np.float64]:
        """Return γ of every row, (n,)."""
        return flip_probabilities(self.threshold, self.labels)[self.of]


def randomize(
    labels: NDArray[np.uint8], coins: Coins, row_keys: Blocks, blocks: LabelBlocks
) -> NDArray[np.uint8]:
    """Return released labels, 0 or 1, (n,).

    `labels` are 0, 1 or 2 for a tie, which becomes a fair coin; `row_keys` (n, 2) are distinct.
    Every row draws the same coins, whatever its label.
    """
    fair = coins.draw(Purpose.TIE, row_keys)[:, 1] & np.uint64(1)
    true = np.where(labels == LABEL_TIE, fair, labels.astype(np.uint64))
    return (true ^ _choose_changed(coins, row_keys, blocks)).astype(np.uint8)


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
    distinct, law = distinct_rows(blocks.threshold, blocks.labels)
    changes = np.zeros(len(block_keys), np.int64)
    for number, (threshold, labels) in enumerate(distinct.T.tolist()):
        alike, limits = law == number, find_block(threshold, labels).change_limits
        drawn = coins.draw_bytes(Purpose.CHANGES, block_keys[alike], limits.itemsize)
        changes[alike] = np.searchsorted(limits, drawn, side="right")
    return changes


def flip_probabilities(
    threshold: NDArray[np.uint64], labels: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return γ of labels from blocks with these thresholds and sizes, (n,)."""
    distinct, law = distinct_rows(threshold, labels)
    gamma = [find_block(*each).flip_probability for each in distinct.T.tolist()]
    return np.array(gamma, np.float64)[law]
