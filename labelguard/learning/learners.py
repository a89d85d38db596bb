"""Learners: what turns labels of pairs into a scorer, for methods that train models in between.

A learner is found by the entry point `labelguard.learners`. What `pairs` holds is between the
learner and whoever calls it: feature rows for a head, rows of a dataset for a language model.
Callers only index it by its first axis.

What the entry point names is a `LearnerFactory`. It is called before anything is charged, with
public pairs, so that a model that cannot be loaded, or does not fit the pairs, costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.learning import heads
from labelguard.text import Progress

# The entry points by which learners are found.
GROUP = "labelguard.learners"

Floats: TypeAlias = NDArray[np.float64]
# Named arrays that can be saved and restored.
State: TypeAlias = Mapping[str, NDArray[Any]]


class Scorer(Protocol):
    """A trained model: margins of pairs, on the scale of log-odds that the first side wins."""

    def __call__(self, pairs: NDArray[Any]) -> Floats:
        """Return margins, shape (n,), of n pairs; 0 is no opinion."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """Return arrays from which `Learner.restore` makes an equal scorer (or a model's path)."""
        ...


class Learner(Protocol):
    """Trains scorers. Deterministic: equal arguments give equal scorers."""

    def fit(
        self, pairs: NDArray[Any], targets: Floats, probabilities: Floats, init: Scorer | None
    ) -> Scorer:
        """Return a scorer of n pairs' labels, continued from `init` if there is one.

        `targets`, shape (n,), are labels or probabilities that the first side is preferred, in
        [0, 1]; `probabilities`, shape (n,), are those with which each target was flipped, in
        [0, ½], and 0 for a target to be taken as it is.
        """
        ...

    def restore(self, state: State) -> Scorer:
        """Return the scorer whose `state()` this is."""
        ...


@dataclass(frozen=True)
class LearnerOptions:
    """Options of a learner; one that has no use for an option refuses it.

    `model` is a base model, by hub id or path; `lora` asks for low-rank adapters, for example
    r=16,alpha=32; `config` is the path of a YAML file of further settings.
    """

    model: str | None = None
    lora: str | None = None
    config: str | Path | None = None


class PreparedLearner(Protocol):
    """A learner whose base model, settings and pairs were looked at and fit together."""

    @property
    def inputs(self) -> NDArray[Any]:
        """The inputs of each pair; the first axis numbers the pairs."""
        ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """The base model and the settings of training, as JSON.

        It is recorded, and printed on the card; a release that is resumed must find the same.
        """
        ...

    def open(self, directory: Path, progress: Progress) -> Learner:
        """Return the learner, which works in `directory`; a resumed release has the same one.

        The learner detects and replaces what a crash left half-written there.
        """
        ...

    def files(self, scorer: Scorer, directory: Path) -> tuple[Path, ...]:
        """Write the published files of the last scorer into `directory`, and return their paths.

        They are moved into the release, and after a crash they are asked for again: what `restore`
        needs must not be among them.
        """
        ...


# Distinct pairs, with the columns prompt, first and second, and options → what learns of them.
#
# Raises `LabelguardError` for options or pairs that it cannot work with.
LearnerFactory: TypeAlias = Callable[[pa.Table, LearnerOptions], PreparedLearner]


@dataclass(frozen=True, eq=False)
class HeadScorer:
    """Margins x·theta of feature rows x; `theta` has shape (components,).

    `precision` (components,) is the ridge by which a head was fitted and what its labels tell along
    each component, about ¼ Σ (1 − 2γ)² x² (Böhning and Lindsay 1988).
    """

    theta: Floats
    precision: Floats

    def __call__(self, pairs: NDArray[Any]) -> Floats:
        """Return margins, shape (n,), of feature rows of shape (n, components)."""
        return heads.margins(pairs, self.theta)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return `theta` and `precision`."""
        return {"theta": self.theta.copy(), "precision": self.precision.copy()}


@dataclass(frozen=True)
class HeadLearner:
    """A linear head by `heads.fit_flipped`; `pairs` are feature rows of shape (n, components).

    A head that continues from another has it for its prior: the ridge draws it toward the other's
    coefficients, by the other's precision, instead of toward 0. Along principal axes, where the
    components of features lie, two heads that continue so are nearly one head of all labels.
    Fitting raises as `heads.fit_flipped`.
    """

    ridge: float = 1.0

    def fit(
        self, pairs: NDArray[Any], targets: Floats, probabilities: Floats, init: Scorer | None
    ) -> HeadScorer:
        """Return the head that the targets, their flip probabilities and the ridge decide."""
        before = None if init is None else init.state()
        toward = None if before is None else before["theta"]
        ridge = np.full(pairs.shape[1], self.ridge) if before is None else before["precision"]
        theta = heads.fit_flipped(pairs, targets, probabilities, ridge, toward=toward)
        signal = 1 - 2 * np.broadcast_to(probabilities, len(pairs))
        return HeadScorer(theta, ridge + heads.square_sums(pairs, signal**2) / 4)

    def restore(self, state: State) -> HeadScorer:
        """Return the head whose state this is; raises KeyError without `theta` or `precision`."""
        return HeadScorer(*(np.array(state[name], np.float64) for name in ("theta", "precision")))
