"""The rows of a release on disk: one file or, of a release in many buckets, one for each of them.

The parts of 128 buckets are `data-00000-of-00128.parquet` and so on, as large data sets of the Hub
are called. One after the other they hold the rows of `data.parquet`, in its order. How many there
are follows from the number of buckets, which rows are in which from their items: both are public.
"""

from __future__ import annotations

import glob
import re
from pathlib import Path

from labelguard.errors import ProjectError

ROWS = "data.parquet"
# The most buckets whose rows are in one file: more of them are too much for one process.
MOST_IN_ONE_FILE = 64
_PART = re.compile(r"data-\d{5}-of-(?P<count>\d{5})\.parquet")


def format_part_name(number: int, count: int) -> str:
    """Return the name of a part, numbered from 0."""
    return f"data-{number:05d}-of-{count:05d}.parquet"


def find_rows_path(directory: Path) -> Path:
    """Return the file of a release's rows, or the pattern of its parts, for `list_files`.

    Raises `ProjectError` where there are none, where a part is missing, or where those of another
    release lie among them, as where two were copied into one directory.
    """
    names = (_PART.fullmatch(path.name) for path in directory.glob("data-*.parquet"))
    counts = [int(part["count"]) for part in names if part]
    path = directory / ROWS
    if len({*counts}) + path.is_file() > 1 or len(counts) > max(counts, default=0):
        raise ProjectError(
            f"{directory} holds rows of several releases; copy each into a directory of its own"
        )
    if not counts:
        if path.is_file():
            return path
        raise ProjectError(f"{directory} holds no labelguard release (no {ROWS})")
    count = counts[0]
    for number in range(count):
        if not (directory / format_part_name(number, count)).is_file():
            raise ProjectError(
                f"{directory / format_part_name(number, count)} is missing; copy the release again"
            )
    return directory / f"data-?????-of-{count:05d}.parquet"


def list_files(path: Path) -> list[Path]:
    """Return the files that a path of `find_rows_path` stands for, in the order of the rows."""
    return [path] if path.is_file() else sorted(path.parent.glob(path.name))


def escape_file_names(path: Path) -> list[str]:
    """Return these files for Polars, DuckDB and `datasets`, which take `run[1]` for `run1`.

    Parts are one pattern: of a list of files, `datasets` reads the directory again for each.
    """
    if "\\" in str(path.parent):  # DuckDB reads no pattern below it
        return [glob.escape(str(file)) for file in list_files(path) or [path]]
    name = glob.escape(path.name) if path.is_file() else path.name
    return [str(Path(glob.escape(str(path.parent)), name))]
