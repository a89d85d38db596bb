"""Public prompts and responses in files: Parquet or JSON lines, texts or chats."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from labelguard.analysis.reward import Content
from labelguard.errors import InvalidLabels, LabelguardError
from labelguard.learning.columns import content_column
from labelguard.release.pairs_file import scan_pairs
from labelguard.release.writer import verify_release_directory
from labelguard.storage.buckets import find_rows_path


def read_prompts(source: str | Path) -> list[Content]:
    """Return the distinct prompts of a file, or of a directory with a release, in their order.

    Raises `LabelguardError` for a file without a column `prompt`, or without prompts in it.
    """
    path = Path(source)
    file = find_rows_path(verify_release_directory(path)) if path.is_dir() else path
    [prompts] = read_contents(file, "prompt")
    return list({json.dumps(prompt): prompt for prompt in prompts}.values())


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
            column, empty = content_column(table, name, parts=False), table[name].is_null()
        except InvalidLabels as error:
            raise InvalidLabels(f"{file}: {error}") from None
        if not pa.types.is_large_string(column.type):
            empty = pc.equal(pc.list_value_length(column), 0)
        if (row := pc.index(empty, True).as_py()) >= 0:
            raise LabelguardError(f"{file}: row {row + 1} has no {name}")
        contents.append(column.to_pylist())
    return contents
