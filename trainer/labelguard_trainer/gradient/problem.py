"""What a private run needs of a model, whatever model it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Problem"]

Floats = NDArray[np.float64]


class Problem(Protocol):
    """A model and the public records of units, who are labelers or, by record, single records.

    `labels` are those of all records, (n,), of the first side of each: 0, ½ (a tie) or 1. They are
    arguments, so that no problem ever holds them.
    """

    def clipped_sum(self, units: NDArray[np.intp], labels: Floats, clip: float) -> Any:
        """PRIVATE: Σ over these units of their gradients, each clipped to norm `clip`; flat."""
        ...

    def gradients(self, units: NDArray[np.intp], labels: Floats) -> NDArray[Any]:
        """PRIVATE: the gradient of each of these units, not clipped, (units, parameters)."""
        ...

    def noised(self, total: Any, deviation: float, secret: bytes) -> Any:
        """`total` plus Gaussian noise of this standard deviation, from 32 secret bytes."""
        ...

    def step(self, gradient: Any) -> None:
        """Move the parameters against a noised mean gradient."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """Parameters, and those of the optimizer: with `restore`, a checkpoint."""
        ...

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """The inverse of `state`."""
        ...

    def margins(self) -> Floats:
        """Log-odds that the first side is preferred, for every distinct pair, (pairs,)."""
        ...

    def export(self, directory: Path) -> tuple[Path, ...]:
        """Write what is published of the model beside its labels, as files or directories."""
        ...
