"""What a release may be expected to give, before a label is looked at or a budget is spent."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from labelguard.errors import PolicyError
from labelguard.ingest.pairs import read_pairs
from labelguard.ingest.sources import Input
from labelguard.learning.features import open_fitted
from labelguard.mechanisms.statistic import Rows
from labelguard.planner import tuning
from labelguard.planner.tuning import Forecast, Prior
from labelguard.policy.events import ITEM_BOUND
from labelguard.terms import (
    AUTO_FORMAT,
    DEFAULT_AGREEMENT,
    DEFAULT_FEATURES,
    Progress,
    counted,
    silent,
)

__all__ = ["PlanOptions", "PlanResult", "plan"]

_GOOD_ENOUGH = 0.01
_FURTHER = (16.0, 32.0, 64.0, 128.0)
_FEW_DRAWS = 6


@dataclass(frozen=True)
class PlanOptions:
    """What to plan for; `epsilons` are put in order.

    `columns` maps roles to the names of columns; columns of labels may be named, and are not read.
    `format` is what the input looks like, `split` the one to read of a dataset that has several.
    `max_labels_per_labeler` fixes the bound of randomized response, which is chosen otherwise.
    `bad_rows` is stop, or quarantine: what `privatize` would set aside is left out.
    """

    epsilons: tuple[float, ...] = (0.5, 1.0, 3.0, 8.0)
    delta: float = 1e-5
    features: str = DEFAULT_FEATURES
    agreement: float = DEFAULT_AGREEMENT
    unit: str = "labeler"
    columns: Mapping[str, str] | None = None
    format: str = AUTO_FORMAT
    split: str | None = None
    max_labels_per_labeler: int | None = None
    bad_rows: str = "stop"
    max_input_bytes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilons", tuple(sorted(set(map(float, self.epsilons)))))
        tuning.check_budgets(self.epsilons, self.delta)
        if self.unit not in ("labeler", "item"):
            raise PolicyError(f"unit must be labeler or item, found {self.unit!r}")
        if self.bad_rows not in ("stop", "quarantine"):
            raise PolicyError(f"bad_rows must be stop or quarantine, found {self.bad_rows!r}")
        bound = self.max_labels_per_labeler
        if bound is not None and bound < 1:
            raise PolicyError(f"max-labels-per-labeler must be at least 1, found {bound}")
        Prior(self.agreement)

    @property
    def bounds(self) -> tuple[int | None, ...]:
        """The bounds that randomized response may choose from."""
        bound = self.max_labels_per_labeler
        if bound is None and self.unit == "item":
            bound = ITEM_BOUND
        return tuning.BOUNDS if bound is None else (bound,)


@dataclass(frozen=True)
class PlanCounts:
    """What an input holds."""

    labelers: int
    """units in it"""
    labels: int
    """its labels"""
    pairs: int
    """distinct pairs"""


@dataclass(frozen=True)
class Recommendation:
    """What serves best at one ε."""

    epsilon: float
    """this ε"""
    mechanism: str
    """rr, props or statistic"""


@dataclass(frozen=True)
class PlanResult:
    """Forecasts of every mechanism and ε, and what follows from them."""

    adjacency: str
    """which neighbours a guarantee is about"""
    delta: float
    """δ of each unit"""
    features: str
    """what heads learn from"""
    agreement: float
    """how often two labelers were taken to agree on a strict label"""
    unit: str
    """what is protected as a whole"""
    counts: PlanCounts
    """what the input holds"""
    forecasts: tuple[Forecast, ...]
    """first a head without privacy, then every mechanism at every ε"""
    recommended: tuple[Recommendation, ...]
    """the best mechanism at every ε, from the least on"""
    epsilon: float
    """the least ε at which it comes within .01 of a head without privacy, else the largest"""
    command: str
    """what releases labels that way"""
    notes: tuple[str, ...]
    """what to know about the input"""


def plan(
    source: Input,
    options: PlanOptions | None = None,
    *,
    progress: Progress = silent,
) -> PlanResult:
    """Forecast every mechanism on the pairs and labelers of `source`, without reading labels.

    `source` is a path, a glob, a list of paths, or a table; columns of labels may be missing. It
    costs no privacy and needs no project. Raises `InvalidLabels` for inputs that cannot be read.
    """
    options = options or PlanOptions()
    pairs = read_pairs(
        source,
        columns=options.columns,
        format=options.format,
        split=options.split,
        features=options.features,
        unit=options.unit,
        skip_bad=options.bad_rows == "quarantine",
        max_input_bytes=options.max_input_bytes,
        progress=progress,
    )
    x = open_fitted(options.features, pairs.table, progress)(pairs.table)
    rows, prior = pairs.rows, Prior(options.agreement)
    forecasts = tuning.forecast(
        x, rows, options.epsilons, options.delta, prior, bounds=options.bounds, progress=progress
    )
    best = {epsilon: tuning.best(forecasts, epsilon) for epsilon in options.epsilons}
    chosen = _serving(forecasts, best)
    left_out = [f"{counted(pairs.skipped, 'bad row')} left out"] if pairs.skipped else []
    return PlanResult(
        "replace_labels",
        options.delta,
        options.features,
        options.agreement,
        options.unit,
        PlanCounts(labelers=len(np.unique(rows.unit)), labels=len(rows), pairs=len(x)),
        forecasts=forecasts,
        recommended=tuple(Recommendation(e, found.mechanism) for e, found in best.items()),
        epsilon=chosen.epsilon or 0.0,
        command=_command(source, options, chosen),
        notes=(*left_out, *_notes(x, rows, options, prior, forecasts, best)),
    )


def _serving(forecasts: Sequence[Forecast], best: Mapping[float, Forecast]) -> Forecast:
    """The best mechanism at the least ε that is as good as no privacy, else at the largest."""
    wanted = forecasts[0].accuracy.mean - _GOOD_ENOUGH
    enough = [epsilon for epsilon, found in best.items() if found.accuracy.mean >= wanted]
    return best[min(enough) if enough else max(best)]


def _half_way(plain: Forecast) -> float:
    return (0.5 + plain.accuracy.mean) / 2


def _notes(
    x: NDArray[np.float32],
    rows: Rows,
    options: PlanOptions,
    prior: Prior,
    forecasts: Sequence[Forecast],
    best: Mapping[float, Forecast],
) -> tuple[str, ...]:
    """Whether there are too few labelers for what was asked, and which ε would serve."""
    plain, last = forecasts[0], max(best)
    if best[last].accuracy.mean >= _half_way(plain):
        return ()
    said = (
        f"too few labelers or labels for ε ≤ {last:g}: no mechanism learns half of what a head "
        "without privacy would"
    )
    further = [epsilon for epsilon in _FURTHER if epsilon > last]
    if further:
        later = tuning.forecast(
            x, rows, further, options.delta, prior, draws=_FEW_DRAWS, growth=False
        )
        for epsilon in further:
            found = tuning.best(later, epsilon)
            if found.accuracy.mean >= _half_way(later[0]):
                return (f"{said}; ε = {epsilon:g} would serve ({found.mechanism})",)
    return (f"{said}; no ε would serve: ask more labelers, or choose other features",)


def _command(source: Input, options: PlanOptions, chosen: Forecast) -> str:
    """The command that releases labels as recommended."""
    inputs = [source] if isinstance(source, str) else source
    if not isinstance(inputs, list | tuple):
        inputs = ["INPUT"]
    words = ["labelguard", "privatize", *map(str, inputs)]
    words += ["--mechanism", chosen.mechanism]
    words += ["--epsilon", f"{chosen.epsilon:g}", "--delta", f"{options.delta:g}"]
    if chosen.mechanism != "rr":
        words += ["--features", options.features]
    if chosen.shape is not None:
        for name, value in asdict(chosen.shape).items():
            words += ["--" + name.replace("_", "-"), f"{value:g}"]
    if chosen.max_labels_per_labeler is not None:
        words += ["--max-labels-per-labeler", str(chosen.max_labels_per_labeler)]
    if options.unit == "item":
        words += ["--unit", "item"]
    if options.columns:
        words += ["--columns", ",".join(f"{role}={name}" for role, name in options.columns.items())]
    if options.format != AUTO_FORMAT:
        words += ["--format", options.format]
    if options.split is not None:
        words += ["--split", options.split]
    return shlex.join([*words, "-o", "release"])
