"""The public side of an input as mechanisms with features see it: distinct pairs, and who compared
which. No label column is read here.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.budget.label_values import Turns, parse_public_columns
from labelguard.errors import InvalidLabels
from labelguard.inputs.columns import Reading, merge_reading_options
from labelguard.inputs.sources import Input
from labelguard.inputs.staged import Staged
from labelguard.inputs.staging import StagingOptions, check_public_columns, stage
from labelguard.inputs.turns import check_turns
from labelguard.inputs.understood import refuse_unknown_codings, refuse_unread_prompts
from labelguard.keys.keyring import KeyRing
from labelguard.learning.columns import is_feature_column, parse_feature_columns
from labelguard.mechanisms.statistic import Rows
from labelguard.options import ReadingOptions
from labelguard.storage import blocks, buckets
from labelguard.storage.blocks import Blocks
from labelguard.storage.executor import Executor, open_executor, run_over_buckets
from labelguard.text import Progress, no_progress, pluralize

if TYPE_CHECKING:
    import polars as pl

TEXTS = ("prompt", "first", "second")


@dataclass(frozen=True)
class DistinctPairs:
    """The distinct pairs of a staged input.

    `table` has the columns prompt, first, second (in canonical order) and what was carried along
    for features (see `learning.columns`); `ids` are
    their item ids as a release has them, `items` (pairs, 2) the digests of these, `contents` those
    of their contents, and `number` their numbers within a ranking; `first_row` (pairs,) is one
    staged row of each, `of_row` (staged rows,) says which pair each row compared. `questions` is
    what was asked about each, if the input says it: a pair under two questions is two pairs. The
    table's rows are in `files`, as long as the job's scratch space is there.
    """

    table: pa.Table
    ids: pa.ChunkedArray
    items: Blocks
    contents: Blocks
    number: NDArray[np.int64]
    first_row: NDArray[np.intp]
    of_row: NDArray[np.intp]
    questions: pa.ChunkedArray | None = None
    files: tuple[Path, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def renumber(self, rows: NDArray[np.intp]) -> DistinctPairs:
        """Return the same for staged rows with other numbers: row i was `rows[i]`; no other stays.

        A pair without a row has -1 as its first.
        """
        of_row = self.of_row[rows]
        first_row = np.full(len(self), -1, np.intp)
        first_row[of_row] = np.arange(len(of_row))
        return replace(self, of_row=of_row, first_row=first_row)

    def are_among(self, known: DistinctPairs) -> NDArray[np.bool_]:
        """Return which of these pairs are also among the known, by question, content, number."""
        import polars as pl

        columns, common = known._identify_pairs().unique(), pl.lit(value=True).alias("common")
        joined = self._identify_pairs().join(
            columns.with_columns(common), on=columns.columns, how="left", maintain_order="left"
        )
        return joined["common"].fill_null(value=False).to_numpy()

    def _identify_pairs(self) -> pl.DataFrame:
        import polars as pl

        hi, lo = self.contents.T
        return pl.DataFrame({"hi": hi, "lo": lo, "number": self.number})


@dataclass(frozen=True)
class Pairs:
    """Distinct pairs (see `DistinctPairs`) and the public rows of who compared them."""

    table: pa.Table
    ids: pa.ChunkedArray
    rows: Rows
    skipped: int = 0
    questions: pa.ChunkedArray | None = None


def find_distinct_pairs(
    staged: Staged, executor: Executor | None = None, *, texts: bool = True, mapped: bool = True
) -> DistinctPairs:
    """Return distinct (item, pair of a ranking, what is carried), in the order of these.

    Without `texts` its table holds only what is carried (`read_texts` reads those of some rows),
    unless sources are compared by them. The `executor` writes the table to files beside the staged
    input, where it stays, `mapped` into memory, or is read into memory.

    The order of the input does not enter, so that sums over pairs are the same to the last bit.
    Raises `InvalidLabels` if there is none, if one id stands for several contents, or if what is
    carried is no function of contents.
    """
    if not staged.rows:
        raise InvalidLabels("no usable pair in the input: every row is bad or has identical sides")
    if staged.given_ids:
        refuse_conflicting_ids(staged)
    task = _PairsTask(
        staged.texts_directory,
        Path(tempfile.mkdtemp(prefix="pairs-", dir=staged.directory)),
        texts,
        ("item_id",) * staged.given_ids + ("question",) * staged.questions,
    )
    of_row = np.full(staged.rows, -1, np.intp)
    tables: list[pa.Table] = []
    files: list[Path] = []
    count = 0
    over = executor or open_executor()
    parts = run_over_buckets(over, write_distinct_pairs, task, count=staged.buckets)
    for bucket, (row, pair) in enumerate(parts):
        of_row[row] = count + pair
        if len(row):
            files.append(buckets.bucket_path(task.pairs, bucket))
            tables.append(buckets.read_table(files[-1], mapped=mapped))
            count += len(tables[-1])
    columns = pa.concat_tables(tables)
    items, given = buckets.read_blocks(columns, "item"), staged.given_ids
    contents = buckets.read_blocks(columns, "content") if given else items
    numbers = buckets.read_column(columns, "number").astype(np.int64)
    names = [name for name in columns.column_names if name in TEXTS or is_feature_column(name)]
    table = columns.select(names)
    refuse_conflicting_features(table, contents, numbers)
    ids = columns["item_id"] if given else pa.chunked_array([_format_ids(one) for one in tables])
    return DistinctPairs(
        table,
        ids,
        items,
        contents,
        numbers,
        buckets.read_column(columns, "row").astype(np.intp),
        of_row,
        columns["question"] if staged.questions else None,
        tuple(files),
    )


def _format_ids(pairs: pa.Table) -> pa.Array:
    """Return the ids of pairs that have none but the digest of their content."""
    return blocks.format_hexadecimal(buckets.read_blocks(pairs, "item"))


@dataclass(frozen=True)
class _PairsTask:
    """A task for `write_distinct_pairs`: staged `texts`, where `pairs` go, and with what of each.

    With prompts and responses if `has_texts`, or if sources are compared by them.
    """

    texts: Path
    pairs: Path
    has_texts: bool
    columns: tuple[str, ...]


def write_distinct_pairs(
    task: _PairsTask, bucket: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Write the distinct pairs of one bucket; return its staged rows, and which pair each is of."""
    staged = buckets.read_bucket(task.texts, bucket)
    if staged is None:
        buckets.write_bucket(task.pairs, bucket, None)
        return np.zeros(0, np.intp), np.zeros(0, np.intp)
    firsts, of_row = _find_distinct_in_bucket(staged)
    names = [name for name in staged.column_names if is_feature_column(name)]
    if task.has_texts or any(name.startswith("source_") for name in names):
        names = [*TEXTS, *names]
    names += [*task.columns, "row", "item_hi", "item_lo"]
    names += ["content_hi", "content_lo"] if "item_id" in task.columns else []
    pairs = buckets.take_rows(staged.select(names), firsts)
    number = np.zeros(len(firsts), np.int64)
    if "pair" in staged.column_names:
        number = buckets.read_column(staged, "pair")[firsts].astype(np.int64)
    buckets.write_bucket(task.pairs, bucket, pairs.append_column("number", pa.array(number)))
    return buckets.read_column(staged, "row").astype(np.intp), of_row


