"""Releases on disk: written behind a grant, found again, verified by hashes, loaded and copied.

A release directory holds its rows (`release.rows`), `card.json`, `CARD.md`, `SHA256SUMS` and what
its mechanism adds (`head.npz`, a directory `model`); an evaluation has no rows.
It is built under a temporary name, flushed, and renamed, so that it exists whole or not at all.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelguard import extras
from labelguard.errors import LabelguardError, LedgerError, ProjectError
from labelguard.ledger.ledger import Grant
from labelguard.ledger.records import ReleaseRecord
from labelguard.notebook import group_facts, render_card
from labelguard.project.opening import OpenProject, Where
from labelguard.project.project import CONFIG, Project
from labelguard.release import card as cards
from labelguard.storage.buckets import (
    ROWS,
    check_seen,
    escape_file_names,
    find_rows_path,
    list_files,
)
from labelguard.storage.files import (
    PART,
    SUMS,
    HashedFile,
    begin_directory,
    check_output_directory,
    find_changed_file,
    finish_directory,
    format_sums,
    hash_files,
    new_directory,
)
from labelguard.text import format_budget, pluralize, suggest, suggest_misspelled_keywords

if TYPE_CHECKING:
    import datasets
    import pandas as pd  # type: ignore[import-untyped]
    import polars as pl

# Columns of released rows that a mechanism may give; NaN and absent ones become null.
PROBABILITIES = ("label_probability", "flip_probability", "residual_flip_estimate")
# How rows are written.
PARQUET: Mapping[str, Any] = {
    "compression": "zstd",
    "use_dictionary": ["flip_probability", "label_probability", "question"],
    "write_statistics": ["item_id"],
    "store_schema": False,
}
_PIECE = 1 << 14  # rows


@dataclass(frozen=True)
class Release:
    """A committed release: where it is and what its card says.

    `reused` is true if the same command had made it before, so that no label was looked at;
    `notes` are things the caller should know (warnings, rows set aside).

    Example:
        >>> release.card["mechanism"], release.reused
        ('statistic', False)
        >>> sorted(path.name for path in release.path.iterdir())[:3]
        ['CARD.md', 'SHA256SUMS', 'card.json']
    """

    id: str
    path: Path
    card: Mapping[str, Any]
    reused: bool = False
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        again = ", made before" if self.reused else ""
        return f"Release({self.id!r}, {'; '.join(value for _, value in self._list_facts())}{again})"

    def _list_facts(self) -> list[tuple[str, str]]:
        """Return the first facts of the card, by name."""
        rows = self.card["counts"].get("rows", 0)
        return [
            ("mechanism", self.card["mechanism"]),
            ("budget", format_budget(self.card["privacy"])),
            ("released", pluralize(rows, "row")),
        ]

    def _repr_html_(self) -> str:
        made = "before; nothing was charged" if self.reused else "now"
        facts = [*self._list_facts(), ("protects", f"each {self.card['privacy']['unit']}")]
        facts += [("made", made), ("where", str(self.path))]
        return render_card(f"Release {self.id}", [*facts, *group_facts("notes", self.notes)])


def resolve_release_directory(release: Release | str | Path, project: Where = None) -> Path:
    """Return the directory of a release. Raise `TypeError` for what names none.

    A text that is no path is an id, which may be shortened, of a committed release in `project`;
    `LedgerError` if there is none.
    """
    if isinstance(release, Release):
        return release.path
    if isinstance(release, str) and (
        project is not None or not (os.sep in release or Path(release).exists())
    ):
        opened = OpenProject.open(project)
        return opened.project.releases / opened.ledger.releases.find_committed(release).id
    if isinstance(release, str | os.PathLike):
        return Path(release)
    raise TypeError(
        "expected a Release, the id of one, or the path of a release directory, found "
        f"{type(release).__name__}"
    )


def build_output_schema(content: pa.DataType, *, questions: bool = False) -> pa.Schema:
    """Return the columns of the rows; `content` is the type of prompts and responses.

    `questions`: the rows say which question they answer.
    """
    texts = [(name, content) for name in ("prompt", "chosen", "rejected")]
    columns = [*texts, ("item_id", pa.string()), *((name, pa.float64()) for name in PROBABILITIES)]
    schema = pa.schema(columns)
    return schema.append(pa.field("question", pa.string())) if questions else schema


def split_by_preference(
    pairs: pa.Table, row: NDArray[np.intp], first: NDArray[np.bool_]
) -> tuple[pa.Array, pa.Array]:
    """Return the chosen and the rejected responses of some rows of pairs.

    Of each the `first` or the second side is preferred, (n,).
    """
    sides = pa.concat_arrays([*pairs["first"].chunks, *pairs["second"].chunks])
    chosen = row + np.where(first, 0, pairs.num_rows)
    rejected = row + np.where(first, pairs.num_rows, 0)
    return sides.take(pa.array(chosen)), sides.take(pa.array(rejected))


def write_rows(writer: pq.ParquetWriter, table: pa.Table) -> None:
    """Write rows as a row group.

    Arrow cuts pages by the pieces that a table is in, and these may follow from how the input came:
    so the pieces are always of one length.
    """
    starts = range(0, max(len(table), 1), _PIECE)
    pieces = [table.slice(start, _PIECE).combine_chunks() for start in starts]
    writer.write_table(pa.concat_tables(pieces))


@dataclass(frozen=True)
class RowsPart:
    """A part of a release's rows as the worker that wrote it describes it."""

    name: str
    rows: int
    size: int
    sha256: str


