"""Exports of annotation tools as the tools write them, made of a table of pairs.

A row of the table is an answer: labeler_id, prompt, response_a, response_b, and label (1, 0, ½, or
None for a skip).
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import polars as pl
import pyarrow as pa
from support.codings import choose_coding

from labelguard.budget.label_values import LabelValues
from labelguard.inputs import formats, query, readers, sources
from labelguard.inputs.columns import Reading

Rows = Sequence[Mapping[str, Any]]
Export = list[dict[str, Any]]
NAME = "preference"
WORDS = {1: "response_a", 0: "response_b", 0.5: "tie"}
SIDES = {1: "left", 0: "right"}
NOON = "2026-01-01T12:00:00.000000"


def answers(labelers=4, tasks=5):
    """Everybody's answers about every task, but for some."""
    return [
        {
            "labeler_id": f"worker {labeler}",
            "prompt": f"question {task}",
            "response_a": f"one answer to {task}",
            "response_b": f"another to {task}",
            "label": [1, 0, 0.5, 0, 1][(labeler * 3 + task) % 5],
        }
        for labeler in range(labelers)
        for task in range(tasks)
        if labeler != task
    ]


def _tasks(rows):
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["prompt"], []).append(row)
    return found


def _fields(row):
    return {name: row[name] for name in ("prompt", "response_a", "response_b")}


def argilla_flat(rows):
    """`records.to_list(flatten=True)`: a skip is a discarded response, which may hold an answer."""
    return [
        {
            "id": f"task {number}",
            "status": "completed",
            "_server_id": f"server {number}",
            **_fields(of_task[0]),
            "source": "unit",
            f"{NAME}.responses": [WORDS.get(row["label"], "response_a") for row in of_task],
            f"{NAME}.responses.users": [row["labeler_id"] for row in of_task],
            f"{NAME}.responses.status": [
                "discarded" if row["label"] is None else "submitted" for row in of_task
            ],
            f"{NAME}.suggestion": "response_b",
            f"{NAME}.suggestion.score": 0.9,
        }
        for number, of_task in enumerate(_tasks(rows).values())
    ]


def argilla_records(rows, asked=NAME):
    """The records of the REST interface, with responses."""
    return [
        {
            "id": f"server {number}",
            "status": "completed",
            "fields": _fields(of_task[0]),
            "metadata": {"source": "unit"},
            "external_id": f"task {number}",
            "responses": [
                {
                    "id": f"response {number} {row['labeler_id']}",
                    "values": {asked: {"value": WORDS[row["label"]]}}
                    if row["label"] is not None
                    else None,
                    "status": "discarded" if row["label"] is None else "submitted",
                    "record_id": f"server {number}",
                    "user_id": row["labeler_id"],
                    "inserted_at": NOON,
                    "updated_at": NOON,
                }
                for row in of_task
            ],
            "suggestions": [{"question_name": asked, "value": "response_b"}],
            "dataset_id": "prefs",
        }
        for number, of_task in enumerate(_tasks(rows).values())
    ]


def argilla_page(rows):
    """One page of the REST interface."""
    records = argilla_records(rows)
    return [{"items": records, "total": len(records)}]


def argilla_unflattened():
    """`records.to_list(flatten=False)`, which drops the status of responses."""
    responses = {NAME: [{"value": "response_a", "user_id": "ann"}]}
    return [{"id": "1", "fields": {"prompt": "why"}, "responses": responses, "_server_id": "1"}]


def label_studio(rows, tag="pairwise"):
    """JSON: tasks with annotations; a skip is a cancelled one, and there is no tie."""
    return [
        {
            "id": number,
            "annotations": [_annotation(number * 100 + n, row, tag) for n, row in enumerate(found)],
            "drafts": [],
            "predictions": [{"id": 1, "result": [_region(1, "pairwise")]}],
            "data": {**_fields(found[0]), "external_id": f"task {number}"},
            "meta": {},
            "inner_id": number,
            "project": 1,
        }
        for number, found in enumerate(_tasks(rows).values())
    ]


def _annotation(number, row, tag):
    skipped = row["label"] is None
    rating = {"type": "rating", "from_name": "conf", "to_name": "one", "value": {"rating": 4}}
    return {
        "id": number,
        "completed_by": {"id": row["labeler_id"], "email": "somebody@example.org"},
        "result": [] if skipped else [rating, _region(row["label"], tag)],
        "was_cancelled": skipped,
        "ground_truth": False,
        "updated_at": NOON + "Z",
        "lead_time": 12.5,
        "prediction": {},
    }


def _region(label, tag):
    said = {"selected": SIDES[label]} if tag == "pairwise" else {"choices": [WORDS[label]]}
    return {"id": "r1", "type": tag, "from_name": NAME, "to_name": "one", "value": said}


def label_studio_rows(rows):
    """JSON_MIN: a row for each annotation that was not cancelled, and for tasks without any."""
    found = [
        {
            **_fields(row),
            "external_id": "task",
            "id": number,
            NAME: [{"selected": SIDES[row["label"]]}],
            "annotator": row["labeler_id"],
            "annotation_id": number,
            "created_at": NOON + "Z",
            "updated_at": NOON + "Z",
            "lead_time": 12.5,
        }
        for number, row in enumerate(rows)
        if row["label"] is not None
    ]
    empty = dict.fromkeys(("annotator", "annotation_id", "created_at", "updated_at", "lead_time"))
    return [*found, {**_fields(rows[0]), "external_id": "nobody's", "id": len(rows)} | empty]


def label_studio_csv(rows):
    """The same as CSV: regions are JSON within a cell."""
    return [
        {name: json.dumps(value) if name == NAME else value for name, value in row.items()}
        for row in label_studio_rows(rows)
    ]


def write(path, rows):
    """An export as a file: JSONL, JSON, CSV or Parquet."""
    if path.suffix == ".csv":
        pl.DataFrame(list(rows), infer_schema_length=None).write_csv(path)
    elif path.suffix == ".json":  # one object as it is, several in an array, over several lines
        path.write_text(json.dumps(rows[0] if len(rows) == 1 else rows, indent=1))
    elif path.suffix == ".parquet":
        pl.DataFrame(list(rows), infer_schema_length=None).write_parquet(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(source, scratch, **reading):
    """What is read of an input, labels included: canonical rows, sorted."""
    connection = readers.connect(scratch)
    coding = LabelValues.parse(choose_coding(source) or "")
    asked = Reading(**{"columns": {}, "values": coding, **reading})
    frames = []
    for part in sources.resolve_input(source):
        found = formats.apply_format(part, connection, asked)
        layout = found.find_layout(connection)
        batches = readers.read_batches(
            found.file, connection, query.build_canonical_query(layout, layout.content)
        )
        frames += [pl.DataFrame(pl.from_arrow(batch)) for batch in batches]
    frame = pl.concat(frames)
    wanted = ("labeler", "prompt", "first", "second", "fault", "label", "item_id")
    return frame.select(n for n in wanted if n in frame.columns).sort(pl.all())


def plain(rows):
    """The table itself, as the layout of pairs has it."""
    return pa.Table.from_pylist([dict(row) for row in rows])


Writer = Callable[[Rows], Export]
