"""A release as a data set of Argilla: its pairs, and what it says of them as suggestions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from labelguard.errors import ConnectorError
from labelguard.release.writer import load
from labelguard.terms import Progress
from labelguard_connectors.argilla.rest import Rest

_BATCH = 200
"""Records in one request: Argilla takes 500, but some seconds for them."""
_LONGEST_NAME = 200
_LONGEST_CHAT = 500
_LONGEST_ROLE = 20
_SIDES = ("response_a", "response_b")
_QUESTION = {
    "name": "preference",
    "title": "Which response is better?",
    "required": True,
    "settings": {
        "type": "label_selection",
        "options": [{"value": side, "text": side} for side in (*_SIDES, "tie")],
    },
}
_GUIDELINES = (
    "A release by labelguard. Suggestions are what it says of a pair: noisy on purpose, and "
    "no single labeler's answer."
)


def publish(rest: Rest, workspace: str, release: Path, name: str, progress: Progress) -> str:
    """Make a data set of a release's pairs in a workspace (id); its id.

    Each pair is one record, with its sides in the order of their contents, and suggests the side
    that was released as preferred, with the mean released probability; nothing, if that is 1/2.
    A data set that cannot be filled is removed again.
    """
    if not 0 < len(name) <= _LONGEST_NAME:
        raise ConnectorError(f"names of Argilla's data sets have 1 to {_LONGEST_NAME} characters")
    pairs = _pairs(load(release))
    made = {"name": name, "workspace_id": workspace, "guidelines": _GUIDELINES}
    dataset = rest.post("/datasets", made)["id"].uuid()
    path = f"/datasets/{dataset}"
    try:
        for field, kind in zip(pairs.columns, pairs.dtypes, strict=True):
            if field not in ("item_id", "share"):
                rest.post(f"{path}/fields", _field(field, kind))
        question = rest.post(f"{path}/questions", _QUESTION)["id"].uuid()
        rest.put(f"{path}/publish")
        for start, batch in _batches(pairs):
            progress("publishing to Argilla", start / len(pairs))
            records = [_record(row, question) for row in batch.iter_rows(named=True)]
            rest.put(f"{path}/records/bulk", {"items": records})
    except BaseException:
        with suppress(ConnectorError):
            rest.delete(path)
        raise
    progress("publishing to Argilla", 1.0)
    return dataset


def _pairs(rows: pl.DataFrame) -> pl.DataFrame:
    """The distinct pairs: item_id, the fields, and `share`, the probability that A is preferred."""
    for column in ("prompt", "chosen", "rejected"):
        _check(rows, column)
    a_chosen = _order(rows, "chosen") <= _order(rows, "rejected")
    likely = pl.col("label_probability").fill_null(1.0)
    asked = [name for name in ("question",) if name in rows.columns]
    return (
        rows.select(
            pl.when(a_chosen).then("chosen").otherwise("rejected").alias(_SIDES[0]),
            pl.when(a_chosen).then("rejected").otherwise("chosen").alias(_SIDES[1]),
            pl.when(a_chosen).then(likely).otherwise(1 - likely).alias("share"),
            "item_id",
            "prompt",
            *asked,
        )
        .group_by("item_id", *asked, maintain_order=True)
        .agg(pl.first("prompt", *_SIDES), pl.mean("share"))
        .select("item_id", *asked, "prompt", *_SIDES, "share")
    )


def _order(rows: pl.DataFrame, column: str) -> pl.Expr:
    """What sides are ordered by: their contents."""
    if rows.schema[column] == pl.String:
        return pl.col(column)
    return pl.col(column).list.eval(pl.element().struct.json_encode()).list.join("\n")


def _check(rows: pl.DataFrame, column: str) -> None:
    """Raise `ConnectorError` for chats that Argilla cannot show whole, before anything is made."""
    if rows.schema[column] == pl.String:
        return
    plain = pl.List(pl.Struct({"role": pl.String, "content": pl.String}))
    if rows.schema[column] == plain:
        role, said = (pl.element().struct.field(name) for name in ("role", "content"))
        shown = role.str.len_chars().is_between(1, _LONGEST_ROLE) & (said.str.len_chars() > 0)
        chats = rows[column]
        whole = chats.list.eval(shown.fill_null(False)).list.all()
        if (whole & chats.list.len().is_between(1, _LONGEST_CHAT)).all():
            return
    raise ConnectorError(
        f"{column}: Argilla shows no chat but of 1 to {_LONGEST_CHAT} messages, each of a role (up "
        f"to {_LONGEST_ROLE} characters), a text as content that is not empty, and nothing else"
    )


def _field(name: str, kind: pl.DataType) -> dict[str, Any]:
    shown = {"type": "text"} if kind == pl.String else {"type": "chat"}
    settings = {**shown, "use_markdown": False}
    return {"name": name, "title": name, "required": True, "settings": settings}


def _batches(pairs: pl.DataFrame) -> Iterator[tuple[int, pl.DataFrame]]:
    for start in range(0, len(pairs), _BATCH):
        yield start, pairs.slice(start, _BATCH)


def _record(row: dict[str, Any], question: str) -> dict[str, Any]:
    share, item = row.pop("share"), row.pop("item_id")
    asked = row.get("question")
    record: dict[str, Any] = {
        "external_id": item if asked is None else f"{item}: {asked}",
        "fields": row,
    }
    if share != 1 / 2:
        record["suggestions"] = [
            {
                "question_id": question,
                "value": _SIDES[0] if share > 1 / 2 else _SIDES[1],
                "score": max(share, 1 - share),
                "agent": "labelguard",
                "type": "model",
            }
        ]
    return record
