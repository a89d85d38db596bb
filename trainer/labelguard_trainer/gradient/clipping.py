"""The sum of labelers' clipped gradients, on whatever device they are.

As `labelguard.mechanisms.clipping`: norms in double precision, rounded up, and parts rounded toward
zero on a grid, so that their sum is exact and in no order. Squares of single-precision numbers
neither vanish nor overflow in double precision: nothing has to be scaled.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from labelguard.mechanisms.statistic import STEP_BITS

__all__ = ["ClippedSum", "norm"]

_CHUNK = 1 << 22  # numbers that are in double precision at once


class ClippedSum:
    """Σ_u clip_C(g_u): one labeler moves it by at most 2C, whatever their labels are.

    A gradient whose norm is not finite counts as zero: left in, it would undo the bound.
    """

    def __init__(self, size: int, clip: float, device: torch.device) -> None:
        if not 0 < clip < math.inf:
            raise ValueError(f"clip must be positive and finite, found {clip}")
        self._clip, self._step = clip, math.ldexp(1.0, math.frexp(clip)[1] - STEP_BITS)
        self._whole = torch.zeros(size, dtype=torch.float64, device=device)

    @property
    def total(self) -> Tensor:
        """The sum, float64, shape (size,)."""
        return self._whole * self._step

    def add(self, gradient: Tensor) -> None:
        """Add a labeler's gradient, float32, shape (size,)."""
        length = norm(gradient)
        factor = self._clip / length.clamp(min=self._clip) / self._step
        for part, found in zip(_chunks(self._whole), _chunks(gradient), strict=True):
            # Whole numbers of the grid below 2^53 are added exactly.
            part += (found.double() * factor).trunc_().where(length.isfinite(), 0.0)


def norm(gradient: Tensor) -> Tensor:
    """An upper bound of the ℓ2 norm of float32 numbers (size,), float64; infinite if not finite."""
    squares = torch.stack([part.double().square().sum() for part in _chunks(gradient)]).sum()
    found = squares.sqrt() * (1 + (len(gradient) + 4) * 2.0**-52)
    return found.where(found.isfinite(), math.inf)


def _chunks(flat: Tensor) -> Iterator[Tensor]:
    return iter(torch.split(flat, _CHUNK))
