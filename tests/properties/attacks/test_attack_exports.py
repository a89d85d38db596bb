"""What was answered in a tool decided how its export was read, or was published beside the labels.

Every export is staged as it would be for a release.
"""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from support.published import REFUSED, read

from labelguard.budget.label_values import LabelValues
from labelguard.inputs.columns import Reading
from labelguard.keys.keyring import KeyRing

Row = dict[str, Any]
TIMES = "2024-01-01T00:00:00Z"


@pytest.fixture
def staged(tmp_path):
    """Everything that is public of an input, labels apart."""
    places = (tmp_path / f"staged-{number}" for number in itertools.count())

    def outcome(source, **reading):
        given = Reading(**{"columns": {}, **reading})
        return read(source, next(places), KeyRing.public(), given, quarantine=True)

    return outcome


def as_json(rows, path):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def texts(number):
    return {"prompt": f"p{number}", "response_a": f"a{number}", "response_b": f"b{number}"}


def label_studio_row(number, labeler):
    """A row of Label Studio's CSV, but for its control tags."""
    return texts(number) | {"annotator": labeler, "annotation_id": number, "lead_time": 1}


def write_task(number, labeler, answer):
    """A task of Label Studio's JSON with one annotation."""
    region = {"from_name": "q", "to_name": "response_a", "type": "pairwise"}
    annotation = {
        "id": f"{number}{labeler}",
        "completed_by": labeler,
        "was_cancelled": False,
        "updated_at": TIMES,
        "result": [region | {"value": {"selected": "left"}}] if answer else [],
    }
    return {"id": number, "data": texts(number), "annotations": [annotation]}


def write_record(number, labeler, answer):
    """A record of Argilla's REST interface with one response."""
    response = {
        "id": f"{number}{labeler}",
        "user_id": labeler,
        "status": "submitted",
        "updated_at": TIMES,
        "values": {"q": {"value": "response_a"}} if answer else {},
    }
    return {"external_id": f"e{number}", "fields": texts(number), "responses": [response]}


def in_a_tag(number, labeler, answer):
    """A row of Label Studio's JSON_MIN, which has no member for what is blank."""
    return label_studio_row(number, labeler) | ({"q": "left"} if answer else {})


def chosen(number, labeler, answer):
    """A choice of the best of three."""
    said = {"labeler_id": labeler, "prompt": f"p{number}", "responses": ["a", "b", "c"]}
    return said | {"choice": 1 if answer else None}


def chosen_or_silent(number, labeler, answer):
    """The same without a member for what is blank."""
    return {k: v for k, v in chosen(number, labeler, answer).items() if v is not None}


SIDES = {"response_a": "response_a", "response_b": "response_b"}
FROM_0 = LabelValues.parse("first=0")
BLANKS: dict[str, tuple[Callable[[int, str, Any], Row], Row]] = {
    "Label Studio": (write_task, {"question": "q", "columns": SIDES}),
    "JSON_MIN": (in_a_tag, {"question": "q"}),
    "Argilla": (write_record, {"question": "q"}),
    "choices": (chosen, {"values": FROM_0}),
    "choices, named": (chosen_or_silent, {"format": "choices", "values": FROM_0}),
}


@pytest.mark.quick("Label Studio-beside others", "Argilla-alone")
@pytest.mark.parametrize("alone", [False, True], ids=["beside others", "alone"])
@pytest.mark.parametrize("name", BLANKS)
def test_blanks_that_are_ties_do_not_tell_whether_a_labeler_answered_anything(
    name, alone, staged, tmp_path
):
    row, reading = BLANKS[name]
    others = as_json([row(n, "o", True) for n in range(3)], tmp_path / "others.jsonl")
    seen = []
    for answer in (True, False):
        own = as_json([row(n, "v", answer) for n in range(3)], tmp_path / "own.jsonl")
        seen.append(staged([own] if alone else [others, own], skips="tie", **reading))
    assert seen[0].public == seen[1].public
    assert seen[0].labels.keys() == seen[1].labels.keys() != set()
    assert seen[0].labels != seen[1].labels


@pytest.mark.quick("Label Studio")
@pytest.mark.parametrize("name", ["Label Studio", "JSON_MIN", "Argilla"])
def test_where_blanks_are_ties_a_question_is_named_whatever_was_answered(name, staged, tmp_path):
    row, _ = BLANKS[name]
    path = tmp_path / "x.jsonl"
    for answer in (True, False):
        refused = staged(as_json([row(1, "v", answer)], path), skips="tie")
        assert refused.public == REFUSED and "--question NAME" in refused.message


def test_where_blanks_are_ties_answers_do_not_tell_which_response_stands_left(staged, tmp_path):
    path = tmp_path / "x.jsonl"
    seen = []
    for left in ("response_a", "response_b", "somewhere else", None):
        row = write_task(1, "v", True)
        row["annotations"][0]["result"][0]["to_name"] = left
        seen.append(staged(as_json([row], path), skips="tie", question="q"))
    assert all(one.public == seen[0].public for one in seen)
    assert [one.labels == seen[0].labels for one in seen] == [True, False, True, True]


ANSWERED = {
    "JSON_MIN": (label_studio_row(1, "u") | {"pref": "left", "quality": "good"}, "pref", "quality"),
    "the control tag": (label_studio_row(1, "u") | {"pref_id": "left"}, "pref_id", "pref_id"),
    "Argilla": (
        texts(1)
        | {"q.responses": ["response_a"], "q.responses.users": ["u"], "z.responses": ["x"]}
        | {"q.responses.status": ["submitted"]},
        "q",
        "z.responses",
    ),
}


@pytest.mark.quick("JSON_MIN-item_id", "Argilla-item_id")
@pytest.mark.parametrize("role", ["item_id", "ranking_id"])
@pytest.mark.parametrize("name", ANSWERED)
def test_answers_of_an_export_are_nothing_else_too(name, role, staged, tmp_path):
    row, question, column = ANSWERED[name]
    path = as_json([row], tmp_path / "x.jsonl")
    message = staged(path, question=question, columns={role: column}).message
    assert f"{role}={column} is asked for" in message and "may be an answer" in message


def test_ids_of_an_export_are_items_where_they_are_named(staged, tmp_path):
    row = label_studio_row(1, "u") | {"pref": "left", "external_id": "e"}
    path = as_json([row], tmp_path / "x.jsonl")
    assert staged(path, question="pref", columns={"item_id": "external_id"}).labels


@pytest.mark.quick("item_id")
@pytest.mark.parametrize("role", ["item_id", "question", "ranking_id"])
def test_what_is_said_of_the_chosen_text_is_not_published(role, staged, tmp_path):
    row = {"labeler_id": "u", "prompt": "p", "chosen": "a", "rejected": "b", "score_chosen": 5}
    path = as_json([row], tmp_path / "x.jsonl")
    message = staged(path, columns={role: "score_chosen"}).message
    assert f"such a column cannot be {role}" in message
