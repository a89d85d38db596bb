"""Releases back into the tools: their pairs, to be compared anew, and nobody's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from labelguard.errors import ConnectorError
from labelguard.release.writer import load
from labelguard.text import Progress
from labelguard_connectors.http import HttpClient
from labelguard_connectors.payloads import Id, Payload

SIDES = ("response_a", "response_b")
_COLUMNS = {"prompt", "chosen", "rejected", "item_id", "label_probability"}


def collect_released_pairs(rows: pl.DataFrame) -> pl.DataFrame:
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
    client: HttpClient, address: Callable[[int], str], release: Path, name: str, progress: Progress
) -> int:
    """Make a project of a release's pairs; return its id. All of it, or nothing.

    Where a part that was made cannot be removed, the error says the `address` of the project.
    """
    if not _SHORTEST_TITLE <= len(name.strip()) <= _LONGEST_TITLE:
        raise ConnectorError(
            f"a project of Label Studio has a name of {_SHORTEST_TITLE} to {_LONGEST_TITLE} "
            "characters; choose another"
        )
    pairs = collect_released_pairs(load(release))
    body = {"title": name.strip(), "label_config": label_config(pairs)}
    project = client.post(_NewProject, "/api/projects/", body).id
    path = f"/api/projects/{project}"
    try:
        for start in range(0, pairs.height, _TASKS):
            progress("importing pairs", start / pairs.height)
            tasks = list(_build_label_studio_tasks(pairs[start : start + _TASKS]))
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


def _build_label_studio_tasks(pairs: pl.DataFrame) -> Iterator[Mapping[str, Any]]:
    """Yield tasks to import; where a probability is released, it is a prediction."""
    for row in pairs.iter_rows(named=True):
        probability, _ = row.pop("probability"), row.pop("share")
        data = {name: value for name, value in row.items() if value is not None}
        predictions = [] if probability is None else [_build_prediction(probability)]
        yield {"data": data, "predictions": predictions}


def _build_prediction(probability: float) -> Mapping[str, Any]:
    is_left = probability >= 0.5
    region = {
        "from_name": "preference",
        "to_name": "response_a",
        "type": "pairwise",
        "value": {"selected": "left" if is_left else "right"},
    }
    score = probability if is_left else 1 - probability
    return {"model_version": "labelguard", "score": score, "result": [region]}
