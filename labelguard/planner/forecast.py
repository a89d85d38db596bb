"""What a release may be expected to give, before a label is looked at or a budget is spent."""

from __future__ import annotations

import bisect
import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from labelguard.errors import PolicyError
from labelguard.ingest.pairs import read_pairs
from labelguard.ingest.sources import Input, typed
from labelguard.learning.features import default_features, open_fitted
from labelguard.mechanisms.statistic import Rows
from labelguard.notebook import Picture, card, several
from labelguard.planner import advice, components, source_advice, tuning
from labelguard.planner.advice import NOUNS, Recommendation, Worth
from labelguard.planner.charts import accuracy_png
from labelguard.planner.page import headline, summary
from labelguard.planner.planned import PlanCounts, Planned
from labelguard.planner.tuning import Forecast, Prior, Sizing
from labelguard.policy.events import ITEM_BOUND
from labelguard.policy.policy import MOST_DELTA, USUAL_EPSILON, usual_delta
from labelguard.policy.public_columns import options_of, parse
from labelguard.spelling import corrected
from labelguard.terms import AUTO_FORMAT, DEFAULT_AGREEMENT, Progress, counted, silent

__all__ = ["PlanResult", "plan"]

V = TypeVar("V", int, float)

_EPSILONS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 16.0, 32.0)
"""Among which the least is sought at which a release beats a coin."""
_FEW_DRAWS = 6


@dataclass(frozen=True)
class _Asked:
    """What to plan for, see `plan`; `epsilons` are put in order."""

    epsilons: tuple[float, ...]
    delta: float | None
    features: str
    agreement: float
    unit: str
    columns: Mapping[str, str] | None
    question: str | None
    format: str
    split: str | None
    public_columns: tuple[str, ...]
    max_labels_per_labeler: int | None
    bad_rows: str
    max_input_bytes: int | None
    periods: int

    def __post_init__(self) -> None:
        tuning.check_budgets(self.epsilons, MOST_DELTA if self.delta is None else self.delta)
        if self.unit not in ("labeler", "item"):
            raise PolicyError(f"unit must be labeler or item, found {self.unit!r}")
        if self.bad_rows not in ("stop", "quarantine"):
            raise PolicyError(f"bad_rows must be stop or quarantine, found {self.bad_rows!r}")
        bound = self.max_labels_per_labeler
        if bound is not None and bound < 1:
            raise PolicyError(f"--max-labels-per-labeler must be at least 1, found {bound}")
        if self.periods < 1:
            raise PolicyError(f"periods must be at least 1, found {self.periods}")
        if self.periods > 1 and self.unit == "item":
            raise PolicyError(
                "a content is labeled in one period, so nothing recurs for it: leave the periods "
                "out, or plan for labelers"
            )
        Prior(self.agreement)

    @property
    def bounds(self) -> tuple[int | None, ...] | None:
        """The bounds that randomized response may choose from; None: the usual ones."""
        bound = self.max_labels_per_labeler
        if bound is None and self.unit == "item":
            bound = ITEM_BOUND
        return None if bound is None else (bound,)


class PlanResult(Planned):
    """Forecasts of every mechanism and ε, and what follows from them."""

    def __repr__(self) -> str:
        counts, units = self.counts, NOUNS[self.unit]
        best = (f"ε = {one.epsilon:g}: {one.mechanism or 'nothing'}" for one in self.recommended)
        held = f"{counts.labelers:,} {units}, {counts.labels:,} labels of {counts.pairs:,} pairs"
        return f"PlanResult({held}; δ = {self.delta:g}; {', '.join(best)})"

    def _repr_html_(self) -> str:
        words = [one.words for one in self.recommended]
        commands = [one.command for one in self.recommended if one.command]
        facts = [("planned for", headline(self)), ("recommended", " ".join(summary(self)))]
        facts += several("expect", words)
        facts += [*several("notes", self.notes), *several("next", commands)]
        title = "What a private release may be expected to give"
        seen = "Accuracy against ε. " + "; ".join(words)
        return card(title, facts, picture=Picture(accuracy_png(self), seen))


