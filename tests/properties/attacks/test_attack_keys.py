"""Attacks by an account of an annotation tool that writes what it likes into its own answer.

An error said by its kind what was answered, and stopped all releases.
"""

import copy
import json
from typing import Any

import polars as pl
import pytest
from support import exports
from support.exports import answers, read, write

MARK = "a key of her own"
ROWS = [row for row in answers() if row["label"] != 0.5]
ITEMS = ("b", "c", "a")
Export = list[dict[str, Any]]


def ranker(said=None):
    """Label Studio: a list of items that three labelers ranked; the first of them says `said`."""
    rank = {"from_name": "best", "to_name": "answers", "type": "ranker"}
    listed = [{"id": one, "body": f"response {one}"} for one in ITEMS]
    return [
        {
            "id": 1,
            "data": {"prompt": "?", "items": listed},
            "annotations": [
                {
                    "id": labeler,
                    "completed_by": labeler,
                    "updated_at": "2026-11-22T07:00:00Z",
                    "result": [{**rank, "value": {"ranker": value}}],
                }
                for labeler, value in enumerate((said or list(ITEMS), list(ITEMS), list(ITEMS)), 1)
            ],
        }
    ]


def ratings(**changed):
    """Label Studio: ratings of each response, and a region more."""
    tasks = exports.label_studio(ROWS)
    for task in tasks:
        for annotation in task["annotations"]:
            annotation["result"] = [
                {"from_name": f"rate {side}", "to_name": side, "type": "rating"}
                | {"value": {"rating": 1 + (side == "response_a")}}
                for side in ("response_a", "response_b")
            ]
    first = tasks[0]["annotations"][0]["result"]
    first.append({**first[0], **changed})
    return tasks


HOSTILE = (
    *(None, True, 7, -1, 1e300, "", "x", MARK, [], {}, [[]], [None], [7], [{}], {MARK: MARK}),
    *({MARK: list(ITEMS)}, {"best": 7}, {"best": {"best": []}}, {"_": list(ITEMS), "best": []}),
    *([*ITEMS, *ITEMS], [{"value": "a", "rank": "first"}], [[["deep"]]], {"value": {"a": 1}}),
)


def pairwise(value):
    tasks = exports.label_studio(ROWS)
    tasks[0]["annotations"][0]["result"][0]["value"] = {"selected": value}
    return tasks


def choices(value):
    tasks = exports.label_studio(ROWS)
    for task in tasks:
        for one in task["annotations"]:
            own = [region for region in one["result"] if region["from_name"] == exports.NAME]
            for region in own:
                said = [region["value"]["selected"]]
                region |= {"type": "choices", "value": {"choices": said}}
            one["result"] = own
    tasks[0]["annotations"][0]["result"][0]["value"] = {"choices": value}
    return tasks


def rating(value):
    tasks = ratings()
    tasks[0]["annotations"][0]["result"] = tasks[0]["annotations"][0]["result"][:2]
    tasks[0]["annotations"][0]["result"][0]["value"] = {"rating": value}
    return tasks


def question(value):
    records = exports.argilla_records(ROWS)
    records[0]["responses"][0]["values"] = {exports.NAME: {"value": value}}
    return records


@pytest.mark.quick("pairwise")
@pytest.mark.parametrize("tool", [pairwise, choices, rating, ranker, question])
def test_what_an_account_answers_changes_nothing_but_its_own_label(tool, tmp_path):
    found = []
    for number, value in enumerate(("left", *HOSTILE)):
        directory = tmp_path / str(number)
        directory.mkdir()
        path = write(directory / "export.jsonl", copy.deepcopy(tool(value)))
        frame = read(path, directory)
        skips = frame.height - frame.filter(pl.col("label") != 4).height
        assert skips <= 3
        public = frame.drop("label").unique().sort(pl.all())
        found.append(json.dumps(public.select(pl.len()).to_dicts()))
        assert (frame.filter(pl.col("fault") != 0)).is_empty()
    assert len(set(found)) <= 2  # an answer, or a skip: who answered is public
