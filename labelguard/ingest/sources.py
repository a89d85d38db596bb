"""Where labels come from: files of several formats, or a table in memory, as DuckDB relations.

Every input becomes a list of parts that are read one after the other, in a fixed order, as a
stream; nothing is loaded whole. An error names the file and the line and never repeats content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from labelguard.errors import InvalidLabels
from labelguard.ingest import csv_files, json_files, rows_in_memory, splits, standard_input
from labelguard.ingest.files import COMPRESSIONS, Opener
from labelguard.ingest.paths import matching, shown
from labelguard.ingest.tables import arrow_opener, dataset_opener, parquet_opener, table_opener

Input: TypeAlias = Any
"""A path or glob (str, Path), `-` for standard input, a table (pyarrow, polars, pandas, datasets),
splits by name, a `Part`, or a sequence of these; or rows, a sequence of dictionaries."""

_STANDARD_INPUT = "-"
_FORMATS: Mapping[str, Callable[[Path, str], Opener]] = {
    ".parquet": parquet_opener,
    ".pq": parquet_opener,
    ".csv": csv_files.opener,
    ".tsv": csv_files.opener,
    ".jsonl": json_files.opener,
    ".ndjson": json_files.opener,
    ".json": json_files.opener,
    ".arrow": arrow_opener,
}
_NOTHING: Mapping[str, str] = MappingProxyType({})
_COMPRESSIBLE = (csv_files.opener, json_files.opener)
_SUPPORTED = "Parquet, CSV, JSON, JSONL (.gz, .zst), or a Hugging Face dataset directory"
_PLENTY, _EXPANSION = 1 << 30, 200
"""Bytes that any input may take, and how many times the size of its files on top."""


@dataclass(frozen=True)
class Part:
    """One file or table: its name in messages and how to open it as a relation, from its start.

    `partitions` are what its directories are named by (`labeler_id=7/…`), in lower case. A `sparse`
    part lacks a column where no row has a value for it.
    """

    name: str
    open: Opener
    partitions: frozenset[str] = frozenset()
    size: int | None = None
    """Bytes on disk; None for a table in memory."""
    sparse: bool = False
    typed: tuple[str, ...] = ("INPUT",)
    """How commands name it (see `typed`)."""
    answers: Path | None = None
    """The file of answers that were ingested from a tool, in which no label stops a release."""


@dataclass
class Allowance:
    """How many more bytes the rows of an input may take.

    A file of a few megabytes can unpack to terabytes. Rows of honest files take ten times what
    their files do, and up to a hundred times where many labelers see the same texts.
    """

    left: float

    @classmethod
    def of(cls, parts: Sequence[Part], given: int | None) -> Allowance:
        """`given`, or in proportion to the files; tables in memory are as large as they are."""
        sizes = [part.size for part in parts]
        if given is not None:
            return cls(given)
        if None in sizes:
            return cls(float("inf"))
        return cls(_PLENTY + _EXPANSION * sum(size for size in sizes if size))

    def take(self, name: str, count: int) -> None:
        """Raise `InvalidLabels` once more was read than is allowed."""
        self.left -= count
        if self.left < 0:
            raise InvalidLabels(
                f"{name}: its rows take far more room than the file; if that is right, allow it: "
                "--max-input-bytes"
            )


def parts(
    source: Input,
    split: str | None = None,
    named: Mapping[str, str] = _NOTHING,
    spool: Path | None = None,
) -> list[Part]:
    """The parts of an input, in a fixed order, those of one split of what has several.

    `named` is the column that was named for each role: in JSON, only what is compared has a type.
    Standard input is kept in `spool`, or in TMPDIR until the process ends.

    Raises `InvalidLabels` if there are none, or if several splits are there and none is named.
    """
    items = list(_flat(source))
    if isinstance(source, list | tuple) and rows_in_memory.are_rows(items):
        splits.refuse_unused(split, ())
        return [Part(rows_in_memory.NAME, rows_in_memory.rows_opener(items, named), sparse=True)]
    found: list[Part] = []
    divided = []
    for number, item in enumerate(items, 1):
        has_splits = False
        if isinstance(item, Part):
            own = [item]
        elif isinstance(item, str | Path):
            own, has_splits = _path_parts(str(item), split, named, spool)
        else:
            name = "table" if len(items) == 1 else f"table {number}"
            has_splits = isinstance(item, Mapping)
            tables = splits.chosen(item, split, name) if has_splits and item else [item]
            own = [Part(name, _table_opener(table, named, name)) for table in tables]
        found += own
        divided.append(has_splits)
    if not found:
        raise InvalidLabels("no input: the list of files or tables is empty")
    splits.refuse_unused(split, divided)
    return found


def typed(source: Input) -> list[str]:
    """An input as it is typed in a command: paths as they are, and INPUT for anything in memory.

    What is in memory is never written out: it holds labels.
    """
    items = list(_flat(source))
    parts = [item.typed for item in items if isinstance(item, Part)]
    if parts and len(parts) == len(items):
        return list(dict.fromkeys(word for part in parts for word in part))
    paths = [str(item) for item in items if isinstance(item, str | Path)]
    return paths if paths and len(paths) == len(items) else ["INPUT"]


def _table_opener(table: Any, named: Mapping[str, str], name: str) -> Opener:
    # By the names of its class: nothing is imported to look for it.
    library = type(table).__module__.partition(".")[0]
    if library == "datasets":
        return dataset_opener(table, name)
    if library == "pandas" and hasattr(table, "columns"):
        return rows_in_memory.frame_opener(table, named, name) or table_opener(table, name)
    return table_opener(table, name)


def _flat(source: Input) -> Iterator[Any]:
    if isinstance(source, list | tuple):
        for item in source:
            yield from _flat(item)
    else:
        yield source


def _path_parts(
    pattern: str, split: str | None, named: Mapping[str, str], spool: Path | None
) -> tuple[list[Part], bool]:
    """The parts of a path or glob, and whether it has splits."""
    if pattern == _STANDARD_INPUT:
        return [file_part(standard_input.spooled(spool), named, standard_input.NAME)], False
    path = Path(pattern)
    if path.is_dir():
        return _directory_parts(path, split, named)
    if path.is_file():
        return [file_part(path, named)], False
    found, divided = [], False
    for match in matching(pattern):
        own, has_splits = (
            _directory_parts(match, split, named)
            if match.is_dir()
            else ([file_part(match, named)], False)
        )
        found += own
        divided = divided or has_splits
    return found, divided


def _directory_parts(
    directory: Path, split: str | None, named: Mapping[str, str]
) -> tuple[list[Part], bool]:
    """The parts of a directory's files, or of one split of them, and whether it has splits."""
    files = sorted(
        path
        for path in directory.rglob("*")
        if path.is_file()
        and _format(path)
        and not path.name.startswith((".", "_"))
        and path.name not in splits.METADATA
        and not (path.suffix == ".arrow" and _is_cache(path))
    )
    # Beside data of another type, .json holds what is said of the data.
    files = [path for path in files if ".json" not in path.suffixes] or files
    if not files:
        raise InvalidLabels(f"{shown(directory)}: no readable file in it; expected {_SUPPORTED}")
    found = splits.of_directory(directory, files)
    if found:
        files = splits.chosen(found, split, shown(directory))[0]
    return [file_part(path, named) for path in files], bool(found)


