"""What an input is understood as, before anything is released: no label is read."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.errors import InvalidLabels, LabelguardError
from labelguard.ingest import formats, scan
from labelguard.ingest.formats import Understood
from labelguard.ingest.formats.seen import Seen
from labelguard.ingest.layouts import LAYOUTS, PRIVATE_ROLES, Reading
from labelguard.ingest.pairs import DistinctPairs, comparisons, distinct_pairs
from labelguard.ingest.source_columns import Sources, source_columns
from labelguard.ingest.sources import Input, Part, typed
from labelguard.ingest.staged import Staged
from labelguard.ingest.staging import StagingOptions, stage
from labelguard.keys.keyring import KeyRing
from labelguard.learning.features import default_features
from labelguard.mechanisms import statistic
from labelguard.policy.public_columns import options_of, parse
from labelguard.project.project import find
from labelguard.report.inspected import Bar, Example, Inspection, Labelers, Question, Role
from labelguard.spelling import corrected
from labelguard.terms import AUTO_FORMAT, Progress, silent

__all__ = ["inspect"]

_TEXTS = ("prompt", "first", "second")
_EXAMPLES = 3


@corrected
def inspect(
    source: Input,
    *,
    columns: Mapping[str, str] | None = None,
    question: str | None = None,
    format: str = AUTO_FORMAT,  # noqa: A002 - called as the option is
    split: str | None = None,
    public_columns: Sequence[str] | None = None,
    max_input_bytes: int | None = None,
    progress: Progress = silent,
) -> Inspection:
    """What `privatize` would understand of `source`: columns, people, pairs, what to watch out for.

    `source`, `columns`, `question`, `format`, `split`, `public_columns` and `max_input_bytes` are
    those of `privatize`; only of columns that are declared public is it said which sources of
    responses they tell. Needs no project, charges nothing, and leaves nothing behind. Columns of
    labels are dropped at the door, and the order of rows is forgotten: whatever labels are, the
    answer is the same. A missing labeler id is among the `problems`.

    Raises `InvalidLabels` for an input that cannot be read, or not as a table of preferences.

    Example:
        >>> found = lg.inspect("labels.parquet")
        >>> found.format, found.labels, found.pairs, found.labelers.count, found.problems
        ('pairs', 900, 200, 30, ())
        >>> rows = [{"task": "2 + 2?", "response_a": "4", "response_b": "5", "labeler_id": 7}]
        >>> lg.inspect(rows, columns={"prompt": "task"}).examples[0].prompt
        '2 + 2?'
    """
    reading = Reading(
        columns or {},
        "none",
        labelled=False,
        question=question,
        format=format,
        split=split,
        public_columns=parse(public_columns),
    )
    with tempfile.TemporaryDirectory(prefix="labelguard-") as directory:
        work = Path(directory)
        options = StagingOptions(reading, "", quarantine=True, max_input_bytes=max_input_bytes)
        staged = stage(
            source,
            work / "input",
            KeyRing.unkeyed(),
            options,
            lambda name, rows: progress(f"reading {name}: {rows:,} rows", None),
        )
        looked = _look(staged, reading, work / "look")
        return _inspection(source, reading, looked, staged, progress)


@dataclass(frozen=True)
class _Looked:
    """What the columns of an input tell, before a row is read."""

    format: str
    roles: tuple[Role, ...]
    problems: tuple[str, ...]
    sources: tuple[Sources, ...]


def _look(staged: Staged, reading: Reading, scratch: Path) -> _Looked:
    roles: dict[Role, None] = {}
    problems: dict[str, None] = {}
    connection = scan.connect(scratch)
    layouts = []
    for part, found in zip(staged.parts, staged.understood, strict=True):
        layout = scan.look(found.part, connection, found.reading)
        layouts.append((found, layout))
        private = [role for role in LAYOUTS[layout.kind] if role in PRIVATE_ROLES]
        names = {**dict.fromkeys(private), **layout.columns}
        for role, name in names.items():
            column = found.names.get(role) or name or found.reading.columns.get(role, role)
            roles[Role(role, column, read=role not in private)] = None
        problems |= dict.fromkeys(_problems(part, reading, connection))
    sources = source_columns(layouts, connection)
    return _Looked(staged.understood[-1].format, tuple(roles), tuple(problems), sources)


def _problems(part: Part, reading: Reading, connection: duckdb.DuckDBPyConnection) -> Iterator[str]:
    """Why a release would be refused: for columns of labels, and for nobody who gave them.

    A part is understood anew as a release would: a format makes the column of labels only where
    labels are asked for. That goes by names and types of columns; no label is read.
    """

    def refusal(unit: str, *, labelled: bool) -> str:
        asked = replace(reading, unit=unit, labelled=labelled)
        try:
            found = formats.understood(part, connection, asked)
            scan.look(found.part, connection, found.reading, found.labelers)
        except InvalidLabels as error:
            return str(error)
        return _lacking(part, found, asked, connection) if labelled else ""

    if first := refusal("labeler", labelled=True):
        yield first
        if refusal("none", labelled=True) and (second := refusal("labeler", labelled=False)):
            yield second


def _lacking(
    part: Part, found: Understood, asked: Reading, connection: duckdb.DuckDBPyConnection
) -> str:
    """What is said of a part without any column that its format reads labels from.

    In a file that lacks columns without values that is no error of its columns: a release would
    find every label blank, and nothing that can be used.
    """
    kind, types = formats.FORMATS[found.format], scan.columns(part, connection)
    if kind.tells(Seen(types, asked, part.sparse)):
        return ""
    return (
        f"{part.name}: format {kind.name} reads labels from column {' or '.join(kind.private)}, "
        f"which is not there or has no value; found: {', '.join(types)}"
    )


def _inspection(
    source: Input, reading: Reading, looked: _Looked, staged: Staged, progress: Progress
) -> Inspection:
    pairs = distinct_pairs(staged) if staged.rows else None
    rows = comparisons(staged, pairs.of_row) if pairs else None
    labelers = _labelers(rows) if rows and staged.labelers else None
    asked = 0 if rows is None else len(rows)
    usual = staged.fault_reasons.most_common()
    return Inspection(
        format=looked.format,
        about=formats.FORMATS[looked.format].about,
        roles=looked.roles,
        rows=staged.rows_read,
        bad_rows=staged.fault_count,
        bad_row_reason=min((-count, why) for why, count in usual)[1] if usual else None,
        left_out=dict(staged.left_out),
        notes=tuple(one.note for one in staged.understood if one.note),
        identical_sides=staged.identical_sides,
        repeated=staged.rows - asked,
        answers=_answers(staged),
        labels=_counted(staged, rows),
        comparisons=asked,
        pairs=len(pairs) if pairs else 0,
        labelers=labelers,
        questions=_questions(pairs),
        examples=tuple(_examples(pairs)) if pairs else (),
        sources=looked.sources,
        problems=looked.problems,
        next=() if looked.problems else tuple(_commands(source, reading, staged, looked.sources)),
    )


def _answers(staged: Staged) -> str:
    if staged.choices:
        return "choices"
    return "rankings" if staged.pairs_of_rankings else "labels"


def _counted(staged: Staged, rows: statistic.Rows | None) -> int:
    """How many labels, rankings or choices are left."""
    if rows is None:
        return 0
    if rows.ranking is not None:
        return len(np.unique(rows.ranking))
    if staged.pairs_of_rankings:  # nobody is named, so that each row is an answer of its own
        return staged.rows_read - sum(map(len, staged.bad_rows.values()))
    return len(rows)


def _labelers(rows: statistic.Rows) -> Labelers:
    """How many distinct labels, rankings or choices each labeler gave."""
    unit = rows.unit
    if rows.ranking is not None:
        unit = unit[np.unique(rows.ranking, return_index=True)[1]]
    counts = np.bincount(unit, minlength=rows.units)
    counts = counts[counts > 0]
    return Labelers(
        len(counts),
        int(counts.min()),
        float(np.median(counts)),
        int(counts.max()),
        tuple(_histogram(counts)),
    )


def _histogram(counts: NDArray[np.int64]) -> Iterator[Bar]:
    """Labelers with 1 label, 2–3, 4–7, …; from the fewest to the most, without gaps."""
    powers = np.floor(np.log2(counts)).astype(np.int64)
    for power in range(int(powers.min()), int(powers.max()) + 1):
        yield Bar(1 << power, (2 << power) - 1, int((powers == power).sum()))


def _questions(pairs: DistinctPairs | None) -> tuple[Question, ...]:
    if pairs is None or pairs.questions is None:
        return ()
    counts = pl.Series("name", pairs.questions).value_counts().sort("name")
    return tuple(Question(name, count) for name, count in counts.iter_rows())


def _examples(pairs: DistinctPairs) -> Iterator[Example]:
    """A pair of each of the first few items, in canonical order."""
    _, first = np.unique(pairs.contents[:, 0], return_index=True)
    chosen = np.sort(first)[:_EXAMPLES]
    for row in pairs.table.select(_TEXTS).take(pa.array(chosen)).to_pylist():
        yield Example(*(_words(text) for text in row.values()))


def _words(content: str | list[dict[str, object]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(f"{message['role']}: {message['content']}" for message in content)


def _commands(
    source: Input, reading: Reading, staged: Staged, sources: Sequence[Sources]
) -> Iterator[str]:
    """`plan`, and `privatize` with what it takes by default, as they can be run on this input.

    With sources, `plan` is told of them, alone and beside the usual features, and so is
    `privatize`.
    """
    paths = typed(source)
    said = []
    if reading.columns:
        said += ["--columns", ",".join(f"{role}={name}" for role, name in reading.columns.items())]
    if reading.format != AUTO_FORMAT:
        said += ["--format", reading.format]
    if reading.split is not None:
        said += ["--split", reading.split]
    if reading.question is not None:
        said += ["--question", reading.question]
    said += options_of(reading.public_columns)
    if staged.fault_count:
        said += ["--bad-rows", "quarantine"]
    yield shlex.join(["labelguard", "plan", *paths, *said])
    lacking, beside = [], ""
    for one in sources[:1]:
        lacking = ["--bad-rows", "quarantine"] if one.missing and not staged.fault_count else []
        beside = f"{default_features()}+{one.features}"
        for features in (one.features, beside):
            words = ["labelguard", "plan", *paths, *said, *lacking, "--features", features]
            yield shlex.join(words)
    if not _has_project():
        yield "labelguard init"
    if beside:
        words = ["labelguard", "privatize", *paths, *said, *lacking, "--features", beside]
        yield shlex.join([*words, "-o", "release"])
    yield shlex.join(["labelguard", "privatize", *paths, *said, "-o", "release"])


def _has_project() -> bool:
    try:
        find()
    except LabelguardError:
        return False
    return True