@corrected
def plan(
    source: Input,
    epsilons: float | Iterable[float] = (0.5, 1.0, 3.0, 8.0),
    delta: float | None = None,
    features: str | None = None,
    *,
    agreement: float = DEFAULT_AGREEMENT,
    unit: Literal["labeler", "item"] = "labeler",
    columns: Mapping[str, str] | None = None,
    question: str | None = None,
    format: str = AUTO_FORMAT,  # noqa: A002 - called as the option is
    split: str | None = None,
    public_columns: Sequence[str] | None = None,
    max_labels_per_labeler: int | None = None,
    bad_rows: Literal["stop", "quarantine"] = "stop",
    max_input_bytes: int | None = None,
    periods: int = 1,
    progress: Progress = silent,
) -> PlanResult:
    """Forecast every mechanism on the pairs and labelers of `source`, without reading labels.

    `source`, `columns`, `question`, `format`, `split`, `public_columns` and `max_input_bytes` are
    those of `privatize`; columns of labels may be missing, and may be named: they are not read.
    `epsilons` is one or several. `delta` is, by default, the usual one for so many labelers
    (`policy.usual_delta`), `features` the best that this installation can compute. `agreement` is
    how often two labelers are taken to agree on a strict label, in [0.55, 0.9]. The budget is for
    `periods` releases, which each bring as many new labels of each labeler as the input holds.
    `max_labels_per_labeler` fixes the bound of randomized response, which is chosen otherwise.
    `bad_rows` is stop, or quarantine: what `privatize` would set aside is left out.

    Costs no privacy and needs no project. Raises `InvalidLabels` for an input that cannot be read,
    `PolicyError` for values out of range.

    Example:
        >>> lg.plan("labels.parquet", epsilons=[8], features="length")
        PlanResult(30 labelers, 900 labels of 200 pairs; δ = 1e-05; ε = 8: statistic)
    """
    several = epsilons if isinstance(epsilons, Iterable) else (epsilons,)
    options = _Asked(
        tuple(sorted({float(epsilon) for epsilon in several})),
        *(delta, features or default_features(), agreement, unit, columns, question, format, split),
        *(parse(public_columns), max_labels_per_labeler, bad_rows, max_input_bytes, periods),
    )
    return _planned(source, options, progress)


def _planned(source: Input, options: _Asked, progress: Progress) -> PlanResult:
    features = options.features
    pairs = read_pairs(
        source,
        columns=options.columns,
        question=options.question,
        format=options.format,
        split=options.split,
        public_columns=options.public_columns,
        features=features,
        unit=options.unit,
        skip_bad=options.bad_rows == "quarantine",
        max_input_bytes=options.max_input_bytes,
        progress=progress,
    )
    provider = open_fitted(features, pairs.table, progress)
    x = provider(pairs.table)
    rows = pairs.rows
    units = len(np.unique(rows.unit))
    delta = usual_delta(units) if options.delta is None else options.delta
    options = replace(options, delta=delta)
    setting = _Setting(x, rows, units, options)
    forecasts = setting.forecast(options.epsilons, growth=True, progress=progress)
    best = {epsilon: tuning.best(forecasts, epsilon) for epsilon in options.epsilons}
    # A first release makes no policy of several runs of training.
    choose = tuning.worth_training if options.periods == 1 else tuning.best
    serving = {epsilon: choose(forecasts, epsilon) for epsilon in options.epsilons}
    recommended = tuple(
        advice.advised(
            Sizing.of(serving[epsilon], options.periods),
            *(found.mechanism, forecasts[0], units, options.unit),
            lambda sizing: _command(source, options, sizing),
        )
        for epsilon, found in best.items()
    )
    noises = {e: components.cheapest(e, delta, options.periods) for e in options.epsilons}
    left_out = [f"{counted(pairs.skipped, 'bad row')} left out"] if pairs.skipped else []
    epsilon = advice.enough(recommended, serving)
    worth = setting.worth(recommended, progress)
    return PlanResult(
        "replace_labels",
        delta,
        features,
        options.agreement,
        options.unit,
        options.periods,
        PlanCounts(labelers=units, labels=len(rows), pairs=len(x)),
        forecasts=forecasts,
        recommended=recommended,
        epsilon=epsilon,
        worth=worth,
        notes=(
            *left_out,
            *source_advice.notes(x, rows, provider.groups(), noises),
            *advice.helping(recommended, best, units, options.unit),
        ),
    )