def _is_cache(path: Path) -> bool:
    """Whether an Arrow file is a leftover of `datasets`, not data of its directory."""
    state = path.with_name("state.json")
    try:
        listed = json.loads(state.read_bytes())["_data_files"]
        return path.name not in [file["filename"] for file in listed]
    except (OSError, ValueError, KeyError, TypeError):
        return path.name.startswith("cache-")


def _format(path: Path) -> Callable[[Path, str], Opener] | None:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compressed = bool(suffixes) and suffixes[-1] in COMPRESSIONS
    kind = _FORMATS.get(suffixes[-2 if compressed else -1]) if len(suffixes) > compressed else None
    return None if compressed and kind not in _COMPRESSIBLE else kind


def file_part(path: Path, named: Mapping[str, str], name: str = "") -> Part:
    """One file, which messages call `name`."""
    name = name or shown(path)
    kind = _format(path)
    if kind is None:
        raise InvalidLabels(f"{name}: unknown file type; expected {_SUPPORTED}")
    size = path.stat().st_size
    if size == 0:
        raise InvalidLabels(f"{name}: the file is empty")
    folders = (folder.lower() for folder in path.parts[:-1] if "=" in folder)
    keys = frozenset(folder.partition("=")[0] for folder in folders)
    if kind is json_files.opener:
        return Part(name, json_files.opener(path, name, named), keys, size, sparse=True)
    return Part(name, kind(path, name), keys, size)
