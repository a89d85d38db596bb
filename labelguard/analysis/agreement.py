"""Quality control from released labels: agreement between labelers, and with gold items.

Post-processing of a release and of a public file. Nothing is charged, and no labeler is told apart.

New pairs are scored here by a released head: public pairs in, probabilities out, at no price.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from labelguard.budget.label_values import parse_public_columns
from labelguard.errors import LabelguardError
from labelguard.inputs.pairs import read_public_pairs
from labelguard.inputs.sources import Input
from labelguard.mechanisms.agreement import AgreementEstimate, estimate_with_gold
from labelguard.options import ReadingOptions
from labelguard.release.head import Head
from labelguard.release.pairs_file import (
    SELF_SHARE,
    USEFUL,
    bound_unit_share,
    check_pairs,
    clip_agreement,
    estimate_agreement,
    explain_no_agreement,
    has_question_column,
    read_items_and_sides,
)
from labelguard.release.writer import (
    Release,
    read_card,
    resolve_release_directory,
    split_by_preference,
)
from labelguard.storage.buckets import escape_file_names, find_rows_path
from labelguard.storage.executor import LOCAL, Workers, open_executor
from labelguard.storage.files import check_new_output_file
from labelguard.text import AUTO_FORMAT, no_progress, suggest_misspelled_keywords

_TIES = {"coin": "a tie counts as half an agreement", "drop": "ties are public and not counted"}


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
    if reason := explain_no_agreement(card):
        return Agreement(card["release"], None, None, None, (reason,))
    data = find_rows_path(release)
    between = estimate_agreement(data, card)
    notes = [_TIES[card["privacy"]["ties"]], *_estimate_notes("labels of one item", between)]
    by_gold = None
    if gold is not None:
        by_gold = _estimate_by_gold(gold, data, card)
        notes += _estimate_notes("labels of gold items", by_gold)
    usable = clip_agreement(card, between)
    plan = None if usable is None else f"--agreement {usable:.2f}"
    notes += _note_same_unit_comparisons(card, between)
    return Agreement(card["release"], between, by_gold, plan, tuple(notes))


def _estimate_by_gold(gold: Path, data: Path, card: Mapping[str, Any]) -> AgreementEstimate | None:
    """Estimate how often the labels of gold items are those that the file says."""
    check_pairs(gold)
    by_question = has_question_column(data)
    if by_question and not has_question_column(gold):
        raise LabelguardError(f"{gold} needs a column question, as the release has one")
    keys, answers = read_items_and_sides(gold, by_question=by_question)
    keys, at, where = np.unique(keys, return_index=True, return_inverse=True)
    if (answers != answers[at][where]).any():
        raise LabelguardError(f"{gold} has two answers to one pair; remove one of them")
    item, side = read_items_and_sides(data, by_question=by_question)
    flips = pl.read_parquet(escape_file_names(data))["flip_probability"].to_numpy()
    nearest = np.minimum(np.searchsorted(keys, item), len(keys) - 1)
    of_gold = keys[nearest] == item
    return estimate_with_gold(
        item[of_gold],
        side[of_gold],
        answers[at][nearest[of_gold]],
        flips[of_gold],
        card["flip_probability"].get("blocks", ()),
    )


def _estimate_notes(labels: str, estimate: AgreementEstimate | None) -> list[str]:
    """Return why an estimate is missing, or of little use."""
    if estimate is None:
        return [f"no estimate from {labels}: the release has none that carry information"]
    if estimate.reach > USEFUL:
        return [
            f"{labels}: the interval is ± {estimate.reach:.2g}, too wide to use; "
            "more labels per item, fewer per labeler or a larger ε narrow it"
        ]
    return []


def _note_same_unit_comparisons(
    card: Mapping[str, Any], between: AgreementEstimate | None
) -> list[str]:
    """Return the note on comparisons that are within one unit."""
    if between is None or not (share := bound_unit_share(card, between)):
        return []
    note = (
        f"up to {share:.1%} of the comparisons are between labels of one "
        f"{card['privacy']['unit']} (linked ids, or members of a group), which may agree more or "
        "less often than others"
    )
    return [note + ("; so no value is suggested for a plan" if share > SELF_SHARE else "")]


@suggest_misspelled_keywords
def score(
    release: Release | str | Path,
    source: Input,
    *,
    reading: ReadingOptions | None = None,
    columns: Mapping[str, str] | None = None,
    labeler_column: str | None = None,
    no_prompt: bool = False,
    question: str | None = None,
    format: str = AUTO_FORMAT,  # noqa: A002 - called as the option is
    split: str | Sequence[str] | None = None,
    public_columns: Sequence[str] | None = None,
    drop_members: Sequence[str] | None = None,
    engine: str = LOCAL,
    address: str | None = None,
    workers: int | None = None,
) -> pl.DataFrame:
    """Return the distinct pairs of `source`, each with the side that a release's head prefers.

    `source` is any input of pairs or rankings; labels and labelers in it are not read. `columns`,
    `question`, `format`, `split` and `drop_members` say how it is read, as in `privatize`;
    `public_columns` are those that the release's card declares, and these. `engine`, `address` and
    `workers` are where files are read and texts encoded, as in `privatize`, with scratch space in
    TMPDIR. Returns prompt, chosen, rejected, item_id and label_probability (that `chosen` is
    preferred), sorted by item; and question, where there is one. Post-processing of a release:
    nothing is charged.

    Raises `ProjectError` if the release holds no head, `InvalidLabels` for unusable pairs, and
    `LabelguardError` if its features are no longer what they were, `TypeError` for what is no
    release.

    Example:
        >>> lg.score(release, "labels.parquet").columns[3:]
        ['item_id', 'label_probability']
    """
    path = resolve_release_directory(release)
    head = Head.load(path)
    with contextlib.closing(open_executor(engine, workers, address)) as executor:
        provider = head.load_provider(no_progress, Workers(executor))
        pairs = read_public_pairs(
            source,
            reading=reading,
            columns=columns,
            labeler_column=labeler_column,
            no_prompt=no_prompt,
            features=head.features,
            unit="none",
            question=question,
            format=format,
            split=split,
            public_columns=(*_public_columns(path), *parse_public_columns(public_columns)),
            drop_members=drop_members,
            executor=executor,
        )
        probability = head.predict_probability(provider(pairs.table))
    first = probability >= 0.5
    chosen, rejected = split_by_preference(pairs.table, np.arange(len(first)), first)
    table = pa.table(
        {
            "prompt": pairs.table["prompt"],
            "chosen": chosen,
            "rejected": rejected,
            "item_id": pairs.ids,
            "label_probability": np.where(first, probability, 1 - probability),
        }
    )
    if pairs.questions is not None:
        table = table.append_column("question", pairs.questions)
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame.sort("item_id", maintain_order=True)


def _public_columns(release: Path) -> tuple[str, ...]:
    """Return the columns that a release's card declares public; none where it has no card."""
    path = release / "card.json"
    card = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    return parse_public_columns(card.get("privacy", {}).get("public_columns"))


@dataclass(frozen=True)
class Scored:
    """Pairs that were labeled by a head."""

    # the file
    path: str
    # how many
    pairs: int


def write_scores(release: Path, source: Input, path: Path, **options: Any) -> Scored:
    """Write scored pairs to a Parquet file; `options` are those of `score`."""
    check_new_output_file(path, "scored.parquet")
    scored = score(release, source, **options)
    scored.write_parquet(path)
    return Scored(str(path), scored.height)
