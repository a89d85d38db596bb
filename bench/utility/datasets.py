"""Real preference labels as problems: training labelers, held-out labelers, public features.

Each dataset becomes distinct pairs, the two sides in canonical order, and one row for each label.
Rows with identical sides are dropped, as a release drops them; every other label counts, repeats of
an item by one labeler too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from labelguard.inputs.columns import Reading
from labelguard.inputs.pairs import find_distinct_pairs
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.keys.keyring import KeyRing
from labelguard.learning.columns import parse_feature_columns
from labelguard.learning.features import fit_features
from labelguard.mechanisms.geometry import Shape
from labelguard.mechanisms.statistic import Rows
from labelguard.storage import blocks, buckets
from labelguard.text import LABEL_A, LABEL_B, LABEL_TIE, no_progress

Ids: TypeAlias = NDArray[np.intp]
Labels: TypeAlias = NDArray[np.uint8]

FEW_SEEDS = 16
"""Splits where few labelers train."""
HELD_OUT = 0.2
"""The share of labelers whose labels only measure."""


@dataclass(frozen=True)
class Dataset:
    """Labels with the features of what they compare: x (pairs, d), the other columns (n,).

    `ranking` and `size` are those of `Rows`.
    """

    x: NDArray[np.float32]
    pair: Ids
    unit: Ids
    labels: Labels
    ranking: Ids | None = None
    size: NDArray[np.int64] | None = None

    def without_ties(self) -> Dataset:
        """Strict labels alone: the tie status of a label is then public."""
        if self.ranking is not None:
            # The sensitivity of a ranking counts all its pairs; some of them would be missing.
            raise ValueError("rankings are read whole: ties of rankings cannot be dropped")
        strict = self.labels != LABEL_TIE
        return Dataset(self.x, self.pair[strict], self.unit[strict], self.labels[strict])


@dataclass(frozen=True)
class Problem:
    """One split. `rows` and `labels` are of the training labelers and include ties; `held_pair`
    and `held_labels` are the strict labels of the others. `fixed` is the public choice that is
    not tuned."""

    x: NDArray[np.float32]
    rows: Rows
    labels: Labels
    held_pair: Ids
    held_labels: Labels
    held_unit: Ids
    fixed: Shape

    def counts(self) -> NDArray[np.int64]:
        """How many training labels each pair has, shape (pairs,)."""
        return np.bincount(self.rows.pair, minlength=len(self.x))


@dataclass(frozen=True)
class Spec:
    """A dataset, and how problems are made of it.

    Labelers with fewer than `min_labels` labels are left out; of the training labelers at most
    `train_labelers`, drawn at random, are used. It is run with all its `features`, and with the
    first of them once more with `tie_status_public`. `seeds` overrides the number of repetitions
    where few labelers make one say little. `sweep` adds every fixed number of components.
    """

    source: str
    features: tuple[str, ...]
    fixed: Shape
    min_labels: int = 0
    train_labelers: int | None = None
    tie_status_public: bool = True
    seeds: int | None = None
    sweep: bool = False


_TEXT = ("length+style+minilm", "length+minilm")
_SYSTEMS = ("systems", "names")


def _few(labelers: int, *, sweep: bool = False) -> Spec:
    """So many training labelers of at least 20 labels each."""
    return Spec(
        "ukpconvarg1",
        _TEXT,
        Shape(),
        min_labels=20,
        train_labelers=labelers,
        tie_status_public=False,
        seeds=FEW_SEEDS,
        sweep=sweep,
    )


SPECS: dict[str, Spec] = {
    "ukpconvarg1": Spec("ukpconvarg1", _TEXT, Shape()),
    "ukpconvarg1-20": Spec("ukpconvarg1", _TEXT, Shape(), min_labels=20),
    "ukp50": _few(50, sweep=True),
    "ukp20": _few(20),
    "ukp200": _few(200),
    "llmfao_crowd": Spec("llmfao_crowd", _TEXT, Shape(components=16, ridge=30), seeds=FEW_SEEDS),
    "wmt15_pairs": Spec("wmt15_pairs", _SYSTEMS, Shape(components=128)),
    "wmt15_rankings": Spec(
        "wmt15_rankings", _SYSTEMS, Shape(components=128), tie_status_public=False
    ),
}


def load(directory: Path, spec: Spec, features: str) -> Dataset:
    """The labels of `spec` with the named features. Raises FileNotFoundError without the file."""
    path = directory / f"{spec.source}.parquet"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; name the directory of the datasets by --data")
    return _LOADERS[spec.source](pl.read_parquet(path), features)


def read(path: Path, features: str) -> Dataset:
    """The labels of any file with labelers, read as `labelguard privatize` reads it."""
    columns = parse_feature_columns(features)
    public = tuple(column.name for column in columns)
    reading = Reading({}, "labeler", columns, public_columns=public)
    with tempfile.TemporaryDirectory(prefix="labelguard-bench-") as directory:
        staged = stage(
            path,
            Path(directory) / "input",
            KeyRing.public(),
            StagingOptions(reading, "", quarantine=True),
            lambda name, rows: None,
        )
        pairs = find_distinct_pairs(staged)
        x = fit_features(features, pairs.table, no_progress)[1]
        tables = [buckets.read_bucket(staged.rows_directory, n) for n in range(buckets.BUCKETS)]
        rows = pa.concat_tables([table for table in tables if table is not None])
        return Dataset(
            x,
            pairs.of_row[buckets.read_column(rows, "row").astype(np.intp)],
            blocks.unique(buckets.read_blocks(rows, "unit"))[1],
            buckets.read_column(rows, "label").astype(np.uint8),
        )


def split(dataset: Dataset, spec: Spec, seed: int) -> Problem:
    """A fifth of the labelers held out, at random; the choice looks at public counts alone."""
    counts = np.bincount(dataset.unit)
    eligible = np.random.default_rng(seed).permutation(
        np.flatnonzero(counts >= max(spec.min_labels, 1))
    )
    border = round(len(eligible) * HELD_OUT)
    held, training = eligible[:border], eligible[border:][: spec.train_labelers]
    code = np.full(len(counts), -1)
    code[training] = np.arange(len(training))
    mine = code[dataset.unit] >= 0
    rows = Rows(
        dataset.pair[mine],
        code[dataset.unit[mine]],
        len(training),
        None if dataset.ranking is None else dataset.ranking[mine],
        None if dataset.size is None else dataset.size[mine],
    )
    theirs = np.isin(dataset.unit, held) & (dataset.labels != LABEL_TIE)
    return Problem(
        dataset.x,
        rows,
        dataset.labels[mine],
        dataset.pair[theirs],
        dataset.labels[theirs],
        dataset.unit[theirs],
        spec.fixed,
    )


def _texts(frame: pl.DataFrame, features: str) -> Dataset:
    """Pairs of texts, encoded by a feature provider."""
    rows = _canonical(frame)
    pairs, pair = _distinct(rows, ["prompt", "first", "second"])
    table: pa.Table = pairs.to_arrow()
    x = fit_features(features, table, no_progress)[1]
    return Dataset(x, pair, _codes(rows, "labeler_id"), _labels(rows))


def _systems(frame: pl.DataFrame, features: str) -> Dataset:
    """Pairs of translation systems, without their texts."""
    rows = _canonical(frame)
    pairs, pair = _distinct(rows, ["lang_pair", "first", "second"])
    x = _indicators(pairs, features)
    x /= np.sqrt(np.square(x, dtype=np.float64).sum(axis=1).mean()).astype(np.float32)
    return Dataset(x, pair, _codes(rows, "labeler_id"), _labels(rows))


def _rankings(frame: pl.DataFrame, features: str) -> Dataset:
    """Rankings with ties, broken into all their pairs.

    A ranking with a missing rank (below 1) is left out: that it is incomplete is public.
    """
    whole = frame.filter(pl.col("ranks").list.min() >= 1).with_row_index("ranking")
    entries = whole.select(
        "ranking", "labeler_id", "lang_pair", "systems", "ranks", size=pl.col("systems").list.len()
    ).explode("systems", "ranks")
    theirs = entries.select("ranking", "systems", "ranks")
    both = entries.join(theirs, on="ranking", suffix="_b")
    better = pl.col("ranks") < pl.col("ranks_b")
    rows = both.filter(pl.col("systems") < pl.col("systems_b")).select(
        "ranking",
        "size",
        "labeler_id",
        "lang_pair",
        first="systems",
        second="systems_b",
        label=pl.when(pl.col("ranks") == pl.col("ranks_b"))
        .then(LABEL_TIE)
        .when(better)
        .then(LABEL_A)
        .otherwise(LABEL_B),
    )
    pairs, pair = _distinct(rows, ["lang_pair", "first", "second"])
    return Dataset(
        _indicators(pairs, features),
        pair,
        _codes(rows, "labeler_id"),
        _labels(rows),
        rows["ranking"].to_numpy().astype(np.intp),
        rows["size"].to_numpy().astype(np.int64),
    )


_LOADERS: dict[str, Callable[[pl.DataFrame, str], Dataset]] = {
    "ukpconvarg1": _texts,
    "llmfao_crowd": _texts,
    "wmt15_pairs": _systems,
    "wmt15_rankings": _rankings,
}


def _canonical(frame: pl.DataFrame) -> pl.DataFrame:
    """Sides in order, the label along with them; identical sides dropped."""
    a, b, label = pl.col("response_a"), pl.col("response_b"), pl.col("label")
    return frame.filter(a != b).with_columns(
        first=pl.min_horizontal(a, b),
        second=pl.max_horizontal(a, b),
        label=pl.when("tie").then(LABEL_TIE).when(a < b).then(label).otherwise(1 - label),
    )


def _distinct(rows: pl.DataFrame, content: list[str]) -> tuple[pl.DataFrame, Ids]:
    """The distinct values of the columns `content`, and which one each row has."""
    pairs = rows.select(content).unique(maintain_order=True).with_row_index("pair")
    index = rows.select(content).join(pairs, on=content, how="left", maintain_order="left")["pair"]
    return pairs.select(content), index.to_numpy().astype(np.intp)


def _indicators(pairs: pl.DataFrame, features: str) -> NDArray[np.float32]:
    """First minus second side: public indicators of translation systems, side by side.

    `systems` has a column for each system of each language pair, `names` one for each system's
    name (the system without the number of its submission) in all language pairs.
    """
    sides = (("first", 1.0), ("second", -1.0))
    entries = pl.concat([_shares(pairs, side, sign) for side, sign in sides])
    keys = {"systems": ["lang_pair", "system"], "names": ["name"]}
    parts = []
    for part in features.split("+"):
        columns, column = _distinct(entries, keys[part])
        x = np.zeros((pairs.height, columns.height), np.float32)
        np.add.at(x, (entries["index"].to_numpy(), column), entries["share"].to_numpy())
        parts.append(x)
    return np.concatenate(parts, axis=1)


def _shares(pairs: pl.DataFrame, side: str, sign: float) -> pl.DataFrame:
    """A side named A+B is one output that both systems gave: half of it is each one's."""
    systems = pl.col(side).str.split("+")
    return (
        pairs.with_row_index("index")
        .select("index", "lang_pair", system=systems, share=sign / systems.list.len())
        .explode("system")
        .with_columns(name=pl.col("system").str.replace(r"\.\d+$", ""))
    )


def _codes(rows: pl.DataFrame, column: str) -> Ids:
    """0, 1, 2, … for the distinct values, in their sorted order."""
    return np.unique(rows[column].to_numpy(), return_inverse=True)[1]


def _labels(rows: pl.DataFrame) -> Labels:
    labels: NDArray[Any] = rows["label"].to_numpy()
    return labels.astype(np.uint8)
