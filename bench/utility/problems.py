"""Real preference labels as problems: training labelers, held-out labelers, public features.

Each set becomes distinct pairs, whose two sides are in canonical order, and one row for each label.
Rows with identical sides are dropped, as a release drops them. Every other label counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import polars as pl
from numpy.typing import NDArray

from labelguard.learning.columns import parse_feature_columns
from labelguard.learning.features import fit_features
from labelguard.mechanisms.geometry import Shape
from labelguard.mechanisms.statistic import Rows
from labelguard.text import LABEL_A, LABEL_B, LABEL_TIE, no_progress

Floats: TypeAlias = NDArray[np.float64]
Ids: TypeAlias = NDArray[np.intp]
Labels: TypeAlias = NDArray[np.uint8]

HELD_OUT = 0.2
"""The share of labelers whose labels only measure."""
NOT_RELEASED = 255


@dataclass(frozen=True)
class Dataset:
    """Labels, and features of what they compare: x (pairs, d), the other columns (n,).

    `ranking` and `size` are those of `Rows`.
    """

    x: NDArray[np.float32]
    pair: Ids
    unit: Ids
    labels: Labels
    ranking: Ids | None = None
    size: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Problem:
    """One split.

    `rows` and `labels` are of the training labelers and include ties. `held_pair`, `held_labels`
    and `held_unit` are the strict labels of the others. `fixed` is a public shape that nothing
    tunes.
    """

    x: NDArray[np.float32]
    rows: Rows
    labels: Labels
    held_pair: Ids
    held_labels: Labels
    held_unit: Ids
    fixed: Shape

    def counts(self) -> NDArray[np.int64]:
        """Return the number of training labels of each pair, shape (pairs,)."""
        return np.bincount(self.rows.pair, minlength=len(self.x))


@dataclass(frozen=True)
class Outcome:
    """The result of a mechanism.

    `margins` (pairs,) are those of its head. `released` (n,) is the label of each training row,
    0, 1 or `NOT_RELEASED`. `details` go into the record.
    """

    margins: Floats
    released: Labels
    details: dict[str, Any] = field(default_factory=dict)


Mechanism: TypeAlias = Callable[[Problem, float, float, int], Outcome]


def label_by_head(
    problem: Problem, margins: Floats, details: dict[str, Any] | None = None
) -> Outcome:
    """Return the outcome of a head that labels every row."""
    labels = np.where(margins > 0, LABEL_A, LABEL_B).astype(np.uint8)
    return Outcome(margins, labels[problem.rows.pair], details or {})


_FIXED = Shape(components=64)


@dataclass(frozen=True)
class Spec:
    """A set, and how problems are made of it.

    Labelers with fewer than `min_labels` labels are left out. At most `train_labelers`, drawn at
    random, train. `seeds` is the number of splits.
    """

    source: str
    features: str = "length+style+minilm"
    fixed: Shape = _FIXED
    min_labels: int = 0
    train_labelers: int | None = None
    seeds: int = 5


SPECS: dict[str, Spec] = {
    "ukpconvarg1": Spec("ukpconvarg1", seeds=3),
    "ukp20": Spec("ukpconvarg1", min_labels=20, train_labelers=20, seeds=8),
    "ukp50": Spec("ukpconvarg1", min_labels=20, train_labelers=50),
    "ukp200": Spec("ukpconvarg1", min_labels=20, train_labelers=200),
    "llmfao_crowd": Spec("llmfao_crowd", fixed=Shape(components=16, ridge=30)),
    "wmt15_rankings": Spec("wmt15_rankings", "names", Shape(components=128), seeds=3),
    **{f"simulated-{m}": Spec(f"simulated-{m}", "", Shape(16)) for m in (10, 100, 500)},
}


def load(place: Path, spec: Spec, features: str) -> Dataset:
    """Return the labels of a set with these features.

    `place` is the directory of the sets, or a Parquet file with the columns of `ukpconvarg1`.
    Raises FileNotFoundError without the file.
    """
    name, _, labels = spec.source.partition("-")
    if name == "simulated":
        return _simulate(int(labels))
    path = place if place.is_file() else place / f"{spec.source}.parquet"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; name the directory of the sets by --data")
    frame = pl.read_parquet(path)
    return _read_rankings(frame) if "ranks" in frame.columns else _read_texts(frame, features)


def split(dataset: Dataset, spec: Spec, seed: int) -> Problem:
    """Hold out a fifth of the labelers at random; the choice reads public counts alone."""
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


def _read_texts(frame: pl.DataFrame, features: str) -> Dataset:
    """Return pairs of texts; a column of numbers that a feature names is about `response_a`."""
    a, b, label = pl.col("response_a"), pl.col("response_b"), pl.col("label")
    numbers = [column.name for column in parse_feature_columns(features)]
    rows = frame.filter(a != b).with_columns(
        first=pl.min_horizontal(a, b),
        second=pl.max_horizontal(a, b),
        label=pl.when("tie").then(LABEL_TIE).when(a < b).then(label).otherwise(1 - label),
        **{f"feature_{n}": pl.when(a < b).then(pl.col(n)).otherwise(-pl.col(n)) for n in numbers},
    )
    content = ["prompt", "first", "second", *(f"feature_{name}" for name in numbers)]
    pairs, pair = _distinct(rows, content)
    x = fit_features(features, pairs.to_arrow(), no_progress)[1]
    return Dataset(x, pair, _codes(rows), rows["label"].to_numpy().astype(np.uint8))


def _read_rankings(frame: pl.DataFrame) -> Dataset:
    """Return rankings of translation systems, ties included, broken into all their pairs.

    A ranking with a missing rank (below 1) is left out: that it is incomplete is public.
    """
    whole = frame.filter(pl.col("ranks").list.min() >= 1).with_row_index("ranking")
    entries = whole.select(
        "ranking", "labeler_id", "lang_pair", "systems", "ranks", size=pl.col("systems").list.len()
    ).explode("systems", "ranks")
    both = entries.join(entries.select("ranking", "systems", "ranks"), on="ranking", suffix="_b")
    rows = both.filter(pl.col("systems") < pl.col("systems_b")).select(
        "ranking",
        "size",
        "labeler_id",
        "lang_pair",
        first="systems",
        second="systems_b",
        label=pl.when(pl.col("ranks") == pl.col("ranks_b"))
        .then(LABEL_TIE)
        .when(pl.col("ranks") < pl.col("ranks_b"))
        .then(LABEL_A)
        .otherwise(LABEL_B),
    )
    pairs, pair = _distinct(rows, ["lang_pair", "first", "second"])
    return Dataset(
        _indicate_names(pairs),
        pair,
        _codes(rows),
        rows["label"].to_numpy().astype(np.uint8),
        rows["ranking"].to_numpy().astype(np.intp),
        rows["size"].to_numpy().astype(np.int64),
    )


def _indicate_names(pairs: pl.DataFrame) -> NDArray[np.float32]:
    """Return a column for each system's name, +1 for the first side and −1 for the second.

    A name is the system without the number of its submission. A side called A+B is one output that
    both systems gave: half of it is each one's.
    """
    sides = []
    for side, sign in (("first", 1.0), ("second", -1.0)):
        systems = pl.col(side).str.split("+")
        share = pairs.with_row_index("index").select(
            "index", name=systems, share=sign / systems.list.len()
        )
        sides.append(share.explode("name"))
    entries = pl.concat(sides).with_columns(pl.col("name").str.replace(r"\.\d+$", ""))
    names, column = _distinct(entries, ["name"])
    x = np.zeros((pairs.height, names.height), np.float32)
    np.add.at(x, (entries["index"].to_numpy(), column), entries["share"].to_numpy())
    return x


def _distinct(rows: pl.DataFrame, content: list[str]) -> tuple[pl.DataFrame, Ids]:
    """Return the distinct values of the columns `content`, and the index of each row's."""
    pairs = rows.select(content).unique(maintain_order=True).with_row_index("pair")
    index = rows.select(content).join(pairs, on=content, how="left", maintain_order="left")["pair"]
    return pairs.select(content), index.to_numpy().astype(np.intp)


def _codes(rows: pl.DataFrame) -> Ids:
    return np.unique(rows["labeler_id"].to_numpy(), return_inverse=True)[1]


def _simulate(labels: int, labelers: int = 250, pairs: int = 4000, axes: int = 16) -> Dataset:
    """Return labels of one shared taste by the model of Bradley and Terry, so many of each."""
    rng = np.random.default_rng(labels)
    x = rng.standard_normal((pairs, axes)).astype(np.float32) / math.sqrt(axes)
    theta = rng.standard_normal(axes)
    utility = 1.5 * math.sqrt(axes) * (x @ (theta / np.linalg.norm(theta)))
    unit = np.repeat(np.arange(labelers), labels)
    pair = rng.integers(pairs, size=len(unit))
    given = rng.random(len(unit)) < 1 / (1 + np.exp(-utility[pair]))
    return Dataset(x, pair, unit, np.where(given, LABEL_A, LABEL_B).astype(np.uint8))
