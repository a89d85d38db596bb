"""What the connector of Label Studio makes of webhooks: recorded ones, and hostile ones."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from labelguard_connectors import payloads
from labelguard_connectors.label_studio import LabelStudio
from labelguard_connectors.payloads import OutOfBounds
from support.hostile import HOSTILE, paths, replaced, without

from labelguard.answers.connector import Answer, Settings
from labelguard.errors import ConnectorError

RECORDINGS = Path(__file__).parent / "recordings/label_studio"
EVENTS: list[dict[str, Any]] = json.loads((RECORDINGS / "events.json").read_text("utf-8"))
BY_ACTION = {event["action"]: event for event in EVENTS}
TELLING = [event for event in EVENTS if "ANNOTATION" in event["action"]]
PROJECT = EVENTS[0]["project"]["id"]
TABLE = {"url": "https://label-studio.example.com", "project": PROJECT}

_NAME = (
    r"(action|project|tasks?|annotations?|id|data|updated_at|completed_by|was_cancelled"
    r"|ground_truth)(\[\d+\])?"
)
_WANTED = (
    r"an object|a text|a list|an id \(a whole number\)|a time( after 1970| with its zone)?"
    r"|true or false|the id of a task in the event|valid JSON"
    r"|a project; let the webhook send its payload \(send_payload\)"
    rf"|at most {payloads.REGIONS:,} regions|an answer of at most {payloads.LABEL_BYTES:,} bytes"
    rf"|at most {payloads.TASK_BYTES:,} bytes with the task"
)
# Every message there may be: none of them has anything of an event in it.
MESSAGE = re.compile(rf"Label Studio event: ({_NAME}(\.{_NAME})*: )?(missing|expected ({_WANTED}))")


def hearing():
    return LabelStudio(Settings.from_table("label-studio", TABLE))


def parse_or_refuse(event):
    """What is heard of an event; None where it is refused, as any event may be."""
    try:
        answers = list(hearing().parse_event(event))
    except ConnectorError as error:
        assert MESSAGE.fullmatch(str(error))
        return None
    for answer in answers:
        assert re.fullmatch(r"[1-9]\d{0,18}", answer.record)
        if not answer.is_deleted:
            assert_body(answer)
    return answers


def assert_body(answer):
    """A body is JSON of a task with one annotation, and has no member besides."""
    answer.body.encode()
    task = json.loads(answer.body, parse_constant=lambda name: pytest.fail(name))
    assert set(task) - {"interface"} == {"id", "data", "annotations"}
    (annotation,) = task["annotations"]
    assert set(annotation) == {
        *("id", "completed_by", "updated_at", "was_cancelled", "ground_truth", "result")
    }
    assert str(annotation["id"]) == answer.record and answer.version > 0
    assert str(annotation["completed_by"]) == answer.labeler
    for region in annotation["result"]:
        assert set(region) == {"from_name", "to_name", "type", "value"}
        assert len(region["value"]) <= 1


def test_recorded_events_tell_each_answer_with_its_labeler():
    told = [
        (event["action"], answer.record, answer.labeler, answer.is_deleted)
        for event in EVENTS
        for answer in hearing().parse_event(event)
    ]
    assert told == [
        ("ANNOTATION_CREATED", "1", "2", False),
        ("ANNOTATION_UPDATED", "1", "2", False),
        ("ANNOTATION_CREATED", "2", "3", False),
        ("ANNOTATION_CREATED", "3", "3", False),
        ("ANNOTATIONS_DELETED", "3", "", True),
        ("ANNOTATION_CREATED", "4", "2", False),
        ("ANNOTATION_UPDATED", "4", "2", False),
        ("ANNOTATION_CREATED", "5", "2", False),
        ("ANNOTATION_CREATED", "6", "3", False),
        ("ANNOTATIONS_DELETED", "5", "", True),
        ("ANNOTATIONS_DELETED", "6", "", True),
        ("ANNOTATIONS_CREATED", "7", "1", False),
    ]


def test_a_body_is_the_task_with_this_one_annotation_and_nothing_else():
    event = BY_ACTION["ANNOTATION_UPDATED"]
    annotation = event["annotation"]
    (answer,) = hearing().parse_event(event)
    body = json.loads(answer.body)
    assert {tag["from_name"] for tag in body.pop("interface")} == {"better", "safer", "sure"}
    assert body == {
        "id": event["task"]["id"],
        "data": event["task"]["data"],
        "annotations": [
            {
                "id": annotation["id"],
                "completed_by": annotation["completed_by"],
                "updated_at": annotation["updated_at"],
                "was_cancelled": False,
                "ground_truth": True,
                "result": [
                    {name: region[name] for name in ("from_name", "to_name", "type", "value")}
                    for region in annotation["result"]
                ],
            }
        ],
    }


@pytest.mark.parametrize("objects", [["answer1", "answer2"], ["answer2", "answer1"]])
def test_a_pairwise_region_that_names_its_own_tag_is_about_the_left_object(objects):
    # Label Studio's page writes it so; who writes by REST names one of the objects.
    event = copy.deepcopy(next(one for one in TELLING if one["action"] == "ANNOTATION_CREATED"))
    event["project"]["parsed_label_config"]["better"]["to_name"] = objects
    region = {"from_name": "better", "to_name": "better", "type": "pairwise"}
    region |= {"value": {"selected": "left"}}
    never_asked = region | {"from_name": "mine", "to_name": "mine"}
    as_choices = region | {"from_name": "safer", "to_name": "safer", "type": "choices"}
    event["annotation"]["result"] = [never_asked, as_choices, region]
    (answer,) = hearing().parse_event(event)
    [stored] = json.loads(answer.body)["annotations"][0]["result"]
    assert stored == region | {"to_name": objects[0]}


def test_regions_of_free_text_and_tokens_stay_behind():
    (created, *_) = (event for event in TELLING if event["action"] == "ANNOTATION_CREATED")
    assert "sister" in json.dumps(created) and "TOKEN" in json.dumps(created)
    (answer,) = hearing().parse_event(created)
    kinds = [one["type"] for one in json.loads(answer.body)["annotations"][0]["result"]]
    assert kinds == ["pairwise", "choices", "rating"]
    assert "sister" not in answer.body and "TOKEN" not in answer.body
    assert repr(answer) == "Answer(…)"


def test_beside_an_answer_in_its_region_nothing_is_kept():
    event = copy.deepcopy(next(one for one in TELLING if one["action"] == "ANNOTATION_CREATED"))
    for region in event["annotation"]["result"]:
        region["value"] |= {"text": ["my sister"], "start": 1}
    (answer,) = hearing().parse_event(event)
    kept = json.loads(answer.body)["annotations"][0]["result"]
    assert [list(one["value"]) for one in kept] == [["selected"], ["choices"], ["rating"]]


def test_a_skip_is_told_as_cancelled():
    told = [event for event in TELLING if event["action"] == "ANNOTATION_CREATED"]
    skipped = [event for event in told if event["annotation"]["was_cancelled"]]
    ((answer,),) = (hearing().parse_event(event) for event in skipped)
    assert json.loads(answer.body)["annotations"][0]["was_cancelled"] is True


def test_a_version_is_the_time_of_change_in_microseconds():
    event = copy.deepcopy(BY_ACTION["ANNOTATION_UPDATED"])
    versions = []
    for time in (
        "1970-01-01T00:00:00.000001Z",
        "2026-11-22T01:00:00+02:00",
        "2026-11-21T23:00:00Z",
    ):
        event["annotation"]["updated_at"] = time
        (answer,) = hearing().parse_event(event)
        versions.append(answer.version)
    assert versions == [1, 1795302000000000, 1795302000000000]


def test_other_projects_and_other_actions_are_not_heard():
    event = copy.deepcopy(BY_ACTION["ANNOTATION_CREATED"])
    event["project"] = {"id": PROJECT + 1}
    assert parse_or_refuse(event) == []
    assert parse_or_refuse(event | {"project": PROJECT + 1}) == []
    assert parse_or_refuse({"action": "PROJECT_UPDATED"}) == []
    assert parse_or_refuse({"action": "LABEL_LINK_CREATED", "project": None}) == []


def test_a_project_may_be_told_by_its_id_alone_but_must_be_told():
    event = BY_ACTION["ANNOTATIONS_DELETED"]
    assert parse_or_refuse(event | {"project": PROJECT}) == parse_or_refuse(event)
    with pytest.raises(ConnectorError, match="send its payload"):
        hearing().parse_event({"action": "ANNOTATION_CREATED"})


def test_one_deleted_annotation_may_be_told_alone():
    event = {"action": "ANNOTATION_DELETED", "annotation": {"id": 7}, "project": PROJECT}
    assert parse_or_refuse(event) == [Answer("7", 0)]


def test_a_labeler_may_be_told_with_more_about_her():
    event = copy.deepcopy(BY_ACTION["ANNOTATION_CREATED"])
    (plain,) = hearing().parse_event(event)
    event["annotation"]["completed_by"] = {"id": int(plain.labeler), "email": "ada@example.com"}
    (answer,) = hearing().parse_event(event)
    assert (answer.labeler, answer.body) == (plain.labeler, plain.body)


def test_an_annotation_of_a_deleted_account_is_nobodys_and_left_out():
    event = copy.deepcopy(BY_ACTION["ANNOTATION_CREATED"])
    event["annotation"]["completed_by"] = None
    assert parse_or_refuse(event) == []
    del event["annotation"]["completed_by"]
    assert parse_or_refuse(event) is None


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("annotation", "completed_by"), 0, "annotation[0].completed_by: expected an id"),
        (
            ("annotation", "updated_at"),
            "2026-11-22T07:00:00",
            "annotation[0].updated_at: expected a",
        ),
        (
            ("annotation", "updated_at"),
            "2026-13-22T07:00:00Z",
            "annotation[0].updated_at: expected a",
        ),
        (("annotation", "updated_at"), "0001-01-01T00:00:00+23:59", "a time after 1970"),
        (("annotation", "was_cancelled"), "false", "annotation[0].was_cancelled: expected true or"),
        (("annotation", "task"), 10**6, "annotation.task: expected the id of a task in the event"),
        (("task", "data"), [], "task[0].data: expected an object"),
        (("task", "data", "answer1"), float("nan"), "expected valid JSON"),
        (("task", "data", "answer1"), "\ud800", "expected valid JSON"),
    ],
)
def test_what_is_unexpected_is_named_without_what_is_in_it(path, value, message):
    event = replaced(BY_ACTION["ANNOTATION_CREATED"], path, value)
    with pytest.raises(ConnectorError, match=re.escape(message)):
        hearing().parse_event(event)
    assert parse_or_refuse(event) is None


@pytest.mark.parametrize("broken", [7, None, [], "left", {}, {"type": "pairwise"}, {"type": []}])
def test_a_region_that_is_none_is_left_out(broken):
    event = BY_ACTION["ANNOTATION_CREATED"]
    regions = event["annotation"]["result"]
    (answer,) = hearing().parse_event(event)
    (other,) = hearing().parse_event(
        replaced(event, ("annotation", "result"), [broken, *regions, broken])
    )
    assert answer == other


def regions(count, word="left"):
    """An event with so many regions."""
    event = BY_ACTION["ANNOTATION_CREATED"]
    region = {"type": "pairwise", "from_name": "better", "to_name": "answer1"}
    region["value"] = {"selected": word}
    return replaced(event, ("annotation", "result"), [region] * count)


def test_an_answer_that_is_too_large_is_refused_by_bounds_that_are_public():
    assert hearing().parse_event(regions(64))
    for event, bound in ((regions(65), "64 regions"), (regions(1, "l" * 9_000), "8,192")):
        with pytest.raises(OutOfBounds, match=bound):
            hearing().parse_event(event)
    wide = replaced(BY_ACTION["ANNOTATION_CREATED"], ("task", "data", "answer1"), "x" * (2 << 20))
    with pytest.raises(OutOfBounds, match="2,097,152"):
        hearing().parse_event(wide)


def test_the_size_of_a_body_does_not_follow_what_is_said():
    sizes = set()
    for word in ("left", "right", 'a "quoted" word', "ü" * 40, None, float("nan"), ["left"]):
        event = BY_ACTION["ANNOTATION_CREATED"]
        path = ("annotation", "result", 0, "value", "selected")
        (answer,) = hearing().parse_event(replaced(event, path, word))
        sizes.add(len(answer.body.encode()))
    assert len(sizes) == 1


@pytest.mark.slow
def test_any_hostile_value_anywhere_is_an_answer_or_refused():
    tried = refused = 0
    for event in TELLING:
        for path in paths(event):
            for value in HOSTILE:
                tried += 1
                refused += parse_or_refuse(replaced(event, path, value)) is None
    assert tried >= 10_000 and 0 < refused < tried


def test_any_missing_member_is_an_answer_or_refused():
    for event in TELLING:
        for path in paths(event):
            if path:
                parse_or_refuse(without(event, path))


@pytest.mark.parametrize(
    "url",
    [
        *("label-studio.example.com", "ftp://example.com", "https://user:secret@example.com"),
        *(
            "https://example.com?token=secret",
            "https://example.com#secret",
            "https://[",
            "https://",
        ),
    ],
)
def test_an_address_that_may_hold_a_secret_or_is_none_is_refused_and_not_shown(url):
    with pytest.raises(ConnectorError, match="url: expected one like") as refused:
        LabelStudio(Settings.from_table("pairs", {"url": url, "project": 1}))
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("project", [None, "1", True, 1.0])
def test_a_project_is_named_by_its_number(project):
    with pytest.raises(ConnectorError, match="project: "):
        LabelStudio(
            Settings.from_table("pairs", {"url": "https://example.com", "project": project})
        )
