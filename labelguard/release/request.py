"""The request of one `privatize`: mechanism, cost, how its inputs are staged, how it is run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, TypedDict

from labelguard.budget.label_values import LabelValues, Skips, Ties
from labelguard.budget.policy import Policy, Unit
from labelguard.budget.request import Horizon, PolicyRequest
from labelguard.errors import InvalidLabels, PolicyError
from labelguard.inputs import quarantine
from labelguard.inputs.columns import LAYOUTS, Reading, find_custom_paired_roles
from labelguard.inputs.pairs import find_distinct_pairs, refuse_conflicting_ids
from labelguard.inputs.sources import Input, format_command_arguments, resolve_file
from labelguard.inputs.staged import Staged
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.learning.columns import FeatureColumn
from labelguard.ledger.sources import recall_reading
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
from labelguard.project.opening import OpenProject, Where, locate_project
from labelguard.project.project import Project
from labelguard.release.mechanisms import (
    AUTO,
    check_options,
    list_option_names,
    load_options_class,
    open_mechanism,
)
from labelguard.release.mechanisms.options import FeatureOptions
from labelguard.release.protocol import Further, Mechanism
from labelguard.storage.executor import Executor
from labelguard.storage.files import is_remote
from labelguard.text import Progress, pluralize


@dataclass(frozen=True)
class Ingested:
    """An input: all answers of a source that count."""

    source: str


def resolve_source(
    source: Input | None, home: Project, namespace: str | None, options: Mapping[str, Any]
) -> tuple[Input, Project, Mapping[str, Any]]:
    """Return the input, the project as it names its labelers, and the options that read the input.

    Without a `source` it is what was ingested of `namespace`, or of the only source, read as its
    connectors say unless the options say otherwise. Raises `InvalidLabels`, `ConnectorError`.
    """
    if source is not None:
        return source, replace(home, namespace=namespace or home.namespace), options
    answers = OpenProject.open(home).answers
    name = answers.resolve_source(namespace)
    reading = answers.find_reading(name)
    if options.get("question") is None:
        options = {**options, "question": reading["question"]}
    return Ingested(name), replace(home, namespace=name, columns=reading["columns"]), options


def _write_ingested(source: Input, opened: OpenProject, columns: Mapping[str, str]) -> Input:
    """Return an input that can be read: ingested answers as files in the work directory.

    `columns` are those that were named for roles.
    """
    if not isinstance(source, Ingested):
        return source
    opened.project.work.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths = opened.answers.export_source(source.source, opened.project.work / "ingested")
    return [
        replace(resolve_file(path, columns, f"answers of {path.stem}"), answers=path)
        for path in paths
    ]


@contextlib.contextmanager
def open_ingested(
    where: Where, namespace: str | None, options: Mapping[str, Any]
) -> Iterator[tuple[Input, dict[str, Any]]]:
    """Yield what was ingested, for a command that releases nothing, and the options that read it.

    `namespace` and `options` are those of `resolve_source`, which says what it raises. Answers lie
    open in the project's work directory until it ends, so that the project is held meanwhile.
    """
    source, home, options = resolve_source(None, locate_project(where), namespace, options)
    with OpenProject.hold_for_job(home) as project:
        parts = _write_ingested(source, project, home.columns)
        words = () if namespace is None else ("--source", namespace)
        yield (
            [replace(part, arguments=words) for part in parts],
            {**options, "columns": {**home.columns, **(options.get("columns") or {})}},
        )


_PUBLIC_CONTENT = (*LAYOUTS["pairs"][:3], *LAYOUTS["chosen"], "responses", "item_id", "question")


@dataclass(frozen=True, kw_only=True)
class Intake(ReadingOptions):
    """Reads the inputs of a release as its options say, and as its source did before."""

    recalled: Mapping[str, str] = field(default_factory=dict)
    recalled_values: str = ""

    @classmethod
    def from_options(cls, home: Project, options: Mapping[str, Any]) -> Self:
        """Return the intake of a command's options, with the columns that the project names."""
        return cls(**{**options, "columns": {**home.columns, **(options.get("columns") or {})}})

    def __post_init__(self) -> None:
        check_option_values(Intake, vars(self))
        if self.label_values is not None:
            object.__setattr__(self, "label_values", str(LabelValues.parse(self.label_values)))
        object.__setattr__(self, "ignore_columns", tuple(self.ignore_columns))

    def recall(self, opened: OpenProject) -> Self:
        """Return the same, with what the source's first release said where this one is silent."""
        name = opened.project.namespace
        columns, coding = recall_reading(opened.ledger.people.sources(), name, self.question)
        values = coding or "" if self.label_values is None else self.label_values
        return replace(self, recalled=columns, recalled_values=values)

    def stage_labels(
        self,
        opened: OpenProject,
        source: Input,
        policy: Policy,
        event: str,
        features: tuple[FeatureColumn, ...],
        progress: Progress,
        executor: Executor,
        count: int,
    ) -> Staged:
        """Stage labels in `count` buckets, as a policy reads them for this kind of event."""
        reading = Reading(
            self.columns,
            policy.unit,
            features,
            question=self.question,
            format=self.format,
            split=self.split,
            values=LabelValues.parse(self.label_values or ""),
            skips=policy.skips,
            public_columns=policy.public_columns,
            recalled=self.recalled,
            recalled_values=LabelValues.parse(self.recalled_values),
        )
        options = StagingOptions(
            reading,
            opened.project.namespace,
            self.bad_rows == "quarantine",
            policy.ties_of(event) == "drop",
            opened.ledger.people.links() if policy.unit == "labeler" else None,
            count,
            opened.ledger.people.tombstones(),
            self.max_input_bytes,
            spool=opened.project.work,
        )
        opened.project.work.mkdir(mode=0o700, parents=True, exist_ok=True)
        return stage(
            _write_ingested(source, opened, self.columns),
            opened.project.work / "input",
            opened.keys,
            options,
            lambda name, rows: progress(f"reading {name}: {rows:,} rows", None),
            executor,
        )

    def stage_further(
        self,
        opened: OpenProject,
        source: Input | None,
        features: tuple[FeatureColumn, ...],
        public_columns: tuple[str, ...],
        labeled: Staged,
        progress: Progress,
    ) -> Further | None:
        """Stage further pairs, without labels and labelers, if there are any."""
        if source is None:
            return None
        public = {*_PUBLIC_CONTENT, *find_custom_paired_roles(self.columns)}
        columns = {role: name for role, name in self.columns.items() if role in public}
        reading = Reading(
            columns,
            "none",
            features,
            labelled=False,
            has_labelers=False,
            question=self.question,
            format=self.format,
            public_columns=public_columns,
            recalled=self.recalled,
        )
        staged = stage(
            source,
            opened.project.work / "also",
            opened.keys,
            StagingOptions(reading, "", self.bad_rows == "quarantine", spool=opened.project.work),
            lambda name, rows: progress(f"reading {name}: {rows:,} pairs", None),
        )
        if staged.chat != labeled.chat:
            raise InvalidLabels(
                "the pairs of --also must be texts if the labels are of texts, chats if of chats"
            )
        return Further(staged, find_distinct_pairs(staged))

    def check_usable(self, staged: Staged) -> None:
        """Raise `InvalidLabels` for labels outside their domain, conflicting ids, or no row."""
        staged.refuse_labels_outside_domain()
        if staged.given_ids:
            refuse_conflicting_ids(staged, self.columns.get("item_id", "item_id"))
        if staged.rows == staged.withdrawn:
            skipped, same = staged.skipped + staged.withdrawn, staged.identical_sides
            ties = staged.rows_read - staged.fault_count - skipped - same
            raise InvalidLabels(
                f"no usable row in the input: of {pluralize(staged.rows_read, 'row')} "
                f"{staged.fault_count:,} cannot be used, {skipped:,} are skipped, {same:,} have "
                f"identical sides, and {ties:,} are ties, which --ties drop leaves out"
            )


