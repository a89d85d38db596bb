"""Forecasts of a release, before a label is looked at or a budget is spent."""

from __future__ import annotations

import bisect
import contextlib
import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Literal, TypeVar

import numpy as np

from labelguard.budget.label_values import Turns
from labelguard.budget.policy import MOST_DELTA, USUAL_EPSILON, choose_usual_delta
from labelguard.errors import PolicyError
from labelguard.inputs.columns import merge_reading_options
from labelguard.inputs.pairs import read_public_pairs
from labelguard.inputs.sources import Input, format_command_arguments
from labelguard.inputs.understood import format_reading_options
from labelguard.learning.features import (
    PairFeatures,
    fit_features,
    fit_usable_features,
    left_out_note,
)
from labelguard.learning.providers import default_features
from labelguard.mechanisms.statistic import Rows
from labelguard.options import ReadingOptions
from labelguard.planner import advice, tuning
from labelguard.planner.advice import PlanCounts, PlanResult, Recommendation, Worth
from labelguard.planner.outcomes import Forecast, find_best_excluding_uls, find_best_including_uls
from labelguard.planner.prior import Prior
from labelguard.storage.buckets import BUCKETS
from labelguard.storage.executor import LOCAL, Workers, open_executor
from labelguard.text import (
    AUTO_FORMAT,
    Progress,
    no_progress,
    pluralize,
    suggest_misspelled_keywords,
)

V = TypeVar("V", int, float)

# Among which the least is sought at which a release beats a coin.
_EPSILONS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 16.0, 32.0)
_FEW_DRAWS = 6


