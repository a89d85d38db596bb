"""Sources of labels: files of several formats, or tables in memory, as relations of DuckDB.

Every input becomes a list of files that are read one after the other, in a fixed order, as a
stream; nothing is loaded whole. Objects in a store (`s3://…`, `gs://…`, `hf://…`) are copied by
fsspec before anything is read; the package of each store takes credentials, region and endpoint
from the environment. An error names the file and the line and never repeats content.
"""

from __future__ import annotations

import glob
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from labelguard.errors import InvalidLabels
from labelguard.extras import MissingExtra, format_install_line
from labelguard.inputs.csv_files import build_csv_opener, find_csv_fault
from labelguard.inputs.json_files import JSON_SUFFIXES, build_json_opener, find_json_fault
from labelguard.inputs.readers import COMPRESSIONS, InputFile, Opener
from labelguard.inputs.tables import (
    ROWS,
    are_rows,
    build_parquet_opener,
    build_rows_opener,
    build_table_opener,
    find_parquet_fault,
)
from labelguard.storage.files import find_matching_paths, is_remote, show_path
from labelguard.text import suggest

# Names become paths of copies: nothing hidden in them, and nothing that leads elsewhere.
_PART = r"(?!\.)[A-Za-z0-9_.=+@~%-]+"
_NAME = re.compile(rf"{_PART}(?:/{_PART})*")


def copy_objects(address: str, directory: Path) -> list[tuple[str, Path]]:
    """Copy the objects of an address: one, all below a prefix, or those of a pattern.

    Returns the address and the copy of each, in the order of the addresses. Copies lie in a new
    directory of mode 0700 in `directory`.

    Raises `MissingExtra` where a package is missing, `InvalidLabels` where the store refuses, and
    for no object, or one with a name that no file of ours has.
    """
    target = Path(tempfile.mkdtemp(prefix="objects-", dir=directory))
    protocol = address.partition("://")[0]
    try:
        import fsspec

        store, path = fsspec.url_to_fs(address)
        store.invalidate_cache()
        find = store.glob if glob.has_magic(path) else store.find
        listed = {
            name.lstrip("/"): one
            for name, one in sorted(find(path, detail=True).items())
            if one["type"] == "file" and not name.rpartition("/")[2].startswith((".", "_"))
        }
        for name in listed:
            if not _NAME.fullmatch(name):
                raise InvalidLabels(
                    f"{f'{protocol}://{name}'!a}: names of objects may have letters, digits and "
                    "_ . = + @ ~ % -"
                )
        if not listed:
            raise InvalidLabels(f"{address}: no such object, and none below it")
        copies = {f"{protocol}://{name}": target / name for name in listed}
        for copy in copies.values():
            copy.parent.mkdir(parents=True, exist_ok=True)
        store.get([one["name"] for one in listed.values()], [str(copy) for copy in copies.values()])
    except InvalidLabels:
        raise
    except ImportError as error:
        raise MissingExtra(
            f"{address}: {error}; or install the extra: {format_install_line('cloud')}"
        ) from error
    except Exception as error:  # each store has errors of its own
        line = " ".join(str(error).split()) or type(error).__name__
        raise InvalidLabels(f"{address}: {line}") from error
    for (name, copy), one in zip(copies.items(), listed.values(), strict=True):
        if one.get("size") not in (None, copy.stat().st_size):
            raise InvalidLabels(f"{name}: it was written anew meanwhile; run this again")
    return list(copies.items())


# A path or glob (str, Path), objects of a store (`s3://bucket/labels`, `gs://bucket/*.parquet`), a
# table (pyarrow, polars, pandas, datasets), splits by name, an `InputFile`, or a sequence of these;
# or rows, a sequence of dictionaries.
Input: TypeAlias = Any

# How files are opened, and what finds faults in them, by the end of their names.
_CSV = build_csv_opener, find_csv_fault
_FORMATS: Mapping[str, tuple[Callable[..., Opener], Callable[[Path, str, str], str]]] = {
    **dict.fromkeys((".parquet", ".pq"), (build_parquet_opener, find_parquet_fault)),
    **dict.fromkeys((".csv", ".tsv", ".txt"), _CSV),
    **dict.fromkeys(JSON_SUFFIXES, (build_json_opener, find_json_fault)),
}
# What stands for all splits.
_ALL = "all"
_NOTHING: Mapping[str, str] = MappingProxyType({})
_SUPPORTED = "Parquet, CSV, TSV, TXT, JSON, JSONL (.gz, .zst)"
_SPREADSHEETS = (".xlsx", ".xls", ".ods", ".numbers")
# Bytes that any input may take, and how many times the size of its files on top.
_PLENTY, _EXPANSION = 1 << 30, 200


@dataclass
class ByteLimit:
    """The number of bytes that the rows of an input may still take.

    A file of a few megabytes can unpack to terabytes. Rows of honest files take ten times what
    their files do, and up to a hundred times where many labelers see the same texts.
    """

    left: float

    @classmethod
    def from_file_sizes(cls, files: Sequence[InputFile], limit: int | None) -> ByteLimit:
        """Return `limit`, or one in proportion to the files; tables in memory need none."""
        if limit is not None:
            return cls(limit)
        # A table has no size, so no limit.
        sizes = (float("inf") if file.size is None else file.size for file in files)
        return cls(_PLENTY + _EXPANSION * sum(sizes))

    def subtract(self, name: str, count: int) -> None:
        """Raise `InvalidLabels` once more was read than is allowed."""
        self.left -= count
        if self.left < 0:
            raise InvalidLabels(
                f"{name}: its rows take far more room than the file; if that is right, allow it: "
                "--max-input-bytes"
            )


