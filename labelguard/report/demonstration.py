"""A demonstration of what privacy costs, on simulated labelers whose true labels are known.

Two real releases of the same labels, each in a project of its own, beside a head without privacy.
It looks at raw labels to say how good releases are: that is only possible because they are made up.
On people's labels every such number would be one more release; `labelguard plan` needs none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from labelguard.errors import ProjectError
from labelguard.learning.features import fit_features
from labelguard.learning.learners import HeadLearner
from labelguard.project.opening import init
from labelguard.release.privatize import privatize
from labelguard.release.writer import load
from labelguard.simulation import simulate
from labelguard.text import Progress, no_progress

EPSILON, DELTA = 3.0, 1e-5
_ONCE: dict[str, Any] = {"once": True, "accept_little_use": True}
_SIMULATED = {"labelers": 250, "labels": 9_000, "items": 36_000}
_MECHANISMS: dict[str, dict[str, Any]] = {"rr": {}, "statistic": {"features": "length+style"}}
_ROWS = 3


@dataclass(frozen=True)
class Outcome:
    """The result of one mechanism."""

    # non-private, rr or statistic
    mechanism: str
    # share of the released labels that differ from what the labeler said, ties aside
    wrong: float
    # share of the labels of other labelers that a head trained on the release gets right
    accuracy: float


@dataclass(frozen=True)
class Demonstration:
    """Releases of simulated labels, measured against the truth."""

    # the directory of labels.parquet and of a project for each mechanism
    directory: str
    # labelers whose labels are released
    labelers: int
    # their labels
    labels: int
    # without privacy, then each mechanism
    outcomes: tuple[Outcome, ...]
    # the first rows of the last release
    rows: tuple[dict[str, Any], ...]


def demonstrate(directory: Path, *, progress: Progress = no_progress) -> Demonstration:
    """Simulate labelers in `directory`, release their labels in two ways, and measure these.

    The labels are the same each time, the noise is not: real releases have no seed, so the last
    digits differ from run to run. Raises `ProjectError` if the directory holds anything.
    """
    if directory.exists() and any(directory.iterdir()):
        raise ProjectError(f"{directory} is not empty; remove it or name another directory")
    directory.mkdir(parents=True, exist_ok=True)
    progress("simulating labelers", None)
    # Every pair is labeled once, so that a released label can be compared with the one it was.
    table = pl.DataFrame(simulate(**_SIMULATED))
    table = table.unique(["prompt", "response_a", "response_b"], keep="first", maintain_order=True)
    every_fifth = pl.col("labeler_id").rank("dense") % 5 == 0
    labels, fresh = table.filter(~every_fifth), table.filter(every_fifth)
    labels.write_parquet(directory / "labels.parquet")
    strict, others = _orient_strict(labels), _orient_strict(fresh)
    features, x = fit_features("length+style", strict.to_arrow(), progress)
    x_fresh = features(others.to_arrow())

    def measure(mechanism: str, made: pl.DataFrame, x: Any) -> Outcome:
        flips = made["flip_probability"].fill_null(0).to_numpy()
        right = made["label_probability"].fill_null(1).to_numpy()
        head = HeadLearner(ridge=3.0).fit(x, right, flips, None)
        as_said = made.join(strict, on=strict.columns, how="semi")
        turned = dict(zip(strict.columns, ("prompt", "second", "first"), strict=True))
        reversed_ = made.join(strict.rename(turned), on=strict.columns, how="semi")
        wrong = len(reversed_) / (len(as_said) + len(reversed_))
        return Outcome(mechanism, wrong, float((head(x_fresh) > 0).mean()))

    plain = {"label_probability": pl.lit(1.0), "flip_probability": pl.lit(0.0)}
    outcomes = [measure("non-private", strict.with_columns(**plain), x)]
    for mechanism, options in _MECHANISMS.items():
        progress(f"releasing: {mechanism}", None)
        budget: dict[str, Any] = {"epsilon": EPSILON, "delta": DELTA, "mechanism": mechanism}
        budget["label_values"] = "1-0"
        home = init(directory / mechanism)
        made = privatize(directory / "labels.parquet", project=home, **budget, **_ONCE, **options)
        frame = load(made)
        pairs = frame.rename({"chosen": "first", "rejected": "second"})
        outcomes.append(measure(mechanism, pairs, features(pairs.to_arrow())))
    shown = frame.select("prompt", "chosen", "rejected", "label_probability")
    counts = labels["labeler_id"].n_unique(), len(labels)
    return Demonstration(str(directory), *counts, tuple(outcomes), tuple(shown[:_ROWS].to_dicts()))


def _orient_strict(labels: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs of strict labels, the preferred response first."""
    is_a = pl.col("label") == 1
    return labels.drop_nulls("label").select(
        "prompt",
        first=pl.when(is_a).then("response_a").otherwise("response_b"),
        second=pl.when(is_a).then("response_b").otherwise("response_a"),
    )
