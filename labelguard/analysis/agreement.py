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
from labelguard.mechanisms.agreement import AgreementEstimate, between_labelers, with_gold
from labelguard.planner.prior import AGREEMENTS
from labelguard.release.pairs_file import check_pairs, item_sides, scan_pairs
from labelguard.release.writer import read_card

__all__ = ["Agreement", "agreement"]

# An interval that reaches further than this to either side tells too little to go by.
USEFUL = 0.1

# Where more of the comparisons are of one unit with itself, agreement is not that of labelers.
OWN = 0.01


@dataclass(frozen=True)
class Agreement:
    """What released labels tell of how labelers agree."""

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
    """Agreement from the labels in a release's directory, each flipped with a known probability.

    `gold` is a public file (Parquet or JSON lines) of prompt, chosen and rejected. Raises
    `LabelguardError` for a file that is none, or that answers one pair in two ways.
    """
    card = read_card(release)
    if card["train_with"] != "forward":
        why = (
            f"release {card['release']} ({card['mechanism']}) has no labels with known flips, so "
            "it tells no agreement; randomized response does (--mechanism rr)"
        )
        return Agreement(card["release"], None, None, None, (why,))
    if "choices" in card:
        why = (
            f"release {card['release']} is of choices of the best of several responses: which of "
            "their pairs show depends on what was chosen, so they tell no agreement"
        )
        return Agreement(card["release"], None, None, None, (why,))
    item, side, flips = _labels(release / "data.parquet")
    between = between_labelers(item, side, flips)
    notes = [_TIES[card["privacy"]["ties"]], *_told("two labels of one item", between)]
    by_gold = None
    if gold is not None:
        at, answer = _answers(gold, release / "data.parquet", item)
        by_gold = with_gold(item[at], side[at], answer, flips[at])
        notes += _told("a label of a gold item", by_gold)
    own, note = _own(card, between)
    plan = None if own > OWN else _plan(between)
    return Agreement(card["release"], between, by_gold, plan, (*notes, *note))


_Items = NDArray[np.uint64]
_Numbers = NDArray[np.float64]

_TIES = {
    "coin": "a tie counts as half an agreement",
    "drop": "ties are public, and in no number",
}


def _labels(file: Path) -> tuple[_Items, _Numbers, _Numbers]:
    """Item, side and γ of each released label, (n,)."""
    item, side = _sides(file, asked=_asked(file))
    return item, side, pl.read_parquet(file)["flip_probability"].to_numpy()


def _answers(gold: Path, release: Path, item: _Items) -> tuple[NDArray[np.intp], _Numbers]:
    """Which labels are of gold items, and the side that gold prefers for each of them, ±1."""
    check_pairs(gold)
    asked = _asked(release)
    if asked and not _asked(gold):
        raise LabelguardError(f"{gold} needs a column question, as the release has one")
    keys, side = _sides(gold, asked=asked)
    keys, at, where = np.unique(keys, return_index=True, return_inverse=True)
    if (side != side[at][where]).any():
        raise LabelguardError(f"{gold} answers a pair in two ways; leave one of them out")
    found = np.minimum(np.searchsorted(keys, item), len(keys) - 1)
    labels = np.flatnonzero(keys[found] == item)
    return labels, side[at][found[labels]]


def _sides(file: Path, *, asked: bool) -> tuple[_Items, _Numbers]:
    """Item of each row, one under two questions being two, and side: 1 the first, −1 the second."""
    keys, first = item_sides(file)
    if asked:
        question = scan_pairs(file).select(pl.col("question").cast(pl.String)).collect()
        both = pl.struct(key=pl.Series(keys), question=question["question"]).hash()
        keys = pl.select(both).to_series().to_numpy()
    return keys, np.where(first, 1.0, -1.0)


def _asked(file: Path) -> bool:
    return "question" in scan_pairs(file).collect_schema()


def _told(what: str, found: AgreementEstimate | None) -> list[str]:
    """Why an estimate is missing, or of little use."""
    if found is None:
        return [f"no item can be compared: {what} that says anything is not in the release"]
    if found.reach > USEFUL:
        return [
            f"{what}: the interval reaches {found.reach:.2g} to either side, too far to go by; "
            "more labels an item, fewer a labeler or a larger ε narrow it"
        ]
    return []


def _own(card: Mapping[str, Any], between: AgreementEstimate | None) -> tuple[float, list[str]]:
    """Which share of the comparisons is within one unit, and what is to be said of it.

    Under several ids of one person, or within a group, several labels of an item are one unit's.
    """
    unit = card["privacy"]["unit"]
    if between is None or unit == "item":
        return 0.0, []
    pairs = card["counts"].get("unit_pairs")
    if pairs is None:
        old = (
            "members of one group may be compared with one another: how often, is not counted in "
            "releases of earlier versions, so it is not known"
        )
        return 0.0, [old] if unit == "group" else []
    share = min(1.0, pairs / between.comparisons)
    if not pairs:
        return 0.0, []
    note = (
        f"up to {share:.1%} of the comparisons are between labels of one {unit} (linked ids, or "
        "members of a group), which need not agree as others do"
    )
    return share, [note + ("; nothing is suggested for a plan" if share > OWN else "")]


def _plan(between: AgreementEstimate | None) -> str | None:
    """The option for the planner, within the range that it takes."""
    if between is None or between.reach > USEFUL:
        return None
    lowest, highest = AGREEMENTS
    return f"--agreement {min(highest, max(lowest, between.agreement)):.2f}"