def read_texts(staged: Staged, rows: NDArray[np.intp]) -> pa.Table:
    """Return prompt and both sides of some staged rows, in their order."""
    texts_of: dict[int, pa.Table] = {}
    for bucket in range(staged.buckets):
        texts = buckets.read_bucket(staged.texts_directory, bucket)
        if texts is not None and len(texts_of) < len(rows):
            numbers = buckets.read_column(texts, "row").astype(np.intp)
            for place in np.flatnonzero(np.isin(numbers, rows)).tolist():
                texts_of[int(numbers[place])] = texts.select(TEXTS).slice(place, 1)
    return pa.concat_tables([texts_of[row] for row in rows.tolist()])


def _find_distinct_in_bucket(texts: pa.Table) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return one row of each distinct pair of a bucket, in order of pairs, and each row's pair."""
    import polars as pl

    attached = [name for name in texts.column_names if is_feature_column(name)]
    names = [n for n in ("item_hi", "item_lo", "pair") if n in texts.column_names] + attached
    if names == ["item_hi", "item_lo"]:
        items, of_row = blocks.unique(buckets.read_blocks(texts, "item"))
        return blocks.find_first_rows(of_row, len(items)), of_row
    named = pl.DataFrame(texts.select(names)).with_row_index("line")
    first = named.group_by(names).agg(pl.col("line").first()).sort(names)
    number = first.drop("line").with_row_index("number")
    joined = named.join(number, on=names, how="left", maintain_order="left")
    line, of_row = (c.to_numpy().astype(np.intp) for c in (first["line"], joined["number"]))
    return line, of_row


