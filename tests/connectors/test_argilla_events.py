"""What Argilla's webhooks tell: recordings of a real server, and ten thousand that are none."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from labelguard_connectors.argilla import Argilla, answers
from labelguard_connectors.argilla.rest import ListedRecord
from labelguard_connectors.payloads import OutOfBounds, parse
from support.exports import read, write
from support.hostile import HOSTILE, paths, replaced, without

from labelguard.answers.connector import Answer, Settings, open_connector
from labelguard.errors import ConnectorError

RECORDINGS = Path(__file__).parent / "recordings" / "argilla"
TABLE = {"url": "https://argilla.example", "dataset": "prefs", "workspace": "labelers"}


def read_recording(name):
    return json.loads((RECORDINGS / f"{name}.json").read_text(encoding="utf-8"))


EVENTS = [read_recording(path.stem) for path in sorted(RECORDINGS.glob("[0-9]*.json"))]
RESPONSES = [event for event in EVENTS if event["type"].startswith("response.")]
QUESTIONS, PAGE = read_recording("questions"), read_recording("records")


def argilla(**options):
    found = open_connector(Settings.from_table("argilla", {**TABLE, **options}))
    assert isinstance(found, Argilla)
    return found


def hear(event, **options):
    heard = argilla(**options).parse_event(event)
    assert len(heard) <= 1
    return heard[0] if heard else None


def of_type(kind):
    return next(event for event in RESPONSES if event["type"] == kind)


# What recordings tell


def test_the_states_of_a_response_are_told_in_their_order():
    first = of_type("response.created")["data"]["id"]
    told = [hear(event) for event in RESPONSES if event["data"]["id"] == first]
    bodies = [json.loads(answer.body)["responses"][0] for answer in told if answer]
    assert [(body["status"], body["values"].get("preference")) for body in bodies] == [
        ("submitted", {"value": "tie"}),
        ("submitted", {"value": "response_b"}),
        ("draft", None),
        ("submitted", {"value": "response_a"}),
    ]
    versions = [answer.version for answer in told if answer]
    assert versions == sorted(set(versions))
    assert {answer.record for answer in told if answer} == {first}


def test_a_body_is_the_record_with_this_response_and_nothing_else():
    event = of_type("response.created")
    answer = hear(event)
    assert answer
    data, body = event["data"], json.loads(answer.body)
    assert list(body) == ["id", "external_id", "dataset_id", "fields", "responses"]
    assert body["fields"] == data["record"]["fields"]
    assert body["dataset_id"] == data["record"]["dataset"]["id"]
    (response,) = body["responses"]
    assert response["user_id"] == answer.labeler == data["user"]["id"]
    assert list(response) == ["id", "user_id", "status", "updated_at", "values"]
    assert response["values"] == {
        "preference": {"value": "tie"},
        "order": {"value": [{"value": side, "rank": 1} for side in ("response_a", "response_b")]},
        "confidence": {"value": 5},
    }


@pytest.mark.parametrize("event", RESPONSES)
def test_nobody_is_named_and_no_text_that_somebody_wrote_is_kept(event):
    answer = hear(event)
    assert answer
    assert "private-" not in answer.body and "private second" not in answer.body
    assert "reason" not in answer.body and "owner" not in answer.body
    assert repr(answer) == "Answer(…)"


@pytest.mark.parametrize("event", RESPONSES)
def test_of_what_was_not_submitted_no_value_is_kept(event):
    answer = hear(event)
    assert answer
    if not answer.is_deleted and event["data"]["status"] != "submitted":
        (response,) = json.loads(answer.body)["responses"]
        assert response["status"] == event["data"]["status"]
        assert response["values"] == {}


def test_a_deletion_is_later_than_what_was_deleted():
    gone = hear(of_type("response.deleted"))
    assert gone and gone.is_deleted and gone.labeler
    before = [hear(event) for event in RESPONSES if event["data"]["id"] == gone.record]
    assert len(before) == 2
    assert all(one.version < gone.version for one in before if one and not one.is_deleted)


def test_the_rest_interface_tells_the_same_response_byte_by_byte():
    heard: dict[str, Answer] = {}
    for event in RESPONSES:
        if answer := hear(event):
            heard[answer.record] = max(answer, heard.get(answer.record, answer), key=_version)
    pulled = _pull()
    assert len(pulled) == 3
    assert {one.record: one for one in pulled} == {
        record: answer for record, answer in heard.items() if not answer.is_deleted
    }


def _pull():
    """What the REST interface tells."""
    questions = answers.select_preference_questions(
        parse(list[answers.ArgillaQuestion], QUESTIONS["items"], "questions")
    )
    return [
        answers.to_answer(record, item["dataset_id"], response, response.user_id, questions, "")
        for item in PAGE["items"]
        for record in [parse(ListedRecord, item, "records")]
        for response in record.responses
    ]


def _version(answer):
    return answer.version


def test_the_format_reads_the_latest_states(tmp_path):
    bodies = [json.loads(answer.body) for answer in _pull()]
    found = read(write(tmp_path / "bodies.jsonl", bodies), tmp_path, question="preference")
    # A preference for A by Ann, who skips the other; Bob's draft is none.
    assert found["fault"].to_list() == [0, 0]
    assert found["labeler"].n_unique() == 1
    assert sorted(found["label"].to_list()) != sorted([0, 0])


# Whose events are heard


@pytest.mark.parametrize(
    "options",
    [
        {"dataset": "others"},
        {"workspace": "others"},
        {"dataset": "00000000-0000-4000-8000-000000000000"},
    ],
)
def test_other_data_sets_are_not_heard(options):
    assert [hear(event, **options) for event in RESPONSES] == [None] * len(RESPONSES)


def test_a_data_set_may_be_named_by_its_id():
    for event in RESPONSES:
        identity = event["data"]["record"]["dataset"]["id"]
        assert hear(event, dataset=identity.upper()) == hear(event) is not None


@pytest.mark.parametrize("event", [event for event in EVENTS if event not in RESPONSES])
def test_other_events_tell_nothing(event):
    assert hear(event) is None


def test_hearing_needs_no_key(monkeypatch):
    monkeypatch.delenv("LABELGUARD_ARGILLA_API_KEY", raising=False)
    assert hear(RESPONSES[0])


@pytest.mark.parametrize(
    "options",
    [
        {"url": "argilla.example"},
        {"url": "https://name:password@argilla.example"},
        {"url": ""},
        {"dataset": ""},
        {"workspace": ""},
    ],
)
def test_settings_that_lack_something_are_refused(options):
    with pytest.raises(ConnectorError, match=r"connectors.argilla.\w+: ") as refused:
        argilla(**options)
    assert "password@" not in str(refused.value)


# What is none


WRONG = [
    (("type",), None, "type: expected a text"),
    (("version",), 2, "version: expected 1"),
    (("data", "id"), "7", "data.id: expected an id"),
    (("data", "status"), "pending", "data.status: expected one of"),
    (("data", "updated_at"), "2026-13-01T00:00:00", "data.updated_at: expected a time"),
    (("data", "updated_at"), "1969-12-31T23:59:59", "data.updated_at: expected a time after 1970"),
    (("data", "updated_at"), "２026-11-22T00:00:00", "data.updated_at: expected a time"),
    (("data", "record", "fields"), None, "data.record.fields: expected an object"),
    (("data", "record", "fields", "prompt"), "\ud800", "record.fields: expected JSON"),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG)
def test_an_error_names_the_field(path, value, message):
    event = replaced(of_type("response.created"), path, value)
    with pytest.raises(ConnectorError) as refused:
        hear(event)
    assert str(refused.value).startswith("Argilla event: ") and message in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("path", "value", "left"),
    [
        ((), [], 0),
        ((), "tie", 0),
        (("preference",), "tie", 2),
        (("preference",), {}, 2),
        (("confidence", "value"), float("nan"), 2),
        (("confidence", "value"), "\ud800", 2),
    ],
)
def test_a_value_that_is_none_is_left_out(path, value, left):
    answer = hear(replaced(of_type("response.created"), ("data", "values", *path), value))
    assert answer and len(json.loads(answer.body)["responses"][0]["values"]) == left


def test_an_answer_that_is_too_large_is_refused_by_a_bound_that_is_public():
    event = replaced(
        of_type("response.created"), ("data", "values", "order", "value"), "l" * 70_000
    )
    with pytest.raises(OutOfBounds, match="8,192 bytes"):
        hear(event)


@pytest.mark.parametrize("event", [None, [], "response.created", 7, True, {}, {1: 2}])
def test_what_is_no_event_is_refused(event):
    with pytest.raises(ConnectorError, match=r"^Argilla event"):
        hear(event)


def test_a_nesting_without_end_is_refused():
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ConnectorError, match="expected JSON"):
        hear(replaced(of_type("response.created"), ("data", "record", "fields", "prompt"), deep))


def test_an_answer_that_is_nested_too_deep_is_none_and_stops_no_release():
    deep: Any = json.loads("[" * 200 + "]" * 200)
    event = of_type("response.created")
    name = next(iter(json.loads(hear(event).body)["responses"][0]["values"]))  # type: ignore[union-attr]
    found = hear(replaced(event, ("data", "values", name, "value"), deep))
    assert found and name not in json.loads(found.body)["responses"][0]["values"]


@pytest.mark.parametrize(
    ("written", "version"),
    [
        ("2026-11-22T07:48:23", 1795333703000000),
        ("2026-11-22T07:48:23.5", 1795333703500000),
        ("2026-11-22T07:48:23.042748", 1795333703042748),
        ("2026-11-22T07:48:23.042748Z", 1795333703042748),
        ("2026-11-22T09:48:23.042748+02:00", 1795333703042748),
    ],
)
def test_times_are_utc_unless_they_name_a_zone(written, version):
    event = replaced(of_type("response.created"), ("data", "updated_at"), written)
    answer = hear(event)
    assert answer and answer.version == version


OURS = argilla()
# What every text that tests make up begins with: no error may hold it.
MARK = "§"

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8).map(MARK.__add__),
    st.sampled_from(["\ud800", "", "2026-11-22T07:48:23.04", "submitted", "0" * 5000]),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=4).map(MARK.__add__), inner, max_size=3),
    ),
    max_leaves=6,
)


def _private(event):
    """Texts that no error may hold: contents, answers, names and ids."""
    data = event["data"]
    inner = [data["id"], data["user"], data["values"], data["record"]["fields"]]
    return {
        text
        for text in json.dumps(inner).split('"')[1::2]
        if text.startswith(("private", "response_", "tie")) or len(text) == 36
    }


PRIVATE = [_private(event) for event in RESPONSES]


def _is_answered_or_refused(event, private):
    try:
        heard = OURS.parse_event(event)
    except ConnectorError as error:
        said = f"{error} {error!r}"
        assert MARK not in said and not any(text in said for text in private)
        assert len(said) < 400 and "\n" not in said
        return
    for answer in heard:
        assert type(answer) is Answer and answer.record and answer.labeler
        assert type(answer.version) is int and answer.version >= 0
        if not answer.is_deleted:
            assert json.loads(answer.body)["responses"][0]["id"] == answer.record
            answer.body.encode()


@pytest.mark.slow
def test_any_hostile_value_anywhere_is_answered_or_refused():
    for event, private in zip(RESPONSES, PRIVATE, strict=True):
        for path in paths(event):
            for value in HOSTILE:
                _is_answered_or_refused(replaced(event, path, value), private)
            if path:
                _is_answered_or_refused(without(event, path), private)


@settings(max_examples=100, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_all_but_the_body_is_the_same_whatever_was_answered(value):
    event = of_type("response.created")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    one = hear(event)
    other = hear(replaced(event, ("data", "values", "preference", "value"), value))
    assert one and other
    assert (one.record, one.version, one.labeler) == (other.record, other.version, other.labeler)
    bodies = json.loads(one.body), json.loads(other.body)
    assert bodies[1]["responses"][0]["values"]["preference"]["value"] == value
    for body in bodies:
        del body["responses"][0]["values"]["preference"]
    assert bodies[0] == bodies[1]
