"""Releases back into the tools: their pairs, to be compared anew, and nobody's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from labelguard.errors import ConnectorError
from labelguard.release.writer import load
from labelguard.text import Progress
from labelguard_connectors.http import HttpClient
from labelguard_connectors.payloads import Id, Payload, Uuid

SIDES = ("response_a", "response_b")
_COLUMNS = {"prompt", "chosen", "rejected", "item_id", "label_probability"}


def released_pairs(rows: pl.DataFrame) -> pl.DataFrame:
    """Return each pair of released rows once: item_id, question if rows have one, prompt, sides.

    Sides stand in the order of their contents, so that nobody can see which was preferred.
    `probability` is that of A being preferred, the mean of a pair's rows, and null where the
    release has none; `share` is the same, with what was released taken for certain there. Raises
    `ConnectorError` for what is no release of pairs.
    """
    if not set(rows.columns) >= _COLUMNS:
        raise ConnectorError("this is no release of pairs; push one of pairs")
    question = "question," if "question" in rows.columns else ""
    with duckdb.connect() as connection:
        connection.register("rows", rows.to_arrow())
        pairs: pl.DataFrame = connection.sql(f"""
            WITH sided AS (
                SELECT *, row_number() OVER () AS place,
                    to_json(chosen)::VARCHAR <= to_json(rejected)::VARCHAR AS in_order
                FROM rows)
            SELECT item_id, {question} first(prompt) AS prompt,
                first(CASE WHEN in_order THEN chosen ELSE rejected END) AS {SIDES[0]},
                first(CASE WHEN in_order THEN rejected ELSE chosen END) AS {SIDES[1]},
                avg(CASE WHEN in_order THEN label_probability ELSE 1 - label_probability END)
                    AS probability,
                avg(CASE WHEN in_order THEN coalesce(label_probability, 1)
                    ELSE 1 - coalesce(label_probability, 1) END) AS share
            FROM sided GROUP BY {question} item_id ORDER BY min(place)""").pl()
    return pairs


class _Created(Payload):
    id: Uuid


# Records of Argilla in one request: it takes 500, but some seconds for them.
_RECORDS = 200
_LONGEST_DATASET = 200
_LONGEST_CHAT, _LONGEST_ROLE = 500, 20
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


def push_to_argilla(
    client: HttpClient, workspace: str, release: Path, name: str, progress: Progress
) -> str:
    """Make a data set of a release's pairs in a workspace (id); return its id.

    Each pair is one record, with its sides in the order of their contents, and suggests the side
    that was released as preferred, with the mean released probability; nothing, if that is 1/2.
    A data set that cannot be filled is removed again.
    """
    if not 0 < len(name) <= _LONGEST_DATASET:
        raise ConnectorError(
            f"a data set of Argilla has a name of 1 to {_LONGEST_DATASET} characters"
        )
    pairs = argilla_pairs(load(release))
    fields = pairs.drop("item_id", "share")
    body = {"name": name, "workspace_id": workspace, "guidelines": _GUIDELINES}
    dataset = client.post(_Created, "/api/v1/datasets", body).id
    path = f"/api/v1/datasets/{dataset}"
    try:
        for field, kind in fields.schema.items():
            client.post(_Created, f"{path}/fields", _argilla_field(field, kind))
        question = client.post(_Created, f"{path}/questions", _QUESTION).id
        client.send("PUT", f"{path}/publish", repeatable=True)
        for start in range(0, len(pairs), _RECORDS):
            progress("publishing to Argilla", start / len(pairs))
            batch = pairs.slice(start, _RECORDS).iter_rows(named=True)
            records = {"items": [_argilla_record(row, question) for row in batch]}
            client.send("PUT", f"{path}/records/bulk", body=records, repeatable=True)
    except BaseException:
        with suppress(ConnectorError):
            client.send("DELETE", path, repeatable=False)
        raise
    progress("publishing to Argilla", 1.0)
    return dataset


def argilla_pairs(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the distinct pairs: item_id, the fields, and `share`, the probability that A is
    preferred.

    Raises `ConnectorError` for chats that Argilla cannot show whole.
    """
    for column in ("prompt", "chosen", "rejected"):
        _check_chats(rows, column)
    return released_pairs(rows).drop("probability")


