"""What Argilla's webhooks tell: recordings of a real server, and ten thousand that are none."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from labelguard_connectors.argilla import Argilla, answers
from labelguard_connectors.bounds import OutOfBounds
from labelguard_connectors.values import Value
from support.exports import read, write

from labelguard.errors import ConnectorError
from labelguard.ingest.connector import Answer, Settings, connector

RECORDINGS = Path(__file__).parent / "recordings" / "argilla"
TABLE = {"url": "https://argilla.example", "dataset": "prefs", "workspace": "labelers"}


def recorded(name: str) -> Any:
    return json.loads((RECORDINGS / f"{name}.json").read_text(encoding="utf-8"))


EVENTS = [recorded(path.stem) for path in sorted(RECORDINGS.glob("[0-9]*.json"))]
RESPONSES = [event for event in EVENTS if event["type"].startswith("response.")]
QUESTIONS, PAGE = recorded("questions"), recorded("records")


def argilla(**options: str) -> Argilla:
    found = connector(Settings.of("argilla", {**TABLE, **options}))
    assert isinstance(found, Argilla)
    return found


def hear(event: Any, **options: str) -> Answer | None:
    heard = argilla(**options).hear(event)
    assert len(heard) <= 1
    return heard[0] if heard else None


def changed(event: Any, value: Any, *path: str | int) -> Any:
    """A copy of an event with another value in one place."""
    event = copy.deepcopy(event)
    inner = event
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return event


def of_type(kind: str) -> Any:
    return next(event for event in RESPONSES if event["type"] == kind)


# What recordings tell


def test_the_states_of_a_response_are_told_in_their_order() -> None:
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


def test_a_body_is_the_record_with_this_response_and_nothing_else() -> None:
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
def test_nobody_is_named_and_no_text_that_somebody_wrote_is_kept(event: Any) -> None:
    answer = hear(event)
    assert answer
    assert "private-" not in answer.body and "private second" not in answer.body
    assert "reason" not in answer.body and "owner" not in answer.body
    assert repr(answer) == "Answer(…)"


@pytest.mark.parametrize("event", RESPONSES)
def test_of_what_was_not_submitted_no_value_is_kept(event: Any) -> None:
    answer = hear(event)
    assert answer
    if not answer.deleted and event["data"]["status"] != "submitted":
        (response,) = json.loads(answer.body)["responses"]
        assert response["status"] == event["data"]["status"]
        assert response["values"] == {}


def test_a_deletion_is_later_than_what_was_deleted() -> None:
    gone = hear(of_type("response.deleted"))
    assert gone and gone.deleted and gone.labeler
    before = [hear(event) for event in RESPONSES if event["data"]["id"] == gone.record]
    assert len(before) == 2
    assert all(one.version < gone.version for one in before if one and not one.deleted)


def test_the_rest_interface_tells_the_same_response_byte_by_byte() -> None:
    heard: dict[str, Answer] = {}
    for event in RESPONSES:
        if answer := hear(event):
            heard[answer.record] = max(answer, heard.get(answer.record, answer), key=_version)
    kept = answers.read(answers.questions(Value("questions", QUESTIONS)["items"]))
    pulled = [
        answers.answer(record, record["dataset_id"].uuid(), response, response["user_id"], kept)
        for record in Value("records", PAGE)["items"].elements()
        for response in record["responses"].elements()
    ]
    assert len(pulled) == 3
    assert {one.record: one for one in pulled} == {
        record: answer for record, answer in heard.items() if not answer.deleted
    }


def _version(answer: Answer) -> int:
    return answer.version


def test_the_format_reads_the_latest_states(tmp_path: Path) -> None:
    kept = answers.read(answers.questions(Value("questions", QUESTIONS)["items"]))
    bodies = [
        json.loads(answers.answer(record, "0" * 8, response, response["user_id"], kept).body)
        for record in Value("records", PAGE)["items"].elements()
        for response in record["responses"].elements()
    ]
    found = read(write(tmp_path / "bodies.jsonl", bodies), tmp_path, question="preference")
    # A preference for A by Ann, who skips the other; Bob's draft is none.
    assert found["fault"].to_list() == [0, 0]
    assert found["labeler"].n_unique() == 1
    assert sorted(found["label"].to_list()) != sorted([0, 0])


# Whose events are heard


@pytest.mark.quick(
    "event0",
    "event1",
    "event2",
    "event4",
    "event5",
    "event6",
)
@pytest.mark.parametrize(
    "options",
    [
        {"dataset": "others"},
        {"workspace": "others"},
        {"dataset": "00000000-0000-4000-8000-000000000000"},
    ],
)
@pytest.mark.parametrize("event", RESPONSES)
def test_other_data_sets_are_not_heard(event: Any, options: dict[str, str]) -> None:
    assert hear(event, **options) is None


def test_a_data_set_may_be_named_by_its_id() -> None:
    for event in RESPONSES:
        identity = event["data"]["record"]["dataset"]["id"]
        assert hear(event, dataset=identity.upper()) == hear(event) is not None


@pytest.mark.parametrize("event", [event for event in EVENTS if event not in RESPONSES])
def test_other_events_tell_nothing(event: Any) -> None:
    assert hear(event) is None


def test_hearing_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_settings_that_lack_something_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConnectorError, match=r"connectors.argilla.\w+: ") as refused:
        argilla(**options)
    assert "password@" not in str(refused.value)


# What is none


WRONG = [
    (("type",), None, "type: expected a text"),
    (("type",), ["response.created"], "type: expected a text"),
    (("version",), 2, "version: expected 1"),
    (("version",), True, "version: expected a whole number"),
    (("data",), [], "data: expected an object"),
    (("data", "id"), 7, "data.id: expected an id"),
    (("data", "id"), "7", "data.id: expected an id"),
    (("data", "user", "id"), None, "data.user.id: expected an id"),
    (("data", "status"), "pending", "data.status: expected one of"),
    (("data", "status"), ["submitted"], "data.status: expected a text"),
    (("data", "updated_at"), 1795333703, "data.updated_at: expected a time"),
    (("data", "updated_at"), "2026-13-01T00:00:00", "data.updated_at: expected a time"),
    (("data", "updated_at"), "1969-12-31T23:59:59", "data.updated_at: expected a time since 1970"),
    (("data", "updated_at"), "2026-11-22", "data.updated_at: expected a time"),
    (("data", "updated_at"), "２026-11-22T00:00:00", "data.updated_at: expected a time"),
    (("data", "record", "id"), {}, "data.record.id: expected an id"),
    (("data", "record", "external_id"), 3, "data.record.external_id: expected a text or null"),
    (("data", "record", "fields"), None, "data.record.fields: expected an object"),
    (("data", "record", "fields", "prompt"), "\ud800", "record.fields: expected JSON"),
    (("data", "record", "dataset", "questions"), {}, "dataset.questions: expected a list"),
    (
        ("data", "record", "dataset", "questions", 1, "settings"),
        None,
        "data.record.dataset.questions[1].settings: expected an object",
    ),
    (("data", "record", "dataset", "name"), None, "data.record.dataset.name: expected a text"),
]


@pytest.mark.quick(
    "path0",
    "path3",
    "path6",
    "path9",
    "path13",
    "path16",
    "path19",
)
@pytest.mark.parametrize(("path", "value", "message"), WRONG)
def test_an_error_names_the_field(path: tuple[str | int, ...], value: Any, message: str) -> None:
    event = changed(of_type("response.created"), value, *path)
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
def test_a_value_that_is_none_is_left_out(path: tuple[str, ...], value: Any, left: int) -> None:
    answer = hear(changed(of_type("response.created"), value, "data", "values", *path))
    assert answer and len(json.loads(answer.body)["responses"][0]["values"]) == left


def test_an_answer_that_is_too_large_is_refused_by_a_bound_that_is_public() -> None:
    event = changed(of_type("response.created"), "l" * 70_000, "data", "values", "order", "value")
    with pytest.raises(OutOfBounds, match="8,192 bytes"):
        hear(event)


def test_a_field_that_is_missing_is_named() -> None:
    event = copy.deepcopy(of_type("response.created"))
    del event["data"]["user"]["id"]
    with pytest.raises(ConnectorError, match=r"^Argilla event: data\.user\.id: missing$"):
        hear(event)


@pytest.mark.parametrize("event", [None, [], "response.created", 7, True, {}, {1: 2}])
def test_what_is_no_event_is_refused(event: Any) -> None:
    with pytest.raises(ConnectorError, match=r"^Argilla event"):
        hear(event)


def test_a_nesting_without_end_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ConnectorError, match="expected JSON"):
        hear(changed(of_type("response.created"), deep, "data", "record", "fields", "prompt"))


def test_an_answer_that_is_nested_too_deep_is_none_and_stops_no_release() -> None:
    deep: Any = json.loads("[" * 200 + "]" * 200)
    event = of_type("response.created")
    name = next(iter(json.loads(hear(event).body)["responses"][0]["values"]))  # type: ignore[union-attr]
    found = hear(changed(event, deep, "data", "values", name, "value"))
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
def test_times_are_utc_unless_they_name_a_zone(written: str, version: int) -> None:
    event = changed(of_type("response.created"), written, "data", "updated_at")
    answer = hear(event)
    assert answer and answer.version == version


OURS = argilla()
MARK = "§"
"""What every text that tests make up begins with: no error may hold it."""

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
MANY = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _places(inner, (*path, name))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _places(inner, (*path, number))


PLACES = [sorted(set(_places(event)), key=str) for event in RESPONSES]


def _private(event: Any) -> set[str]:
    """Texts that no error may hold: contents, answers, names and ids."""
    data = event["data"]
    inner = [data["id"], data["user"], data["values"], data["record"]["fields"]]
    return {
        text
        for text in json.dumps(inner).split('"')[1::2]
        if text.startswith(("private", "response_", "tie")) or len(text) == 36
    }


PRIVATE = [_private(event) for event in RESPONSES]


def _is_answered_or_refused(event: Any, private: set[str]) -> None:
    try:
        heard = OURS.hear(event)
    except ConnectorError as error:
        said = f"{error} {error!r}"
        assert MARK not in said and not any(text in said for text in private)
        assert len(said) < 400 and "\n" not in said
        return
    for answer in heard:
        assert type(answer) is Answer and answer.record and answer.labeler
        assert type(answer.version) is int and answer.version >= 0
        if not answer.deleted:
            assert json.loads(answer.body)["responses"][0]["id"] == answer.record
            answer.body.encode()


@pytest.mark.slow
@MANY
@given(st.lists(st.tuples(st.floats(0, 1), values), min_size=2, max_size=3), st.integers(0, 9))
def test_events_with_anything_anywhere_are_answered_or_refused(
    changes: list[tuple[float, Any]], removed: int
) -> None:
    # Each of 400 examples is tried on eight recordings, one change at a time and all together: with
    # those of the next test, over ten thousand events.
    for event, places, private in zip(RESPONSES, PLACES, PRIVATE, strict=True):
        together = copy.deepcopy(event)
        for share, value in changes:
            place = places[int(share * (len(places) - 1))]
            _is_answered_or_refused(changed(event, value, *place), private)
            _put(together, place, value, remove=removed == 0)
        _is_answered_or_refused(together, private)


def _put(event: Any, place: tuple[str | int, ...], value: Any, *, remove: bool) -> None:
    inner = event
    for step in place[:-1]:
        if isinstance(inner, dict) and step not in inner:
            return
        if isinstance(inner, list) and not (isinstance(step, int) and step < len(inner)):
            return
        if not isinstance(inner, dict | list):
            return
        inner = inner[step]
    last = place[-1]
    if isinstance(inner, dict):
        inner.pop(last, None)
        if not remove:
            inner[last] = value
    elif isinstance(inner, list) and isinstance(last, int) and last < len(inner):
        inner[last] = value


@settings(max_examples=200, deadline=None)
@given(values)
def test_any_json_is_answered_or_refused(value: Any) -> None:
    _is_answered_or_refused(value, set())


@settings(max_examples=100, deadline=None)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_all_but_the_body_is_the_same_whatever_was_answered(value: Any) -> None:
    event = of_type("response.created")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return
    one = hear(event)
    other = hear(changed(event, value, "data", "values", "preference", "value"))
    assert one and other
    assert (one.record, one.version, one.labeler) == (other.record, other.version, other.labeler)
    bodies = json.loads(one.body), json.loads(other.body)
    assert bodies[1]["responses"][0]["values"]["preference"]["value"] == value
    for body in bodies:
        del body["responses"][0]["values"]["preference"]
    assert bodies[0] == bodies[1]