class ReleaseWriter:
    """Writes one release; opened only by a grant, used as a context manager.

    Workers write parts of the rows into `directory`; what they are writing lies beside it. On
    leaving without an error it is complete and renamed to its final name; `hashes` then holds the
    SHA-256 of its public files, by their paths in it.
    """

    def __init__(self, grant: Grant, releases: Path) -> None:
        if not isinstance(grant, Grant):
            raise LabelguardError("a release writer is opened by a grant: charge before release")
        self.final = releases / grant.release.id
        self.directory = begin_directory(self.final, mode=0o755)
        self._opened: tuple[HashedFile, pq.ParquetWriter] | None = None
        self._parts: dict[str, str] = {}
        self.rows = 0
        self.hashes: dict[str, str] = {}

    def write(self, table: pa.Table) -> None:
        """Append rows; each call becomes row groups of its own."""
        if self._opened is None:
            file = HashedFile(self.directory / ROWS)
            self._opened = file, pq.ParquetWriter(file, table.schema, **PARQUET)
        write_rows(self._opened[1], table)
        self.rows += table.num_rows

    def add_part(self, part: RowsPart) -> None:
        """Count a part that a worker wrote, which is not read again."""
        path = self.directory / part.name
        size = path.stat().st_size if path.is_file() else 0
        check_seen(part.size, size, f"bytes of {part.name}")
        self._parts[part.name] = part.sha256
        self.rows += part.rows

    def move_in(self, path: Path) -> None:
        """Move another public file or directory into the release, under its own name.

        It may have been made private, as what is under way is; now it is as readable as the rows.
        """
        target = self.directory / path.name
        shutil.move(path, target)
        for file in (target, *target.rglob("*")):
            if not file.is_symlink():  # would change what it leads to; `hash_files` refuses it
                file.chmod(0o755 if file.is_dir() else 0o644)

    def write_card(self, card: Mapping[str, Any]) -> None:
        """Write the card."""
        for name, text in (("card.json", cards.format_json), ("CARD.md", cards.format_markdown)):
            (self.directory / name).write_text(text(card), encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._opened is not None:
            file, rows = self._opened
            rows.close()
            file.close()
            self._parts[ROWS] = file.digest
        if error is None:
            # Where a listing is behind, parts are those that were counted.
            self.hashes = self._parts | hash_files(self.directory, self._parts)
            (self.directory / SUMS).write_text(format_sums(self.hashes), encoding="ascii")
            finish_directory(self.directory, self.final)


def read_card(directory: Path) -> dict[str, Any]:
    """Return the card of a release directory; raise `ProjectError` where there is none."""
    try:
        loaded: dict[str, Any] = json.loads((directory / "card.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        loaded = {}
    if not isinstance(loaded, dict) or not isinstance(loaded.get("release"), str):
        raise ProjectError(f"{directory} holds no labelguard release (no readable card.json)")
    return loaded


def find_unchanged_release(home: Project, record: ReleaseRecord) -> Path:
    """Return the directory of a committed release; `ProjectError` if it is not as committed."""
    directory = home.releases / record.id
    if broken := find_changed_file(directory, record.files):
        raise ProjectError(f"release {record.id}: {broken}; restore it from a backup")
    return directory


def refuse_evaluation(directory: Path) -> None:
    """Raise `ProjectError` for the release of an evaluation, which has no rows."""
    if not (directory / "card.json").is_file():
        return
    if read_card(directory)["kind"] == "evaluation":
        raise ProjectError(
            f"{directory} is an evaluation: it has no labeled pairs, and nothing trains on "
            "held-out labelers; labelguard.release.evaluation judges heads by it"
        )


@overload
def load(
    release: Release | str | Path, kind: Literal["polars"] = "polars", *, project: Where = None
) -> pl.DataFrame: ...
@overload
def load(
    release: Release | str | Path, kind: Literal["arrow"], *, project: Where = None
) -> pa.Table: ...
@overload
def load(
    release: Release | str | Path, kind: Literal["pandas"], *, project: Where = None
) -> pd.DataFrame: ...
@overload
def load(
    release: Release | str | Path, kind: Literal["datasets"], *, project: Where = None
) -> datasets.Dataset: ...
@suggest_misspelled_keywords
def load(release: Release | str | Path, kind: str = "polars", *, project: Where = None) -> Any:
    """Return a release's rows as a Polars or pandas frame, an Arrow table, or a `datasets.Dataset`.

    `release` is what `privatize` returned, the id of a committed release of `project`, or the path
    of a release directory; `kind` is polars, arrow, pandas or datasets. The columns are those of
    `build_output_schema`.

    Raises `ProjectError` if there is no release, or no rows in it (an evaluation), `MissingExtra`
    if the package of that kind is not installed, `ValueError` for an unknown `kind`, `TypeError`
    for what is no release.

    Example:
        >>> frame = lg.load(release)
        >>> frame.columns[:3]
        ['prompt', 'chosen', 'rejected']
        >>> lg.load(release.path, "arrow").num_rows == len(frame)
        True
    """
    if kind not in _KINDS:
        raise ValueError(
            f"kind must be one of {', '.join(_KINDS)}, found {kind!r}{suggest(kind, _KINDS)}"
        )
    directory = resolve_release_directory(release, project)
    refuse_evaluation(directory)
    path = find_rows_path(directory)
    try:
        return _KINDS[kind](path)
    except ModuleNotFoundError as error:
        if error.name != kind:
            raise
    command = extras.format_install_line("train") if kind == "datasets" else f"pip install {kind}"
    raise extras.MissingExtra(f"{kind} is not installed; install it with: {command}")


_KINDS: Mapping[str, Callable[[Path], Any]] = {
    "polars": lambda path: import_module("polars").read_parquet(escape_file_names(path)),
    # Partitioning: directories on the way to several files may be called `name=value`.
    "arrow": lambda path: pq.read_table(list_files(path), partitioning=None),
    "pandas": lambda path: import_module("pandas").read_parquet(
        list_files(path), engine="pyarrow", partitioning=None
    ),
    "datasets": lambda path: import_module("datasets").Dataset.from_parquet(
        escape_file_names(path)
    ),
}


def check_output(output: Path | None) -> None:
    """Raise `ProjectError`, before any work, for a directory that could not take a release."""
    if output is None:
        return
    check_output_directory(output, "release")
    if output.exists() and not _is_empty(output) and not (output / "card.json").is_file():
        raise ProjectError(f"{output} exists and is not an empty directory; choose another -o")
    parent = output if output.exists() else next(p for p in output.absolute().parents if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ProjectError(f"{parent} is not a writable directory; choose another -o")


def check_output_is_empty(output: Path | None) -> None:
    """Raise `ProjectError`, before a release is charged, for a directory that holds something."""
    if output is not None and output.exists() and not _is_empty(output):
        raise ProjectError(f"{output} holds another release; choose another -o")


def copy_release(release: Path, output: Path, files: Mapping[str, str]) -> None:
    """Copy a release to `output`, whole or not at all, unless it is there already.

    Only its own `files` are copied, whatever lies beside them.
    """
    if output.exists() and not _is_empty(output):
        try:
            same = read_card(output)["release"] == read_card(release)["release"]
        except ProjectError:
            same = False
        if not same:
            raise ProjectError(
                f"the release is safe in {release}, but {output} holds another release, or "
                "something else; copy it from there"
            )
        broken = find_changed_file(output, files)
        if broken:
            raise ProjectError(f"{broken}; remove {output} and run this again")
        return
    try:
        with new_directory(output, release.stat().st_mode & 0o777) as temporary:
            for name in (*files, SUMS):
                (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(release / name, temporary / name)
    except OSError as error:
        raise ProjectError(
            f"the release is safe in {release}, but cannot be copied to {output}: {error.strerror}"
        ) from None


def _is_empty(directory: Path) -> bool:
    return directory.is_dir() and not any(directory.iterdir())


_LINE = re.compile(rf"(?P<digest>[0-9a-f]{{64}})  (?P<name>{PART}(?:/{PART})*)")


def verify_release_directory(release: Release | str | Path, project: Where = None) -> Path:
    """Return the directory of a committed release, whose files are what was committed.

    `release` is as `resolve_release_directory` takes it. A release in a project is compared with
    the hashes in the ledger, a copy with its `SHA256SUMS`. Raises `LedgerError` for a release that
    is not committed, `ProjectError` if there is none, it has no rows, or a file of it was altered.
    """
    directory = resolve_release_directory(release, project)
    refuse_evaluation(directory)
    check_committed_and_unchanged(directory)
    find_rows_path(directory)
    return directory


def is_in_project(directory: Path) -> bool:
    """Return whether a release lies among those of a project."""
    path = directory.absolute()
    return path.parent.name == "releases" and (path.parents[1] / CONFIG).is_file()


def check_committed_and_unchanged(directory: Path, *required: str) -> None:
    """Raise unless a release with these files is as committed."""
    if is_in_project(directory):
        record = OpenProject.open(directory.absolute().parents[1]).ledger.releases.get(
            directory.name
        )
        if record is None or record.state != "committed":
            raise LedgerError(
                f"{directory.name} is not committed; see: labelguard release list, and run its "
                "command again"
            )
        expected = record.files
    else:
        expected = read_sums(directory, ("card.json", *required), "copy the release again")
    if broken := find_changed_file(directory, expected):
        raise ProjectError(f"{broken}; copy the release again")


def read_sums(directory: Path, required: Sequence[str], remedy: str) -> Mapping[str, str]:
    """Return what `SHA256SUMS` says of each file: the copy that goes with a release or a model."""
    try:
        lines = (directory / SUMS).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        raise ProjectError(f"{directory / SUMS} cannot be read; {remedy}") from None
    digests = {line["name"]: line["digest"] for line in map(_LINE.fullmatch, lines) if line}
    missing = [name for name in required if name not in digests]
    if missing:
        raise ProjectError(f"{directory / SUMS} does not name {missing[0]}; {remedy}")
    return digests
