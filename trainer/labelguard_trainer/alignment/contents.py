"""Public prompts and candidates in files: Parquet or JSON lines, texts or chats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from labelguard.errors import LabelguardError
from labelguard.learning.columns import content_column
from labelguard.release.lookup import committed_directory
from labelguard.release.pairs_file import scan_pairs
from labelguard.storage.files import check_new_file
from labelguard_trainer.alignment.sampling import Content


def read_prompts(source: str | Path) -> list[Content]:
    """Return the distinct prompts of a file, or of a directory with a release, in their order.

    Raises `LabelguardError` for a file without a column `prompt`, or without prompts in it.
    """
    path = Path(source)
    file = committed_directory(path) / "data.parquet" if path.is_dir() else path
    [prompts] = read_contents(file, "prompt")
    return list({key_of(prompt): prompt for prompt in prompts}.values())


def read_contents(file: Path, *names: str) -> list[list[Content]]:
    """Return columns of texts or chats, all of one length, at least 1."""
    frame = scan_pairs(file)
    columns = frame.collect_schema().names()
    if missing := [name for name in names if name not in columns]:
        raise LabelguardError(f"{file} has no column {missing[0]}, found {', '.join(columns)}")
    table = frame.select(names).collect().to_arrow()
    if not table.num_rows:
        raise LabelguardError(f"{file} holds no {names[0]}")
    contents = []
    for name in names:
        # A null, or a chat without messages, asks nothing.
        column, empty = content_column(table, name), table[name].null_count
        if not pa.types.is_large_string(column.type):
            empty = pc.sum(pc.equal(pc.list_value_length(column), 0)).as_py()
        if empty:
            raise LabelguardError(f"{file}: {empty:,} rows have no {name}")
        contents.append(column.to_pylist())
    return contents


def content_array(contents: Sequence[Content]) -> pa.Array:
    """Return contents, all texts or all chats, as a column that `read_contents` reads."""
    if all(isinstance(content, str) for content in contents):
        return pa.array(contents, pa.string())
    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    return pa.array(contents, pa.list_(message))


def key_of(content: Content) -> str:
    """Return a text that is equal for equal contents alone."""
    return json.dumps(content)


def text_of(content: Content) -> str:
    """Return the words of a text or a chat."""
    if isinstance(content, str):
        return content
    return "\n".join(message["content"] for message in content)


def check_rows_file(output: Path, example: str) -> None:
    """Raise `LabelguardError` unless rows can be written to a new file of this name."""
    check_new_file(output, example)
    if output.suffix not in (".parquet", ".jsonl"):
        raise LabelguardError(f"{output} must end with .parquet or .jsonl")


def write_rows(rows: pa.Table, output: Path) -> None:
    """Write rows as Parquet, or as JSON lines, by the name of the file."""
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    if output.suffix == ".parquet":
        frame.write_parquet(output)
    else:
        frame.write_ndjson(output)
