"""The request of one `privatize`: its mechanism, its cost, how its input is read, how it is run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypedDict

from labelguard.budget.label_values import Skips, Ties, Turns
from labelguard.budget.policy import Unit
from labelguard.budget.request import Horizon, PolicyRequest
from labelguard.errors import PolicyError
from labelguard.inputs.sources import Input, format_command_arguments
from labelguard.options import (
    FILE,
    NAMES_OR_PATHS,
    BadRows,
    Exhausted,
    ReadingOptions,
    Recurrence,
    RunOptions,
    check_option_values,
    option_declarations,
)
from labelguard.project.project import Project
from labelguard.release.intake import Ingested, Intake
from labelguard.release.mechanisms import (
    AUTO,
    check_options,
    list_option_names,
    load_options_class,
    open_mechanism,
)
from labelguard.release.mechanisms.options import FeatureOptions
from labelguard.release.protocol import Mechanism
from labelguard.storage.files import is_remote

# The mechanisms of labelguard.
Ours = Literal["auto", "rr", "statistic", "props", "evaluation", "uls", "els", "els-group", "aup"]


class Keywords(TypedDict, total=False):
    """The keywords of `privatize`, for type checkers; None means: by default.

    A test compares these keywords with the options that are declared (`labelguard.options`,
    `policy.request`, `release.mechanisms.options`, `labelguard_trainer.gradient.options`). Those of
    another package's mechanism pass as a dictionary that names the mechanism too.
    """

    epsilon: float | None
    delta: float | None
    ties: Ties | None
    tie_status_public: bool | None
    unit: Unit | None
    block: int | None
    skips: Skips | None
    assignment_reactive: bool | None
    turns: Turns | None
    accept_unproven: bool | None
    public_columns: Sequence[str] | None
    # how the input is read
    columns: Mapping[str, str] | None
    label_values: str | Mapping[str, str | Sequence[str]] | None
    labeler_column: str | None
    reading: ReadingOptions | None
    ignore_columns: Sequence[str] | None
    no_prompt: bool
    format: str | None
    split: str | Sequence[str] | None
    question: str | None
    drop_members: Sequence[str] | None
    bad_rows: BadRows | None
    max_input_bytes: int | None
    # for how many releases, and how it is run
    once: bool | None
    accept_little_use: bool | None
    uses: int | None
    recurring: Recurrence | None
    duration: str | None
    max_labels_per_labeler: int | None
    exhausted: Exhausted | None
    again: bool | None
    accept_delta: bool | None
    output: str | Path | None
    engine: str | None
    address: str | None
    buckets: int | None
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
        check_option_values(RunOptions, vars(self))
        if sum((self.once, self.uses is not None, self.recurring is not None)) > 1:
            raise PolicyError("give one of --once, --uses and --recurring")
        object.__setattr__(self, "output", Path(self.output) if self.output else None)
        if self.mechanism == AUTO:
            self.build_head_options()
        else:
            self.open_mechanism(self.mechanism)

    @property
    def planned_release_count(self) -> int:
        """Return for how many releases like this one a first policy is made."""
        horizon = Horizon.parse(self.recurring, self.duration)
        return horizon.releases if horizon else self.uses or 1

    @property
    def specifies_release_count(self) -> bool:
        """Return True if it says for how many releases a first policy is made."""
        return self.once or self.uses is not None or self.recurring is not None

    def open_mechanism(self, name: str, features: str | None = None) -> Mechanism[Any]:
        """Return mechanism `name` with its choices; `features` are its default, if it takes any.

        Raises `PolicyError` for an option that it does not have, or a value out of range.
        """
        takes, choices = list_option_names(name), dict(self.choices)
        if self.mechanism == AUTO:
            choices = {choice: value for choice, value in choices.items() if choice in takes}
        if features and "features" in takes:
            choices.setdefault("features", features)
        return open_mechanism(name, **choices)

    def build_head_options(self, features: str | None = None) -> FeatureOptions:
        """Return the options of heads, of any mechanism; `features` as in `open_mechanism`."""
        takes = {field.name for field in fields(FeatureOptions)}
        choices = {choice: value for choice, value in self.choices.items() if choice in takes}
        check_option_values(FeatureOptions, choices)
        return FeatureOptions(**({"features": features} if features else {}) | choices)

    def describe_for_retraining(
        self, mechanism: str, source: Input, home: Project
    ) -> dict[str, Any]:
        """Return what `retrain --init` writes into a job; for the ledger alone, as it has paths.

        `input` are paths seen from the project's directory, none for what was in memory; without it
        the input is what was ingested of the `namespace`. `options` are how it was read, and those
        of the mechanism. None of it depends on what the input holds.
        """
        options = {name: getattr(self.intake, name) for name in _INTAKE}
        options["columns"] = dict(sorted(self.intake.columns.items() - home.columns.items()))
        options["public_columns"] = list(self.terms.get("public_columns") or ())
        for option in option_declarations(load_options_class(mechanism)).values():
            value = self.choices.get(option.name)
            is_path = option.metavar == FILE or (
                option.metavar in NAMES_OR_PATHS and Path(value or "").exists()
            )
            if is_path and value is not None:
                value = places[0] if len(places := _list_input_paths(value, home)) == 1 else places
            options[option.name] = value
        usual, ingested = vars(Intake()), isinstance(source, Ingested)
        place = {} if ingested else {"input": _list_input_paths(source, home)}
        plain = {
            n: v for n, v in options.items() if isinstance(v, float | int | Sequence | Mapping)
        }
        options = {n: v for n, v in plain.items() if v not in ([], {}, usual.get(n))}
        return {"namespace": home.namespace, **place, "options": options}


def _list_input_paths(source: Input, home: Project) -> list[str]:
    """Return paths and globs as seen from the project's directory, and addresses of objects as they
    are; none for what is in memory.
    """
    texts = [text for text in format_command_arguments(source) if text != "INPUT"]
    return [
        text if is_remote(text) else _relative_path(Path(text), home.state.parent) for text in texts
    ]


def _relative_path(path: Path, here: Path) -> str:
    return os.path.relpath(Path(os.path.realpath(path.parent), path.name), here)


_TERMS, _RUN, _INTAKE = map(option_declarations, (PolicyRequest, RunOptions, ReadingOptions))


def check_option_names(mechanism: str, options: Mapping[str, Any]) -> None:
    """Raise `PolicyError` for an option that neither `privatize` nor the mechanism has."""
    shared = (*_TERMS, *_RUN, *_INTAKE)
    others = [name for name, value in options.items() if name not in shared and value is not None]
    check_options(mechanism, others, beside=(*shared, "labeler_column", "no_prompt", "reading"))


def request_release(home: Project, mechanism: str, options: Mapping[str, Any]) -> ReleaseRequest:
    """Return the request that `privatize` makes of its options; None means: by default.

    Raises `PolicyError` for an option that the mechanism does not have, or a value out of range.
    """
    check_option_names(mechanism, options)
    choices = {name: value for name, value in options.items() if value is not None}
    terms, run, reading = (
        {name: choices.pop(name) for name in group if name in choices}
        for group in (_TERMS, _RUN, _INTAKE)
    )
    intake = Intake.from_options(home, reading)
    return ReleaseRequest(mechanism=mechanism, terms=terms, choices=choices, intake=intake, **run)
