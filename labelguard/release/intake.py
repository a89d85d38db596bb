"""The inputs of a release, staged: labels, or what was ingested of them, and further pairs."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from labelguard.budget.label_values import LabelValues
from labelguard.budget.policy import Policy
from labelguard.errors import InvalidLabels
from labelguard.inputs import quarantine
from labelguard.inputs.columns import LAYOUTS, NO_PROMPT, Reading, find_custom_paired_roles
from labelguard.inputs.pairs import find_distinct_pairs, refuse_conflicting_ids
from labelguard.inputs.shapes import SHAPES
from labelguard.inputs.sources import Input, resolve_file
from labelguard.inputs.staged import Staged
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.learning.columns import FeatureColumn
from labelguard.ledger.sources import recall_reading
from labelguard.options import (
    ReadingOptions,
    check_option_values,
)
from labelguard.project.opening import OpenProject, Where, locate_project
from labelguard.project.project import Project
from labelguard.release.protocol import Further
from labelguard.storage.executor import Executor
from labelguard.text import SKIP, Progress, describe_reason_counts, pluralize


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
            coding = str(LabelValues.parse(self.label_values))
            object.__setattr__(self, "label_values", coding)
        object.__setattr__(self, "ignore_columns", tuple(self.ignore_columns))

    def recall(self, opened: OpenProject) -> Self:
        """Return the same, with what the source's first release said where this one is silent."""
        name = opened.project.namespace
        columns, coding = recall_reading(opened.ledger.people.sources(), name, self.question)
        values = coding or "" if self.label_values is None else str(self.label_values)
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
        reading = Reading.from_options(
            self,
            policy.unit,
            features,
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
        reading = Reading(
            {role: name for role, name in self.columns.items() if role in public},
            "none",
            features,
            labelled=False,
            has_labelers=False,
            question=self.question,
            format=self.format,
            public_columns=public_columns,
            drop_members=self.drop_members,
            recalled=self.recalled,
        )
        skip_bad = self.bad_rows == "quarantine"
        staged = stage(
            source,
            opened.project.work / "also",
            opened.keys,
            StagingOptions(reading, "", quarantine=skip_bad, spool=opened.project.work),
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


def describe_input(staged: Staged) -> Iterator[str]:
    """Yield notes on formats that columns' names do not tell, on lost rows, and on public skips."""
    for name in sorted(staged.formats - {"pairs", "rankings"}):
        yield f"read as {name}: {SHAPES[name].about}"
    if any(entry.names.get("prompt") == NO_PROMPT for entry in staged.formatted):
        yield "no prompt: it is an empty text in every pair, as no column is one"
    if left_out := staged.left_out + Counter({SKIP: staged.skipped}):
        yield f"left out: {describe_reason_counts(left_out)}"
    if staged.refused_rows:
        who = pluralize(staged.refused_labelers, "retired or erased labeler")
        yield f"{pluralize(staged.refused_rows, 'row')} of {who} left out"


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
