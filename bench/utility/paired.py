"""Two versions on the same splits: the mean difference, and how sure it is.

Splits share their labelers, so that their scatter alone would promise too much: what is said is the
larger of two standard errors, that over splits, and that over held-out labelers, whose labels in
all splits count as one draw.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from utility.mechanisms import PLANNED
from utility.results import Record
from utility.tables import Table

LATER, EARLIER = PLANNED, ("statistic-tuned", PLANNED)
"""What is compared: the statistic as a release makes it, by its names now and earlier."""


@dataclass(frozen=True)
class Paired:
    """The accuracies of two versions on common splits."""

    splits: int
    before: float
    now: float
    over_splits: float
    over_labelers: float

    @property
    def error(self) -> float:
        """The larger standard error of the difference; NaN of one split without labelers."""
        return float(np.nanmax([self.over_splits, self.over_labelers]))

    def __str__(self) -> str:
        return (
            f"{self.before:.3f} → {self.now:.3f} "
            f"({self.now - self.before:+.3f} ± {self.error:.3f})".replace("0.", ".")
        )


def paired(now: Mapping[int, Record], before: Mapping[int, Record]) -> Paired | None:
    """By seed; None without a common split."""
    seeds = sorted(now.keys() & before.keys())
    if not seeds:
        return None
    gap = np.array([now[seed]["accuracy"] - before[seed]["accuracy"] for seed in seeds])
    spread = float(gap.std(ddof=1)) / math.sqrt(len(seeds)) if len(seeds) > 1 else math.nan
    return Paired(
        len(seeds),
        float(np.mean([before[seed]["accuracy"] for seed in seeds])),
        float(np.mean([now[seed]["accuracy"] for seed in seeds])),
        spread,
        _over_labelers([(now[seed], before[seed]) for seed in seeds]),
    )


def _over_labelers(pairs: list[tuple[Record, Record]]) -> float:
    """Of a ratio of sums over labelers: Σ_u (won − mean · labels)² under the root, over labels."""
    won: dict[int, float] = {}
    labels: dict[int, float] = {}
    for now, before in pairs:
        theirs = {unit: right for unit, _, right in before.get("by_labeler", [])}
        for unit, count, right in now.get("by_labeler", []):
            if unit in theirs:
                won[unit] = won.get(unit, 0) + right - theirs[unit]
                labels[unit] = labels.get(unit, 0) + count
    if len(won) < 2:
        return math.nan
    gain, size = np.array([[won[unit], labels[unit]] for unit in won]).T
    residual = gain - gain.sum() / size.sum() * size
    return float(np.sqrt(np.square(residual).sum())) / float(size.sum())


def table(now: list[Record], before: list[Record]) -> Table:
    """A row for each dataset and features of this version, a cell for each ε."""
    epsilons = sorted({record["epsilon"] for record in now if record["epsilon"] is not None})
    rows = [["before → now", *(f"ε = {epsilon:g}" for epsilon in epsilons)]]
    settings = dict.fromkeys((r["dataset"], r["features"], r["ties"]) for r in now)
    for dataset, features, ties in settings:
        cells = []
        for epsilon in epsilons:
            mine = _by_seed(now, (LATER,), dataset, ties, epsilon, features)
            cells.append(str(paired(mine, _by_seed(before, EARLIER, dataset, ties, epsilon)) or ""))
        if any(cells):
            rows.append([f"{dataset}, {features}", *cells])
    return rows


def _by_seed(
    records: list[Record],
    mechanisms: tuple[str, ...],
    dataset: str,
    ties: str,
    epsilon: float,
    features: str | None = None,
) -> dict[int, Record]:
    wanted: Iterator[dict[str, Any]] = (
        record
        for record in records
        if (record["dataset"], record["ties"], record["epsilon"]) == (dataset, ties, epsilon)
        and record["mechanism"] in mechanisms
        and features in (None, record["features"])
    )
    return {record["seed"]: record for record in wanted}
