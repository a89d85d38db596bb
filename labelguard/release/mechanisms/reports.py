"""What our mechanisms say of their releases in cards and reports, from the card alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from labelguard.release.coefficients import COLUMNS, Coefficient, rows
from labelguard.release.sections import Chart, Mark, Section, Series, Table, triple
from labelguard.text import DEFAULT_AGREEMENT, pluralize

Card = Mapping[str, Any]


def randomized(card: Card) -> Iterator[Section]:
    """Of randomized response: how often labels were flipped, and what that asks of a loss."""
    if "choices" not in card:
        yield _flips(card, "released labels differ from what their labeler said")
        return
    yield _flips(card, "released pairs are turned")
    yield Section(
        "choices",
        "Choices of the best of several responses",
        (
            "Each choice was answered once, by a response drawn among all of its set, and its rows "
            "are the pairs of that response and every other one. flip_probability is the share of "
            "such pairs expected to be turned, whatever was chosen.",
        ),
        facts=(("priced as choices among", f"{card['choices']['fewest']} or more"),),
    )


def _flips(card: Card, differ: str) -> Section:
    flips = card["flip_probability"]
    multipliers = {name: _multiplier(flip) for name, flip in flips.items()}
    share = (
        f"About {100 * flips['median']:.0f} of 100 {differ}. Beside it: two people who label the "
        f"same pair differ on {1 - DEFAULT_AGREEMENT:.0%} of strict labels, usually."
        if flips
        else "No label in the release was flipped."
    )
    return Section(
        "flips",
        "How often labels were flipped",
        (
            "Each label was flipped with a probability that is known and published, and the "
            "answer stays for good: asking again tells nothing new.",
            share,
        ),
        facts=(
            ("flip probability", triple(flips, ".4f")),
            ("loss multiplier 1/(1−2γ)", triple(multipliers, ".1f")),
        ),
    )


def _multiplier(flip: float) -> float:
    return 1 / (1 - 2 * flip) if flip < 0.5 else math.inf


def statistic(card: Card) -> Iterator[Section]:
    """Of a statistic: its noise, and what the head learnt from."""
    unit = card["privacy"]["unit"]
    words = (
        f"What left the labels is one vector, the sum of what each {unit} contributed, each "
        "contribution bounded, with noise added once. A linear model, the teacher, was fitted "
        "from it and labeled every pair: those labels are its own, nobody's answers."
    )
    title = "The noisy statistic and its teacher"
    told = _noisy(card, "statistic", title, words, "windows of the statistic")
    counts = card["counts"]
    pairs = pluralize(counts["rows"], "pair")
    labels = f"{pairs} labelled by the teacher, of {pluralize(counts['rows_read'], 'label')} read"
    scaled = _scaled(card["statistic"])
    yield replace(told, facts=(("labels", labels), *told.facts, ("probabilities", scaled)))
    if "head" in card:
        yield _head(card["head"])


def _scaled(made: Mapping[str, Any]) -> str:
    """What the teacher's probabilities are about."""
    return (
        f"of labelers who call no tie; scaled by {made['probability_scale']:g}, found in simulated "
        "worlds; in the fit a tie counts as half"
    )


def _head(head: Mapping[str, Any]) -> Section:
    """What the teacher decides by."""
    columns = [Coefficient(**one) for one in head["columns"]]
    notes = "; ".join(head["notes"])
    return Section(
        "head",
        "What the teacher decides by",
        (
            head["words"],
            f"A coefficient is the log-odds that a typical difference of its column adds; {notes}.",
        ),
        Table("Coefficients of columns with names", COLUMNS, tuple(rows(columns)))
        if columns
        else None,
        facts=tuple(
            (one["group"], f"{one['share']:.0%} of the decision") for one in head["groups"]
        ),
    )


def evaluation(card: Card) -> Iterator[Section]:
    """Of a statistic of the held out: its noise, and what it is for."""
    unit = card["privacy"]["unit"]
    words = (
        f"These {unit}s are held out: their labels are in no release that anything learns from. "
        "What left their labels is one vector, the sum of what each contributed, bounded, with "
        "noise added once. Models are judged by it."
    )
    yield _noisy(card, "held-out", "The statistic of those held out", words, "windows")


