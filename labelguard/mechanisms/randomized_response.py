"""Randomized response: the labels of a block are changed together, by secret coins.

Guarantee (`accounting.blocks`; mechanisms that compose it are priced in `labelguard.accounting`): a
block is ε0-private under `replace_labels`, computationally, against anyone who cannot read the
memory of the running release (docs/guarantees.md). Which labels are in a block, and its price, is
public. The work is the same for every outcome: how many labels change is one comparison of one
random number, and which do follows from an order of all of them. Sources: Warner 1965; Asi, Feldman
and Talwar 2022; ties: a tie becomes a fair coin first, which is a function of the secret label
alone.

How far do sums of labels scatter that were flipped together? In a block of m labels let s = −1 for
a label that was flipped, else 1: E s = c1 = 1 − 2γ for each, and E s s' = c2 for any two. Their
covariance matrix has two eigenvalues, 1 − c1² + (m − 1)(c2 − c1²) and 1 − c1² − (c2 − c1²), and
blocks are independent. So whoever knows c1, c2 and m of each row, but not which rows are of one
block, still knows

    Var Σ_r w_r s_r  ≤  Σ_r w_r² · (the larger eigenvalue of r's block),

for any weights, and for any part of a block's rows. Of single labels it is the variance itself.

The standard errors here know which rows are of one item. Labels of one labeler may have been
flipped together, across items: `blocks` are those of a release's card, and what they add is
bounded as above, since no row tells whose it is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labelguard.accounting.blocks import find_block
from labelguard.keys.keyring import Coins, Purpose
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


Floats: TypeAlias = NDArray[np.float64]
# The blocks of a release, as its card has them.
BlockLaws: TypeAlias = Sequence[Mapping[str, Any]]

# How far a flip probability may be from that of its block, after it was written and read.
_SAME = 1e-9


def compute_largest_eigenvalue(first: ArrayLike, second: ArrayLike, size: ArrayLike) -> Floats:
    """Return the larger eigenvalue of a block's covariance: c1 `first`, c2 `second`, m `size`."""
    c1, c2, m = (np.asarray(each, np.float64) for each in (first, second, size))
    excess = c2 - np.square(c1)
    together = np.where(m > 1, np.maximum(excess * (m - 1), -excess), 0.0)
    return np.asarray(1 - np.square(c1) + together)


def coin_variance(flip_probability: ArrayLike) -> Floats:
    """Return the variance of s of labels that were flipped one by one, 4γ(1 − γ)."""
    gamma = np.asarray(flip_probability, np.float64)
    return np.asarray(4 * gamma * (1 - gamma))


@dataclass(frozen=True, eq=False)
class FlippedRows:
    """Released rows: γ, and how many labels were flipped together with each, all of shape (n,).

    `second` is c2 of its block, and `noise` its `compute_largest_eigenvalue`.
    """

    flip_probability: Floats
    size: NDArray[np.int64]
    second: Floats
    noise: Floats

    @classmethod
    def of(cls, flip_probability: ArrayLike, blocks: BlockLaws = ()) -> Self:
        """Look rows up by their flip probability in the `blocks` of a release's card.

        Those are mappings with `flip_probability`, `labels` (how many a block has) and
        `second_moment`. Where blocks of two sizes have one flip probability, the larger noise holds
        for both; a row whose flip probability no block has was flipped alone.
        """
        gamma = np.asarray(flip_probability, np.float64)
        first = 1 - 2 * gamma
        size, second, noise = np.ones(len(gamma), np.int64), first.copy(), coin_variance(gamma)
        for block in blocks:
            c1, c2 = 1 - 2 * block["flip_probability"], block["second_moment"]
            factor = float(compute_largest_eigenvalue(c1, c2, block["labels"]))
            rows = (np.abs(gamma - block["flip_probability"]) <= _SAME) & (noise <= factor + _SAME)
            size[rows], second[rows], noise[rows] = block["labels"], c2, factor
        return cls(gamma, size, second, noise)


