"""The request for a training, read and checked before anything heavy is loaded.

A model is trained on a release, whose files are as they were committed, or on raw labels. What its
base model learned from, the card beside that says (see `release.model_card`): a guarantee has to
cover it too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from labelguard.errors import LabelguardError, ProjectError
from labelguard.project.opening import Where
from labelguard.release.model_card import LearnedRelease, find_learned_releases
from labelguard.release.pairs_file import (
    check_pairs,
    compute_item_keys_and_sides,
    hold_out,
    scan_pairs,
)
from labelguard.release.writer import read_card, verify_release_directory
from labelguard.storage.buckets import find_rows_path
from labelguard.storage.files import SUMS, hash_file
from labelguard_trainer.training import settings
from labelguard_trainer.training.rows import (
    AUTO,
    NOISE_COLUMNS,
    NoisyRows,
    PreferenceLoss,
    RawLabels,
)
from labelguard_trainer.training.settings import Kind


@dataclass(frozen=True, eq=False)
class TrainingRequest:
    """A training: what is learned, from what, and how.

    `config` (read from `config_file`) and `lora` are what differs from the defaults; `holdout` is
    the share of items to evaluate on, `held_out`, shape (n,), which rows these are, `evaluated`,
    shape (n,), those of them that are asked about, `items`, shape (n,), the item of each row,
    `first`, shape (n,), whether its chosen side is the item's first, `base` what the model learned
    from before, and `noise_columns` what each row tells of its noise, shape (n,) each.
    """

    kind: Kind
    source: Source
    model: str
    loss: PreferenceLoss
    config: Mapping[str, Any]
    lora: Mapping[str, Any] | None
    holdout: float
    probes: Path | None
    config_file: Path | None
    held_out: NDArray[np.bool_]
    evaluated: NDArray[np.bool_]
    items: NDArray[np.uint64]
    first: NDArray[np.bool_]
    base: tuple[LearnedRelease, ...]
    noise_columns: Mapping[str, NDArray[np.float64]]

    @classmethod
    def read(
        cls,
        kind: Kind,
        source: Source,
        model: str,
        *,
        loss: PreferenceLoss,
        config: str | Path | None,
        lora: str | None,
        holdout: float,
        eval_pairs: int,
        probes: str | Path | None,
    ) -> TrainingRequest:
        """Read all files but the texts; raises `LabelguardError` for what cannot be trained."""
        check_pairs(source.file)
        if eval_pairs < 1:
            raise LabelguardError(f"--eval-pairs must be at least 1, found {eval_pairs}")
        columns, (items, first) = read_noise_and_sides(source)
        out = hold_out(items, holdout)
        if out.all():
            raise LabelguardError(f"no row is left to train on with --holdout {holdout:g}")
        training = {name: values[~out] for name, values in columns.items()}
        NoisyRows.from_columns(training, loss, non_private=source.card is None)
        if probes is not None:
            check_pairs(Path(probes))
        return cls(
            kind,
            source,
            model,
            loss,
            settings.read_config(Path(config)) if config else {},
            settings.parse_lora(lora) if lora else None,
            holdout,
            Path(probes) if probes else None,
            Path(config) if config else None,
            out,
            choose_evaluated_rows(items, out, eval_pairs),
            items,
            first,
            find_learned_releases(model, private=source.card is not None),
            columns,
        )

    @property
    def non_private(self) -> bool:
        """True if it learns from raw labels."""
        return self.source.card is None

    @property
    def loss_name(self) -> str:
        """The loss that `auto` stands for."""
        if self.loss != AUTO:
            return self.loss
        return (
            _choose_auto_loss(self.noise_columns)
            if self.source.card is None
            else self.source.loss_from_card
        )


def choose_evaluated_rows(
    items: NDArray[np.uint64], held_out: NDArray[np.bool_], most: int
) -> NDArray[np.bool_]:
    """Of the held-out rows at most so many, shape (n,), but a whole item at least.

    Those of the smallest keys, as if fewer items were held out: a function of the texts alone.
    """
    keys = np.sort(items[held_out])
    if len(keys) <= most:
        return held_out
    few: NDArray[np.bool_] = held_out & (items < max(keys[most], keys[0] + np.uint64(1)))
    return few


def _choose_auto_loss(columns: Mapping[str, NDArray[np.float64]]) -> str:
    """Return what `auto` does with rows of a file, which no card speaks of."""
    for name, loss in (("flip_probability", "forward"), ("label_probability", "soft")):
        if not np.isnan(columns[name]).all():
            return loss
    return "plain"


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
    def loss_from_card(self) -> str:
        """The loss that the release's card says; of raw labels, plain."""
        return "plain" if self.card is None else str(self.card["train_with"])


def open_release(release: str, project: Where) -> Source:
    """Return a release by its directory, or by its id in a project; the digest is that of
    `SHA256SUMS`.

    Of the project only the ledger is asked, for the directory and what was committed in it. Raises
    `RawLabels` for a file, and `ProjectError` if there is no such release or a file of it was
    altered.
    """
    path = Path(release)
    if path.is_file():
        raise RawLabels(
            f"{path} is a file, not a release: raw labels are refused; privatize them first, or "
            "declare training without a guarantee: --non-private"
        )
    directory = verify_release_directory(path if path.is_dir() else release, project)
    card = read_card(directory)
    if "train_with" not in card or "privacy" not in card:
        raise ProjectError(f"the card in {directory} does not say how to train on the release")
    return Source(find_rows_path(directory), hash_file(directory / SUMS), card)


def open_raw(file: str) -> Source:
    """Raw labels in a file of pairs, Parquet or JSON lines.

    Raises `LabelguardError` for what is no file, such as a release, which is private already.
    """
    path = Path(file)
    if not path.is_file():
        raise LabelguardError(
            f"--non-private is for a file of raw labels, and {file} is none; leave it out to "
            "train on a release"
        )
    return Source(path, hash_file(path), None)


def read_noise_and_sides(
    source: Source,
) -> tuple[dict[str, NDArray[np.float64]], tuple[NDArray[np.uint64], NDArray[np.bool_]]]:
    """Return the rows' noise columns, shape (n,) each, and their `compute_item_keys_and_sides`.

    A column that is not there is all NaN.
    """
    frame = scan_pairs(source.file)
    present = [name for name in NOISE_COLUMNS if name in frame.collect_schema().names()]
    values = frame.select(present).collect()
    sides = compute_item_keys_and_sides(source.file)
    columns = {name: np.full(len(sides[0]), np.nan) for name in NOISE_COLUMNS}
    for name in present:
        kind = values.schema[name]
        if not (kind.is_numeric() or kind == pl.Null):
            raise LabelguardError(f"{source.file}: column {name} must hold numbers")
        columns[name] = values[name].cast(pl.Float64).to_numpy()
    return columns, sides
