"""Vectors clipped to a norm: the one way in which anybody's part of a sum is bounded.

Squares of small numbers vanish: in single precision those below 2.6e-23, in double those below
1.5e-162. A norm made of them is too small, and a vector of many small coordinates passes its clip
as it is. So norms are taken in double precision, after scaling by the largest entry, and rounded
up. What enters a guarantee is on a grid, where the bound is one of whole numbers, and no
floating-point number has a part in it.

Every row is computed by itself, in one order: no other row changes it by a bit.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_ULP = 2.0**-52
_LEAST_EXPONENT = -1021  # 2 to its opposite is a double
_HALF_BITS = 31  # squares are added in two halves, which do not overflow


def bound_norms(vectors: NDArray[np.floating]) -> Floats:
    """Return upper bounds of the ℓ2 norms of rows (n, d), shape (n,).

    Above the norm by (d + 6)·2^-52 of it at most, or by 2^-1074; infinite for a row that is not
    finite, or whose norm no double holds.
    """
    exact = np.asarray(vectors, np.float64)
    largest = np.abs(exact).max(axis=1, initial=0.0)
    finite = np.isfinite(largest)
    exponent = np.frexp(np.where(finite, largest, 0.0))[1]
    # A power of 2, so that only what is far below the largest entry is rounded.
    scaled = exact * np.ldexp(1.0, -np.maximum(exponent, _LEAST_EXPONENT))[:, None]
    np.square(scaled, out=scaled)
    # d squares and sums err by d·2^-53, their root by half of that; root and products by one each.
    bounds = np.sqrt(scaled.sum(axis=1)) * (1 + (exact.shape[1] + 4) * _ULP)
    with np.errstate(over="ignore"):
        bounds = np.ldexp(bounds, np.maximum(exponent, _LEAST_EXPONENT))
    # Upward once more, for numbers so small that their last bits were rounded here.
    bounds = np.where(bounds > 0, np.nextafter(bounds, np.inf), 0.0)
    return np.where(finite, bounds, np.inf)


def clip_rows(vectors: NDArray[np.floating], clip: float) -> Floats:
    """Return rows (n, d), scaled to a norm of at most `clip` where they are longer.

    A row of infinite `bound_norms` counts for nothing: left in, it would undo the bound.
    """
    length = bound_norms(vectors)
    finite = np.isfinite(length)
    rows = np.array(vectors, np.float64)
    rows[~finite] = 0
    rows *= np.where(finite, clip / np.maximum(length, clip), 0.0)[:, None]
    return rows


def clip_to_grid(vectors: NDArray[np.floating], clip: float, step: float) -> NDArray[np.int64]:
    """Return `clip_rows` rows, rounded toward zero to whole numbers of `step`, shape (n, d).

    The squares of every row add up to (clip/step)² at most, exactly: a row for which they did not
    would count for nothing. Raises ValueError unless 0 < clip/step <= 2^62, both finite.
    """
    if not (math.isfinite(clip) and math.isfinite(step) and clip > 0 and step > 0):
        raise ValueError(f"clip and step must be positive and finite, found {clip} and {step}")
    ratio = Fraction(clip) / Fraction(step)
    if ratio > 2 ** (2 * _HALF_BITS):
        raise ValueError(f"clip must be at most 2^62 steps, found {float(ratio):g}")
    rows = clip_rows(vectors, clip)
    rows /= step
    whole = rows.astype(np.int64)  # toward zero
    whole[_exceeds_norm(whole, ratio)] = 0
    return whole


def _exceeds_norm(whole: NDArray[np.int64], most: Fraction) -> NDArray[np.bool_]:
    """Return which rows have squares that add up to more than most², (n,)."""
    if most > 2**_HALF_BITS:  # a grid finer than any release's: Python's whole numbers
        return np.asarray((whole.astype(object) ** 2).sum(axis=1) > most**2, np.bool_)
    beyond = (whole > math.floor(most)) | (whole < -math.floor(most))
    squares = np.square(np.where(beyond, 0, whole))
    low = (squares & (2**_HALF_BITS - 1)).sum(axis=1)
    high = (squares >> _HALF_BITS).sum(axis=1) + (low >> _HALF_BITS)
    limit = divmod(math.floor(most**2), 2**_HALF_BITS)
    equal = (high == limit[0]) & (low & (2**_HALF_BITS - 1) > limit[1])
    return np.asarray(beyond.any(axis=1) | (high > limit[0]) | equal)