def standard_error(
    wrong: ArrayLike, flip_probability: ArrayLike, items: ArrayLike, blocks: BlockLaws = ()
) -> float:
    """Return the standard error of the error rate δ̂ = Σ_r s_r(d_r − γ_r) / Σ_r s_r², s_r = 1 −
    2γ_r (PROPS eq. 8).

    d_r, `wrong`, is 1 where the model disagrees with row r, ½ where it has no vote, else 0; γ_r is
    the probability that the row's label was flipped, 0 for labels taken as they are; `items` names
    each row's item; all have shape (n,), n >= 1. A model errs alike on the labels of one item, so
    items are what is sampled. With N_i = Σ s_r(d_r − γ_r) and I_i = Σ s_r² over the rows of item i
    of m items,

        variance = [m/(m+4) · Σ_i (N_i − δ̃ I_i)² + Σ_r s_r² (noise_r/4 − γ_r(1 − γ_r))]/(Σ_i I_i)²,

    where the numerator and δ̃ = ΣN/ΣI have four more items of average size, two all right and two
    all wrong (Agresti and Coull 1998): where no item shows an error, the variance is not 0. With
    one row an item and γ = 0 it is δ̃(1 − δ̃)/n. It is never less than that of independent answers,
    Σ s_r²[noise_r/4 + s_r² δ̃(1 − δ̃)] / (Σ s_r²)²: flips are known, and few rows may not show their
    noise. It takes no two items for related, not even those that share a prompt.

    Infinite if γ is ½ in every row.
    """
    d, gamma = np.asarray(wrong, np.float64), np.asarray(flip_probability, np.float64)
    signal = 1 - 2 * gamma
    _, item = np.unique(np.asarray(items), return_inverse=True)
    errors = np.bincount(item, signal * (d - gamma))
    sizes = np.bincount(item, signal**2)
    count, total = len(sizes), float(sizes.sum())
    if total == 0:
        return math.inf
    errors = np.append(errors, np.array([0, 0, 1, 1]) * total / count)
    sizes = np.append(sizes, np.full(4, total / count))
    rate = float(errors.sum() / sizes.sum())
    noise, joint = _noise_and_excess(gamma, blocks)
    of_items = count / (count + 4) * float(np.square(errors - rate * sizes).sum())
    of_items += float(signal**2 @ joint) / 4
    spread = min(1.0, max(0.0, rate))
    of_rows = signal**2 @ (noise / 4 + signal**2 * spread * (1 - spread))
    return math.sqrt(max(of_items, float(of_rows))) / total


def paired_standard_error(
    difference: ArrayLike, flip_probability: ArrayLike, items: ArrayLike, blocks: BlockLaws = ()
) -> float:
    """Return the standard error of Σ_r s_r D_r / Σ_r s_r², the difference of two error rates.

    s_r = 1 − 2γ_r, and D_r = d_r − d′_r in [−1, 1] is by how much more the first disagrees with row
    r than the second; the other arguments are as for `standard_error`. By items N_i = Σ s_r D_r,
    with one more item of average size won and one lost by each, so that few rows on which the
    models differ never seem to be none, and what joint flips add; and never less than the flips'
    own noise where they differ, Σ s_r² D_r² noise_r / (Σ s_r²)². Infinite if γ is ½ in every row.
    """
    gap, gamma = np.asarray(difference, np.float64), np.asarray(flip_probability, np.float64)
    signal = 1 - 2 * gamma
    _, item = np.unique(np.asarray(items), return_inverse=True)
    won = np.bincount(item, signal * gap)
    sizes = np.bincount(item, signal**2)
    count, total = len(sizes), float(sizes.sum())
    if total == 0:
        return math.inf
    share = float(won.sum()) / total
    of_items = float(np.square(won - share * sizes).sum())
    noise, joint = _noise_and_excess(gamma, blocks)
    of_items += 2 * (total / count) ** 2 + float((signal * gap) ** 2 @ joint)
    of_flips = float((signal * gap) ** 2 @ noise)
    return math.sqrt(max(of_items, of_flips)) / total


def _noise_and_excess(gamma: Floats, blocks: BlockLaws) -> tuple[Floats, Floats]:
    """Return the noise of each row, and by how much it exceeds that of a row flipped alone."""
    noise = FlippedRows.of(gamma, blocks).noise
    return noise, np.maximum(noise - coin_variance(gamma), 0)
