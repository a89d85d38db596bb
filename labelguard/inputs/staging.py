"""Read an input once, canonically, and split it into buckets on disk.

Two views come out of the single pass. `rows/` holds what decides about labels (labeler, item,
label), split by labeler; `texts/` holds the public content, split by item. Everything but the
label column of `rows/` is public. Whether a label is in its domain is written down, not judged:
the judgement comes later, after a repeated command was recognised without looking at labels.

The order of an input may tell labels (an export sorted by them), so it is forgotten here: staged
rows are sorted by what is public of them, and the digest of an input is that of a set of rows.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa

from labelguard.budget.label_values import list_names_that_declare
from labelguard.errors import InvalidLabels
from labelguard.inputs import query, readers
from labelguard.inputs.chats import Content
from labelguard.inputs.columns import ANSWERS, LAYOUTS, LISTED, PRIVATE_ROLES, Reading
from labelguard.inputs.formats import FormattedFile, apply_format
from labelguard.inputs.formats.plain import WINNERS
from labelguard.inputs.layouts import ID_EXPECTED, Layout, can_hold_ids, find_common_content
from labelguard.inputs.query import NO_ID, is_blank_sql
from labelguard.inputs.readers import InputFile, source_column
from labelguard.inputs.shapes import OWN_VALUES, SHAPES
from labelguard.inputs.sources import ByteLimit, Input, resolve_file, resolve_input
from labelguard.inputs.staged import Received, Staged
from labelguard.inputs.stager import Piece, Sink, Stager, StagingOptions
from labelguard.keys.keyring import KeyRing
from labelguard.ledger.sources import CODING
from labelguard.storage import buckets
from labelguard.storage.buckets import PartWriter
from labelguard.storage.executor import Executor, open_executor, read_ahead, run_over_buckets
from labelguard.storage.files import fresh_directory
from labelguard.text import describe_reason_counts, suggest, tell_of_more_files

if TYPE_CHECKING:
    import polars as pl


__all__ = ["StagingOptions", "check_public_columns", "read_canonical_rows", "stage"]

# Called with the name of a file and how many rows were read of all so far.
Rows = Callable[[str, int], None]


def stage(
    source: Input,
    directory: Path,
    keys: KeyRing,
    options: StagingOptions,
    progress: Rows = lambda name, rows: None,
    executor: Executor | None = None,
) -> Staged:
    """Read `source` into `directory`.

    Files are read by workers of the `executor`, one file each, where it has any outside of this
    process. Raises `InvalidLabels` for unreadable files, wrong columns and, unless bad rows are set
    aside, for rows whose public columns are at fault.
    """
    count = options.buckets
    staged = Staged(fresh_directory(directory, mode=0o700), count)
    reading, executor = options.reading, executor or open_executor()
    files = resolve_input(source, reading.split, reading.columns, options.spool)
    with readers.connect(directory / "spill") as connection:
        stager = Stager(staged, keys, options, connection)
        # Every file is looked at before any is read: a wrong column in the last one shows at once,
        # and chats whose members differ from file to file get one type.
        formatted, layouts = _find_layouts(files, connection, reading)
        content = find_common_content(files, layouts)
        limit = ByteLimit.from_file_sizes(files, options.max_input_bytes)
        received = fresh_directory(directory / "received", mode=0o700)
        if executor.shares_memory or any(file.answers or not file.path for file in files):
            few = count <= buckets.FEW
            where = directory if few else received
            with (
                buckets.open_writer(received / "rows", count) as rows,
                buckets.open_writer(where / "texts", count) as texts,
            ):
                for file, entry, layout in zip(files, formatted, layouts, strict=True):
                    _read_file(stager, file, entry, layout, content, limit, (rows, texts), progress)
            task = Received(directory, received, () if few else ((received, 0),))
        else:
            for entry, layout in zip(formatted, layouts, strict=True):
                stager.begin_file(entry, layout)
            inputs = tuple((file.path, file.name) for file in files)
            most = options.max_input_bytes
            reads = ReadingTask(received, keys, options, inputs, content, most)
            task = _read_by_workers(stager, reads, limit, executor, progress)
    if not options.quarantine:
        staged.refuse_bad_rows()
    if not staged.rows_read and staged.refused_rows:
        raise InvalidLabels(
            "every row of the input is of labelers who were retired or erased; nothing is left"
        )
    if not staged.rows_read:
        left_out = staged.left_out
        why = (
            f"nothing is a label; left out: {describe_reason_counts(left_out)}" if left_out else ""
        )
        raise InvalidLabels(f"{files[0].name}: {why or 'no rows in the input'}")
    for target in (staged.rows_directory, staged.texts_directory):
        target.mkdir(mode=0o700, exist_ok=True)
    stager.sort(task, executor)
    shutil.rmtree(received)
    staged.public_digest = stager.compute_public_digest()
    staged.columns = _map_roles(formatted, layouts, reading)
    staged.files, staged.formatted = tuple(files), tuple(formatted)
    staged.formats = {entry.format for entry in formatted}
    staged.readings = tuple(layouts)
    staged.identities = stager.collect_identities()
    return staged


def _find_layouts(
    files: Sequence[InputFile], connection: duckdb.DuckDBPyConnection, reading: Reading
) -> tuple[list[FormattedFile], list[Layout]]:
    """Return the format and the layout of every file.

    Raises `InvalidLabels` for the first that has none, with the number of files that lack the same.
    """
    formatted, layouts, faults = list[FormattedFile](), list[Layout](), list[InvalidLabels]()
    reasons = []
    for file in files:
        try:
            formatted.append(apply_format(file, connection, reading))
            layouts.append(formatted[-1].find_layout(connection))
        except InvalidLabels as error:
            faults.append(error)
            reasons.append(str(error).removeprefix(file.name))
    if faults:
        faults[0].args = (tell_of_more_files(str(faults[0]), reasons.count(reasons[0]) - 1),)
        raise faults[0]
    return formatted, layouts


def check_public_columns(staged: Staged, declared: Sequence[str]) -> None:
    """Raise `InvalidLabels` for a column declared public that tells labels, or is in no file.

    By names of columns alone.
    """
    if not declared:
        return
    columns: dict[str, None] = {}
    connection = readers.connect(staged.directory / "declared")
    for file, entry in zip(staged.files, staged.formatted, strict=True):
        answers = _list_columns_of_answers(entry, staged.layouts)
        for part in (file, entry.file):
            columns |= dict.fromkeys(readers.read_columns(part, connection))
        for column in answers:
            for name in {*list_names_that_declare(column)} & {*declared}:
                raise InvalidLabels(
                    f"{file.name}: column {column} tells labels, which are private: it cannot be "
                    f"declared public (--public-column {name})"
                )
    known = dict.fromkeys(name for column in columns for name in list_names_that_declare(column))
    for name in declared:
        if name not in known:
            raise InvalidLabels(
                f"{staged.files[0].name}: no column {name}{suggest(name, known)} for "
                f"--public-column; found: {', '.join(columns)}"
            )


def _list_columns_of_answers(entry: FormattedFile, layouts: Collection[str]) -> set[str]:
    """Return the columns that labels are read from, by what the file calls them."""
    roles = {role for layout in layouts for role in LAYOUTS[layout] if role in ANSWERS}
    roles |= {"tie"} if not {*layouts} & {*LISTED} else set()
    named = {entry.reading.columns[role] for role in PRIVATE_ROLES if role in entry.reading.columns}
    made = {entry.names.get(role) or entry.reading.get_column_name(role) for role in roles}
    return {*made, *named, *SHAPES[entry.format].private, *WINNERS}


def _read_file(
    stager: Stager,
    file: InputFile,
    entry: FormattedFile,
    layout: Layout,
    content: Content,
    limit: ByteLimit,
    sinks: tuple[Sink, Sink],
    progress: Rows = lambda name, rows: None,
) -> None:
    """Read one file into buckets of rows and of texts, and count what its format leaves out."""
    stager.begin_file(entry, layout)
    if entry.left_out:
        counts = readers.read_rows(file, stager.connection, entry.left_out)
        stager.staged.left_out.update(dict(counts))
    name, sql = entry.file.name, query.build_canonical_query(layout, content)
    for batch in read_ahead(readers.read_batches(entry.file, stager.connection, sql)):
        limit.subtract(name, batch.nbytes)
        stager.append(name, batch, *sinks)
        progress(name, stager.staged.rows_read)


@dataclass(frozen=True)
class ReadingTask:
    """A task for `stage_file`: the files of an input, path and name, and how they are read.

    `content` is what all of them hold together. Parts go to `directory`.
    """

    directory: Path
    keys: KeyRing
    options: StagingOptions
    files: tuple[tuple[Path | None, str], ...]
    content: Content
    max_bytes: int | None


def stage_file(task: ReadingTask, number: int) -> Piece:
    """Stage one file of an input, in a worker, into a directory that no other call writes to."""
    path, name = task.files[number]
    directory = task.directory / f"{number:06d}-{secrets.token_hex(8)}"
    directory.mkdir(mode=0o700)
    reading, count = task.options.reading, task.options.buckets
    assert path is not None
    with (
        readers.connect(directory / "spill") as connection,
        PartWriter(directory / "rows", count) as rows,
        PartWriter(directory / "texts", count) as texts,
    ):
        stager = Stager(
            Staged(directory, count), task.keys, task.options, connection, first_file=number
        )
        file = resolve_file(path, reading.columns, name)
        entry = apply_format(file, connection, reading)
        limit = ByteLimit.from_file_sizes([entry.file], task.max_bytes)
        most = limit.left
        layout = entry.find_layout(connection)
        _read_file(stager, file, entry, layout, task.content, limit, (rows, texts))
    return stager.to_piece(directory, int(most - limit.left))


def _read_by_workers(
    stager: Stager, task: ReadingTask, limit: ByteLimit, executor: Executor, progress: Rows
) -> Received:
    """Have every file read by a worker, and count what they tell."""
    pieces: list[tuple[Path, int]] = []
    read = run_over_buckets(executor, stage_file, task, count=len(task.files))
    for (_, name), piece in zip(task.files, read, strict=True):
        limit.subtract(name, piece.size)
        pieces.append((piece.directory, stager.staged.rows))
        stager.add_piece(piece)
        progress(name, stager.staged.rows_read)
    return Received(stager.staged.directory, task.directory, tuple(pieces))


def _map_roles(
    formatted: list[FormattedFile], layouts: list[Layout], reading: Reading
) -> dict[str, str]:
    """Return the column of each role, and the coding of labels where nothing else says what they
    mean; with one question, what answers it is its own role.
    """
    columns = {}
    for file, layout in zip(formatted, layouts, strict=True):
        question = layout.reading.question
        if layout.kind in ("pairs", "choices") and file.format not in OWN_VALUES:
            coding = reading.recall(file.types.keys()).values
            columns[f"{CODING} of {question}" if question else CODING] = str(coding)
        for role, name in layout.columns.items():
            key = f"{role} of {question}" if question and role in ANSWERS else role
            if name in layout.absent:  # because of its labels: it has the name that it had before
                name = layout.reading.recalled.get(role, name)
            columns[key] = file.recorded.get(role, name)
    return columns


def read_canonical_rows(path: Path, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield batches of answers as staging gets them, whatever is wrong with their labels.

    Messages call the file by its stem. Raises `InvalidLabels` for a file that cannot be read so.
    """
    file = resolve_file(path, reading.columns, f"answers of {path.stem}")
    with readers.connect(path.parent / "spill") as connection:
        formatted = apply_format(file, connection, reading)
        layout = formatted.find_layout(connection)
        sql = query.build_canonical_query(layout, layout.content)
        yield from readers.read_batches(formatted.file, connection, sql)


