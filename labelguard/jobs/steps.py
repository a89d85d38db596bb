"""How a job learns a model and asks it: parts found by the entry point `labelguard.steps`.

What the entry point names is a callable (options, base) → `Step`, where `options` are those of
`train` in job.yaml and `base` is the directory that relative paths in them refer to. Ours come in
by the same door: `head` is the core's, `dpo` and `reward` are the trainer's.
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
from labelguard.configuration.loader import validate
from labelguard.errors import LabelguardError
from labelguard.project.project import Project
from labelguard.text import Progress

__all__ = ["GROUP", "Learned", "Lesson", "Step", "open_step", "validated"]

GROUP = "labelguard.steps"

T = TypeVar("T")


@dataclass(frozen=True)
class Lesson:
    """What a model is to be learned from: a release, and nothing that says a raw label.

    `output` appears whole; a call that was killed is made again, and goes on or begins anew.
    `previous` is the directory of the model in use, `coordinates` that of the head or evaluation in
    whose coordinates a model must be for its gate, if it must.
    """

    release: Path
    project: Project
    output: Path
    previous: Path | None
    progress: Progress
    coordinates: Path | None = None


@dataclass(frozen=True)
class Learned:
    """What came of a training, as JSON: public facts, and its metrics by step."""

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
        """What can judge its models: released and probes, of heads held-out too."""
        ...

    @property
    def holdout(self) -> float:
        """The share of items that it does not learn from (`release.holdout`)."""
        ...

    def check(self, mechanism: str, coordinates: Path | None) -> None:
        """Raise `LabelguardError` for what would fail, before anything is charged.

        Releases will be made by `mechanism`; `coordinates` are those of a `Lesson`.
        """
        ...

    def identity(self) -> Mapping[str, Any]:
        """By what it trains, as JSON: equal identities and releases make no new model."""
        ...

    def train(self, lesson: Lesson) -> Learned:
        """Learn a model into `lesson.output`; one that is there already is taken as it is."""
        ...

    def margins(self, model: Path, pairs: pa.Table) -> NDArray[np.float64]:
        """Log-odds that `chosen` is preferred, shape (n,), of pairs prompt, chosen, rejected."""
        ...


def open_step(name: str, options: Mapping[str, Any], base: Path) -> Step:
    """The step of that name with its options. Raises `LabelguardError` for what it cannot be."""
    door = plugins.find(GROUP, name)
    if door is None:
        known = ", ".join(plugins.available(GROUP)) or "none"
        raise LabelguardError(f"train.step: there is no {name!r}; available: {known}")
    step: Step = door.load()(options, base)
    return step


def validated(kind: type[T], options: Mapping[str, Any]) -> T:
    """Options of a step as its dataclass; the first that does not fit is named."""
    return validate(kind, dict(options), at=("train", "options"))
