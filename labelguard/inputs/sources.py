"""Where labels come from: files of several formats, or a table in memory, as DuckDB relations.

Every input becomes a list of parts that are read one after the other, in a fixed order, as a
stream; nothing is loaded whole. An error names the file and the line and never repeats content.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TextIO, TypeAlias

import pyarrow as pa

from labelguard.errors import InvalidLabels
from labelguard.inputs import csv_files, json_files, rows_in_memory
from labelguard.inputs.paths import matching, shown
from labelguard.inputs.readers import COMPRESSIONS, Opener
from labelguard.inputs.tables import arrow_opener, dataset_opener, parquet_opener, table_opener
from labelguard.spelling import suggest

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
        _refuse_unused_split(split, ())
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
            tables = _choose_split(item, split, name) if has_splits and item else [item]
            own = [Part(name, _table_opener(table, named, name)) for table in tables]
        found += own
        divided.append(has_splits)
    if not found:
        raise InvalidLabels("no input: the list of files or tables is empty")
    _refuse_unused_split(split, divided)
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
        return [file_part(_spooled_input(spool), named, _STDIN_NAME)], False
    found, divided = [], False
    for path in matching(pattern):
        if path.is_dir():
            own, has_splits = _directory_parts(path, split, named)
            found += own
            divided = divided or has_splits
        else:
            found.append(file_part(path, named))
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
        and path.name not in _METADATA
        and not (path.suffix == ".arrow" and _is_cache(path))
    )
    # Beside data of another type, .json holds what is said of the data.
    files = [path for path in files if ".json" not in path.suffixes] or files
    if not files:
        raise InvalidLabels(f"{shown(directory)}: no readable file in it; expected {_SUPPORTED}")
    found = _splits_of(directory, files)
    if found:
        files = _choose_split(found, split, shown(directory))[0]
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


_STDIN_NAME = "standard input"
"""What messages call it."""

_KINDS = ((b"PAR1", ".parquet"), (b"ARROW1", ".arrow"), (b"\xff\xff\xff\xff", ".arrow"))
_COMPRESSED = ((b"\x1f\x8b", ".gz", "gzip"), (b"\x28\xb5\x2f\xfd", ".zst", "zstd"))
_PEEK = 1 << 16
_kept: list[tempfile.TemporaryDirectory[str]] = []


_spooled: list[tuple[TextIO, Path]] = []


def _spooled_input(directory: Path | None = None) -> Path:
    """The file that holds all of standard input, named by its kind, which its first bytes tell.

    It is written into `directory`, or into one in TMPDIR, and read once in a process.

    Raises `InvalidLabels` if there is none, or if the file went with the job that read it.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise InvalidLabels(f"{_STDIN_NAME}: nothing is piped into it; give a file, or pipe one in")
    known = next((path for stream, path in _spooled if stream is sys.stdin), None)
    if known is None:
        if directory is None:
            _kept.append(tempfile.TemporaryDirectory(prefix="labelguard-"))  # mode 0700
            directory = Path(_kept[-1].name)
        known = _spool(directory)
        _spooled.append((sys.stdin, known))
    if not known.exists():
        raise InvalidLabels(
            f"{_STDIN_NAME}: an earlier job read and removed it; give a file instead"
        )
    return known


def _spool(directory: Path) -> Path:
    path = directory / "standard-input"
    with path.open("xb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    return path.rename(path.with_name(f"{path.name}{_suffix(path)}"))


def _suffix(path: Path) -> str:
    """What a file with these first bytes is called."""
    with path.open("rb") as file:
        begin = file.read(_PEEK)
    suffix, codec = next(
        ((suffix, codec) for magic, suffix, codec in _COMPRESSED if begin.startswith(magic)),
        ("", None),
    )
    with pa.input_stream(str(path), compression=codec) as stream:
        return _kind(stream) + suffix


def _kind(stream: pa.NativeFile) -> str:
    begin = stream.read(_PEEK)
    for magic, suffix in _KINDS:
        if begin.startswith(magic):
            return suffix
    text = begin.removeprefix(b"\xef\xbb\xbf").lstrip()
    while begin and not text:  # blanks may go on for longer than one looks
        begin = stream.read(_PEEK)
        text = begin.lstrip()
    return ".json" if text[:1] in (b"[", b"{") else ".csv"


_WORDS = ("train", "training", "test", "testing", "validation", "valid", "val", "dev", "eval")
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}(-[0-9a-f]+)?")
_NUMBERED = re.compile(rf"({'|'.join(_WORDS)})([-_.]?\d+)?")
_LISTED = "dataset_dict.json"
_METADATA = (_LISTED, "dataset_info.json", "dataset_infos.json", "state.json")
"""What `datasets` writes beside the data of a directory."""


def _choose_split(found: Mapping[str, Any], split: str | None, where: str) -> list[Any]:
    """Of splits by name, the one that is asked for, or the only one. Raises `InvalidLabels`."""
    if split is None and len(found) == 1:
        return list(found.values())
    if split is not None and split in found:
        return [found[split]]
    several = f"{where}: {'splits' if len(found) > 1 else 'the only split is'} {', '.join(found)}"
    if split is None:
        raise InvalidLabels(f"{several}; choose one, as in --split {next(iter(found))}")
    raise InvalidLabels(f"{several}; found no split {split!r}{suggest(split, found)}")


def _splits_of(directory: Path, files: Sequence[Path]) -> dict[str, list[Path]]:
    """The files of every split of a directory, by their names; none if not all look like splits.

    Splits are folders that `dataset_dict.json` lists; shards like `train-00000-of-00002.parquet`;
    and files or folders that are called train, test, validation and the like.
    """
    listed = _listed(directory)
    found: dict[str, list[Path]] = {}
    for file in files:
        name = _split(file.relative_to(directory), listed)
        if name is None:
            return {}
        found.setdefault(name, []).append(file)
    return found


def _listed(directory: Path) -> Sequence[str]:
    """What `DatasetDict.save_to_disk` lists."""
    try:
        found = json.loads((directory / _LISTED).read_bytes())["splits"]
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else ()


def _split(path: Path, listed: Sequence[str]) -> str | None:
    """The split of one file, by its path within the directory."""
    if listed:
        return path.parts[0] if len(path.parts) > 1 and path.parts[0] in listed else None
    stem = path.name.partition(".")[0]
    shard = _SHARD.fullmatch(stem)
    if shard and shard[1] != "data":  # so are the files of any one dataset called
        return shard[1]
    numbered = _NUMBERED.fullmatch(stem.lower())
    if numbered:
        return numbered[1]
    return next((part for part in path.parts[:-1] if part.lower() in _WORDS), None)


def _refuse_unused_split(split: str | None, used: Iterable[bool]) -> None:
    """Raise `InvalidLabels` if a split is asked for and nothing of an input has any."""
    if split is not None and not any(used):
        raise InvalidLabels(
            f"--split {split}: the input has no splits; leave it out, or name a directory that "
            "holds files like train-00000-of-00001.parquet or train.jsonl"
        )
