"""All that one `privatize` asks for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from labelguard.errors import LabelguardError, PolicyError
from labelguard.ingest.sources import Input
from labelguard.policy import policy
from labelguard.policy.label_values import Skips, Ties
from labelguard.project.project import Project
from labelguard.release.intake import Intake, IntakeOptions
from labelguard.release.methods import AUTO, auto, check_options, open_mechanism
from labelguard.release.methods.options import FeatureOptions
from labelguard.release.protocol import Mechanism
from labelguard.terms import Progress


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
    # How it is run (`Request`).
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
    stages: int | None
    combine: Literal["hard", "soft"] | None
    learner: str | None


@dataclass(frozen=True)
class Request:
    """What a run may cost (`terms`), by which mechanism, and how it treats its input.

    `exhausted`: labels of exhausted labelers stop the run or are left out. `again` draws the latest
    submission of every label anew, as a new event with a new charge. `accept_delta` allows a δ of 1
    over the number of units, or more. `output` is a directory that gets a copy of the release,
    `workers` how many buckets are worked on at once.
    """

    terms: policy.Request
    mechanism: Mechanism[Any]
    intake: Intake
    exhausted: Literal["refuse", "drop"] = "refuse"
    again: bool = False
    accept_delta: bool = False
    output: Path | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.exhausted not in ("refuse", "drop"):
            raise LabelguardError("exhausted must be one of refuse, drop")
        if self.workers is not None and self.workers < 1:
            raise LabelguardError(f"workers must be at least 1, found {self.workers}")
        object.__setattr__(self, "output", Path(self.output) if self.output else None)


def requested(
    home: Project, source: Input, mechanism: str, options: Mapping[str, Any], progress: Progress
) -> Request:
    """The request that `privatize` makes of its options; what is nobody else's is the mechanism's.

    `auto` looks at the public columns of `source` first. Raises `PolicyError` for an option that
    the mechanism does not have, or a value out of range.
    """
    choices = dict(options)
    asked_for = [field.name for field in fields(policy.Request) if field.name != "event"]
    terms = _taken(asked_for, choices)  # the kind of event is the mechanism's to say
    own = _taken(["exhausted", "again", "accept_delta", "output", "workers"], choices)
    intake = Intake.of(home, _taken([field.name for field in fields(Intake)], choices))
    if mechanism == AUTO:
        check_options(choices)
        asked = policy.Request(terms.get("epsilon"), terms.get("delta"), unit=terms.get("unit"))
        head = FeatureOptions(**_taken([f.name for f in fields(FeatureOptions)], {**choices}))
        found = auto.choose(home, source, asked, intake, head, progress)
        mechanism = found.mechanism
        bound = terms.get("max_labels_per_labeler") or found.max_labels_per_labeler
        terms["max_labels_per_labeler"] = bound
        if mechanism == "rr" and head.also is not None:
            raise PolicyError("auto chose rr, which has no head to label --also; leave it out")
        choices = {} if mechanism == "rr" else choices
    opened = open_mechanism(mechanism, **choices)
    return Request(policy.Request(**terms, event=opened.priced), opened, intake, **own)


def _taken(names: Collection[str], options: dict[str, Any]) -> dict[str, Any]:
    """Those options, taken out; None means: by default."""
    found = {name: options.pop(name) for name in names if name in options}
    return {name: value for name, value in found.items() if value is not None}
