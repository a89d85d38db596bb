"""What a mechanism needs of whatever learns: a head on features, or a language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from labelguard.ingest.pairs import DistinctPairs
from labelguard.release.protocol import Finished, Job
from labelguard_trainer.gradient.problem import Problem

__all__ = ["LearnerRun"]


class LearnerRun(Protocol):
    """What a run is fixed by beside its sampling and noise, all of it public."""

    @property
    def clip(self) -> float:
        """The norm to which the gradient of each unit is clipped."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """What the ledger keeps, so that a release that is resumed is prepared alike."""
        ...

    @property
    def told(self) -> Mapping[str, Any]:
        """What a card says of it."""
        ...

    def problem(self) -> Problem:
        """The model before its first step."""
        ...

    def margins(self, problem: Any) -> NDArray[np.float64]:
        """Log-odds that the first side is preferred, for every pair that it labels."""
        ...

    def released(
        self, job: Job, problem: Any, pairs: DistinctPairs, finished: Finished
    ) -> Finished:
        """With the model that `problem` has become, and the labels that it gives further pairs."""
        ...
