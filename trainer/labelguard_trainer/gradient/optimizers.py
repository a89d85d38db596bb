"""Optimizers of flat gradients: what they keep is flat too, so that a checkpoint is a few arrays.

They see noised gradients only: what they do with them is post-processing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

__all__ = ["OPTIMIZERS", "Adam", "Optimizer", "Sgd"]


class Optimizer(Protocol):
    """Turns gradients into updates."""

    def update(self, gradient: Tensor, rate: float, step: int) -> Tensor:
        """What to subtract from the parameters, shape (size,), at a step counted from 1."""
        ...

    def state(self) -> Mapping[str, Tensor]:
        """What it keeps between steps: tensors to be copied from, and into."""
        ...


class Sgd:
    """The gradient times the rate (aup-rlhf Alg. 4, line 12)."""

    def __init__(self, size: int, device: torch.device) -> None:
        pass

    def update(self, gradient: Tensor, rate: float, step: int) -> Tensor:
        """See `Optimizer`."""
        return gradient * rate

    def state(self) -> Mapping[str, Tensor]:
        """Nothing."""
        return {}


class Adam:
    """Kingma and Ba 2015, algorithm 1, with its usual constants and no weight decay."""

    def __init__(self, size: int, device: torch.device) -> None:
        self._first = torch.zeros(size, device=device)
        self._second = torch.zeros(size, device=device)

    def update(self, gradient: Tensor, rate: float, step: int) -> Tensor:
        """See `Optimizer`."""
        slow, slower, least = 0.9, 0.999, 1e-8
        self._first.lerp_(gradient, 1 - slow)
        self._second.mul_(slower).addcmul_(gradient, gradient, value=1 - slower)
        size = (self._second / (1 - slower**step)).sqrt_().add_(least)
        return torch.div(self._first, size, out=size).mul_(rate / (1 - slow**step))

    def state(self) -> Mapping[str, Tensor]:
        """The two moments."""
        return {"first_moment": self._first, "second_moment": self._second}


OPTIMIZERS: Mapping[str, Callable[[int, torch.device], Optimizer]] = {
    "adamw_torch": Adam,
    "sgd": Sgd,
}
"""By the names that they have in a training configuration."""
