"""Public prompts and responses in files: Parquet or JSON lines, texts or chats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from labelguard.analysis.reward import Content
from labelguard.errors import InvalidLabels, LabelguardError
from labelguard.learning.columns import content_column
from labelguard.release.pairs_file import scan_pairs
from labelguard.release.rows import find_rows_path
from labelguard.release.writer import verify_release_directory
from labelguard.storage.files import check_new_output_file, make_temporary_beside


def read_prompts(source: str | Path) -> list[Content]:
    """Return the distinct prompts of a file, or of a directory with a release, in their order.

    Raises `LabelguardError` for a file without a column `prompt`, or without prompts in it.
    """
    path = Path(source)
    file = find_rows_path(verify_release_directory(path)) if path.is_dir() else path
    [prompts] = read_contents(file, "prompt")
    return distinct(prompts)


def read_contents(file: Path, *names: str) -> list[list[Content]]:
    """Return columns of texts or chats, all of one length, at least 1.

    Raises `LabelguardError` for a file without these columns, or with a row without one of them.
    """
    frame = scan_pairs(file)
    columns = frame.collect_schema().names()
    if missing := [name for name in names if name not in columns]:
        raise LabelguardError(f"{file} has no column {missing[0]}, found {', '.join(columns)}")
    try:
        table = frame.select(names).collect().to_arrow()
    except pl.exceptions.PolarsError:  # its message may hold a text
        raise LabelguardError(f"{file} cannot be read as Parquet or JSON lines") from None
    if not table.num_rows:
        raise LabelguardError(f"{file} holds no {names[0]}")
    contents = []
    for name in names:
        # A null, or a chat without messages, asks nothing.
        try:
            column, empty = content_column(table, name), table[name].is_null()
        except InvalidLabels as error:
            raise InvalidLabels(f"{file}: {error}") from None
        if not pa.types.is_large_string(column.type):
            empty = pc.equal(pc.list_value_length(column), 0)
        if (row := pc.index(empty, True).as_py()) >= 0:
            raise LabelguardError(f"{file}: row {row + 1} has no {name}")
        contents.append(column.to_pylist())
    return contents


def to_content_array(contents: Sequence[Content]) -> pa.Array:
    """Return contents, all texts or all chats, as a column that `read_contents` reads."""
    if all(isinstance(content, str) for content in contents):
        return pa.array(contents, pa.string())
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    return pa.array(contents, pa.list_(message))


def distinct(contents: Sequence[Content]) -> list[Content]:
    """Return contents without repetitions, in their order."""
    return list({json.dumps(content): content for content in contents}.values())


def text_of(content: Content) -> str:
    """Return the words of a text or a chat."""
    if isinstance(content, str):
        return content
    return "\n".join(message["content"] for message in content)


def check_new_rows_file(output: Path, example: str) -> None:
    """Raise `LabelguardError` unless rows can be written to a new file of this name."""
    check_new_output_file(output, example)
    if output.suffix not in (".parquet", ".jsonl"):
        raise LabelguardError(f"{output} must end with .parquet or .jsonl")


def write_rows(rows: pa.Table, output: Path) -> None:
    """Write rows as Parquet, or as JSON lines, by the name of the file, which appears whole."""
    frame = pl.DataFrame(rows)
    with make_temporary_beside(output) as directory:
        file = directory / output.name
        frame.write_parquet(file) if output.suffix == ".parquet" else frame.write_ndjson(file)
        file.replace(output)
