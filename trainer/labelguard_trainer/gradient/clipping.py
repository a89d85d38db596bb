"""The sum of labelers' clipped gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["ClippedSum"]

_MARGIN = 1e-5
"""Norms of millions of float32 terms err in the sixth digit: clipping stays below C by this."""


class ClippedSum:
    """Σ_u clip_C(g_u): one labeler moves it by at most 2C, whatever their labels are.

    It is added up in float64: in float32 the sum of a thousand labelers who agree is rounded by
    more than the margin below C, so that one of them might move it by more. A gradient whose norm
    is not finite counts as zero: left in, it would undo the bound.
    """

    def __init__(self, size: int, clip: float, device: torch.device) -> None:
        if not 0 < clip < math.inf:
            raise ValueError(f"clip must be positive and finite, found {clip}")
        self.total = torch.zeros(size, dtype=torch.float64, device=device)
        self._clip = clip * (1 - _MARGIN)

    def add(self, gradients: Tensor) -> None:
        """Add labelers' gradients, shape (labelers, size), which are overwritten."""
        norms = torch.linalg.vector_norm(gradients, dim=1)
        finite = norms.isfinite()
        scale = (self._clip / norms.clamp(min=self._clip)).where(finite, 0.0)
        gradients.masked_fill_(~finite[:, None], 0.0)
        # Not a product: TF32 would round it.
        self.total += gradients.mul_(scale[:, None]).sum(0, dtype=torch.float64)
