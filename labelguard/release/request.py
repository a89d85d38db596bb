"""All that one `privatize` is asked for, and how it reads its inputs.

Inputs are the labels, or what was ingested of them, and further pairs without any.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, TypedDict

from labelguard.budget.label_values import Skips, Ties
from labelguard.budget.policy import Unit
from labelguard.budget.request import PolicyRequest
from labelguard.errors import InvalidLabels, PolicyError
from labelguard.inputs import groups
from labelguard.inputs.layouts import LAYOUTS, Reading, side_roles
from labelguard.inputs.pairs import distinct_pairs
from labelguard.inputs.sources import Input, file_part, typed
from labelguard.inputs.staged import Staged
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.learning.carried import Carried
from labelguard.options import (
    FILE,
    NAMES_OR_PATHS,
    BadRows,
    Exhausted,
    ReadingOptions,
    Recurrence,
    RunOptions,
    check,
    declared,
)
from labelguard.planner.horizon import Horizon
from labelguard.project import ingestion
from labelguard.project.opening import OpenProject, Where, located
from labelguard.project.project import Project
from labelguard.release.mechanisms import AUTO, check_options, names, open_mechanism, options_of
from labelguard.release.mechanisms.options import FeatureOptions
from labelguard.release.protocol import Further, Mechanism
from labelguard.text import Progress

Ours = Literal["auto", "rr", "statistic", "props", "evaluation", "uls", "els", "els-group", "aup"]
"""The mechanisms of labelguard."""


class Keywords(TypedDict, total=False):
    """What `privatize` takes, for type checkers; None means: by default.

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
    max_labels_per_labeler: int | None
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


@dataclass(frozen=True)
class Ingested:
    """An input: all answers of a source that count."""

    source: str


def choose_ingested(
    home: Project, named: str | None, options: Mapping[str, Any]
) -> tuple[Ingested, Project, dict[str, Any]]:
    """The input of a release of what was ingested, of the source `named` or the only one.

    With it, the project and the options under which its connectors say that it is read; what the
    caller says counts before that. Raises `InvalidLabels`, `ConnectorError`.
    """
    source = ingestion.source_of(home, named)
    settings = ingestion.reading_of(home, source)
    home = replace(home, namespace=source, columns=settings.columns)
    own = dict(options)
    if own.get("question") is None:
        own["question"] = settings.question
    return Ingested(source), home, own


def ingested_parts(source: Input, opened: OpenProject, columns: Mapping[str, str]) -> Input:
    """What is to be read: answers that were ingested as files in the work directory.

    `columns` are those that were named for roles.
    """
    if not isinstance(source, Ingested):
        return source
    opened.project.work.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = ingestion.write_out(opened, source.source, opened.project.work / "ingested")
    return [
        replace(file_part(path, columns, f"answers of {path.stem}"), answers=path) for path in found
    ]


@contextlib.contextmanager
def open_ingested(
    where: Where, named: str | None, options: Mapping[str, Any]
) -> Iterator[tuple[Input, dict[str, Any]]]:
    """What was ingested as an input of who releases nothing, and the options by which it is read.

    `named` and `options` are those of `choose_ingested`, which says what it raises. Answers lie
    open in the project's work directory until it ends, so that the project is held meanwhile.
    """
    source, home, own = choose_ingested(located(where), named, options)
    with OpenProject.job(home) as project:
        found = ingested_parts(source, project, home.columns)
        words = () if named is None else ("--source", named)
        yield (
            [replace(part, typed=words) for part in found],
            own | {"columns": {**home.columns, **(own.get("columns") or {})}},
        )


_PUBLIC_CONTENT = (*LAYOUTS["pairs"][:3], *LAYOUTS["chosen"], "responses", "item_id", "question")


