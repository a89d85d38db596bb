"""A block: the flips of m labels drawn together, at the price of one.

Of the 2^m ways to answer m labels, those that flip at most t labels have e^ε0 times the probability
of every other one. All densities are one of two values, whose ratio is e^ε0, whatever the true
labels are: a block is ε0-private under `replace_labels`, with δ = 0, for any number of labels
(docs/proofs/randomized-response.md). So R blocks of one labeler cost what R coins at ε0 cost
(`randomized_response`), and a block of one label is such a coin.

With V_t(m) = Σ_{j<=t} C(m,j), a = e^ε0 − 1 and Z = 2^m + a·V_t(m), t = argmin γ, and s = −1 for a
label that is flipped, else 1,

    c1 = E s = a·C(m−1,t) / Z,         γ = (1 − c1)/2,
    c2 = E[s s'] = a·(C(m−2,t) − C(m−2,t−1)) / Z    for two labels of one block:

products of two rows have mean c2, not c1².

Everything here is exact, in whole numbers: e^ε0 is the ratio (2^64 − T)/T of a coin's threshold T.
Sources: Asi, Feldman and Talwar, "Optimal Algorithms for Mean Estimation under Local Differential
Privacy", 2022, for the two densities; Kairouz, Oh and Viswanath, 2015, for the composition.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

import flint
import numpy as np
from numpy.typing import NDArray

from labelguard.accounting import _numbers
from labelguard.accounting.randomized_response import COIN_RANGE

# The most labels of a block: what a labeler tells does not grow with them, and tables do.
MOST_LABELS = 16_384

# Tables of larger blocks are not kept: they grow with the square of the labels.
_SMALL = 1024

# How many bits a number has beyond those of Z from which a count of changes is drawn.
_SPARE_BITS = 128


@dataclass(frozen=True)
class Block:
    """The law of the flips of `labels` labels.

    `threshold` is that of a coin at the same price, 1 <= T < 2^63. Of the odds one unit of 2^-64
    is left to rounding, so that the drawn law is ε0-private exactly.

    Raises ValueError for other numbers than 1 to 16,384 labels.
    """

    threshold: int
    labels: int

    def __post_init__(self) -> None:
        _numbers.at_least_one(threshold=self.threshold, labels=self.labels)
        _numbers.within(1, COIN_RANGE // 2 - 1, threshold=self.threshold)
        _numbers.within(1, MOST_LABELS, labels=self.labels)

    @cached_property
    def likely_change_limit(self) -> int:
        """Return t, the number of changes up to which an answer is likely; public.

        The least t at which one change more makes labels no more informative: c1 of t + 1 over c1
        of t is (m−1−t)/(t+1) · Z_t/Z_{t+1}.
        """
        m = self.labels
        # Z of t = 0, and C(m,0)
        total, term = self._weight_if_all_unlikely + self._likely_excess, 1
        for t in range(m):
            term = term * (m - t) // (t + 1)
            following = total + self._likely_excess * term
            if (m - 1 - t) * total <= (t + 1) * following:
                return t
            total = following
        return m - 1

    @property
    def flip_probability(self) -> float:
        """Return γ, with which a label is flipped."""
        return (1 - self.mean_sign) / 2

    @property
    def mean_sign(self) -> float:
        """Return c1, the mean of a label's sign: −1 if it is flipped, else 1."""
        return float(self._exact_mean_sign)

    @property
    def mean_sign_product(self) -> float:
        """Return c2, of two labels of the block; c1 where there is one label only."""
        if self.labels == 1:
            return self.mean_sign
        t = self.likely_change_limit
        here = math.comb(self.labels - 2, t)
        before = math.comb(self.labels - 2, t - 1) if t else 0
        return float(Fraction(self._likely_excess * (here - before), self._total_weight))

    @property
    def bytes_per_draw(self) -> int:
        """Return the bytes of a random number from which a count of changes is drawn."""
        return -(-(self._total_weight.bit_length() + _SPARE_BITS) // 128) * 16

    @property
    def change_limits(self) -> NDArray[np.bytes_]:
        """Return for j = 0 … m − 1 the least random number with more than j changes, big-endian,
        (m,).

        Of 2^N numbers, ⌈2^N · W_j/Z⌉ have at most j changes, W_j being the weight of those answers.
        A density is off by less than 2^-127 of itself, and the unit taken off the odds is more.
        """
        return _SMALL_LIMITS(self) if self.labels <= _SMALL else self._find_limits()

    def _find_limits(self) -> NDArray[np.bytes_]:
        size, total = self.bytes_per_draw, flint.fmpz(self._total_weight)
        unlikely, likely = (
            flint.fmpz(self._unlikely_weight),
            flint.fmpz(self._unlikely_weight + self._likely_excess),
        )
        weight, number, limits = flint.fmpz(0), flint.fmpz(1), []
        m, t = self.labels, self.likely_change_limit
        for j in range(m):
            weight += number * (likely if j <= t else unlikely)
            limits.append(int(-(-(weight << 8 * size) // total)).to_bytes(size, "big"))
            number = number * (m - j) // (j + 1)
        return np.array(limits, dtype=f"S{size}")

    @property
    def _unlikely_weight(self) -> int:
        """Return the weight of an unlikely answer."""
        return self.threshold + 1

    @property
    def _likely_excess(self) -> int:
        """Return by how much a likely answer weighs more."""
        return COIN_RANGE - 2 * self._unlikely_weight

    @property
    def _weight_if_all_unlikely(self) -> int:
        return self._unlikely_weight << self.labels

    @cached_property
    def _total_weight(self) -> int:
        """Return Z times the weight of an unlikely answer."""
        m = self.labels
        likely, number = 0, 1
        for j in range(self.likely_change_limit + 1):
            likely += number
            number = number * (m - j) // (j + 1)
        return self._weight_if_all_unlikely + self._likely_excess * likely

    @cached_property
    def _exact_mean_sign(self) -> Fraction:
        t = self.likely_change_limit
        ways = math.comb(self.labels - 1, t)
        return Fraction(self._likely_excess * ways, self._total_weight)


_SMALL_LIMITS = lru_cache(maxsize=256)(Block._find_limits)


@lru_cache(maxsize=256)
def find_block(threshold: int, labels: int) -> Block:
    """Return a `Block`, computed once for all that ask."""
    return Block(threshold, labels)
