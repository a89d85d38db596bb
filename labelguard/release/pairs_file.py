"""Files of pairs that say which side is preferred: a release's rows, or public probes.

And which of their rows are kept out of training, to evaluate on; and how labelers agree, from
released labels of randomized response: post-processing, free.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from polars.exceptions import PolarsError

from labelguard.errors import LabelguardError
from labelguard.learning.columns import content_column, plain_text
from labelguard.mechanisms.agreement import (
    AgreementEstimate,
    estimate_between_labelers,
    estimate_with_items_as_units,
)
from labelguard.planner.prior import AGREEMENTS
from labelguard.project.opening import OpenProject
from labelguard.release.item_keys import PAIRS, compute_keys_and_sides
from labelguard.release.writer import read_card
from labelguard.storage.buckets import escape_file_names, find_rows_path


def check_pairs(file: Path) -> None:
    """Raise `LabelguardError` unless a file holds pairs, each with three parts."""
    frame = scan_pairs(file)
    schema = frame.collect_schema()
    missing = [name for name in PAIRS if name not in schema]
    if missing:
        raise LabelguardError(f"{file} has no column {missing[0]}; wanted are {', '.join(PAIRS)}")
    for name in PAIRS:
        if not isinstance(schema[name], pl.String | pl.List | pl.Null):
            raise LabelguardError(f"{file}: column {name} must hold texts or chats")
    counts = frame.select(pl.len().alias("rows"), pl.col(PAIRS).null_count()).collect()
    if not counts["rows"][0]:
        raise LabelguardError(f"{file} holds no pair")
    for name in PAIRS:
        if counts[name][0]:
            raise LabelguardError(f"{file}: {counts[name][0]:,} rows have no {name}")


def holds_tool_calls(pairs: duckdb.DuckDBPyRelation) -> bool:
    """Return whether messages of pairs have tool calls, all of which are lists as JSON."""
    types = dict(zip(pairs.columns, pairs.types, strict=True))
    chats = [name for name in PAIRS if '"tool_calls" VARCHAR' in _quote_members(types[name])]
    calls = "m.tool_calls IS NOT NULL"
    wrong = f"{calls} AND NOT (json_valid(m.tool_calls) AND m.tool_calls LIKE '[%')"
    counts = [
        f"coalesce(sum(len(list_filter({name}, lambda m: {condition}))), 0)"
        for name in chats
        for condition in (calls, wrong)
    ]
    [numbers] = pairs.aggregate(", ".join(counts)).fetchall() if counts else [()]
    return any(numbers[::2]) and not any(numbers[1::2])


def _quote_members(kind: Any) -> str:
    """Return a type with the name that is looked for in quotes, as some versions write it."""
    return str(kind).replace('"tool_calls"', "tool_calls").replace("tool_calls", '"tool_calls"')


def type_tool_calls(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose tool calls are JSON: `datasets` reads them as lists again."""

    def convert(name: str, kind: pa.DataType) -> pa.DataType:
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            inner = convert("", kind.value_type)
            return pa.large_list(inner) if pa.types.is_large_list(kind) else pa.list_(inner)
        if pa.types.is_struct(kind):
            return pa.struct([f.with_type(convert(f.name, f.type)) for f in kind])
        return pa.json_(kind) if name == "tool_calls" else kind

    return pa.schema([f.with_type(convert("", f.type)) for f in schema])


def read_preference_pairs(file: Path) -> pa.Table:
    """Return prompt, chosen and rejected of a file that `check_pairs` accepts, in its order."""
    check_pairs(file)
    return scan_pairs(file).select(PAIRS).collect().to_arrow()


def compute_length_margins(pairs: pa.Table) -> NDArray[np.float64]:
    """Return characters of `chosen` less those of `rejected`, (n,)."""
    sides = [
        pc.utf8_length(plain_text(content_column(pairs, side), "")).to_numpy() for side in PAIRS[1:]
    ]
    return np.asarray(sides[0] - sides[1], np.float64)


def scan_pairs(file: Path) -> pl.LazyFrame:
    """Return the columns of a Parquet or JSON lines file; raise `LabelguardError` otherwise."""
    try:
        scan = pl.scan_parquet if file.suffix == ".parquet" else pl.scan_ndjson
        frame = scan(escape_file_names(file))
        frame.collect_schema()
    except (PolarsError, OSError):
        raise LabelguardError(f"{file} cannot be read as Parquet or JSON lines") from None
    return frame