@dataclass(frozen=True, eq=False)
class _Setting:
    """Public: features of pairs, who labels them, how many units there are, what was asked."""

    x: NDArray[np.float32]
    rows: Rows
    units: int
    options: _Asked

    def forecast(
        self,
        epsilons: Sequence[float],
        *,
        growth: bool,
        draws: int = tuning.DRAWS,
        rows: Rows | None = None,
        progress: Progress = silent,
    ) -> tuple[Forecast, ...]:
        """Forecasts at these ε, of other `rows` if there are any, all else as asked."""
        asked = self.options
        return tuning.forecast(
            *(self.x, rows or self.rows, epsilons, asked.delta or 0.0, Prior(asked.agreement)),
            draws=draws,
            bounds=asked.bounds,
            periods=asked.periods,
            growth=growth,
            progress=progress,
        )

    def worth(self, recommended: Sequence[Recommendation], progress: Progress) -> Worth:
        """Find from which ε on a release beats a coin; else from how many labelers on."""
        good = [one.epsilon for one in recommended if one.mechanism]
        poor = [one.epsilon for one in recommended if not one.mechanism]
        least = min(good, default=None)
        if self.units >= advice.FEWEST:
            above = max((e for e in poor if least is None or e < least), default=0.0)
            below = math.inf if least is None else least
            between = [epsilon for epsilon in _EPSILONS if above < epsilon < below]
            found = self._first(between, lambda e: self._beats(e, 1, progress)) or least
            if found is not None:
                return advice.worth(found, None, self.options.unit)
        epsilon = min(self.options.epsilons, key=lambda e: abs(e - USUAL_EPSILON))
        few = -(-advice.FEWEST // self.units)
        more = sorted({1, *(few * times for times in advice.TIMES)})
        times = self._first(more, lambda times: self._beats(epsilon, times, progress))
        if times is None:
            return advice.worth(None, None, self.options.unit)
        return advice.worth(epsilon, max(advice.FEWEST, times * self.units), self.options.unit)

    def _beats(self, epsilon: float, times: int, progress: Progress) -> bool:
        """Return whether a release of so many times the labelers beats a coin, in few worlds."""
        rows = tuning.repeat_labelers(self.rows, times) if times > 1 else None
        found = self.forecast(
            [epsilon], growth=False, draws=_FEW_DRAWS, rows=rows, progress=progress
        )
        units = max(times * self.units, advice.FEWEST)
        return advice.worth_it(tuning.best(found, epsilon), units)

    @staticmethod
    def _first(values: Sequence[V], holds: Callable[[V], bool]) -> V | None:
        """Return the first that holds, of values of which those behind it hold too."""
        at = bisect.bisect_left(values, True, key=holds)
        return values[at] if at < len(values) else None


def _command(source: Input, options: _Asked, sizing: Sizing) -> str:
    """The command that releases labels as forecast; the release tunes what is left out alike."""
    words = ["labelguard", "privatize", *typed(source), "--mechanism", sizing.mechanism]
    words += ["--epsilon", f"{sizing.forecast.epsilon:g}", "--delta", f"{options.delta:g}"]
    if sizing.mechanism != "rr":
        words += ["--features", options.features]
        if options.agreement != DEFAULT_AGREEMENT:
            words += ["--agreement", f"{options.agreement:g}"]
    if sizing.max_labels_per_labeler is not None:
        words += ["--max-labels-per-labeler", str(sizing.max_labels_per_labeler)]
    if options.unit == "item":
        words += ["--unit", "item"]
    else:
        words += ["--uses", f"{options.periods}"] if options.periods > 1 else ["--once"]
    if options.columns:
        words += ["--columns", ",".join(f"{role}={name}" for role, name in options.columns.items())]
    if options.format != AUTO_FORMAT:
        words += ["--format", options.format]
    words += options_of(options.public_columns)
    if options.question is not None:
        words += ["--question", options.question]
    if options.split is not None:
        words += ["--split", options.split]
    if options.bad_rows != "stop":
        words += ["--bad-rows", options.bad_rows]
    if options.max_input_bytes is not None:
        words += ["--max-input-bytes", str(options.max_input_bytes)]
    return shlex.join([*words, "-o", "release"])
