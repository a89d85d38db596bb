"""All that one `privatize` asks for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from labelguard.errors import LabelguardError
from labelguard.ingest.sources import Input
from labelguard.planner.horizon import Horizon
from labelguard.policy import policy
from labelguard.policy.label_values import Skips, Ties
from labelguard.project.project import Project
from labelguard.release.intake import Intake, IntakeOptions
from labelguard.release.methods import AUTO, check_options, names, open_mechanism, options_of
from labelguard.release.methods.options import FeatureOptions
from labelguard.release.protocol import Mechanism


class Options(IntakeOptions, total=False):
    """Everything that `privatize` can be asked for; None means: by default.

    A type checker knows these options only; those of other packages' mechanisms pass as well.
    """

    # What it may cost (`policy.Request`).
    epsilon: float | None
    delta: float | None
    ties: Ties | None
    tie_status_public: bool | None
    unit: policy.Unit | None
    max_labels_per_labeler: int | None
    releases: int | None
    label_values: str | None
    skips: Skips | None
    assignment_reactive: bool | None
    accept_unproven: bool | None
    # How it is run (`Request`).
    recurring: Literal["daily", "weekly", "monthly"] | None
    duration: str | None
    exhausted: Literal["refuse", "drop"] | None
    again: bool | None
    accept_delta: bool | None
    output: str | Path | None
    workers: int | None
    # By our own mechanisms (`release.methods.options`).
    features: str | None
    components: int | None
    ridge: float | None
    agreement: float | None
    also: Input | None
    whitening: float | None
    floor: float | None
    clip_quantile: float | None
    head: str | Path | None
    stages: int | None
    combine: Literal["hard", "soft"] | None
    learner: str | None
    model: str | None
    lora: str | None
    train_config: str | None
    # By gradient mechanisms (`labelguard_trainer.gradient.options`).
    sampling_probability: float | None
    steps: int | None
    weighting: Literal["mean", "root"] | None
    records: int | None
    concentration: float | None


@dataclass(frozen=True)
class Request:
    """What a run is asked for: by which mechanism, at which cost, and how it treats its input.

    `mechanism` may be `auto`; `terms` are what a `policy.Request` may say beside the kind of event,
    and `choices` the options of the mechanism. A first policy allows what is `recurring` for the
    `duration`, each time with as many new labels as this time. `exhausted`: labels of exhausted
    labelers stop the run or are left out. `again` draws the latest submission of every label anew,
    as a new event with a new charge. `accept_delta` allows a δ of 1 over the number of units, or
    more. `output` is a directory that gets a copy of the release, `workers` how many buckets are
    worked on at once.
    """

    mechanism: str
    terms: Mapping[str, Any]
    choices: Mapping[str, Any]
    intake: Intake
    recurring: str | None = None
    duration: str | None = None
    exhausted: Literal["refuse", "drop"] = "refuse"
    again: bool = False
    accept_delta: bool = False
    output: Path | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        Horizon.parse(self.recurring, self.duration)
        if self.exhausted not in ("refuse", "drop"):
            raise LabelguardError("exhausted must be one of refuse, drop")
        if self.workers is not None and self.workers < 1:
            raise LabelguardError(f"workers must be at least 1, found {self.workers}")
        object.__setattr__(self, "output", Path(self.output) if self.output else None)
        if self.mechanism == AUTO:
            check_options(self.choices)
            self.head()
        else:
            self.opened(self.mechanism)

    @property
    def periods(self) -> int:
        """For how many releases like this one a first policy is made."""
        horizon = Horizon.parse(self.recurring, self.duration)
        return horizon.releases if horizon else 1

    def opened(self, name: str, features: str | None = None) -> Mechanism[Any]:
        """Mechanism `name` with its choices; `features` where none were asked for, if it takes any.

        Raises `PolicyError` for an option that it does not have, or a value out of range.
        """
        takes, choices = names(options_of(name)), dict(self.choices)
        if self.mechanism == AUTO:
            choices = {choice: value for choice, value in choices.items() if choice in takes}
        if features and "features" in takes:
            choices.setdefault("features", features)
        return open_mechanism(name, **choices)

    def head(self, features: str | None = None) -> FeatureOptions:
        """What is asked of heads, by whichever mechanism; `features` as in `opened`."""
        takes = {field.name for field in fields(FeatureOptions)}
        choices = {choice: value for choice, value in self.choices.items() if choice in takes}
        return FeatureOptions(**({"features": features} if features else {}) | choices)


def requested(home: Project, mechanism: str, options: Mapping[str, Any]) -> Request:
    """The request that `privatize` makes of its options; what is nobody else's is the mechanism's.

    Raises `PolicyError` for an option that the mechanism does not have, or a value out of range.
    """
    choices = dict(options)
    # The kind of event is the mechanism's to say, the shape of its noise the planner's, what
    # choices are among the input's, and how a run samples the mechanism's.
    others = ("event", "ball", "choices", "sampling")
    asked_for = [field.name for field in fields(policy.Request) if field.name not in others]
    terms = _taken(asked_for, choices)
    own = _taken(
        ["recurring", "duration", "exhausted", "again", "accept_delta", "output", "workers"],
        choices,
    )
    intake = Intake.of(home, _taken([field.name for field in fields(Intake)], choices))
    given = {name: value for name, value in choices.items() if value is not None}
    return Request(mechanism, terms, given, intake, **own)


def _taken(names: Collection[str], options: dict[str, Any]) -> dict[str, Any]:
    """Those options, taken out; None means: by default."""
    found = {name: options.pop(name) for name in names if name in options}
    return {name: value for name, value in found.items() if value is not None}
