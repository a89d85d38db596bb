"""The reading of an input, before anything is released: no label is shown."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
from numpy.typing import NDArray

from labelguard.budget.label_values import parse_public_columns
from labelguard.errors import InvalidLabels, LabelguardError
from labelguard.inputs import formats, readers
from labelguard.inputs.columns import (
    LAYOUTS,
    PRIVATE_ROLES,
    Reading,
    TableSchema,
    merge_reading_options,
)
from labelguard.inputs.formats import FormattedFile
from labelguard.inputs.pairs import DistinctPairs, find_distinct_pairs, read_comparisons
from labelguard.inputs.readers import InputFile
from labelguard.inputs.shapes import SHAPES
from labelguard.inputs.sources import Input, format_command_arguments
from labelguard.inputs.staged import Staged
from labelguard.inputs.staging import StagingOptions, check_public_columns, stage
from labelguard.inputs.turns import explain_revealing_items
from labelguard.inputs.understood import (
    Example,
    describe_reading,
    explain_labels_outside_domain,
    format_reading_options,
    read_examples,
    refuse_unread_prompts,
)
from labelguard.keys.identities import Identities
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.records import Links
from labelguard.mechanisms import statistic
from labelguard.options import ReadingOptions
from labelguard.project.linking import refuse_lookalikes
from labelguard.project.project import find
from labelguard.text import (
    AUTO_FORMAT,
    Progress,
    describe_reason_counts,
    no_progress,
    pluralize,
    suggest_misspelled_keywords,
    tell_of_more_files,
)

__all__ = ["Bar", "Example", "Inspection", "Labelers", "Question", "Role", "inspect"]

_EXAMPLES = 3


@dataclass(frozen=True)
class Role:
    """A column and the role that it plays."""

    # prompt, response_a, labeler_id, …
    role: str
    # what the input calls it
    column: str
    # whether it was read here; labels are not
    read: bool


@dataclass(frozen=True)
class Bar:
    """Labelers with about as many labels."""

    # labels of each, at least
    least: int
    # labels of each, at most
    most: int
    # how many labelers have so many
    labelers: int


@dataclass(frozen=True)
class Labelers:
    """The labelers of an input, and the numbers of their labels."""

    # distinct labelers
    count: int
    # labels of the labeler with the fewest
    least: int
    # the median of labels per labeler
    median: float
    # labels of the labeler with the most
    most: int
    # labelers by their numbers of labels, in powers of two
    histogram: tuple[Bar, ...]


@dataclass(frozen=True)
class Question:
    """One question, and what was compared under it."""

    # how it is recorded
    name: str
    # distinct pairs it was asked about
    pairs: int


@dataclass(frozen=True)
class Inspection:
    """The reading of an input. No label is in it: of those that are text it was asked whether they
    mean something.
    """

    # the format that was recognised, or named
    format: str
    # what that format looks like
    about: str
    # which columns are read, and which would be
    roles: tuple[Role, ...]
    # what labels mean
    meaning: str
    # columns that are not read; of exports of tools none are listed
    unused: tuple[str, ...]
    # rows that say who compared what; of exports, answers
    rows: int
    # rows that cannot be used
    bad_rows: int
    # why most of them cannot
    bad_row_reason: str | None
    # answers of a tool that no release counts, by reason: ground truths, drafts
    left_out: Mapping[str, int]
    # what else to know of how it is read
    notes: tuple[str, ...]
    # rows (of rankings and choices, pairs) left out because both responses are the same
    identical_sides: int
    # rows (pairs likewise) in which a labeler compared a pair once more; the newest counts
    repeated: int
    # what is counted as a label: `labels` of pairs, whole `rankings`, or `choices`
    answers: str
    # what is left: every labeler's distinct labels, rankings or choices
    labels: int
    # the pairs that they compare; of labels of pairs, one each
    comparisons: int
    # distinct pairs
    pairs: int
    # who gave labels; null where the input does not tell
    labelers: Labelers | None
    # what was asked, where the input tells it or `--question` does
    questions: tuple[Question, ...]
    # a few pairs, in the order of their contents
    examples: tuple[Example, ...]
    # why a release would be refused
    problems: tuple[str, ...]
    # commands to go on with
    next: tuple[str, ...]

    def __repr__(self) -> str:
        people = "not told" if self.labelers is None else f"{self.labelers.count:,}"
        counts = [
            f"holds: {self.labels:,} {self.answers} of {pluralize(self.pairs, 'pair')}",
            f"labelers: {people}",
            f"bad rows: {self.bad_rows:,}",
        ]
        if self.left_out:
            counts.append(f"left out: {describe_reason_counts(self.left_out).split(';')[0]}")
        counts.append(f"problems: {len(self.problems):,}" if self.problems else "problems: none")
        return f"Inspection({self.format!r}, {'; '.join(counts)})"


@suggest_misspelled_keywords
def inspect(
    source: Input,
    *,
    reading: ReadingOptions | None = None,
    columns: Mapping[str, str] | None = None,
    labeler_column: str | None = None,
    no_prompt: bool = False,
    question: str | None = None,
    label_values: str | Mapping[str, str | Sequence[str]] | None = None,
    ignore_columns: Sequence[str] = (),
    format: str = AUTO_FORMAT,  # noqa: A002 - called as the option is
    split: str | Sequence[str] | None = None,
    public_columns: Sequence[str] | None = None,
    max_input_bytes: int | None = None,
    drop_members: Sequence[str] | None = None,
    progress: Progress = no_progress,
) -> Inspection:
    """Return what `privatize` would understand of `source`: columns, people, pairs, what to watch
    out for.

    `source`, `columns`, `labeler_column`, `no_prompt`, `question`, `label_values`,
    `ignore_columns`, `format`, `split`, `public_columns`, `max_input_bytes` and `drop_members` are
    those of `privatize`, and `reading` says them at once. Needs no project, charges nothing, and
    leaves nothing behind. Columns of labels are dropped at the door, and the order of rows is
    forgotten: whatever labels are, the answer is the same. A missing labeler id is among the
    `problems`.

    Raises `InvalidLabels` for an input that cannot be read, or not as a table of preferences.

    Example:
        >>> found = lg.inspect("labels.parquet", label_values="1-0")
        >>> found.format, found.labels, found.pairs, found.labelers.count, found.problems
        ('pairs', 900, 200, 30, ())
        >>> rows = [{"task": "2 + 2?", "response_a": "4", "response_b": "5", "labeler_id": 7}]
        >>> lg.inspect(rows, columns={"prompt": "task"}).examples[0].prompt
        '2 + 2?'
    """
    named_so = {
        "reading": reading,
        "columns": columns,
        "labeler_column": labeler_column,
        "no_prompt": no_prompt,
        "question": question,
        "label_values": label_values,
        "ignore_columns": ignore_columns,
        "format": format,
        "split": split,
        "max_input_bytes": max_input_bytes,
        "drop_members": drop_members,
    }
    chosen = ReadingOptions(**merge_reading_options(named_so))
    public = parse_public_columns(public_columns)
    read = Reading.from_options(chosen, "none", labelled=False, public_columns=public)
    with tempfile.TemporaryDirectory(prefix="labelguard-") as directory:
        work = Path(directory)
        options = StagingOptions(
            read, "", quarantine=True, max_input_bytes=chosen.max_input_bytes, spool=work
        )
        staged = stage(
            source,
            work / "input",
            KeyRing.public(),
            options,
            lambda name, rows: progress(f"reading {name}: {rows:,} rows", None),
        )
        check_public_columns(staged, public)
        roles, problems = _read_columns(staged, read, work / "look")
        if revealing := explain_revealing_items(staged, KeyRing.public()):
            problems = (*problems, revealing)
        try:
            refuse_unread_prompts(staged, chosen.ignore_columns)
        except InvalidLabels as error:
            problems = (*problems, str(error))
        return _build_inspection(source, chosen, public, roles, problems, staged)


def _read_columns(
    staged: Staged, reading: Reading, scratch: Path
) -> tuple[tuple[Role, ...], tuple[str, ...]]:
    """Return the columns of an input with their roles, and why a release would be refused."""
    roles: dict[Role, None] = {}
    problems: dict[str, list[str]] = {}
    connection = readers.connect(scratch)
    for part, formatted in zip(staged.files, staged.formatted, strict=True):
        layout = formatted.find_layout(connection)
        private = [role for role in LAYOUTS[layout.kind] if role in PRIVATE_ROLES]
        names = {**dict.fromkeys(private), **layout.columns}
        for role, name in names.items():
            renamed = formatted.names.get(role) or name
            column = renamed or formatted.reading.columns.get(role, role)
            roles[Role(role, column, read=role not in private)] = None
        for problem in _list_release_refusal_reasons(part, reading, connection):
            problems.setdefault(problem.removeprefix(part.name), []).append(problem)
    alike = [tell_of_more_files(same[0], len(same) - 1) for same in problems.values()]
    return tuple(roles), tuple(alike)


def _list_release_refusal_reasons(
    part: InputFile, reading: Reading, connection: duckdb.DuckDBPyConnection
) -> Iterator[str]:
    """Yield why a release would be refused: for columns of labels, and for lack of labelers.

    A part is understood anew as a release would: a format makes the column of labels only where
    labels are asked for. That goes by names and types of columns; of labels that are text it is
    asked whether all are in their domain, as a release does.
    """

    def explain_refusal(unit: str, *, labelled: bool) -> str:
        required = replace(reading, unit=unit, labelled=labelled)
        try:
            formatted = formats.apply_format(part, connection, required)
            layout = formatted.find_layout(connection)
        except InvalidLabels as error:
            return str(error)
        if not labelled:
            return ""
        missing = _explain_missing_labels(part, formatted, required, connection)
        return missing or explain_labels_outside_domain(part, formatted, layout, connection)

    if first := explain_refusal("labeler", labelled=True):
        yield first
        if explain_refusal("none", labelled=True) and (
            second := explain_refusal("labeler", labelled=False)
        ):
            yield second


def _explain_missing_labels(
    part: InputFile,
    formatted: FormattedFile,
    reading: Reading,
    connection: duckdb.DuckDBPyConnection,
) -> str:
    """Return what is said of a part without any column that its format reads labels from.

    In a file that lacks columns without values that is no error of its columns: a release would
    find every label blank, and nothing that can be used.
    """
    kind, types = SHAPES[formatted.format], readers.read_columns(part, connection)
    schema = TableSchema(part.name, types, reading, part.sparse)
    if not kind.private:
        made = readers.read_columns(formatted.file, connection)
        schema = replace(schema, types=made, reading=formatted.reading)
    if kind.has_label_columns(schema):
        return ""
    return (
        f"{part.name}: format {formatted.format} reads labels from column "
        f"{' or '.join(kind.private)}, which is not there or has no value; "
        f"found: {', '.join(types)}"
    )


def _build_inspection(
    source: Input,
    reading: ReadingOptions,
    public_columns: tuple[str, ...],
    roles: tuple[Role, ...],
    problems: tuple[str, ...],
    staged: Staged,
) -> Inspection:
    pairs = find_distinct_pairs(staged, texts=False) if staged.rows else None
    rows = read_comparisons(staged, pairs.of_row) if pairs else None
    compared = 0 if rows is None else len(rows)
    understood = describe_reading(staged)
    usual, name = staged.fault_reasons.most_common(), staged.formatted[-1].format
    return Inspection(
        format=name,
        about=SHAPES[name].about,
        roles=roles,
        meaning=understood.meaning,
        unused=understood.unused,
        rows=staged.rows_read,
        bad_rows=staged.fault_count,
        bad_row_reason=min((-count, why) for why, count in usual)[1] if usual else None,
        left_out=dict(staged.left_out),
        notes=tuple(_warn_of_lookalikes(staged)),
        identical_sides=staged.identical_sides,
        repeated=staged.rows - compared,
        answers=_name_answer_kind(staged),
        labels=_count_answers(staged, rows),
        comparisons=compared,
        pairs=len(pairs) if pairs else 0,
        labelers=_summarize_labelers(rows) if rows and staged.labelers else None,
        questions=_count_pairs_per_question(pairs),
        examples=tuple(read_examples(staged, _EXAMPLES)),
        problems=problems,
        next=tuple(_suggest_next_commands(source, reading, public_columns, staged))
        if pairs and not problems
        else (),
    )


def _warn_of_lookalikes(staged: Staged) -> Iterator[str]:
    """Yield why a release refuses two labelers of whom one may be the other, written otherwise.

    Unless they are linked, which is for the project to know.
    """
    nobody = np.zeros((0, 2), np.uint64)
    try:
        refuse_lookalikes(staged.identities, Identities(nobody, nobody), Links(nobody, nobody))
    except InvalidLabels as error:
        yield f"a release refuses this: {error}"


def _name_answer_kind(staged: Staged) -> str:
    if staged.choices:
        return "choices"
    return "rankings" if staged.pairs_of_rankings else "labels"


def _count_answers(staged: Staged, rows: statistic.Rows | None) -> int:
    """Return how many labels, rankings or choices are left."""
    if rows is None:
        return 0
    if rows.ranking is not None:
        return len(np.unique(rows.ranking))
    if staged.pairs_of_rankings:  # nobody is named, so that each row is an answer of its own
        return staged.rows_read - sum(map(len, staged.bad_rows.values()))
    return len(rows)


def _summarize_labelers(rows: statistic.Rows) -> Labelers:
    """Return how many labelers there are, and how many labels, rankings or choices they gave."""
    unit = rows.unit
    if rows.ranking is not None:
        unit = unit[np.unique(rows.ranking, return_index=True)[1]]
    counts = np.unique(unit, return_counts=True)[1]
    least, most, bars = int(counts.min()), int(counts.max()), tuple(_count_by_powers(counts))
    return Labelers(len(counts), least, float(np.median(counts)), most, bars)


def _count_by_powers(counts: NDArray[np.int64]) -> Iterator[Bar]:
    """Labelers with 1 label, 2–3, 4–7, …; from the fewest to the most, without gaps."""
    powers = np.floor(np.log2(counts)).astype(np.int64)
    for power in range(int(powers.min()), int(powers.max()) + 1):
        yield Bar(1 << power, (2 << power) - 1, int((powers == power).sum()))


def _count_pairs_per_question(pairs: DistinctPairs | None) -> tuple[Question, ...]:
    if pairs is None or pairs.questions is None:
        return ()
    counts = pl.Series("name", pairs.questions).value_counts().sort("name")
    return tuple(Question(name, count) for name, count in counts.iter_rows())


def _suggest_next_commands(
    source: Input, reading: ReadingOptions, public_columns: tuple[str, ...], staged: Staged
) -> Iterator[str]:
    """Yield `plan` and `privatize` with its defaults, as they can be run on this input."""
    words = format_command_arguments(source)
    words += format_reading_options(replace(reading, bad_rows="stop"), public_columns)
    if staged.fault_count:
        words += ["--bad-rows", "quarantine"]
    yield shlex.join(["labelguard", "plan", *words])
    try:
        find()
    except LabelguardError:
        yield "labelguard init"
    yield shlex.join(["labelguard", "privatize", *words, "-o", "release"])
