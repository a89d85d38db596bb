"""Scores new pairs by a released head: public pairs in, probabilities out, at no price."""

from __future__ import annotations

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
from labelguard.inputs.pairs import read_pairs
from labelguard.inputs.sources import Input
from labelguard.learning.features import open_provider
from labelguard.release.head import Head
from labelguard.release.writer import Release, directory_of, split_by_preference
from labelguard.spelling import suggest_keywords
from labelguard.storage.files import check_new_file
from labelguard.text import AUTO_FORMAT


@suggest_keywords
def score(
    release: Release | str | Path,
    source: Input,
    *,
    columns: Mapping[str, str] | None = None,
    question: str | None = None,
    format: str = AUTO_FORMAT,  # noqa: A002 - called as the option is
    split: str | None = None,
    public_columns: Sequence[str] | None = None,
) -> pl.DataFrame:
    """Return the distinct pairs of `source`, each with the side that a release's head prefers.

    `source` is any input of pairs or rankings; labels and labelers in it are not read. `columns`,
    `question`, `format` and `split` say how it is read, as in `privatize`; `public_columns` are
    those that the release's card declares, and these. Returns
    prompt, chosen, rejected, item_id and label_probability (that `chosen` is preferred), sorted by
    item; and question, where there is one. Post-processing of a release: nothing is charged.

    Raises `ProjectError` if the release holds no head, `InvalidLabels` for unusable pairs, and
    `LabelguardError` if its features are no longer what they were, `TypeError` for what is no
    release.

    Example:
        >>> lg.score(release, "labels.parquet").columns[3:]
        ['item_id', 'label_probability']
    """
    path = directory_of(release)
    head = Head.load(path)
    provider = open_provider(head.features, head.state)
    if provider.identity() != head.identity:
        raise LabelguardError(
            f"the head in {path} was fitted on features {head.identity}; "
            f"found {provider.identity()}"
        )
    pairs = read_pairs(
        source,
        columns=columns,
        features=head.features,
        unit="none",
        question=question,
        format=format,
        split=split,
        public_columns=(*_public_columns(path), *parse_public_columns(public_columns)),
    )
    probability = head.probability(provider(pairs.table))
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


def score_to(release: Path, source: Input, path: Path, **options: Any) -> Scored:
    """Write scored pairs to a Parquet file; `options` are those of `score`."""
    check_new_file(path, "scored.parquet")
    scored = score(release, source, **options)
    scored.write_parquet(path)
    return Scored(str(path), scored.height)