def _noisy(card: Card, identity: str, title: str, words: str, windows: str) -> Section:
    made, counts, unit = card["statistic"], card["counts"], card["privacy"]["unit"]
    before = f"{counts['released_before']:,} (in an earlier window, no charge)"
    return Section(
        identity,
        title,
        (
            words,
            f"The noise of each coordinate has {made['noise'] / made['sensitivity']:.3g} times the "
            f"size of the most that one {unit} can change the vector by.",
        ),
        facts=(
            ("  newly charged", f"{counts['charged']:,} {unit}s, one statistic release each"),
            ("  released before", before),
            ("features", f"{made['features']}, {pluralize(made['components'], 'component')}"),
            _scale(made),
            ("sensitivity, clip norm", f"{made['sensitivity']:.4g}, {made['clip']:.4g}"),
            (windows, f"{made['windows']}"),
        ),
    )


def _scale(made: Card) -> tuple[str, str]:
    """Of Gaussian noise σ, of ball noise s and the number of components it was priced for."""
    if made["noise_kind"] == "gaussian":
        return "noise multiplier", f"{made['noise_scale']:.4f}"
    least = pluralize(made["noise_least_components"], "component")
    return "ball noise", f"scale {made['noise_scale']:.4f}, priced for {least} or more"


def props(card: Card) -> Iterator[Section]:
    """Of PROPS: what its labels were made of, and how far its models were off, stage by stage."""
    yield _flips(card, "labels differed from what their labeler said, before they were bettered")
    stages = card["props"]["stages"]
    later = stages[1:]
    yield Section(
        "stages",
        "PROPS: labels bettered in stages",
        (
            "The flipped labels were bettered in stages: a model that learnt from one part of them "
            "votes on the next. It saw released labels only, so that this cost nothing.",
            f"Votes were combined {card['props']['combine']}; the model is "
            f"{card['props']['learner']}.",
        ),
        Table("Stages", ("stage", "rows", "model's estimated error", ""), tuple(map(_row, stages))),
        _errors(later) if len(later) > 1 else None,
        (*_model(card), *map(_stage, later)),
    )


def _model(card: Card) -> Iterator[tuple[str, str]]:
    if "model" in card:
        made = card["model"]
        base = f" from {made['base']}" if made["base"] else ""
        yield "model", f"{', '.join(made['files'])}, trained by {made['learner']}{base}"


def _stage(stage: Mapping[str, Any]) -> tuple[str, str]:
    doubt = ", uninformative" if stage["uninformative"] else ""
    return f"model's error, stage {stage['stage']}", _error(stage) + doubt


def _row(stage: Mapping[str, Any]) -> tuple[int, int, str | None, str]:
    if "estimated_error" not in stage:
        return stage["stage"], stage["rows"], None, "flipped labels as they are"
    doubt = "too noisy to tell from a coin" if stage["uninformative"] else ""
    return stage["stage"], stage["rows"], _error(stage), doubt


def _error(stage: Mapping[str, Any]) -> str:
    return f"{stage['estimated_error']:.3f} ± {stage['standard_error']:.3f}"


def _errors(stages: list[Mapping[str, Any]]) -> Chart:
    rates = [stage["estimated_error"] for stage in stages]
    margins = [stage["standard_error"] for stage in stages]
    return Chart(
        "Estimated error of the model in each stage",
        f"The model's estimated error is {rates[-1]:.0%} in the last stage; a coin's is 50%.",
        "bars",
        tuple(f"stage {stage['stage']}" for stage in stages),
        "stage",
        "estimated error",
        (
            Series(
                "model's error",
                tuple(rates),
                tuple(rate - margin for rate, margin in zip(rates, margins, strict=True)),
                tuple(rate + margin for rate, margin in zip(rates, margins, strict=True)),
            ),
        ),
        (Mark("y", 0.5, "a coin"),),
        percent=True,
    )
