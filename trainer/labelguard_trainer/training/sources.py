"""What a model is trained on: a release, whose files are as they were committed, or raw labels."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from labelguard.errors import LabelguardError, ProjectError
from labelguard.project.opening import OpenProject, Where
from labelguard.release.holdout import item_sides
from labelguard.release.preferred_pairs import scan_pairs
from labelguard.release.writer import read_card, refuse_evaluation
from labelguard.report import overview
from labelguard.storage.sums import PART, SUMS, fault, sha256
from labelguard_trainer.training.rows import RawLabels

__all__ = ["Source", "open_raw", "open_release", "read_columns"]

_FILES = ("card.json", "data.parquet")
_LINE = re.compile(rf"(?P<digest>[0-9a-f]{{64}})  (?P<name>{PART}(?:/{PART})*)")
_SAID = ("label_probability", "flip_probability", "residual_flip_estimate")


@dataclass(frozen=True)
class Source:
    """A file of rows; `digest` is the SHA-256 that names it, `card` that of its release."""

    file: Path
    digest: str
    card: Mapping[str, Any] | None

    @property
    def release(self) -> str | None:
        """The release's id; None for raw labels."""
        return None if self.card is None else str(self.card["release"])

    @property
    def train_with(self) -> str:
        """The loss that the release's card says; of raw labels, plain."""
        return "plain" if self.card is None else str(self.card["train_with"])


def open_release(release: str, project: Where) -> Source:
    """A release by its directory, or by its id in a project; the digest is that of `SHA256SUMS`.

    Of the project only the ledger is asked, for the directory and what was committed in it. Raises
    `RawLabels` for a file, and `ProjectError` if there is no such release or a file of it was
    altered.
    """
    path = Path(release)
    if path.is_file():
        raise RawLabels(
            f"{path} is a file, not a release: raw labels are refused; privatize them first, or "
            "say that nobody is to be protected: --non-private"
        )
    directory = path if path.is_dir() else overview.release_path(release, project)
    refuse_evaluation(directory)
    expected = _sums(path) if path.is_dir() else _committed(directory, project)
    card = read_card(directory)
    broken = fault(directory, expected)
    if broken:
        raise ProjectError(f"{broken}; copy the release again")
    if "train_with" not in card or "privacy" not in card:
        raise ProjectError(f"the card in {directory} does not say how to train on the release")
    return Source(directory / "data.parquet", sha256(directory / SUMS), card)


def open_raw(file: str) -> Source:
    """Raw labels in a file of pairs, Parquet or JSON lines.

    Raises `LabelguardError` for a release, which is private already.
    """
    path = Path(file)
    if not path.is_file():
        raise LabelguardError(
            f"--non-private is for a file of raw labels, and {file} is none; leave it out to "
            "train on a release"
        )
    return Source(path, sha256(path), None)


def read_columns(
    source: Source,
) -> tuple[dict[str, NDArray[np.float64]], tuple[NDArray[np.uint64], NDArray[np.bool_]]]:
    """What the rows say of their noise, shape (n,) each, and the `item_sides` of each row.

    A column that is not there is all NaN.
    """
    frame = scan_pairs(source.file)
    names = frame.collect_schema().names()
    found = frame.select(name for name in _SAID if name in names).collect()
    sides = item_sides(source.file)
    return {name: _numbers(source.file, found, name, len(sides[0])) for name in _SAID}, sides


def _numbers(file: Path, found: pl.DataFrame, name: str, rows: int) -> NDArray[np.float64]:
    if name not in found.columns:
        return np.full(rows, np.nan)
    kind = found.schema[name]
    if not (kind.is_numeric() or kind == pl.Null):
        raise LabelguardError(f"{file}: column {name} must hold numbers")
    return found[name].cast(pl.Float64).to_numpy()


def _committed(directory: Path, project: Where) -> Mapping[str, str]:
    """The digests that a project's ledger has of the files of a release in it."""
    records = OpenProject.open(project).ledger.releases()
    [files] = [record.files for record in records if record.id == directory.name]
    return files


def _sums(directory: Path) -> dict[str, str]:
    """What `SHA256SUMS` says of each file: the copy that goes with the release."""
    try:
        lines = (directory / SUMS).read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        raise ProjectError(f"{directory / SUMS} cannot be read; copy the release again") from None
    found = {line["name"]: line["digest"] for line in map(_LINE.fullmatch, lines) if line}
    missing = [name for name in _FILES if name not in found]
    if missing:
        raise ProjectError(f"{directory / SUMS} does not name {missing[0]}; copy the release again")
    return found
