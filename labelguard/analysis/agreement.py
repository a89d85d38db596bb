"""Quality control from released labels: agreement between labelers, and with gold items.

Post-processing of a release and of a public file. Nothing is charged, and no labeler is told apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from labelguard.errors import LabelguardError
from labelguard.mechanisms.agreement import (
    AgreementEstimate,
    between_labelers,
    with_gold,
    within_items,
)
from labelguard.planner.prior import AGREEMENTS
from labelguard.release.pairs_file import check_pairs, item_sides, scan_pairs
from labelguard.release.writer import read_card

# An interval that reaches further than this to either side is too wide to use.
USEFUL = 0.1
# With a larger share of comparisons of one unit with itself, agreement is not that of labelers.
SELF_SHARE = 0.01

_TIES = {
    "coin": "a tie counts as half an agreement",
    "drop": "ties are public, and in no number",
}

Items = NDArray[np.uint64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Agreement:
    """Agreement of labelers, estimated from released labels."""

    # the release's id
    release: str
    # between two labels of one item; null if that cannot be told
    between: AgreementEstimate | None
    # between labels and gold items; null if that cannot be told, or was not asked
    gold: AgreementEstimate | None
    # the agreement as `labelguard plan` takes it, where the interval is narrow enough to use
    plan: str | None
    # what the numbers are about, and what cannot be told
    notes: tuple[str, ...]


def agreement(release: Path, gold: Path | None = None) -> Agreement:
    """Estimate agreement from a release's labels, each flipped with a known probability.

    `release` is its directory, `gold` a public file (Parquet or JSON lines) of prompt, chosen and
    rejected. Raises `LabelguardError` for a file that is none, or that answers one pair in two
    ways.
    """
    card = read_card(release)
    if reason := _why_unknown(card):
        return Agreement(card["release"], None, None, None, (reason,))
    data = release / "data.parquet"
    item, side = _items_and_sides(data, by_question=_has_questions(data))
    flips = pl.read_parquet(data)["flip_probability"].to_numpy()
    blocks = card["flip_probability"].get("blocks", ())
    # The labels of an item that is the unit were flipped together.
    compare = within_items if card["privacy"]["unit"] == "item" else between_labelers
    between = compare(item, side, flips, blocks)
    notes = [_TIES[card["privacy"]["ties"]], *_estimate_notes("two labels of one item", between)]
    by_gold = None
    if gold is not None:
        at, answer = _gold_sides(gold, data, item)
        by_gold = with_gold(item[at], side[at], answer, flips[at], blocks)
        notes += _estimate_notes("a label of a gold item", by_gold)
    share, self_notes = _self_comparisons(card, between)
    plan = None if share > SELF_SHARE else _plan_option(between)
    return Agreement(card["release"], between, by_gold, plan, (*notes, *self_notes))


def _why_unknown(card: Mapping[str, Any]) -> str | None:
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


def _gold_sides(gold: Path, release: Path, item: Items) -> tuple[NDArray[np.intp], Floats]:
    """Return which labels are of gold items, and the side that gold prefers for each, ±1."""
    check_pairs(gold)
    by_question = _has_questions(release)
    if by_question and not _has_questions(gold):
        raise LabelguardError(f"{gold} needs a column question, as the release has one")
    keys, side = _items_and_sides(gold, by_question=by_question)
    keys, at, where = np.unique(keys, return_index=True, return_inverse=True)
    if (side != side[at][where]).any():
        raise LabelguardError(f"{gold} answers a pair in two ways; leave one of them out")
    nearest = np.minimum(np.searchsorted(keys, item), len(keys) - 1)
    labels = np.flatnonzero(keys[nearest] == item)
    return labels, side[at][nearest[labels]]


def _items_and_sides(file: Path, *, by_question: bool) -> tuple[Items, Floats]:
    """Return the item and the side of each row: 1 the first, −1 the second.

    By question, one pair under two questions is two items.
    """
    keys, first = item_sides(file)
    if by_question:
        question = scan_pairs(file).select(pl.col("question").cast(pl.String)).collect()
        both = pl.struct(key=pl.Series(keys), question=question["question"]).hash()
        keys = pl.select(both).to_series().to_numpy()
    return keys, np.where(first, 1.0, -1.0)


def _has_questions(file: Path) -> bool:
    return "question" in scan_pairs(file).collect_schema()


def _estimate_notes(what: str, estimate: AgreementEstimate | None) -> list[str]:
    """Return why an estimate is missing, or of little use."""
    if estimate is None:
        return [f"no item can be compared: {what} that says anything is not in the release"]
    if estimate.reach > USEFUL:
        return [
            f"{what}: the interval reaches {estimate.reach:.2g} to either side, too far to go by; "
            "more labels an item, fewer a labeler or a larger ε narrow it"
        ]
    return []


def _self_comparisons(
    card: Mapping[str, Any], between: AgreementEstimate | None
) -> tuple[float, list[str]]:
    """Return the share of the comparisons that are within one unit, and the note on it.

    Under several ids of one person, or within a group, several labels of an item are one unit's.
    """
    unit = card["privacy"]["unit"]
    pairs = 0 if unit == "item" else card["counts"]["unit_pairs"]
    if between is None or not pairs:
        return 0.0, []
    share = min(1.0, pairs / between.comparisons)
    note = (
        f"up to {share:.1%} of the comparisons are between labels of one {unit} (linked ids, or "
        "members of a group), which need not agree as others do"
    )
    return share, [note + ("; nothing is suggested for a plan" if share > SELF_SHARE else "")]


def _plan_option(between: AgreementEstimate | None) -> str | None:
    """Return the option for the planner, within the range that it takes."""
    if between is None or between.reach > USEFUL:
        return None
    lowest, highest = AGREEMENTS
    return f"--agreement {min(highest, max(lowest, between.agreement)):.2f}"
