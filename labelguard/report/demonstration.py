"""A demonstration of what privacy costs, on simulated labelers whose true labels are known.

Three real releases of the same labels, each in a project of its own, and a head without privacy.
It looks at raw labels to say how good releases are: that is only possible because they are made up.
On people's labels every such number would be one more release; `labelguard plan` needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from labelguard.budget.policy import choose_usual_delta
from labelguard.errors import ProjectError
from labelguard.learning import heads
from labelguard.learning.features import fit_features
from labelguard.learning.learners import HeadLearner
from labelguard.mechanisms.statistic import Rows
from labelguard.planner import tuning
from labelguard.planner.advice import NAMES
from labelguard.project.opening import init
from labelguard.release.head import Head
from labelguard.release.privatize import privatize
from labelguard.release.sections import Chart, Mark, Series
from labelguard.release.writer import load
from labelguard.report import charts
from labelguard.simulation import simulate
from labelguard.text import Progress, no_progress

__all__ = ["Demonstration", "Outcome", "demonstrate", "describe_outcome", "draw_outcomes"]

EPSILON = 3.0
# Computed alike wherever labelguard is installed, without an encoder.
FEATURES = "text+length"

_SIMULATED = {"labelers": 250, "labels": 12_000, "items": 48_000}
_FRESH = 5  # every so many labelers, one gives no label to any release
_FEW_DRAWS = 6
_LEARNER = HeadLearner(ridge=3.0)

Features: TypeAlias = NDArray[np.float32]
Scorer: TypeAlias = Callable[[Features], NDArray[np.float64]]

_PRIVATIZE = f"labelguard privatize FILE --epsilon {EPSILON:g} --once"
_CONTENT = ("prompt", "response_a", "response_b")


@dataclass(frozen=True)
class Outcome:
    """The result of one mechanism."""

    # rr, statistic or non-private
    mechanism: str
    # the bound of randomized response; null: all labels
    max_labels_per_labeler: int | None
    # labels released
    released: int
    # share of released labels that differ from what the labeler said, ties aside; without privacy
    # of those that its head gives
    label_error: float
    # share of fresh labelers' strict labels that a head trained on the release gets right
    accuracy: float
    # the release; null without privacy
    path: str | None


@dataclass(frozen=True)
class Demonstration:
    """Releases of simulated labels, measured against the truth."""

    # where they are
    directory: str
    # ε of each labeler, in each of the projects
    epsilon: float
    # δ of each labeler
    delta: float
    # what heads learn from
    features: str
    # labelers whose labels are released
    labelers: int
    # their labels
    labels: int
    # strict labels of other labelers, by whom heads are judged
    fresh_labels: int
    # without privacy, then each mechanism
    outcomes: tuple[Outcome, ...]
    # a picture of them
    picture: str
    # commands to try on one's own FILE
    next: tuple[str, ...]


def demonstrate(directory: Path, *, progress: Progress = no_progress) -> Demonstration:
    """Simulate labelers in `directory`, release their labels in three ways, and measure these.

    The labels are the same each time, the noise is not: real releases have no seed, so the last
    digits differ from run to run. Raises `ProjectError` if the directory holds anything.
    """
    if directory.exists() and any(directory.iterdir()):
        raise ProjectError(f"{directory} is not empty; remove it or name another directory")
    directory.mkdir(parents=True, exist_ok=True)
    progress("simulating labelers", None)
    labels, fresh = _simulate_and_split_labelers()
    file = directory / "labels.parquet"
    pq.write_table(labels.to_arrow(), file, compression="zstd")
    demo = _Trials.from_labels(file, labels, fresh, progress)
    outcomes = [demo.train_without_privacy()]
    for place, options in demo.choose_release_options().items():
        progress(f"releasing: {place}", None)
        outcomes.append(demo.release_and_measure(directory / place, options))
    chart = directory / "demo.png"
    chart.write_bytes(draw_outcomes(outcomes))
    return Demonstration(
        str(directory),
        EPSILON,
        demo.delta,
        FEATURES,
        labels["labeler_id"].n_unique(),
        len(labels),
        len(demo.fresh_label),
        tuple(outcomes),
        str(chart),
        ("labelguard inspect FILE", "labelguard plan FILE", "labelguard init", _PRIVATIZE),
    )


def _simulate_and_split_labelers() -> tuple[pl.DataFrame, pl.DataFrame]:
    """Labels to release and those of fresh labelers; every pair is labeled once.

    So a released label can be compared with the one it was made of, by its content.
    """
    table = cast(pl.DataFrame, pl.from_arrow(simulate(**_SIMULATED)))
    table = table.unique(subset=_CONTENT, keep="first", maintain_order=True)
    fresh = pl.col("labeler_id").is_in(table["labeler_id"].unique().sort()[::_FRESH].to_list())
    return table.filter(~fresh), table.filter(fresh)


@dataclass(frozen=True, eq=False)
class _Trials:
    """The labels in `file`, with the features of their pairs, and labels that judge heads.

    `labels` has one row a label, x (labels, d) are its features; fresh labels are strict.
    """

    file: Path
    labels: pl.DataFrame
    x: Features
    fresh: Features
    fresh_label: NDArray[np.float64]
    delta: float
    progress: Progress

    @classmethod
    def from_labels(
        cls, file: Path, labels: pl.DataFrame, fresh: pl.DataFrame, progress: Progress
    ) -> _Trials:
        """Fit the features, on public pairs, and compute them once."""
        pairs = _select_pair_texts(labels)
        features, x = fit_features(FEATURES, pairs, progress)
        strict = fresh.filter(pl.col("label").is_not_null())
        return cls(
            file,
            labels.with_row_index("row"),
            x,
            features(_select_pair_texts(strict)),
            strict["label"].to_numpy(),
            choose_usual_delta(labels["labeler_id"].n_unique()),
            progress,
        )

    def choose_release_options(self) -> Mapping[str, dict[str, Any]]:
        """Options of each release, by the name of its directory; all of them public choices."""
        unit = self.labels["labeler_id"].rank("dense").to_numpy().astype(np.intp) - 1
        rows = Rows(np.arange(len(unit)), unit, int(unit.max()) + 1)
        few: dict[str, Any] = {"draws": _FEW_DRAWS, "growth": False, "progress": self.progress}
        forecasts = tuning.forecast(self.x, rows, [EPSILON], self.delta, **few)
        bounded = [one for one in forecasts if one.mechanism == "rr" and one.max_labels_per_labeler]
        bound = max(bounded, key=lambda one: one.accuracy.mean).max_labels_per_labeler
        return {
            "rr": {"mechanism": "rr"},
            "rr-bounded": {"mechanism": "rr", "max_labels_per_labeler": bound},
            "statistic": {"mechanism": "statistic", "features": FEATURES},
        }

    def train_without_privacy(self) -> Outcome:
        """Return a head of the raw labels."""
        strict = self.labels.filter(pl.col("label").is_not_null())
        label = strict["label"].to_numpy()
        x = self.x[strict["row"].to_numpy()]
        head = _LEARNER.fit(x, label, 0 * label, None)
        error = 1 - heads.accuracy(head(x), label)  # people differ: no head agrees with all
        return Outcome(
            "non-private", None, len(self.labels), error, self._measure_accuracy(head), None
        )

    def release_and_measure(self, project: Path, options: dict[str, Any]) -> Outcome:
        """Return one release in a project of its own."""
        budget: dict[str, Any] = {"epsilon": EPSILON, "delta": self.delta, **options}
        release = privatize(self.file, project=init(project), progress=self.progress, **budget)
        rows = self._join_original_labels(frame := load(release))
        if release.card["train_with"] == "forward":
            flips = rows["flip_probability"].to_numpy()
            first = rows["first"].to_numpy().astype(np.float64)
            head: Scorer = _LEARNER.fit(self.x[rows["row"].to_numpy()], first, flips, None)
        else:
            head = Head.load(release.path).predict_log_odds
        strict = rows.filter(pl.col("label").is_not_null())
        return Outcome(
            options["mechanism"],
            options.get("max_labels_per_labeler"),
            len(frame),
            float((strict["first"] != (strict["label"] > 0.5)).mean()),  # type: ignore[arg-type]
            self._measure_accuracy(head),
            str(release.path),
        )

    def _join_original_labels(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Released rows with the row they were made of, and whether response_a was `first`."""
        parts = [
            frame.join(
                self.labels.select("row", "prompt", "label", chosen=chosen, rejected=rejected),
                on=["prompt", "chosen", "rejected"],
            ).with_columns(first=pl.lit(chosen == "response_a"))
            for chosen, rejected in (("response_a", "response_b"), ("response_b", "response_a"))
        ]
        return pl.concat(parts).sort("row")

    def _measure_accuracy(self, head: Scorer) -> float:
        """Share of fresh strict labels that the sign of a head's margins gets right."""
        return heads.accuracy(head(self.fresh), self.fresh_label)


def _select_pair_texts(labels: pl.DataFrame) -> pa.Table:
    """Pairs as features read them."""
    return labels.select("prompt", first="response_a", second="response_b").to_arrow()


def describe_outcome(outcome: Outcome) -> str:
    """Return a mechanism for people: randomized response, ≤ 2 a labeler."""
    bound = outcome.max_labels_per_labeler
    which = "all labels" if bound is None else f"≤ {bound} a labeler"
    return NAMES[outcome.mechanism] + (f", {which}" if outcome.mechanism == "rr" else "")


def draw_outcomes(outcomes: Sequence[Outcome]) -> bytes:
    """Return two bars a mechanism as PNG; the same outcomes give the same bytes."""
    errors, accuracies = zip(*((one.label_error, one.accuracy) for one in outcomes), strict=True)
    wrong = "released labels that differ"
    right = "fresh labels that a model gets right"
    series = (Series(wrong, errors), Series(right, accuracies))
    names = tuple(map(describe_outcome, outcomes))
    marks = (Mark("y", 0.5, "a coin"),)
    return charts.draw_svg_or_png(
        Chart("", "", "bars", names, "", "", series, marks, percent=True), "png"
    )