def read_public_pairs(
    source: Input,
    *,
    features: str = "",
    unit: str = "labeler",
    public_columns: Sequence[str] | None = None,
    turns: Turns = "independent",
    scratch: Path | None = None,
    first: bool = False,
    executor: Executor | None = None,
    count: int = buckets.BUCKETS,
    progress: Progress = no_progress,
    **options: Any,
) -> Pairs:
    """Read an input without its private columns (`PRIVATE_ROLES`), which are dropped at the door.

    `options` are those of `ReadingOptions`, and `reading` for all of them. Bad rows that are not to
    stop are left out, and `skipped` counts them.
    `features` is a specification as `--features` takes it; the columns it names are read. `unit` is
    labeler, item, or none where nobody will be charged; with item no labeler_id is needed, with
    none it is not read. One labeler's repeated comparisons of one pair count once.
    `public_columns` are those of `privatize`. `first`: it is the first input
    of a project, which has all columns that are declared public. `turns` says what becomes of
    prompts with earlier responses (`inputs.turns`). What is read, by workers of the
    `executor` if one is given, lies in `count` buckets, in a directory of its own in `scratch`, or
    in TMPDIR, that only its owner can enter, until the end of the call.

    Raises `InvalidLabels` like any reading of labels, of a `first` one as `check_public_columns`.
    """
    chosen = ReadingOptions(**merge_reading_options(options))
    reading = Reading.from_options(
        chosen,
        unit,
        parse_feature_columns(features),
        labelled=False,
        has_labelers=unit != "none",
        public_columns=parse_public_columns(public_columns),
    )
    with tempfile.TemporaryDirectory(prefix="labelguard-", dir=scratch) as directory:
        work = Path(directory)
        keys = KeyRing.public()  # pseudonyms for this reading only
        staging = StagingOptions(
            *(reading, ""),
            quarantine=chosen.bad_rows == "quarantine",
            buckets=count,
            max_input_bytes=chosen.max_input_bytes,
            spool=work,
        )
        staged = stage(
            source,
            work / "input",
            keys,
            staging,
            lambda name, rows: progress(f"reading {name}: {rows:,} rows", None),
            executor,
        )
        check_turns(staged, turns, keys)
        if first:
            check_public_columns(staged, reading.public_columns)
            refuse_unknown_codings(staged)
            refuse_unread_prompts(staged, chosen.ignore_columns)
        pairs = find_distinct_pairs(staged, executor, mapped=False)
        rows = read_comparisons(staged, pairs.of_row)
        return Pairs(pairs.table, pairs.ids, rows, staged.fault_count, pairs.questions)


def read_comparisons(staged: Staged, of_row: NDArray[np.intp]) -> Rows:
    """Return every labeler's distinct comparisons, in canonical order; units have numbers.

    `of_row` says which pair each staged row compared (`DistinctPairs`).
    """
    tables = [
        table
        for bucket in range(staged.buckets)
        if (table := buckets.read_bucket(staged.rows_directory, bucket)) is not None
    ]
    table = pa.concat_tables(tables)
    pair = of_row[buckets.read_column(table, "row").astype(np.intp)]
    units, unit = blocks.unique(buckets.read_blocks(table, "unit"))
    if not staged.labelers:
        size = buckets.read_column(table, "size").astype(np.int64) if staged.choices else None
        return Rows(pair, unit, len(units), None, size, staged.choices)
    name = "author" if "author_hi" in table.column_names else "unit"
    person = blocks.unique(buckets.read_blocks(table, name))[1]
    first = np.sort(np.unique(person * (of_row.max() + 1) + pair, return_index=True)[1])
    ranking = size = None
    if staged.pairs_of_rankings:
        group = blocks.unique(buckets.read_blocks(table, "item"))[1]
        ranking = np.unique(person * (group.max() + 1) + group, return_inverse=True)[1][first]
        size = buckets.read_column(table, "size").astype(np.int64)[first]
    return Rows(pair[first], unit[first], len(units), ranking, size, staged.choices)