def compute_item_keys(file: Path) -> NDArray[np.uint64]:
    """Return the item of each row of a file of pairs, (n,): 64 bits, uniform over items.

    A hash of what is compared: the prompt and the sides, whichever comes first. Not of an
    `item_id`, which may name a record: a model that was trained on a pair has seen it under every
    name. Pairs that share only a prompt are two items. Stages of PROPS go by other bits.

    Raises `LabelguardError` for columns that are neither texts nor chats.
    """
    return compute_item_keys_and_sides(file)[0]


def compute_item_keys_and_sides(file: Path) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Return `compute_item_keys`, and True where the chosen side is its item's first one, (n,).

    Which side is the first follows from the sides alone.
    """
    with duckdb.connect() as connection:
        rows = (
            connection.read_parquet(escape_file_names(file))
            if file.suffix == ".parquet"
            else connection.from_arrow(pl.read_ndjson(escape_file_names(file)).to_arrow())
        )
        return compute_keys_and_sides(rows, str(file))


def hold_out(items: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
    """Return True for rows that are held out, (n,): all rows of about a `share` of the items.

    A function of the item's key alone: the rows of one item stay together (a model that has seen a
    pair is no judge of its other labels), an item that is held out of one release is held out of
    the next, and what is held out tells nothing.

    Raises `LabelguardError` unless 0 <= share < 1.
    """
    if not 0 <= share < 1:
        raise LabelguardError(f"holdout must be in [0, 1), numbers {share:g}")
    return items < np.uint64(int(share * 2**64))


# An interval that reaches further than this to either side is too wide to use.
USEFUL = 0.1
# With a larger share of comparisons of one unit with itself, agreement is not that of labelers.
SELF_SHARE = 0.01

Items = NDArray[np.uint64]
Floats = NDArray[np.float64]


def find_agreement_in_releases(opened: OpenProject) -> float | None:
    """Return what the newest release tells whose labels tell it well enough; None without any."""
    for record in reversed(opened.ledger.releases.all()):
        if (record.state, record.settings["mechanism"]) == ("committed", "rr"):
            directory = opened.project.releases / record.id
            card = read_card(directory)
            known = explain_no_agreement(card) is None
            between = estimate_agreement(find_rows_path(directory), card) if known else None
            if (agreement := clip_agreement(card, between)) is not None:
                return agreement
    return None


def estimate_agreement(data: Path, card: Mapping[str, Any]) -> AgreementEstimate | None:
    """Estimate how often two labels of one item agree, from the rows of a release and its card."""
    item, side = read_items_and_sides(data, by_question=has_question_column(data))
    flips = pl.read_parquet(escape_file_names(data))["flip_probability"].to_numpy()
    # The labels of an item that is the unit were flipped together.
    compare = (
        estimate_with_items_as_units
        if card["privacy"]["unit"] == "item"
        else estimate_between_labelers
    )
    return compare(item, side, flips, card["flip_probability"].get("blocks", ()))


def clip_agreement(card: Mapping[str, Any], between: AgreementEstimate | None) -> float | None:
    """Return the estimate within the range that is simulated; None where it is of no use."""
    if between is None or between.reach > USEFUL or bound_unit_share(card, between) > SELF_SHARE:
        return None
    lowest, highest = AGREEMENTS
    return round(min(highest, max(lowest, between.agreement)), 2)


def bound_unit_share(card: Mapping[str, Any], between: AgreementEstimate) -> float:
    """Return at most which share of the comparisons is within one unit.

    Of linked labelers several labels of an item are one unit's.
    """
    pairs = 0 if card["privacy"]["unit"] == "item" else card["counts"]["unit_pairs"]
    return min(1.0, pairs / between.comparisons)


def explain_no_agreement(card: Mapping[str, Any]) -> str | None:
    """Return why a release's labels say nothing of agreement; None if they do."""
    if card["train_with"] != "forward":
        return (
            f"release {card['release']} ({card['mechanism']}) has no labels with known flips, so "
            "it tells no agreement; randomized response does (--mechanism rr)"
        )
    return None


def read_items_and_sides(file: Path, *, by_question: bool) -> tuple[Items, Floats]:
    """Return the item and the side of each row: 1 the first, −1 the second.

    By question, one pair under two questions is two items.
    """
    keys, first = compute_item_keys_and_sides(file)
    if by_question:
        question = scan_pairs(file).select(pl.col("question").cast(pl.String)).collect()
        both = pl.struct(key=pl.Series(keys), question=question["question"]).hash()
        keys = pl.select(both).to_series().to_numpy()
    return keys, np.where(first, 1.0, -1.0)


def has_question_column(file: Path) -> bool:
    """Return whether the rows of a file answer several questions."""
    return "question" in scan_pairs(file).collect_schema()
