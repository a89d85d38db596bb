"""A release as a project of Label Studio: its pairs to compare anew, and nobody's name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

import labelguard
from labelguard.errors import ConnectorError

_COLUMNS = ("prompt", "chosen", "rejected", "item_id", "label_probability")
_MODEL = "labelguard"
_TEXT = '<Text name="{name}" value="${name}"/>'
_CHAT = (
    '<Paragraphs name="{name}" value="${name}" layout="dialogue" nameKey="role" textKey="content"/>'
)
_SHORTEST, _LONGEST = 3, 50


def checked(name: str) -> str:
    """A project's title. Raises `ConnectorError` for one that Label Studio would refuse."""
    if not _SHORTEST <= len(name.strip()) <= _LONGEST:
        raise ConnectorError(
            f"a project of Label Studio has a name of {_SHORTEST} to {_LONGEST} characters; "
            "choose another"
        )
    return name.strip()


def pairs(release: Path) -> pl.DataFrame:
    """The pairs of a release, each once: prompt, response_a, response_b, item_id, probability.

    Sides stand in the order of their contents, so that nobody can see which was preferred.
    `probability` is that of A being preferred, the mean of a pair's rows; null where the release
    has none.
    """
    rows = labelguard.load(release, "arrow")
    if not set(_COLUMNS) <= set(rows.column_names):
        raise ConnectorError(f"{release} is no release of pairs; push one of pairs")
    question = "question" if "question" in rows.column_names else "NULL::VARCHAR"
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        found: pl.DataFrame = connection.sql(f"""
            WITH sided AS (
                SELECT *, {question} AS asked, row_number() OVER () AS place,
                    to_json(chosen)::VARCHAR <= to_json(rejected)::VARCHAR AS in_order
                FROM rows)
            SELECT first(prompt) AS prompt,
                first(CASE WHEN in_order THEN chosen ELSE rejected END) AS response_a,
                first(CASE WHEN in_order THEN rejected ELSE chosen END) AS response_b,
                item_id, asked AS question,
                avg(CASE WHEN in_order THEN label_probability ELSE 1 - label_probability END)
                    AS probability
            FROM sided GROUP BY item_id, asked ORDER BY min(place)""").pl()
    return found


def config(frame: pl.DataFrame) -> str:
    """The labeling interface: a prompt, and which of two responses is better."""
    tags = {
        name: (_TEXT if frame.schema[name] == pl.String else _CHAT).format(name=name)
        for name in ("prompt", "response_a", "response_b")
    }
    return f"""<View>
  {tags["prompt"]}
  <Pairwise name="preference" toName="response_a,response_b"/>
  {tags["response_a"]}
  {tags["response_b"]}
</View>"""


def tasks(frame: pl.DataFrame) -> Iterator[Mapping[str, Any]]:
    """Tasks to import; where a probability is released, it is a prediction."""
    for row in frame.iter_rows(named=True):
        probability = row.pop("probability")
        data = {name: value for name, value in row.items() if value is not None}
        predictions = [] if probability is None else [_prediction(probability)]
        yield {"data": data, "predictions": predictions}


def _prediction(probability: float) -> Mapping[str, Any]:
    left = probability >= 0.5
    region = {
        "from_name": "preference",
        "to_name": "response_a",
        "type": "pairwise",
        "value": {"selected": "left" if left else "right"},
    }
    score = probability if left else 1 - probability
    return {"model_version": _MODEL, "score": score, "result": [region]}
