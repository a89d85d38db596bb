"""Advice that follows from forecasts, in words: one line an ε, what would help, and the next
command.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from labelguard.budget.policy import USUAL_EPSILON
from labelguard.budget.public_columns import options_of, parse
from labelguard.planner.outcomes import Forecast, Sizing, learned_share
from labelguard.text import AUTO_FORMAT

# With fewer labelers than this nothing is recommended.
FEWEST = 20

# Accuracy that does not pay for a larger ε.
GAIN = 0.01
# Number of times as many labelers are tried, where nothing is recommended.
TIMES = (1, 2, 4, 8)

NAMES = {
    "statistic": "statistic",
    "uls": "user-wise DP-SGD",
    "rr": "randomized response",
    "props": "PROPS",
    "non-private": "no privacy",
}
NOUNS = {"labeler": "labelers", "item": "contents", "group": "groups"}


@dataclass(frozen=True)
class Recommendation:
    """The mechanism that serves best at one ε, or that none is worth it."""

    # this ε
    epsilon: float
    # rr, props, statistic or uls; null: nothing is recommended
    mechanism: str | None
    # what `--mechanism auto` takes at this ε, recommended or not
    automatic: str
    # its bound; null: all labels of a labeler
    max_labels_per_labeler: int | None
    # statistic releases, or runs, to allow; null where it is neither
    releases: int | None
    # what to expect of it, or why nothing is recommended
    words: str
    # what releases labels that way; null where nothing is recommended
    command: str | None


@dataclass(frozen=True)
class Worth:
    """From where on a release is worth it at all: a model that learns from it beats a coin."""

    # the least ε, of those that were tried; null: none
    epsilon: float | None
    # the fewest labelers like these, or contents, at that ε; null: those that there are
    units: int | None
    # the same in words
    words: str


def describe_worth(epsilon: float | None, units: int | None, unit: str) -> Worth:
    """Describe the least ε, or of the fewest units at that ε."""
    coin = (
        "a model that learns from it is right about more than 50 of 100 fresh labels, a coin's "
        "score, in 19 of 20 simulations"
    )
    if epsilon is None:
        few = f"nor would one of {TIMES[-1]} times as many {NOUNS[unit]}"
        return Worth(None, None, f"no release of these labels would beat a coin, {few}")
    start = f"ε = {epsilon:g} on"
    if units is not None:
        start = f"about {_count_units(units, unit)} like these on, at ε = {epsilon:g}"
    return Worth(epsilon, units, f"a release beats a coin from {start}: {coin}")


def sufficient_epsilon(
    recommended: Sequence[Recommendation], forecasts: Mapping[float, Forecast]
) -> float | None:
    """Return the ε to choose: the least at which a larger one gains less than 1 of 100 answers.

    It is not above the usual ε, unless only such a one serves: whether to go beyond is for people
    to say. `forecasts` are those of what is recommended at each ε; None where nothing is.
    """
    good = {e.epsilon: forecasts[e.epsilon].accuracy.mean for e in recommended if e.mechanism}
    usual = {e: good[e] for e in good if e <= max(USUAL_EPSILON, min(good))}
    return min((e for e in usual if good[e] > max(usual.values()) - GAIN), default=None)


def is_worth_it(forecast: Forecast, units: int) -> bool:
    """Return True if it is worth a budget: enough labelers, and surely better than a coin toss."""
    return units >= FEWEST and forecast.accuracy.low > 0.5


def recommend(
    sizing: Sizing,
    automatic: str,
    plain: Forecast,
    units: int,
    unit: str,
    command: Callable[[Sizing], str],
) -> Recommendation:
    """Return what to say of the best mechanism at one ε.

    `automatic` is what `--mechanism auto` takes, `plain` a head without privacy, `units` how many
    of `unit` are protected, `command` what releases labels in this way.
    """
    forecast = sizing.forecast
    refusal = explain_refusal(forecast, units, unit)
    good = refusal is None
    words = refusal or _describe_expectation(forecast, plain, unit)
    return Recommendation(
        epsilon=forecast.epsilon or 0.0,
        mechanism=sizing.mechanism if good else None,
        automatic=automatic,
        max_labels_per_labeler=sizing.max_labels_per_labeler,
        releases=sizing.releases,
        words=f"ε = {forecast.epsilon:g}: {words}",
        command=command(sizing) if good else None,
    )


def name_mechanism(forecast: Forecast) -> str:
    """Return a mechanism with its bound, if it has one: randomized response, ≤ 8."""
    bound = forecast.max_labels_per_labeler
    return NAMES[forecast.mechanism] + ("" if bound is None else f", ≤ {bound}")


def suggest_improvements(
    recommended: Sequence[Recommendation],
    best: Mapping[float, Forecast],
    units: int,
    unit: str,
) -> tuple[str, ...]:
    """Return what would help where nothing is recommended."""
    if any(advice.mechanism for advice in recommended):
        return ()
    if units < FEWEST:
        return (
            f"{_count_units(units, unit)}: whatever is released, each is a large part of it, so "
            f"that nothing is recommended at any ε; what would help: {FEWEST} {NOUNS[unit]} or "
            "more, for example by putting several datasets into one project",
        )
    most = max(best)
    twice = best[most].twice_labelers
    more = f"more {NOUNS[unit]}"
    if twice:
        more += f" (with twice as many a model is right about {_hundredths(twice)} fresh labels)"
    return (
        f"too few {NOUNS[unit]} or labels for ε ≤ {most:g}; what would help: a larger ε, {more}, "
        "other features",
    )


def _describe_expectation(forecast: Forecast, plain: Forecast, unit: str) -> str:
    words = (
        f"{NAMES[forecast.mechanism]}; a model gains over a coin about "
        f"{_describe_share(forecast, plain)} without privacy; about "
        f"{_hundredths(forecast.label_error.mean)} released labels differ from what labelers said"
    )
    if forecast.released < 1:
        bound = f"at most {forecast.max_labels_per_labeler} of each {_SINGULAR[unit]}"
        words += f"; {_hundredths(forecast.released)} labels are released ({bound})"
    return words


_SINGULAR = {"labeler": "labeler", "item": "content", "group": "group"}


def explain_refusal(forecast: Forecast | None, units: int, unit: str) -> str | None:
    """Say why nothing is recommended, if so; without a forecast by the number of units alone."""
    if units < FEWEST:
        return f"nothing is recommended for {_count_units(units, unit)}"
    if forecast is None or is_worth_it(forecast, units):
        return None
    return (
        "nothing is recommended; at best a model is right about "
        f"{_hundredths(forecast.accuracy.mean)} fresh labels, which may be chance: a coin is right "
        "about 50 of 100"
    )


def _describe_share(forecast: Forecast, plain: Forecast) -> str:
    share = learned_share(forecast, plain)
    return "as much as" if share > 0.995 else f"{_hundredths(share)} of what it would"


def _count_units(units: int, unit: str) -> str:
    return f"1 {_SINGULAR[unit]}" if units == 1 else f"{units:,} {NOUNS[unit]}"


def _hundredths(share: float) -> str:
    """`87 of 100`, or `less than 1 of 100`."""
    return "less than 1 of 100" if 0 < share < 0.005 else f"{share * 100:.0f} of 100"


def format_reading_options(
    columns: Mapping[str, str] | None,
    format_name: str,
    public_columns: Iterable[str] | None,
    question: str | None,
    split: str | None,
) -> list[str]:
    """Return the options by which an input is read."""
    names = ",".join(f"{role}={name}" for role, name in (columns or {}).items())
    words = ["--columns", names] if names else []
    words += [] if format_name == AUTO_FORMAT else ["--format", format_name]
    words += options_of(parse(public_columns))
    words += [] if question is None else ["--question", question]
    return words + ([] if split is None else ["--split", split])