def _check_chats(rows: pl.DataFrame, column: str) -> None:
    if rows.schema[column] == pl.String:
        return
    plain = pl.List(pl.Struct({"role": pl.String, "content": pl.String}))
    if rows.schema[column] == plain:
        role, content = (pl.element().struct.field(name) for name in ("role", "content"))
        shown = role.str.len_chars().is_between(1, _LONGEST_ROLE) & (content.str.len_chars() > 0)
        chats = rows[column]
        whole = chats.list.eval(shown.fill_null(False)).list.all()
        if (whole & chats.list.len().is_between(1, _LONGEST_CHAT)).all():
            return
    raise ConnectorError(
        f"{column}: Argilla shows no chat but of 1 to {_LONGEST_CHAT} messages, each of a role (up "
        f"to {_LONGEST_ROLE} characters), a text as content that is not empty, and nothing else"
    )


def _argilla_field(name: str, kind: pl.DataType) -> dict[str, Any]:
    settings = {"type": "text" if kind == pl.String else "chat", "use_markdown": False}
    return {"name": name, "title": name, "required": True, "settings": settings}


def _argilla_record(row: dict[str, Any], question: str) -> dict[str, Any]:
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


class _NewProject(Payload):
    id: Id


# Tasks of Label Studio in one request.
_TASKS = 500
_SHORTEST_TITLE, _LONGEST_TITLE = 3, 50
_TEXT = '<Text name="{name}" value="${name}"/>'
_CHAT = (
    '<Paragraphs name="{name}" value="${name}" layout="dialogue" nameKey="role" textKey="content"/>'
)


def push_to_label_studio(
    client: HttpClient,
    address: Callable[[int], str],
    release: Path,
    name: str,
    progress: Progress,
) -> int:
    """Make a project of a release's pairs; return its id. All of it, or nothing.

    Where a part that was made cannot be removed, the error says the `address` of the project.
    """
    if not _SHORTEST_TITLE <= len(name.strip()) <= _LONGEST_TITLE:
        raise ConnectorError(
            f"a project of Label Studio has a name of {_SHORTEST_TITLE} to {_LONGEST_TITLE} "
            "characters; choose another"
        )
    pairs = released_pairs(load(release))
    body = {"title": name.strip(), "label_config": label_config(pairs)}
    project = client.post(_NewProject, "/api/projects/", body).id
    path = f"/api/projects/{project}"
    try:
        for start in range(0, pairs.height, _TASKS):
            progress("importing pairs", start / pairs.height)
            tasks = list(_label_studio_tasks(pairs[start : start + _TASKS]))
            client.send("POST", f"{path}/import", body=tasks, repeatable=False)
    except BaseException as error:
        try:
            client.send("DELETE", f"{path}/", repeatable=False)
        except ConnectorError:
            if isinstance(error, ConnectorError):
                raise ConnectorError(
                    f"{error}; {address(project)} holds a part of the release: delete it"
                ) from None
        raise
    progress("importing pairs", 1.0)
    return project


def label_config(pairs: pl.DataFrame) -> str:
    """Return the labeling interface: a prompt, and which of two responses is better."""
    tags = {
        name: (_TEXT if pairs.schema[name] == pl.String else _CHAT).format(name=name)
        for name in ("prompt", *SIDES)
    }
    return f"""<View>
  {tags["prompt"]}
  <Pairwise name="preference" toName="response_a,response_b"/>
  {tags["response_a"]}
  {tags["response_b"]}
</View>"""


def _label_studio_tasks(pairs: pl.DataFrame) -> Iterator[Mapping[str, Any]]:
    """Yield tasks to import; where a probability is released, it is a prediction."""
    for row in pairs.iter_rows(named=True):
        probability, _ = row.pop("probability"), row.pop("share")
        data = {name: value for name, value in row.items() if value is not None}
        predictions = [] if probability is None else [_prediction(probability)]
        yield {"data": data, "predictions": predictions}


def _prediction(probability: float) -> Mapping[str, Any]:
    is_left = probability >= 0.5
    region = {
        "from_name": "preference",
        "to_name": "response_a",
        "type": "pairwise",
        "value": {"selected": "left" if is_left else "right"},
    }
    score = probability if is_left else 1 - probability
    return {"model_version": "labelguard", "score": score, "result": [region]}
