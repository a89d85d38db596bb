"""A plan: advice that follows from forecasts, in words, as a table, a picture and one HTML page."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files

from labelguard.budget.label_values import (
    LabelValues,
    format_public_column_options,
    parse_public_columns,
)
from labelguard.budget.policy import USUAL_EPSILON
from labelguard.notebook import group_facts, render_card
from labelguard.planner.outcomes import Forecast, compute_learned_share
from labelguard.text import AUTO_FORMAT, FORECAST_ASSUMPTION, pluralize, read_template

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
NOUNS = {"labeler": "labeler", "item": "content"}


@dataclass(frozen=True)
class Recommendation:
    """The mechanism that serves best at one ε, or that none is worth it."""

    # this ε
    epsilon: float
    # rr, props, statistic or uls; null: nothing is recommended
    mechanism: str | None
    # what `--mechanism auto` takes at this ε, recommended or not; empty: it needs other features
    automatic: str
    # its bound; null: all labels of a labeler
    max_labels_per_labeler: int | None
    # statistic releases, or runs, to allow; null where it is neither
    releases: int | None
    # randomized blocks to allow; null where it takes none
    uses: int | None
    # labels of a labeler that one use flips together, at most; null as above
    block: int | None
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
    """Describe the least ε that is worth it, or the fewest units at this ε, or that none is."""
    coin = (
        "a model that learns from it is right about more than 50 of 100 fresh labels, a coin's "
        "score, in 19 of 20 simulations"
    )
    if epsilon is None:
        few = f"nor would one of {TIMES[-1]} times as many {NOUNS[unit]}s"
        return Worth(None, None, f"no release of these labels would beat a coin, {few}")
    start = f"ε = {epsilon:g} on"
    if units is not None:
        start = f"about {pluralize(units, NOUNS[unit])} like these on, at ε = {epsilon:g}"
    return Worth(epsilon, units, f"a release beats a coin from {start}: {coin}")


def find_sufficient_epsilon(
    recommended: Sequence[Recommendation], values: Mapping[float, float]
) -> float | None:
    """Return the ε to choose: the least at which a larger one gains less than 1 of 100 answers.

    It is not above the usual ε, unless only such a one serves: whether to go beyond is for people
    to say. `values` are the shares of right answers at each ε; None where nothing is recommended.
    """
    good = {e.epsilon: values[e.epsilon] for e in recommended if e.mechanism}
    usual = {e: good[e] for e in good if e <= max(USUAL_EPSILON, min(good))}
    return min((e for e in usual if good[e] > max(usual.values()) - GAIN), default=None)


def is_worth_it(forecast: Forecast, units: int) -> bool:
    """Return True if it is worth a budget: enough labelers, and surely better than a coin toss."""
    return units >= FEWEST and forecast.accuracy.low > 0.5


def describe_recommendation(
    forecast: Forecast,
    periods: int,
    automatic: str,
    plain: Forecast | None,
    units: int,
    unit: str,
    command: Callable[[Forecast], str],
) -> Recommendation:
    """Return what to say of the best mechanism at one ε, for `periods` releases.

    `automatic` is what `--mechanism auto` takes, `plain` a head without privacy, or None where no
    head can learn, `units` how many of `unit` are protected, `command` what releases labels so.
    """
    refusal = explain_no_recommendation(forecast if plain else None, units, unit)
    good = refusal is None
    words = refusal or _describe_expectation(forecast, plain, unit)
    return Recommendation(
        epsilon=forecast.epsilon or 0.0,
        mechanism=forecast.mechanism if good else None,
        automatic=automatic,
        max_labels_per_labeler=forecast.max_labels_per_labeler,
        releases=periods if forecast.mechanism in ("statistic", "uls") else None,
        uses=forecast.uses,
        block=forecast.block,
        words=f"ε = {forecast.epsilon:g}: {words}",
        command=command(forecast) if good else None,
    )


def name_mechanism(forecast: Forecast) -> str:
    """Return a mechanism with its bound, if it has one: randomized response, ≤ 8."""
    bound = forecast.max_labels_per_labeler
    return NAMES[forecast.mechanism] + ("" if bound is None else f", ≤ {bound}")


def suggest_improvements(
    recommended: Sequence[Recommendation], best: Mapping[float, Forecast], units: int, unit: str
) -> tuple[str, ...]:
    """Return what would help where nothing is recommended."""
    if any(advice.mechanism for advice in recommended):
        return ()
    if units < FEWEST:
        return (
            f"{pluralize(units, NOUNS[unit])}: whatever is released, each is a large part of it, "
            f"so that nothing is recommended at any ε; what would help: {FEWEST} {NOUNS[unit]}s or "
            "more, for example by putting several datasets into one project",
        )
    most = max(best)
    twice = best[most].twice_labelers
    more = f"more {NOUNS[unit]}s"
    if twice:
        more += (
            f" (with twice as many a model is right about {_format_hundredths(twice)} fresh labels)"
        )
    return (
        f"too few {NOUNS[unit]}s or labels for ε ≤ {most:g}; what would help: a larger ε, {more}, "
        "other features",
    )


def _describe_expectation(forecast: Forecast, plain: Forecast | None, unit: str) -> str:
    words = NAMES[forecast.mechanism]
    if plain:
        share = _format_percent(compute_learned_share(forecast, plain))
        words += f"; keeps about {share} of the non-private improvement over chance"
    differ = _format_hundredths(forecast.label_error.mean)
    words += f"; about {differ} released labels differ from what labelers said"
    if forecast.released < 1:
        bound = f"at most {forecast.max_labels_per_labeler} of each {NOUNS[unit]}"
        words += f"; {_format_hundredths(forecast.released)} labels are released ({bound})"
    return words


def explain_no_recommendation(forecast: Forecast | None, units: int, unit: str) -> str | None:
    """Say why nothing is recommended, if so; without a forecast by the number of units alone."""
    if units < FEWEST:
        return f"nothing is recommended for {pluralize(units, NOUNS[unit])}"
    if forecast is None or is_worth_it(forecast, units):
        return None
    return (
        "nothing is recommended; at best a model is right about "
        f"{_format_hundredths(forecast.accuracy.mean)} fresh labels, which may be chance: a coin "
        "is right about 50 of 100"
    )


def _format_percent(share: float) -> str:
    """`87%`, or `less than 1%`."""
    return "less than 1%" if 0 < share < 0.005 else f"{share:.0%}"


def _format_hundredths(share: float) -> str:
    """`87 of 100`, or `less than 1 of 100`."""
    return "less than 1 of 100" if 0 < share < 0.005 else f"{share * 100:.0f} of 100"


def format_reading_options(
    columns: Mapping[str, str] | None,
    format_name: str,
    public_columns: Iterable[str] | None,
    question: str | None,
    split: str | None,
    label_values: str | Mapping[str, str | Sequence[str]] | None = None,
    ignore_columns: Sequence[str] = (),
) -> list[str]:
    """Return the options by which an input is read."""
    names = ",".join(f"{role}={name}" for role, name in (columns or {}).items())
    words = ["--columns", names] if names else []
    words += ["--label-values", c] if (c := str(LabelValues.parse(label_values or ""))) else []
    words += ["--ignore-columns", ",".join(ignore_columns)] if ignore_columns else []
    words += [] if format_name == AUTO_FORMAT else ["--format", format_name]
    words += format_public_column_options(parse_public_columns(public_columns))
    words += [] if question is None else ["--question", question]
    return words + ([] if split is None else ["--split", split])


HEADINGS = (
    *("ε", "mechanism", "accuracy", "90% range", "label error", "released"),
    *("2× labelers", "2× labels", "public parameters"),
)

_COLORS = {"statistic": "#0b6e4f", "rr": "#c1440e", "props": "#7b5ea7", "uls": "#2b7bba"}


@dataclass(frozen=True)
class PlanCounts:
    """The size of an input."""

    # units in it
    labelers: int
    # its labels
    labels: int
    # distinct pairs
    pairs: int


@dataclass(frozen=True, repr=False)
class PlanResult:
    """Forecasts of every mechanism and ε, and what follows from them."""

    # which neighbours a guarantee is about
    adjacency: str
    # δ of each unit
    delta: float
    # what heads learn from; null: no default feature tells a pair's sides apart
    features: str | None
    # how often two labelers were taken to agree on a strict label; null: not known
    agreement: float | None
    # what is protected as a whole
    unit: str
    # how many releases like this one the budget is for
    periods: int
    # what the input holds
    counts: PlanCounts
    # first a head without privacy, then every mechanism at every ε; without features randomized
    # response alone, of which a head's accuracy is a coin's
    forecasts: tuple[Forecast, ...]
    # what to do at every ε, from the least on
    recommended: tuple[Recommendation, ...]
    # the ε of them to choose: 3 or less where that serves, and the least at which more of it gains
    # less than 1 of 100 answers; null: nothing is recommended
    epsilon: float | None
    # from where on a release is worth it at all
    worth: Worth
    # what to know about the input, and what would help
    notes: tuple[str, ...]

    @property
    def choice(self) -> Recommendation | None:
        """Return what is recommended at the ε to choose; None where nothing is."""
        return next((one for one in self.recommended if one.epsilon == self.epsilon), None)

    def __repr__(self) -> str:
        counts, units = self.counts, f"{NOUNS[self.unit]}s"
        best = (f"ε = {one.epsilon:g}: {one.mechanism or 'nothing'}" for one in self.recommended)
        size = f"{counts.labelers:,} {units}, {counts.labels:,} labels of {counts.pairs:,} pairs"
        return f"PlanResult({size}; δ = {self.delta:g}; {', '.join(best)})"

    def __str__(self) -> str:
        lines = [f"{describe_input(self)}; no label was read, nothing was charged"]
        for cells, is_automatic in forecast_table_rows(self):
            if is_automatic and self.features:
                lines.append(f"ε = {cells[0]}: {cells[1]}, accuracy {cells[2]} ({cells[3]})")
        return "\n".join([*lines, *summarize(self)])

    def _repr_html_(self) -> str:
        words = [one.words for one in self.recommended]
        commands = [one.command for one in self.recommended if one.command]
        facts = [("planned for", describe_input(self)), ("recommended", " ".join(summarize(self)))]
        facts += group_facts("expect", words)
        facts += [*group_facts("notes", self.notes), *group_facts("next", commands)]
        title = "Forecast of a private release"
        caption = "Accuracy against ε. " + "; ".join(words)
        return render_card(title, facts, picture=draw_accuracy(self), caption=caption)


def forecast_table_rows(plan: PlanResult) -> list[tuple[tuple[str, ...], bool]]:
    """Return rows under `HEADINGS`; true beside one that `--mechanism auto` takes at its ε."""
    rows: list[tuple[tuple[str, ...], bool]] = []
    best = {(one.epsilon, one.automatic, one.max_labels_per_labeler) for one in plan.recommended}
    for forecast in plan.forecasts:
        shape = forecast.shape
        parameters = ""
        if shape is not None and forecast.noise is not None:
            kind = {"ball": "ball", "gaussian": "Gaussian"}[forecast.noise.kind]
            parameters = f"{pluralize(shape.components, 'component')}, {kind} noise"
        elif forecast.flip_probability is not None:
            bound = forecast.max_labels_per_labeler
            most = "all labels" if bound is None else f"at most {bound} per labeler"
            alone = ", flipped one by one" if forecast.block == 1 else ""
            parameters = f"{most}{alone}, flip probability {forecast.flip_probability.mean:.3f}"
        cells = (
            "–" if forecast.epsilon is None else f"{forecast.epsilon:g}",
            name_mechanism(forecast),
            f"{forecast.accuracy.mean:.3f}" if plan.features else "–",
            f"{forecast.accuracy.low:.3f} to {forecast.accuracy.high:.3f}"
            if plan.features
            else "–",
            f"{forecast.label_error.mean:.3f}",
            f"{forecast.released:.0%}",
            _format_accuracy(forecast.twice_labelers),
            _format_accuracy(forecast.twice_labels),
            parameters,
        )
        of_it = (forecast.epsilon, forecast.mechanism, forecast.max_labels_per_labeler)
        rows.append((cells, of_it in best))
    return rows


def describe_input(plan: PlanResult) -> str:
    """Return what was planned for: counts, δ, features, periods."""
    counts, units = plan.counts, f"{NOUNS[plan.unit]}s"
    periods = f", {plan.periods:,} releases like this one" if plan.periods > 1 else ""
    return (
        f"{counts.labelers:,} {units}, {counts.labels:,} labels of {counts.pairs:,} pairs; "
        f"δ = {plan.delta:g} for each {plan.unit}{periods}; features {plan.features or 'none'}"
    )


def summarize(plan: PlanResult) -> tuple[str, ...]:
    """Say one recommendation, from where on a release is worth it at all, and what is assumed."""
    choice = plan.choice
    last = next((one for one in reversed(plan.recommended) if one.mechanism), plan.recommended[-1])
    words = f"recommended: {choice.words}" if choice else last.words.partition(": ")[2]
    if choice and choice is not last and plan.features:
        accuracy = {_forecast_key(one): one.accuracy.mean for one in plan.forecasts}
        more = accuracy[_forecast_key(last)] - accuracy[_forecast_key(choice)]
        gain = f"about {pluralize(round(100 * more), 'percentage point')}"
        gain = gain if more > GAIN else "less than 1 percentage point"
        words += f"; ε = {last.epsilon:g} would add {gain} of accuracy"
    assumed = (_format_sentence(FORECAST_ASSUMPTION),) if plan.features else ()
    return (
        _format_sentence(words),
        f"Worth it at all? {_format_sentence(plan.worth.words)}",
        *assumed,
    )


def _forecast_key(one: Forecast | Recommendation) -> tuple[float | None, str | None, int | None]:
    return one.epsilon, one.mechanism, one.max_labels_per_labeler


def _format_sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def render_page(plan: PlanResult, png: bytes) -> str:
    """Return the page, with the picture inside; all text is escaped."""
    html = read_template(files(__package__) / "plan.html.j2", autoescape=True).render(
        plan=plan,
        headline=describe_input(plan),
        summary=summarize(plan),
        headings=HEADINGS,
        rows=forecast_table_rows(plan),
        picture=base64.b64encode(png).decode("ascii"),
        others=[one for one in plan.recommended if one is not plan.choice and one.command],
    )
    return f"{html}\n"


def _format_accuracy(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def draw_accuracy(plan: PlanResult) -> bytes:
    """Accuracy of every mechanism against ε; the same plan, the same bytes.

    What serves best lies above the others, with its 90% range.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    chosen = [one.mechanism or one.automatic for one in plan.recommended]
    for line, color in _best_forecasts_with_colors(plan):
        best = line[0].mechanism == max(chosen, key=chosen.count)
        epsilons = [f.epsilon or 0.0 for f in line]
        means = [f.accuracy.mean for f in line]
        if best:
            low, high = zip(*((f.accuracy.low, f.accuracy.high) for f in line), strict=True)
            axes.fill_between(epsilons, low, high, color=color, alpha=0.15, linewidth=0)
        style = {"lw": 2.5, "zorder": 3} if best else {"lw": 1, "ms": 9, "mfc": "none"}
        axes.plot(epsilons, means, "o-", color=color, label=NAMES[line[0].mechanism], **style)
    if every := _list_unbounded_rr_forecasts(plan):
        label, color = "randomized response, all labels", _COLORS["rr"]
        means = [f.accuracy.mean for f in every]
        axes.plot([f.epsilon or 0.0 for f in every], means, "o:", color=color, label=label)
    if plan.features:
        plain = plan.forecasts[0].accuracy.mean
        axes.axhline(plain, color="#333", ls="--", label="no privacy")
    axes.axhline(0.5, color="#999", lw=0.8, ls=":")
    axes.set_xscale("log")
    ticks = [one.epsilon for one in plan.recommended]
    axes.set_xticks(ticks, [f"{epsilon:g}" for epsilon in ticks])
    axes.minorticks_off()
    axes.set_xlabel(f"ε of each {plan.unit} (δ = {plan.delta:g})")
    axes.set_ylabel("accuracy on held-out labelers")
    axes.legend(frameon=False, loc="lower right")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _best_forecasts_with_colors(plan: PlanResult) -> Iterator[tuple[list[Forecast], str]]:
    """Yield the forecasts of each mechanism, with a color; randomized response under its best
    bounds.
    """
    for mechanism, color in _COLORS.items():
        of_it = [f for f in plan.forecasts if f.mechanism == mechanism]
        of_it.sort(key=lambda f: f.accuracy.mean)
        best = {f.epsilon: f for f in of_it}  # the last at each ε
        if best:
            yield sorted(best.values(), key=lambda f: f.epsilon or 0.0), color


def _list_unbounded_rr_forecasts(plan: PlanResult) -> list[Forecast]:
    """Randomized response with all labels, unless that is best everywhere."""
    forecasts = [f for f in plan.forecasts if f.mechanism == "rr"]
    first = {f.epsilon: f for f in reversed(forecasts)}  # the first at each ε
    return list(first.values())[::-1] if len(first) < len(forecasts) else []