@suggest_misspelled_keywords
def plan(
    source: Input,
    epsilons: float | Iterable[float] = (0.5, 1.0, 3.0, 8.0),
    delta: float | None = None,
    features: str | None = None,
    *,
    agreement: float | None = None,
    unit: Literal["labeler", "item"] = "labeler",
    reading: ReadingOptions | None = None,
    columns: Mapping[str, str] | None = None,
    labeler_column: str | None = None,
    no_prompt: bool = False,
    question: str | None = None,
    label_values: str | Mapping[str, str | Sequence[str]] | None = None,
    ignore_columns: Sequence[str] = (),
    format: str = AUTO_FORMAT,  # noqa: A002 - called as the option is
    split: str | Sequence[str] | None = None,
    public_columns: Sequence[str] | None = None,
    turns: Turns | None = None,
    max_labels_per_labeler: int | None = None,
    bad_rows: Literal["stop", "quarantine"] = "stop",
    max_input_bytes: int | None = None,
    drop_members: Sequence[str] | None = None,
    uses: int = 1,
    engine: str = LOCAL,
    address: str | None = None,
    buckets: int = BUCKETS,
    workers: int | None = None,
    progress: Progress = no_progress,
) -> PlanResult:
    """Forecast every mechanism on the pairs and labelers of `source`, without reading labels.

    `source`, `columns`, `labeler_column`, `no_prompt`, `question`, `label_values`,
    `ignore_columns`, `format`, `split`, `public_columns`, `max_input_bytes` and `drop_members` are
    those of `privatize`, and `reading` says them at once; columns of labels may be missing, and may
    be named: they are not read.
    `epsilons` is one or several. `delta` is, by default, the usual one for so many labelers
    (`policy.usual_delta`), `features` the best that this installation can compute, less those that
    tell no pair's sides apart: where none does, randomized response alone is planned. `agreement`
    is how often two labelers agree on a strict label, in [0.55, 0.9]; without it a range is
    simulated.
    The budget is for `uses` releases, which each bring as many new labels of each labeler as the
    input holds.
    `max_labels_per_labeler` fixes the bound of randomized response, which is chosen otherwise.
    `turns` says what becomes of prompts with earlier responses, as in `privatize`.
    `bad_rows` is stop, or quarantine: what `privatize` would set aside is left out.
    `engine`, `address`, `buckets` and `workers` are where files are read and texts encoded, as in
    `privatize`, with scratch space in TMPDIR; the forecast is computed here, and is the same.

    Costs no privacy and needs no project. Raises `InvalidLabels` for an input that cannot be read,
    `PolicyError` for values out of range.

    Example:
        >>> lg.plan("labels.parquet", label_values="1-0", epsilons=[3], features="length")
        PlanResult(30 labelers, 900 labels of 200 pairs; δ = 1e-05; ε = 3: statistic)
    """
    named_so = {
        "reading": reading,
        "columns": columns,
        "labeler_column": labeler_column,
        "no_prompt": no_prompt,
        "question": question,
        "label_values": label_values,
        "ignore_columns": ignore_columns,
        "format": format,
        "split": split,
        "bad_rows": bad_rows,
        "max_input_bytes": max_input_bytes,
        "drop_members": drop_members,
    }
    reading = ReadingOptions(**merge_reading_options(named_so))
    periods = uses
    several_epsilons = epsilons if isinstance(epsilons, Iterable) else (epsilons,)
    budgets = sorted({float(epsilon) for epsilon in several_epsilons})
    tuning.check_budgets(budgets, MOST_DELTA if delta is None else delta)
    _check_options(unit, max_labels_per_labeler, reading.bad_rows, periods)
    named, prior, features = bool(features), Prior(agreement), features or default_features()
    with contextlib.closing(open_executor(engine, workers, address)) as executor:
        pairs = read_public_pairs(
            source,
            reading=reading,
            public_columns=public_columns,
            turns=turns or "stop",
            features=features,
            unit=unit,
            first=True,
            executor=executor,
            count=buckets,
            progress=progress,
        )
        provider: PairFeatures | None
        table, rows, unusable = pairs.table, pairs.rows, list[str]()
        if named:
            provider, x = fit_features(features, table, progress, Workers(executor))
        else:
            features, provider, x, unusable = fit_usable_features(
                features, table, progress, Workers(executor)
            )
    units = len(np.unique(rows.unit))
    delta = choose_usual_delta(units) if delta is None else delta
    bounds = (max_labels_per_labeler,) if max_labels_per_labeler else None
    setting = partial(tuning.forecast, x, delta=delta, prior=prior, bounds=bounds, periods=periods)
    forecasts = setting(rows, budgets, progress=progress)
    good = {epsilon: find_best_excluding_uls(forecasts, epsilon) for epsilon in budgets}
    # A first release makes no policy of several runs of training.
    choose = find_best_including_uls if periods == 1 else find_best_excluding_uls
    serving = {epsilon: choose(forecasts, epsilon) for epsilon in budgets}
    right = {e: f.accuracy.mean if provider else 1 - f.label_error.mean for e, f in serving.items()}
    read = format_reading_options(reading, public_columns)
    read += ["--turns", turns] if turns else []

    def build_command(chosen: Forecast) -> str:
        words = ["labelguard", "privatize", *format_command_arguments(source)]
        words += ["--mechanism", chosen.mechanism]
        words += ["--epsilon", f"{chosen.epsilon:g}", "--delta", f"{delta:g}"]
        if chosen.mechanism != "rr":
            words += ["--features", features]
            words += [] if agreement is None else ["--agreement", f"{agreement:g}"]
        if chosen.max_labels_per_labeler is not None:
            words += ["--max-labels-per-labeler", str(chosen.max_labels_per_labeler)]
        often = ["--uses", f"{periods}"] if periods > 1 else ["--once"]
        words += ["--unit", "item"] if unit == "item" else often
        return shlex.join([*words, *read, "-o", "release"])

    recommended = tuple(
        advice.describe_recommendation(
            serving[epsilon],
            periods,
            forecast.mechanism if provider else "",
            forecasts[0] if provider else None,
            units,
            unit,
            build_command,
        )
        for epsilon, forecast in good.items()
    )
    worth = _UNKNOWN_WORTH
    if provider:
        quickly = partial(setting, growth=False, draws=_FEW_DRAWS, progress=progress)
        worth = _find_worth(rows, units, unit, recommended, quickly)
    left_out = [f"{pluralize(pairs.skipped, 'bad row')} left out"] if pairs.skipped else []
    if provider is None:
        left_out.append(_no_features_note(unusable, "only randomized response is planned"))
    elif names := (*unusable, *provider.left_out()):
        left_out.append(left_out_note(names))
    return PlanResult(
        *("replace_labels", delta, features or None, agreement, unit, periods),
        PlanCounts(labelers=units, labels=len(rows), pairs=len(x)),
        forecasts=forecasts,
        recommended=recommended,
        epsilon=advice.find_sufficient_epsilon(recommended, right),
        worth=worth,
        notes=(
            *left_out,
            *advice.suggest_improvements(recommended, good, units, unit),
        ),
    )


