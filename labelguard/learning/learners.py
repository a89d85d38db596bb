"""Learners: what turns labels of pairs into a scorer, for methods that train models in between.

A learner is found by the entry point `labelguard.learners`. What `pairs` holds is between the
learner and whoever calls it: feature rows for a head, rows of a dataset for a language model.
Callers only index it by its first axis.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labelguard.learning import heads

__all__ = ["HeadLearner", "HeadScorer", "Learner", "Scorer", "State"]

Floats: TypeAlias = NDArray[np.float64]
State: TypeAlias = Mapping[str, NDArray[Any]]
"""Named arrays that can be saved and restored."""


class Scorer(Protocol):
    """A trained model: margins of pairs, on the scale of log-odds that the first side wins."""

    def __call__(self, pairs: NDArray[Any]) -> Floats:
        """Margins, shape (n,), of n pairs; 0 is no opinion."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """What `Learner.restore` makes an equal scorer of (a large model: where it is stored)."""
        ...


class Learner(Protocol):
    """Trains scorers. Deterministic: equal arguments give equal scorers."""

    def fit(
        self, pairs: NDArray[Any], targets: Floats, probabilities: Floats, init: Scorer | None
    ) -> Scorer:
        """A scorer of n pairs' labels, continued from `init` if there is one.

        `targets`, shape (n,), are labels or probabilities that the first side is preferred, in
        [0, 1]; `probabilities`, shape (n,), are those with which each target was flipped, in
        [0, ½], and 0 for a target to be taken as it is.
        """
        ...

    def restore(self, state: State) -> Scorer:
        """The scorer whose `state()` this is."""
        ...


@dataclass(frozen=True, eq=False)
class HeadScorer:
    """Margins x·theta of feature rows x; `theta` has shape (components,)."""

    theta: Floats

    def __call__(self, pairs: NDArray[Any]) -> Floats:
        """Margins, shape (n,), of feature rows of shape (n, components)."""
        return heads.margins(pairs, self.theta)

    def state(self) -> dict[str, NDArray[Any]]:
        """`theta` alone."""
        return {"theta": self.theta.copy()}


@dataclass(frozen=True)
class HeadLearner:
    """A linear head by `heads.fit_flipped`; `pairs` are feature rows of shape (n, components).

    A head that continues from another is drawn toward it by the ridge, instead of toward 0.
    Fitting raises as `heads.fit_flipped`.
    """

    ridge: float = 1.0
    loss: Literal["forward", "robust"] = "forward"

    def fit(
        self, pairs: NDArray[Any], targets: Floats, probabilities: Floats, init: Scorer | None
    ) -> HeadScorer:
        """The head that the targets, their flip probabilities and the ridge decide."""
        toward = None if init is None else init.state()["theta"]
        theta = heads.fit_flipped(
            pairs, targets, probabilities, self.ridge, self.loss, toward=toward
        )
        return HeadScorer(theta)

    def restore(self, state: State) -> HeadScorer:
        """The head whose state this is; raises KeyError without an array `theta`."""
        return HeadScorer(np.array(state["theta"], np.float64))
