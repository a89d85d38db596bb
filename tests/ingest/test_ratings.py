"""Argilla's ratings of every response: whoever rated one higher than the other prefers it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from support import exports
from support.exports import Export, answers, read, write

from labelguard.errors import InvalidLabels
from labelguard.ingest import formats, scan, sources
from labelguard.ingest.layouts import Reading
from labelguard.terms import LABEL_SKIP

ROWS = [
    row | {"label": None if number % 5 == 0 else row["label"]}
    for number, row in enumerate(answers())
]
RATINGS: dict[float | None, dict[str, Any]] = {
    1: {"response_a": 5, "response_b": 2},
    0: {"response_a": 1, "response_b": 10},
    0.5: {"response_a": 3, "response_b": 3},
    None: {"response_b": 4},
}


def rated(rows: Sequence[Any], name: str = "*-rating", others: Any = None) -> Export:
    """Records in which both responses were rated instead; a skip rates only one of them."""
    records = exports.argilla_records(rows)
    labels = {(row["prompt"], row["labeler_id"]): row["label"] for row in rows}
    for record in records:
        for response in record["responses"]:
            label = labels[record["fields"]["prompt"], response["user_id"]]
            said = RATINGS[label] if others is None else others
            values = {name.replace("*", one): {"value": value} for one, value in said.items()}
            response["values"] = values | {"confidence": {"value": 2}}
            response["status"] = "submitted"
    return records


@pytest.mark.quick("*-rating")
@pytest.mark.parametrize("name", ["*-rating", "rating_*", "*"])
def test_the_higher_rating_is_the_preference(name: str, tmp_path: Path) -> None:
    found = read(write(tmp_path / "export.jsonl", rated(ROWS, name)), tmp_path, question=name)
    given = read(exports.plain(ROWS), tmp_path)
    assert found.select(given.columns).equals(given)
    assert found.filter(pl.col("label") == LABEL_SKIP).height == len(ROWS[::5])


def test_ratings_of_a_page_are_read_too(tmp_path: Path) -> None:
    records = rated(ROWS)
    page = [{"items": records, "total": len(records)}]
    one = read(write(tmp_path / "page.json", page), tmp_path, question="*-rating")
    assert one.equals(read(write(tmp_path / "a.jsonl", records), tmp_path, question="*-rating"))


def test_ratings_of_more_responses_are_all_their_pairs(tmp_path: Path) -> None:
    names = [f"response_{place}" for place in (1, 2, 3)]

    def response(user: str, ratings: dict[str, int]) -> dict[str, Any]:
        values = {f"{name}-rating": {"value": rating} for name, rating in ratings.items()}
        told = {"id": user, "user_id": user, "status": "submitted", "updated_at": exports.NOON}
        return {**told, "values": values}

    record = {
        "external_id": "task",
        "fields": {"prompt": "why", **{name: f"text of {name}" for name in names}},
        "responses": [
            response("ann", dict(zip(names, (1, 5, 5), strict=True))),
            response("bob", {names[0]: 3}),
        ],
    }
    path = write(tmp_path / "export.jsonl", [record])
    found = read(path, tmp_path, question="*-rating")
    ranking = {
        "labeler_id": ["ann", "bob"],
        "prompt": ["why"] * 2,
        "responses": [[f"text of {name}" for name in names]] * 2,
        "ranks": [[2, 1, 1], None],
    }
    assert found.equals(read(pl.DataFrame(ranking, strict=False), tmp_path))


@pytest.mark.parametrize("responses", [2, 3])
def test_answers_that_are_no_ratings_are_bad_rows(tmp_path: Path, responses: int) -> None:
    names = ["response_a", "response_b"] if responses == 2 else ["response_1", "response_2"]
    said: dict[str, Any] = dict.fromkeys(names, "a reason")
    records = rated(ROWS[:3], others=said | ({"response_3": 4} if responses == 3 else {}))
    if responses == 3:
        for record in records:
            texts = {f"response_{place}": f"text {place}" for place in (1, 2, 3)}
            record["fields"] = {"prompt": record["fields"]["prompt"], **texts}
    found = read(write(tmp_path / "export.jsonl", records), tmp_path, question="*-rating")
    assert len(found) and set(found["label"]) & {100, 103} == set(found["label"])


def test_every_response_must_have_been_rated_by_somebody(tmp_path: Path) -> None:
    path = write(tmp_path / "export.jsonl", rated(ROWS, others={"response_a": 1}))
    with pytest.raises(InvalidLabels, match="no question 'response_b-rating' was answered"):
        read(path, tmp_path, question="*-rating")


def test_how_ratings_are_read_does_not_depend_on_them(tmp_path: Path) -> None:
    def looked(folder: str, ratings: dict[str, Any]) -> Any:
        directory = tmp_path / folder
        directory.mkdir()
        path = write(directory / "export.jsonl", rated(ROWS, others=ratings))
        connection = scan.connect(directory)
        (part,) = sources.parts(path)
        asked = Reading(columns={}, question="*-rating", skips="tie")
        understood = formats.understood(part, connection, asked)
        layout = scan.look(understood.part, connection, understood.reading, understood.labelers)
        return understood.reading, layout.columns, layout.content

    told = [
        looked("one", {"response_a": 5, "response_b": 1}),
        looked("other", {"response_a": 1, "response_b": 5}),
        looked("half", {"response_a": 5}),
        looked("none", {}),
    ]
    assert told == [told[0]] * len(told)


def test_lists_of_responses_to_each_question_hold_no_ratings(tmp_path: Path) -> None:
    path = write(tmp_path / "export.jsonl", exports.argilla_flat(answers()))
    with pytest.raises(InvalidLabels, match="take the REST interface"):
        read(path, tmp_path, question="*-rating")
