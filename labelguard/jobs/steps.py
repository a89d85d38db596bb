"""The protocol of a job's training step, found by the entry point `labelguard.steps`.

The entry point names a callable (options, base) → `Step`, where `options` are those of `train` in
job.yaml and `base` is the directory that relative paths in them refer to. Built-in steps are found
in the same way: `head` is in the core, `dpo` and `reward` are in the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard import plugins
from labelguard.configuration.loader import validate_settings
from labelguard.errors import LabelguardError
from labelguard.project.project import Project
from labelguard.text import Progress

GROUP = "labelguard.steps"

T = TypeVar("T")


@dataclass(frozen=True)
class TrainingTask:
    """A release to learn a model from, and nothing that holds a raw label.

    `output` appears whole; a call that was killed is repeated, and goes on or begins anew.
    `coordinates` is the directory of the head or evaluation in whose coordinates the model must be
    for its gate; None if any will do.
    """

    release: Path
    project: Project
    output: Path
    progress: Progress
    coordinates: Path | None = None


@dataclass(frozen=True)
class TrainedModel:
    """Public facts of a training, as JSON, and its metrics by step."""

    facts: Mapping[str, Any]
    curve: Sequence[Mapping[str, float]] = field(default=())


class Step(Protocol):
    """One way to learn a model. A function of releases and public data: nothing is charged."""

    @property
    def name(self) -> str:
        """Its name in `labelguard.steps`."""
        ...

    @property
    def gates(self) -> tuple[str, ...]:
        """The gates that can judge its models: released, probes, of heads held-out too."""
        ...

    @property
    def holdout(self) -> float:
        """The share of items that it does not learn from (`release.pairs_file.hold_out`)."""
        ...

    def check(self, mechanism: str, coordinates: Path | None) -> None:
        """Raise `LabelguardError` for a training that would fail, before anything is charged.

        Releases will be made by `mechanism`; `coordinates` are those of a `TrainingTask`.
        """
        ...

    def identity(self) -> Mapping[str, Any]:
        """Return by what it trains, as JSON: equal identities and releases make no new model."""
        ...

    def train(self, task: TrainingTask) -> TrainedModel:
        """Learn a model into `task.output`; one that is there already is taken as it is."""
        ...

    def margins(self, model: Path, pairs: pa.Table) -> NDArray[np.float64]:
        """Return the log-odds that `chosen` is preferred, shape (n,).

        `pairs` have the columns prompt, chosen and rejected.
        """
        ...


def open_step(name: str, options: Mapping[str, Any], base: Path) -> Step:
    """Return the step of that name. Raises `LabelguardError` for one that is not installed, and
    for options that it refuses.
    """
    entry_point = plugins.find_entry_point(GROUP, name)
    if entry_point is None:
        available = ", ".join(plugins.list_entry_points(GROUP)) or "none"
        raise LabelguardError(f"train.step: there is no {name!r}; available: {available}")
    step: Step = entry_point.load()(options, base)
    return step


def parse_options(kind: type[T], options: Mapping[str, Any]) -> T:
    """Return the options of a step as its model; raise for the first that does not fit."""
    return validate_settings(kind, dict(options), at=("train", "options"))
