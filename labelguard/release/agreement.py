"""Agreement of labelers from released labels of randomized response: post-processing, free."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from labelguard.mechanisms.agreement import AgreementEstimate, between_labelers, within_items
from labelguard.planner.prior import AGREEMENTS
from labelguard.project.opening import OpenProject
from labelguard.release.pairs_file import item_sides, scan_pairs
from labelguard.release.writer import read_card

# An interval that reaches further than this to either side is too wide to use.
USEFUL = 0.1
# With a larger share of comparisons of one unit with itself, agreement is not that of labelers.
SELF_SHARE = 0.01

Items = NDArray[np.uint64]
Floats = NDArray[np.float64]


def released_agreement(opened: OpenProject) -> float | None:
    """Return what the newest release tells whose labels tell it well enough; None without any."""
    for record in reversed(opened.ledger.releases.all()):
        if (record.state, record.settings["mechanism"]) == ("committed", "rr"):
            directory = opened.project.releases / record.id
            card = read_card(directory)
            known = why_unknown(card) is None
            between = estimate_between(directory / "data.parquet", card) if known else None
            if (agreement := usable_agreement(card, between)) is not None:
                return agreement
    return None


def estimate_between(data: Path, card: Mapping[str, Any]) -> AgreementEstimate | None:
    """Estimate how often two labels of one item agree, from the rows of a release and its card."""
    item, side = items_and_sides(data, by_question=has_question_column(data))
    flips = pl.read_parquet(data)["flip_probability"].to_numpy()
    # The labels of an item that is the unit were flipped together.
    compare = within_items if card["privacy"]["unit"] == "item" else between_labelers
    return compare(item, side, flips, card["flip_probability"].get("blocks", ()))


def usable_agreement(card: Mapping[str, Any], between: AgreementEstimate | None) -> float | None:
    """Return the estimate within the range that is simulated; None where it is of no use."""
    if between is None or between.reach > USEFUL or self_share(card, between) > SELF_SHARE:
        return None
    lowest, highest = AGREEMENTS
    return round(min(highest, max(lowest, between.agreement)), 2)


def self_share(card: Mapping[str, Any], between: AgreementEstimate) -> float:
    """Return at most which share of the comparisons is within one unit.

    Under several ids of one person, or within a group, several labels of an item are one unit's.
    """
    pairs = 0 if card["privacy"]["unit"] == "item" else card["counts"]["unit_pairs"]
    return min(1.0, pairs / between.comparisons)


def why_unknown(card: Mapping[str, Any]) -> str | None:
    """Return why a release's labels say nothing of agreement; None if they do."""
    if card["train_with"] != "forward":
        return (
            f"release {card['release']} ({card['mechanism']}) has no labels with known flips, so "
            "it tells no agreement; randomized response does (--mechanism rr)"
        )
    if "choices" in card:
        return (
            f"release {card['release']} is of choices of the best of several responses: which of "
            "their pairs show depends on what was chosen, so they tell no agreement"
        )
    return None


def items_and_sides(file: Path, *, by_question: bool) -> tuple[Items, Floats]:
    """Return the item and the side of each row: 1 the first, −1 the second.

    By question, one pair under two questions is two items.
    """
    keys, first = item_sides(file)
    if by_question:
        question = scan_pairs(file).select(pl.col("question").cast(pl.String)).collect()
        both = pl.struct(key=pl.Series(keys), question=question["question"]).hash()
        keys = pl.select(both).to_series().to_numpy()
    return keys, np.where(first, 1.0, -1.0)


def has_question_column(file: Path) -> bool:
    """Return whether the rows of a file answer several questions."""
    return "question" in scan_pairs(file).collect_schema()