_UNKNOWN_WORTH = Worth(None, None, "not known: without features no accuracy is forecast")


def _no_features_note(features: Sequence[str], consequence: str) -> str:
    return (
        f"none of the default features ({', '.join(features)}) tells any pair's sides apart, so "
        f"that {consequence}: name features that do, such as --features columns:NAME or "
        "hf:ID_OR_PATH"
    )


def _check_options(unit: str, bound: int | None, bad_rows: str, periods: int) -> None:
    if unit not in ("labeler", "item"):
        raise PolicyError(f"unit must be labeler or item, found {unit!r}")
    if bad_rows not in ("stop", "quarantine"):
        raise PolicyError(f"bad_rows must be stop or quarantine, found {bad_rows!r}")
    if bound is not None and bound < 1:
        raise PolicyError(f"--max-labels-per-labeler must be at least 1, found {bound}")
    if periods < 1:
        raise PolicyError(f"uses must be at least 1, found {periods}")
    if periods > 1 and unit == "item":
        raise PolicyError(
            "a content is labeled in one period, so nothing recurs for it: leave uses out, "
            "or plan for labelers"
        )


def _find_worth(
    rows: Rows,
    units: int,
    unit: str,
    recommended: Sequence[Recommendation],
    forecast: Callable[[Rows, list[float]], tuple[Forecast, ...]],
) -> Worth:
    """Find from which ε on a release beats a coin; else from how many labelers on.

    `units` are those that label the `rows`, and `forecast` is of others, at some ε, in few worlds.
    """

    def beats_coin(epsilon: float, times: int) -> bool:
        more = tuning.repeat_labelers(rows, times) if times > 1 else rows
        best = find_best_excluding_uls(forecast(more, [epsilon]), epsilon)
        return advice.is_worth_it(best, max(times * units, advice.FEWEST))

    least = min((one.epsilon for one in recommended if one.mechanism), default=None)
    if units >= advice.FEWEST:
        below = math.inf if least is None else least
        poor = (one.epsilon for one in recommended if not one.mechanism)
        above = max((epsilon for epsilon in poor if epsilon < below), default=0.0)
        between = [epsilon for epsilon in _EPSILONS if above < epsilon < below]
        least_good = _first_that_holds(between, lambda epsilon: beats_coin(epsilon, 1)) or least
        if least_good is not None:
            return advice.describe_worth(least_good, None, unit)
    epsilon = min((one.epsilon for one in recommended), key=lambda e: abs(e - USUAL_EPSILON))
    few = -(-advice.FEWEST // units)
    more = sorted({1, *(few * times for times in advice.TIMES)})
    times = _first_that_holds(more, lambda times: beats_coin(epsilon, times))
    if times is None:
        return advice.describe_worth(None, None, unit)
    return advice.describe_worth(epsilon, max(advice.FEWEST, times * units), unit)


def _first_that_holds(values: Sequence[V], holds: Callable[[V], bool]) -> V | None:
    """Return the first that holds, of values of which those behind it hold too."""
    at = bisect.bisect_left(values, True, key=holds)
    return values[at] if at < len(values) else None