def resolve_input(
    source: Input,
    split: str | Sequence[str] | None = None,
    roles: Mapping[str, str] = _NOTHING,
    spool: Path | None = None,
) -> list[InputFile]:
    """Return the files and tables of an input, in a fixed order; of splits those that are named, or
    all (`all`).

    `roles` is the column that was named for each role: in JSON, only what is compared has a
    type. Objects are copied into `spool`; without one, files and tables alone are read.

    Raises `InvalidLabels` if there are none, or if several splits are there and none is named.
    """
    splits = (split,) if isinstance(split, str) else tuple(split or ())
    items = list(_flatten_input(source))
    files: list[InputFile] = []
    divided = False
    if isinstance(source, list | tuple) and are_rows(items):
        files, items = [InputFile(ROWS, build_rows_opener(items, roles), sparse=True)], []
    for number, item in enumerate(items, 1):
        if isinstance(item, InputFile):
            files.append(item)
        elif spool and isinstance(item, str) and is_remote(item):
            files += [resolve_file(copy, roles, name) for name, copy in copy_objects(item, spool)]
        elif isinstance(item, str | Path):
            files += [resolve_file(path, roles) for path in find_matching_paths(str(item))]
        else:
            name = "table" if len(items) == 1 else f"table {number}"
            tables: Mapping[str, Any] = {"": item}
            if isinstance(item, Mapping) and item:
                tables, divided = _choose_splits(item, splits, name), True
            for part, table in tables.items():
                called = f"{name}, split {part}" if len(tables) > 1 else name
                files.append(InputFile(called, build_table_opener(table, roles, called)))
    if not files:
        raise InvalidLabels("no input: the list of files or tables is empty")
    if splits and not divided:
        raise InvalidLabels(
            f"--split {splits[0]}: the input has no splits; leave it out, and name the files that "
            "are meant, as in 'DIRECTORY/train-*.parquet'"
        )
    return files


def resolve_file(path: Path, roles: Mapping[str, str] = _NOTHING, name: str = "") -> InputFile:
    """Return one file, which messages call `name`. Raises `InvalidLabels` for unknown types."""
    name = name or show_path(path)
    suffix = _find_file_type(path)
    if suffix is None:
        way = "; save the sheet as CSV UTF-8" if path.suffix.lower() in _SPREADSHEETS else ""
        raise InvalidLabels(f"{name}: unknown file type; expected {_SUPPORTED}{way}")
    size = path.stat().st_size
    if size == 0:
        raise InvalidLabels(f"{name}: the file is empty")
    build_opener, find_fault = _FORMATS[suffix]
    is_json = suffix in JSON_SUFFIXES
    opener = build_opener(path, name, roles) if is_json else build_opener(path, name)
    return InputFile(
        name,
        opener,
        size,
        sparse=is_json,
        path=path,
        is_csv=_FORMATS[suffix] is _CSV,
        find_fault=partial(find_fault, path, name),
    )


def format_command_arguments(source: Input) -> list[str]:
    """Return an input as it is typed in a command: paths as they are, INPUT for what is in memory.

    What is in memory is never written out: it holds labels.
    """
    items = list(_flatten_input(source))
    if items and all(isinstance(item, InputFile) for item in items):
        return list(dict.fromkeys(word for file in items for word in file.arguments))
    if items and all(isinstance(item, str | Path) for item in items):
        return [str(item) for item in items]
    return ["INPUT"]


def _flatten_input(source: Input) -> Iterator[Any]:
    if isinstance(source, list | tuple):
        for item in source:
            yield from _flatten_input(item)
    else:
        yield source


def _find_file_type(path: Path) -> str | None:
    """Return the suffix that says how to read a file, if there is one; text may be compressed."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compressed = bool(suffixes) and suffixes[-1] in COMPRESSIONS
    suffix = suffixes[-2 if compressed else -1] if len(suffixes) > compressed else ""
    is_packable = suffix not in (".parquet", ".pq")
    return suffix if suffix in _FORMATS and (is_packable or not compressed) else None


def _choose_splits(known: Mapping[str, Any], names: Sequence[str], where: str) -> Mapping[str, Any]:
    """Return those splits that are named, or the only one. Raises `InvalidLabels` for none."""
    if (not names and len(known) == 1) or (tuple(names) == (_ALL,) and _ALL not in known):
        return known
    missing = next((name for name in names if name not in known), None)
    if names and missing is None:
        return {name: known[name] for name in dict.fromkeys(names)}
    several = f"{where}: {'splits' if len(known) > 1 else 'the only split is'} {', '.join(known)}"
    if missing is None:
        first = next(iter(known))
        raise InvalidLabels(
            f"{several}; choose one, as in --split {first}, several, or --split {_ALL}"
        )
    raise InvalidLabels(f"{several}; no split is called {missing!r}{suggest(missing, known)}")