def refuse_conflicting_ids(staged: Staged, column: str = "item_id") -> None:
    """Raise `InvalidLabels` if one given id stands for several contents."""
    conflicts = find_conflicting_items(staged)
    if conflicts:
        name = next(iter(sorted(conflicts)))
        raise InvalidLabels(
            f"column {column}: id {name!r} stands for several contents "
            f"({pluralize(len(conflicts), 'such id')}); give every content an id of its own, or "
            "rename the column to have ids made of contents"
        )


def find_conflicting_items(staged: Staged) -> Counter[str]:
    """Return item ids that were given to more than one content, with the number of their rows."""
    conflicts: Counter[str] = Counter()
    for bucket in range(staged.buckets):
        table = buckets.read_bucket(staged.texts_directory, bucket)
        if table is None:
            continue
        _, item = blocks.unique(buckets.read_blocks(table, "item"))
        contents, content = blocks.unique(buckets.read_blocks(table, "content"))
        pairs = np.unique(item * len(contents) + content)
        clashing = np.bincount(pairs // len(contents), minlength=item.max() + 1) > 1
        if clashing.any():
            rows = np.flatnonzero(clashing[item])
            conflicts.update(table["item_id"].take(pa.array(rows)).to_pylist())
    return conflicts


_FIRST, _SECOND = "_first", "_second"


def refuse_conflicting_features(
    table: pa.Table, contents: Blocks, number: NDArray[np.int64]
) -> None:
    """Raise `InvalidLabels` if distinct pairs differ only in what is carried with them.

    `table` holds them, with the digests of their `contents` and their `number` within a ranking.
    One response to one prompt has one source, in whichever pairs it is.
    """
    carried = [name for name in table.column_names if is_feature_column(name)]
    for name in carried:
        if name.startswith("source_"):
            stem = name.removesuffix(_FIRST)
            if stem != name and _has_conflicting_sources(table, stem):
                # No response is shown: of a column that labels decide it would tell labels.
                raise InvalidLabels(
                    f"source {stem.removeprefix('source_')}: one response to one prompt has several"
                    " sources in the input, and is to have one: find those by grouping the file by "
                    "prompt and response; write A+B for what both A and B said, in all its rows, or"
                    " leave them out. A column that says what people preferred is no source"
                )
        elif _has_conflicting_values(table[name], contents, number):
            kind, _, rest = name.partition("_")
            raise InvalidLabels(
                f"{kind} {rest}: one pair of responses has several values in the input, and is to "
                "have one, whoever compares it. A column that says what people preferred is none"
            )


def _has_conflicting_values(
    values: pa.ChunkedArray, contents: Blocks, number: NDArray[np.int64]
) -> bool:
    import polars as pl

    pairs = {"hi": contents[:, 0], "lo": contents[:, 1], "number": number}
    distinct = pl.DataFrame(pairs).with_columns(pl.Series("value", values)).unique()
    return bool(distinct.select("hi", "lo", "number").is_duplicated().any())


def _has_conflicting_sources(table: pa.Table, stem: str) -> bool:
    import polars as pl

    frame = pl.DataFrame(table.select(["prompt", "first", "second", stem + _FIRST, stem + _SECOND]))
    sides = (
        frame.select("prompt", response=side, source=stem + end)
        for side, end in (("first", _FIRST), ("second", _SECOND))
    )
    known = pl.concat(sides).unique()
    return bool(known.select("prompt", "response").is_duplicated().any())
