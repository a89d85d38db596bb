"""A release as a data set of Argilla, made by Argilla's own package.

Reading does without that package: it loses the status of responses. Here none are there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from labelguard import extras
from labelguard.errors import ConnectorError
from labelguard.release.writer import load, read_card
from labelguard.text import Progress
from labelguard_connectors.argilla.rest import HINTS, READY, ArgillaClient, Dataset, list_pages

# Records in one request: Argilla takes 500, but some seconds for them.
_RECORDS = 200
_LONGEST_DATASET = 200
_SIDES = ("response_a", "response_b")
_NO_FIELDS = ("item_id", "share")
_COLUMNS = {"prompt", "chosen", "rejected", "item_id", "label_probability"}
_LONGEST_CHAT, _LONGEST_ROLE = 500, 20
_GUIDELINES = (
    "A release by labelguard. Suggestions are what it says of a pair: noisy on purpose, and "
    "no single labeler's answer."
)


def read_pairs(release: Path, name: str) -> pl.DataFrame:
    """Return the pairs of a release that Argilla can show, for a data set of this name."""
    extras.require_extra("argilla-push", "publishing in Argilla")
    if not 0 < len(name) <= _LONGEST_DATASET:
        raise ConnectorError(
            f"a data set of Argilla has a name of 1 to {_LONGEST_DATASET} characters"
        )
    return collect_displayable_pairs(load(release))


def publish_pairs(
    argilla: ArgillaClient,
    api_key: str,
    workspace: str,
    name: str,
    release: Path,
    pairs: pl.DataFrame,
    progress: Progress,
) -> str:
    """Make a data set of a release's pairs in a workspace (id), or complete it; return its id.

    Each pair is one record, with its sides in the order of their contents, and suggests the side
    that was released as preferred, with the mean released probability; nothing, if that is 1/2.
    Metadata are the release's id, and the probability that A is preferred. Its guidelines name the
    release: by them what an earlier call began is known again, and only missing records are added.
    Raises `ConnectorError` where another data set has the name.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")  # progress is told once
    import argilla as rg

    identity = str(read_card(release)["release"])
    begun = _find_begun(argilla, workspace, name, identity)
    is_ready = begun is not None and begun.status == READY
    with _hide_client_messages(argilla.where):
        client = rg.Argilla(api_url=argilla.url, api_key=api_key)
        dataset = client.datasets(id=begun.id) if begun else None
        if dataset and is_ready:
            dataset.get()
        else:
            if dataset:  # a draft without records, which nobody was ever shown
                dataset.delete()
            settings = _build_settings(rg, pairs, identity)
            dataset = rg.Dataset(name, client.workspaces(id=workspace), settings, client).create()
    number = str(dataset.id)
    there = {one.external_id for page in list_pages(argilla, number) for one in page}
    rows = [row for row in pairs.iter_rows(named=True) if _name_record(row) not in there]
    for start in range(0, len(rows), _RECORDS):
        progress("publishing to Argilla", start / len(rows))
        batch = [_build_record(rg, row, identity) for row in rows[start : start + _RECORDS]]
        with _hide_client_messages(argilla.where):
            dataset.records.log(batch, batch_size=len(batch))
    progress("publishing to Argilla", 1.0)
    return number


def _find_begun(argilla: ArgillaClient, workspace: str, name: str, release: str) -> Dataset | None:
    """Return the data set of this name, if there is one, which must be of this release."""
    for dataset in argilla.datasets(workspace):
        if dataset.name != name:
            continue
        if release in (dataset.guidelines or ""):
            return dataset
        raise ConnectorError(
            f"{argilla.where}: Argilla has a data set of that name, and its guidelines do not name "
            f"release {release}; choose another name, or delete it there"
        )
    return None


def _build_settings(rg: Any, pairs: pl.DataFrame, release: str) -> Any:
    """Return fields, question and metadata of the data set."""
    kinds = {name: kind == pl.String for name, kind in pairs.drop(_NO_FIELDS).schema.items()}
    probability = rg.FloatMetadataProperty(
        "probability", 0.0, 1.0, title="released probability of A", visible_for_annotators=False
    )
    return rg.Settings(
        guidelines=f"{_GUIDELINES} It is release {release}.",
        fields=[
            (rg.TextField if is_text else rg.ChatField)(name, use_markdown=False)
            for name, is_text in kinds.items()
        ],
        questions=[
            rg.LabelQuestion("preference", [*_SIDES, "tie"], title="Which response is better?")
        ],
        metadata=[rg.TermsMetadataProperty("release"), probability],
    )


def _name_record(row: Mapping[str, Any]) -> str:
    """Return the id of a pair's record."""
    return f"{row['item_id']}: {row['question']}" if row.get("question") else str(row["item_id"])


def _build_record(rg: Any, row: Mapping[str, Any], release: str) -> Any:
    share = row["share"]
    side = _SIDES[0] if share > 1 / 2 else _SIDES[1]
    about = {"score": max(share, 1 - share), "agent": "labelguard", "type": "model"}
    suggested = [] if share == 1 / 2 else [rg.Suggestion("preference", side, **about)]
    return rg.Record(
        id=_name_record(row),
        fields={name: value for name, value in row.items() if name not in _NO_FIELDS},
        metadata={"release": release, "probability": share},
        suggestions=suggested,
    )


@contextmanager
def _hide_client_messages(where: str) -> Iterator[None]:
    """Tell what the package refuses by its kind, and nothing of what was sent or answered."""
    import httpx
    from argilla._exceptions import ArgillaError

    try:
        yield
    except (ArgillaError, httpx.HTTPError) as error:
        status = getattr(error, "status_code", getattr(error.__cause__, "status_code", None))
        kind = f"HTTP {status}: {HINTS.get(status, 'refused')}" if status else type(error).__name__
    else:
        return
    raise ConnectorError(f"{where}: Argilla's client: {kind}")


def collect_displayable_pairs(rows: pl.DataFrame) -> pl.DataFrame:
    """Return each pair of released rows once: item_id, question if rows have one, prompt, sides.

    Sides stand in the order of their contents, so that nobody can see which was preferred. `share`
    is the probability of A being preferred, the mean of a pair's rows; what was released without
    one is taken for certain. Raises `ConnectorError` for what is no release of pairs, and for chats
    that Argilla cannot show whole.
    """
    if not set(rows.columns) >= _COLUMNS:
        raise ConnectorError("this is no release of pairs; publish one of pairs")
    for column in ("prompt", "chosen", "rejected"):
        _check_chats(rows, column)
    question = "question," if "question" in rows.columns else ""
    with duckdb.connect() as connection:
        connection.register("rows", rows.to_arrow())
        pairs: pl.DataFrame = connection.sql(f"""
            WITH sided AS (
                SELECT item_id, {question} prompt, chosen, rejected,
                    row_number() OVER () AS place, coalesce(label_probability, 1) AS said,
                    to_json(chosen)::VARCHAR <= to_json(rejected)::VARCHAR AS in_order
                FROM rows)
            SELECT item_id, {question} first(prompt) AS prompt,
                first(CASE WHEN in_order THEN chosen ELSE rejected END) AS {_SIDES[0]},
                first(CASE WHEN in_order THEN rejected ELSE chosen END) AS {_SIDES[1]},
                avg(CASE WHEN in_order THEN said ELSE 1 - said END) AS share
            FROM sided GROUP BY {question} item_id ORDER BY min(place)""").pl()
    return pairs


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
