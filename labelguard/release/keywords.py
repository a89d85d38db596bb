"""What `privatize` takes, by mechanism, for type checkers; None means: by default.

The keywords of a mechanism are the fields of its options (`release.methods.options`,
`labelguard_trainer.gradient.options`) beside those that all mechanisms share. Those of another
package's mechanism pass as a dictionary that names the mechanism too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

from labelguard.ingest.sources import Input
from labelguard.learning.features import Wait
from labelguard.policy.label_values import Skips, Ties
from labelguard.policy.policy import Unit
from labelguard.project.opening import Where
from labelguard.release.intake import IntakeOptions
from labelguard.release.run import Review
from labelguard.terms import Progress


class Costs(TypedDict, total=False):
    """What it may cost (`policy.Request`)."""

    epsilon: float | None
    delta: float | None
    ties: Ties | None
    tie_status_public: bool | None
    unit: Unit | None
    max_labels_per_labeler: int | None
    label_values: str | None
    skips: Skips | None
    assignment_reactive: bool | None
    accept_unproven: bool | None
    public_columns: Sequence[str] | None


class Running(TypedDict, total=False):
    """How it is run (`release.request.Request`), where, and who is told."""

    once: bool | None
    uses: int | None
    recurring: Literal["daily", "weekly", "monthly"] | None
    duration: str | None
    exhausted: Literal["refuse", "drop"] | None
    again: bool | None
    accept_delta: bool | None
    output: str | Path | None
    workers: int | None
    namespace: str | None
    project: Where
    progress: Progress
    review: Review | None
    wait: Wait | None


class RandomizedResponse(Costs, IntakeOptions, Running, total=False):
    """Of `rr`: what all mechanisms share."""


class Evaluation(RandomizedResponse, total=False):
    """Of `evaluation`."""

    head: str | Path | None


class Heads(RandomizedResponse, total=False):
    """Of mechanisms that fit a head."""

    features: str | None
    components: int | None
    ridge: float | None
    agreement: float | None
    also: Input | None


class Statistic(Heads, total=False):
    """Of `statistic`."""

    whitening: float | None
    floor: float | None
    clip_quantile: float | None


class Learners(Heads, total=False):
    """Of mechanisms by which a model learns."""

    learner: str | None
    model: str | None
    lora: str | None
    train_config: str | Path | None


class Props(Learners, total=False):
    """Of `props`."""

    stages: int | None
    combine: Literal["hard", "soft"] | None


class Gradients(Learners, total=False):
    """Of gradient mechanisms."""

    sampling_probability: float | None
    steps: int | None


class Uls(Gradients, total=False):
    """Of `uls`."""

    weighting: Literal["mean", "root"] | None


class Els(Gradients, total=False):
    """Of `els` and `els-group`."""

    records: int | None


class Aup(Gradients, total=False):
    """Of `aup`."""

    concentration: float | None


class Auto(Evaluation, Statistic, Props, Uls, Els, Aup, total=False):
    """Of `auto`: of whichever mechanism it takes."""