def quarantine_bad_rows(project: Project, staged: Staged, release_id: str) -> Iterator[str]:
    """Write rows that cannot be used into the project's quarantine; yield a note on them."""
    if any(formatted.file.answers for formatted in staged.formatted):
        quarantine.write_answers_outside_domain(project.outside, staged, project.work / "outside")
    if staged.bad_rows:
        directory = project.quarantine / release_id
        quarantine.write_bad_rows(
            directory,
            [formatted.file for formatted in staged.formatted],
            staged.bad_rows,
            project.work / "quarantine",
            staged.columns.get("labeler_id", "labeler_id"),
            project.namespace,
        )
        yield f"{pluralize(staged.fault_count, 'bad row')} set aside in {directory}"


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
    skips: Skips | None
    assignment_reactive: bool | None
    accept_unproven: bool | None
    public_columns: Sequence[str] | None
    # how the input is read
    columns: Mapping[str, str] | None
    label_values: str | Mapping[str, str | Sequence[str]] | None
    labeler_column: str | None
    ignore_columns: Sequence[str] | None
    format: str | None
    split: str | None
    question: str | None
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
        reading = {name: getattr(self.intake, name) for name in _INTAKE}
        known = home.columns.items()
        columns = dict(role for role in self.intake.columns.items() if role not in known)
        public = list(self.terms.get("public_columns") or ())
        options = {**reading, "columns": columns, "public_columns": public}
        for option in option_declarations(load_options_class(mechanism)).values():
            value = self.choices.get(option.name)
            is_path = option.metavar == FILE or (
                option.metavar in NAMES_OR_PATHS and Path(value or "").exists()
            )
            if is_path and value is not None:
                places = _list_input_paths(value, home)
                value = places[0] if len(places) == 1 else places
            options[option.name] = value
        usual, place = vars(Intake()), {}
        if not isinstance(source, Ingested):
            place = {"input": _list_input_paths(source, home)}
        plain = {n: v for n, v in options.items() if isinstance(v, str | float | int | list | dict)}
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
    check_options(mechanism, others, beside=(*shared, "labeler_column"))


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
