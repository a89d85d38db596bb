"""The request of one `privatize`: its mechanism, its cost, how its input is read, how it is run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypedDict

from labelguard.budget.label_values import Skips, Ties
from labelguard.budget.policy import Unit
from labelguard.budget.request import Horizon, PolicyRequest
from labelguard.errors import PolicyError
from labelguard.inputs.sources import Input, command_arguments
from labelguard.options import (
    FILE,
    NAMES_OR_PATHS,
    BadRows,
    Exhausted,
    ReadingOptions,
    Recurrence,
    RunOptions,
    check,
    option_declarations,
)
from labelguard.project.project import Project
from labelguard.release.intake import Ingested, Intake
from labelguard.release.mechanisms import AUTO, check_options, names, open_mechanism, options_of
from labelguard.release.mechanisms.options import FeatureOptions
from labelguard.release.protocol import Mechanism

# The mechanisms of labelguard.
Ours = Literal["auto", "rr", "statistic", "props", "evaluation", "uls", "els", "els-group", "aup"]


class Keywords(TypedDict, total=False):
    """The keywords of `privatize`, for type checkers; None means: by default.

    A test compares these keywords with the options that are declared (`labelguard.options`,
    `policy.request`, `release.mechanisms.options`, `labelguard_trainer.gradient.options`). Those of
    another package's mechanism pass as a dictionary that names the mechanism too.
    """

    # what it may cost
    epsilon: float | None
    delta: float | None
    ties: Ties | None
    tie_status_public: bool | None
    unit: Unit | None
    block: int | None
    label_values: str | None
    skips: Skips | None
    assignment_reactive: bool | None
    accept_unproven: bool | None
    public_columns: Sequence[str] | None
    # how the input is read
    columns: Mapping[str, str] | None
    format: str | None
    split: str | None
    question: str | None
    bad_rows: BadRows | None
    max_input_bytes: int | None
    # for how many releases, and how it is run
    once: bool | None
    uses: int | None
    recurring: Recurrence | None
    duration: str | None
    max_labels_per_labeler: int | None
    exhausted: Exhausted | None
    again: bool | None
    accept_delta: bool | None
    output: str | Path | None
    workers: int | None
    # statistic, props, and all that fit a head
    features: str | None
    components: int | None
    ridge: float | None
    agreement: float | None
    also: Input | None
    whitening: float | None
    floor: float | None
    clip_quantile: float | None
    # props, and all by which a model learns
    stages: int | None
    combine: Literal["hard", "soft"] | None
    learner: str | None
    model: str | None
    lora: str | None
    train_config: str | Path | None
    # uls, els, els-group, aup
    sampling_probability: float | None
    steps: int | None
    weighting: Literal["mean", "root"] | None
    records: int | None
    concentration: float | None
    # evaluation
    head: str | Path | None


@dataclass(frozen=True, kw_only=True)
class ReleaseRequest(RunOptions):
    """The request of one `privatize`: by which mechanism, at which cost, of which input, how.

    `mechanism` may be `auto`; `terms` are the options of a `PolicyRequest`, and `choices` those of
    the mechanism.
    """

    mechanism: str
    terms: Mapping[str, Any]
    choices: Mapping[str, Any]
    intake: Intake

    def __post_init__(self) -> None:
        Horizon.parse(self.recurring, self.duration)
        check(RunOptions, vars(self))
        if sum((self.once, self.uses is not None, self.recurring is not None)) > 1:
            raise PolicyError("give one of --once, --uses and --recurring")
        object.__setattr__(self, "output", Path(self.output) if self.output else None)
        if self.mechanism == AUTO:
            self.head()
        else:
            self.open_mechanism(self.mechanism)

    @property
    def periods(self) -> int:
        """Return for how many releases like this one a first policy is made."""
        horizon = Horizon.parse(self.recurring, self.duration)
        return horizon.releases if horizon else self.uses or 1

    @property
    def says_how_often(self) -> bool:
        """Return True if it says for how many releases a first policy is made."""
        return self.once or self.uses is not None or self.recurring is not None

    def open_mechanism(self, name: str, features: str | None = None) -> Mechanism[Any]:
        """Return mechanism `name` with its choices; `features` are its default, if it takes any.

        Raises `PolicyError` for an option that it does not have, or a value out of range.
        """
        takes, choices = names(options_of(name)), dict(self.choices)
        if self.mechanism == AUTO:
            choices = {choice: value for choice, value in choices.items() if choice in takes}
        if features and "features" in takes:
            choices.setdefault("features", features)
        return open_mechanism(name, **choices)

    def head(self, features: str | None = None) -> FeatureOptions:
        """Return the options of heads, of any mechanism; `features` as in `open_mechanism`."""
        takes = {field.name for field in fields(FeatureOptions)}
        choices = {choice: value for choice, value in self.choices.items() if choice in takes}
        check(FeatureOptions, choices)
        return FeatureOptions(**({"features": features} if features else {}) | choices)

    def repeatable(self, mechanism: str, source: Input, home: Project) -> dict[str, Any]:
        """Return what `retrain --init` writes into a job; for the ledger alone, as it has paths.

        `input` are paths seen from the project's directory, none for what was in memory; without it
        the input is what was ingested of the `namespace`. `options` are how it was read, and those
        of the mechanism. None of it depends on what the input holds.
        """
        known, reading = (
            home.columns.items(),
            {name: getattr(self.intake, name) for name in _INTAKE},
        )
        columns = dict(role for role in self.intake.columns.items() if role not in known)
        public = list(self.terms.get("public_columns") or ())
        options = {**reading, "columns": columns, "public_columns": public}
        for option in option_declarations(options_of(mechanism)).values():
            value = self.choices.get(option.name)
            is_path = option.metavar == FILE or (
                option.metavar in NAMES_OR_PATHS and Path(value or "").exists()
            )
            if is_path and value is not None:
                places = _places(value, home)
                value = places[0] if len(places) == 1 else places
            options[option.name] = value
        usual, place = vars(Intake()), {}
        if not isinstance(source, Ingested):
            place = {"input": _places(source, home)}
        plain = {n: v for n, v in options.items() if isinstance(v, str | float | int | list | dict)}
        options = {n: v for n, v in plain.items() if v not in ([], {}, usual.get(n))}
        return {"namespace": home.namespace, **place, "options": options}


def _places(source: Input, home: Project) -> list[str]:
    """Return paths and globs as seen from the project's directory; none for what is in memory."""
    paths = [Path(text) for text in command_arguments(source) if text not in ("INPUT", "-")]
    here = home.state.parent
    return [os.path.relpath(Path(os.path.realpath(path.parent), path.name), here) for path in paths]


_TERMS, _RUN, _INTAKE = map(option_declarations, (PolicyRequest, RunOptions, ReadingOptions))


def check_names(mechanism: str, options: Mapping[str, Any]) -> None:
    """Raise `PolicyError` for an option that neither `privatize` nor the mechanism has."""
    shared = (*_TERMS, *_RUN, *_INTAKE)
    others = [name for name, value in options.items() if name not in shared and value is not None]
    check_options(mechanism, others, beside=shared)


def request_release(home: Project, mechanism: str, options: Mapping[str, Any]) -> ReleaseRequest:
    """Return the request that `privatize` makes of its options; None means: by default.

    Raises `PolicyError` for an option that the mechanism does not have, or a value out of range.
    """
    check_names(mechanism, options)
    choices = {name: value for name, value in options.items() if value is not None}
    terms, run, reading = (
        {name: choices.pop(name) for name in group if name in choices}
        for group in (_TERMS, _RUN, _INTAKE)
    )
    intake = Intake.of(home, reading)
    return ReleaseRequest(mechanism=mechanism, terms=terms, choices=choices, intake=intake, **run)
