"""Sections of our mechanisms for cards and reports, from the card; words are in sections.j2."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from labelguard.release.sections import (
    Chart,
    Mark,
    Section,
    Series,
    fill_section,
    format_min_median_max,
)
from labelguard.text import DEFAULT_AGREEMENT, escape_controls, pluralize, read_template

if TYPE_CHECKING:
    import jinja2

Card = Mapping[str, Any]


@cache
def _load_template() -> jinja2.Template:
    """Return sections.j2; what is filled in stands in one line."""
    return read_template(
        files(__package__) / "sections.j2",
        {
            "counted": pluralize,
            "error": _format_stage_error,
            "format_min_median_max": format_min_median_max,
        },
        finalize=lambda value: escape_controls(value) if type(value) is str else value,
    )


def describe_randomized(card: Card) -> Iterator[Section]:
    """Yield how often labels were flipped, and what that asks of a loss."""
    yield _build_flips_section(card, "released labels differ from what their labeler said")


def _build_flips_section(card: Card, differ: str) -> Section:
    flips = {name: flip for name, flip in card["flip_probability"].items() if name != "blocks"}
    multipliers = {
        name: 1 / (1 - 2 * flip) if flip < 0.5 else math.inf for name, flip in flips.items()
    }
    return fill_section(
        _load_template(),
        "flips",
        flips=flips,
        multipliers=multipliers,
        differ=differ,
        disagreement=f"{1 - DEFAULT_AGREEMENT:.0%}",
    )


def describe_statistic(card: Card) -> Iterator[Section]:
    """Yield the noise of a statistic, and what the head decides by."""
    yield _build_statistic_section(card, "statistic", is_held_out=False)
    if cells := list_weight_cells(card):
        yield fill_section(_load_template(), "head", table=cells)


def list_weight_cells(card: Card) -> list[tuple[str, str]]:
    """Return the weights of a teacher's named features, as cells of a table."""
    weights = card.get("head", {}).get("weights", ())
    return [(one["feature"], f"{one['log_odds']:+z.3f}") for one in weights]


def describe_evaluation(card: Card) -> Iterator[Section]:
    """Yield the noise of a statistic of held-out labelers, and what it is for."""
    yield _build_statistic_section(card, "held-out", is_held_out=True)


def _build_statistic_section(card: Card, name: str, *, is_held_out: bool) -> Section:
    unit, counts = card["privacy"]["unit"], card["counts"]
    facts = {"unit": unit, "counts": counts, "statistic": card["statistic"]}
    return fill_section(_load_template(), "statistic", name, is_held_out=is_held_out, **facts)


def describe_props(card: Card) -> Iterator[Section]:
    """Yield what the labels of PROPS were made of, and how far its models were off by stage."""
    yield _build_flips_section(
        card, "labels differed from what their labeler said, before they were improved"
    )
    stages = card["props"]["stages"]
    estimated = [stage for stage in stages if "estimated_error" in stage]
    yield fill_section(
        _load_template(),
        "stages",
        table=map(_format_stage_cells, stages),
        chart=_build_errors_chart(estimated) if len(estimated) > 1 else None,
        props=card["props"],
        model=card.get("model"),
    )


def _format_stage_cells(stage: Mapping[str, Any]) -> tuple[int, int, str | None, str]:
    """Return the cells of a stage: its number, its rows, its model's error, and a remark."""
    if "estimated_error" not in stage:
        return stage["stage"], stage["rows"], None, "flipped labels as they are"
    doubt = "too noisy to tell from a coin" if stage["uninformative"] else ""
    return stage["stage"], stage["rows"], _format_stage_error(stage), doubt


def _format_stage_error(stage: Mapping[str, Any]) -> str:
    """Return the estimated error of a stage's model, with its standard error.

    Where the 95% interval is as wide as all rates there are, it says nothing.
    """
    if 4 * stage["standard_error"] >= 1:
        return "no usable estimate"
    return f"{stage['estimated_error']:.3f} ± {stage['standard_error']:.3f}"


def _build_errors_chart(stages: list[Mapping[str, Any]]) -> Chart:
    """Return a chart of the models' estimated errors."""
    rates = [stage["estimated_error"] for stage in stages]
    low, high = (
        tuple(stage["estimated_error"] + sign * stage["standard_error"] for stage in stages)
        for sign in (-1, 1)
    )
    return Chart(
        "Estimated error of the model in each stage",
        f"The model's estimated error is {rates[-1]:.0%} in the last stage; a coin's is 50%.",
        "bars",
        tuple(f"stage {stage['stage']}" for stage in stages),
        "stage",
        "estimated error",
        (Series("model's error", tuple(rates), low, high),),
        (Mark("y", 0.5, "a coin"),),
        percent=True,
    )