@dataclass(frozen=True, kw_only=True)
class Intake(ReadingOptions):
    """Reads an input as its options say."""

    @classmethod
    def of(cls, home: Project, options: Mapping[str, Any]) -> Self:
        """From options of a command, with the columns that the project names."""
        return cls(**{**options, "columns": {**home.columns, **(options.get("columns") or {})}})

    def __post_init__(self) -> None:
        check(Intake, vars(self))

    @property
    def skip_bad(self) -> bool:
        """Whether bad rows are left out."""
        return self.bad_rows == "quarantine"

    def stage(
        self,
        opened: OpenProject,
        source: Input,
        reading: Reading,
        progress: Progress,
        *,
        drop_ties: bool = False,
    ) -> Staged:
        """An input of labels in the work directory."""
        options = StagingOptions(
            reading,
            opened.project.namespace,
            self.skip_bad,
            drop_ties,
            groups.in_force(opened.ledger, reading.unit),
            opened.ledger.tombstones(),
            self.max_input_bytes,
            spool=opened.project.work,
        )
        opened.project.work.mkdir(mode=0o700, parents=True, exist_ok=True)
        return stage(
            ingested_parts(source, opened, self.columns),
            opened.project.work / "input",
            opened.keys,
            options,
            lambda name, rows: progress(f"reading {name}: {rows:,} rows", None),
        )

    def stage_further(
        self,
        opened: OpenProject,
        source: Input | None,
        features: tuple[Carried, ...],
        public_columns: tuple[str, ...],
        labeled: Staged,
        progress: Progress,
    ) -> Further | None:
        """Further pairs, without labels and labelers, if there are any."""
        if source is None:
            return None
        public = {*_PUBLIC_CONTENT, *side_roles(self.columns)}
        columns = {role: name for role, name in self.columns.items() if role in public}
        reading = Reading(
            columns,
            "none",
            features,
            labelled=False,
            question=self.question,
            format=self.format,
            public_columns=public_columns,
        )
        staged = stage(
            source,
            opened.project.work / "also",
            opened.keys,
            StagingOptions(reading, "", quarantine=self.skip_bad, spool=opened.project.work),
            lambda name, rows: progress(f"reading {name}: {rows:,} pairs", None),
        )
        if staged.chat != labeled.chat:
            raise InvalidLabels(
                "the pairs of --also must be texts if the labels are of texts, chats if of chats"
            )
        return Further(staged, distinct_pairs(staged))


@dataclass(frozen=True, kw_only=True)
class ReleaseRequest(RunOptions):
    """What one `privatize` is asked for: by which mechanism, at which cost, of which input, how.

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
            self.opened(self.mechanism)

    @property
    def periods(self) -> int:
        """For how many releases like this one a first policy is made."""
        horizon = Horizon.parse(self.recurring, self.duration)
        return horizon.releases if horizon else self.uses or 1

    @property
    def says_how_often(self) -> bool:
        """Whether it says for how many releases a first policy is made."""
        return self.once or self.uses is not None or self.recurring is not None

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
        check(FeatureOptions, choices)
        return FeatureOptions(**({"features": features} if features else {}) | choices)

    def repeatable(self, mechanism: str, source: Input, home: Project) -> dict[str, Any]:
        """Return what `retrain --init` writes into a job; for the ledger alone, as it has paths.

        `input` are paths seen from the project's directory, none for what was in memory; without it
        the input is what was ingested of the `namespace`. `options` are how it was read, and those
        of the mechanism. None of it depends on what the input holds.
        """
        known, reading = home.columns.items(), {one: getattr(self.intake, one) for one in _INTAKE}
        columns = dict(role for role in self.intake.columns.items() if role not in known)
        public = list(self.terms.get("public_columns") or ())
        options = {**reading, "columns": columns, "public_columns": public}
        for one in declared(options_of(mechanism)).values():
            value = self.choices.get(one.name)
            path = one.metavar == FILE or (
                one.metavar in NAMES_OR_PATHS and Path(value or "").exists()
            )
            if path and value is not None:
                places = _places(value, home)
                value = places[0] if len(places) == 1 else places
            options[one.name] = value
        usual, place = vars(Intake()), {}
        if not isinstance(source, Ingested):
            place = {"input": _places(source, home)}
        plain = {n: v for n, v in options.items() if isinstance(v, str | float | int | list | dict)}
        options = {n: v for n, v in plain.items() if v not in ([], {}, usual.get(n))}
        return {"namespace": home.namespace, **place, "options": options}


def _places(source: Input, home: Project) -> list[str]:
    """Return paths and globs as seen from the project's directory; none for what is in memory."""
    paths = [Path(one) for one in typed(source) if one not in ("INPUT", "-")]
    here = home.state.parent
    return [os.path.relpath(Path(os.path.realpath(one.parent), one.name), here) for one in paths]


_TERMS, _OWN, _INTAKE = map(declared, (PolicyRequest, RunOptions, ReadingOptions))


def check_names(mechanism: str, options: Mapping[str, Any]) -> None:
    """Raise `PolicyError` for an option that neither `privatize` nor the mechanism has."""
    shared = (*_TERMS, *_OWN, *_INTAKE)
    own = [name for name, value in options.items() if name not in shared and value is not None]
    check_options(mechanism, own, beside=shared)


def request_release(home: Project, mechanism: str, options: Mapping[str, Any]) -> ReleaseRequest:
    """Return the request that `privatize` makes of its options; None means: by default.

    Raises `PolicyError` for an option that the mechanism does not have, or a value out of range.
    """
    check_names(mechanism, options)
    given = {name: value for name, value in options.items() if value is not None}
    terms, own, reading = (
        {name: given.pop(name) for name in group if name in given}
        for group in (_TERMS, _OWN, _INTAKE)
    )
    return ReleaseRequest(
        mechanism=mechanism, terms=terms, choices=given, intake=Intake.of(home, reading), **own
    )