def read_ids(
    source: Input, choose_columns: Callable[[Sequence[str]], Sequence[str]], scratch: Path
) -> pl.DataFrame:
    """Return the distinct rows of columns of ids, as texts, in their order.

    `choose_columns` picks the columns among those of the first part. Raises `InvalidLabels`
    for unreadable files, missing columns and empty ids.
    """
    import polars as pl

    files = resolve_input(source, spool=scratch)
    with (
        tempfile.TemporaryDirectory(prefix="labelguard-", dir=scratch) as spill,
        readers.connect(Path(spill)) as connection,
    ):
        columns = choose_columns(list(readers.read_columns(files[0], connection)))
        limit = ByteLimit.from_file_sizes(files, None)
        rows = pl.concat(_read_id_columns(file, connection, columns, limit) for file in files)
    if not len(rows):
        raise InvalidLabels(f"{files[0].name}: no rows in the input")
    return rows.unique(columns, keep="first", maintain_order=True)


def _read_id_columns(
    file: InputFile, connection: duckdb.DuckDBPyConnection, names: Sequence[str], limit: ByteLimit
) -> pl.DataFrame:
    """Return columns of ids of one file as texts."""
    import polars as pl

    types = readers.read_columns(file, connection)
    for name in names:
        if name not in types:
            free = tuple(column for column in types if column not in names)
            raise InvalidLabels(
                f"{file.name}: no column {name}{suggest(name, free)}; expected "
                f"{' and '.join(names)}; found: {', '.join(types)}"
            )
        if not can_hold_ids(types[name]):
            kind = str(types[name])[:80]
            raise InvalidLabels(
                f"{file.name}: column {name}: expected {ID_EXPECTED}, found type {kind}"
            )
    texts = ((name, f"{source_column(name)}::VARCHAR") for name in names)
    pieces = (
        f"CASE WHEN NOT {is_blank_sql(text)} THEN {text} END AS {readers.identifier(name)}"
        for name, text in texts
    )
    query = f"SELECT {', '.join(pieces)} FROM part"
    frames, count = [], 0
    for batch in readers.read_batches(file, connection, query):
        limit.subtract(file.name, batch.nbytes)
        frame = pl.DataFrame(pl.from_arrow(batch))
        for name in names:
            if (blanks := frame[name].is_null()).any():
                row = count + (blanks.arg_max() or 0) + 1
                raise InvalidLabels(f"{file.name} row {row}: column {name}: {NO_ID}")
        count += len(frame)
        frames.append(frame)
    return pl.concat(frames) if frames else pl.DataFrame(schema=dict.fromkeys(names, pl.String))
