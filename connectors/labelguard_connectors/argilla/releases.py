"""A release as a data set of Argilla: its pairs, and what it says of them as suggestions."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from labelguard.errors import ConnectorError
from labelguard.release.writer import load
from labelguard.text import Progress
from labelguard_connectors.argilla.rest import Rest
from labelguard_connectors.pairs import SIDES
from labelguard_connectors.pairs import pairs as released

_BATCH = 200
"""Records in one request: Argilla takes 500, but some seconds for them."""
_LONGEST_NAME = 200
_LONGEST_CHAT = 500
_LONGEST_ROLE = 20
_QUESTION = {
    "name": "preference",
    "title": "Which response is better?",
    "required": True,
    "settings": {
        "type": "label_selection",
        "options": [{"value": side, "text": side} for side in (*SIDES, "tie")],
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
    plain = pairs.drop("item_id", "share")
    made = {"name": name, "workspace_id": workspace, "guidelines": _GUIDELINES}
    dataset = rest.post("/datasets", made)["id"].uuid()
    path = f"/datasets/{dataset}"
    try:
        for field, kind in plain.schema.items():
            rest.post(f"{path}/fields", _field(field, kind))
        question = rest.post(f"{path}/questions", _QUESTION)["id"].uuid()
        rest.put(f"{path}/publish")
        for start in range(0, len(pairs), _BATCH):
            progress("publishing to Argilla", start / len(pairs))
            batch = pairs.slice(start, _BATCH)
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
    return released(rows).drop("probability")


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


def _record(row: dict[str, Any], question: str) -> dict[str, Any]:
    share, item = row.pop("share"), row.pop("item_id")
    name = f"{item}: {row['question']}" if row.get("question") else item
    record: dict[str, Any] = {"external_id": name, "fields": row}
    if share != 1 / 2:
        record["suggestions"] = [
            {
                "question_id": question,
                "value": SIDES[0] if share > 1 / 2 else SIDES[1],
                "score": max(share, 1 - share),
                "agent": "labelguard",
                "type": "model",
            }
        ]
    return record
