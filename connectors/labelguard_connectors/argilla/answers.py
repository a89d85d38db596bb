"""A response of a record becomes an `Answer`: the record with this one response, and nobody's name.

Webhooks and the REST interface report the same response in two shapes; the answers made of them
are equal, byte by byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AliasPath, Field

from labelguard.answers.connector import Answer
from labelguard.errors import ConnectorError
from labelguard.text import DRAFT, SKIP
from labelguard_connectors import payloads
from labelguard_connectors.payloads import Object, Payload, Text, TextOrNone, Time, Uuid, parse

SUBMITTED = "submitted"
_LEFT_OUT = {"discarded": SKIP, "draft": DRAFT}
_STATUSES = (SUBMITTED, *_LEFT_OUT)
_NOUN = f"one of {', '.join(_STATUSES)}"
_Status = Annotated[
    str, payloads.make_validator(_NOUN, lambda v: isinstance(v, str) and v in _STATUSES)
]
# The types of questions whose answers are preferences. Texts, spans and sets of labels are not
# stored: nothing reads them.
_PREFERENCES = ("label_selection", "ranking", "rating")


class _QuestionSettings(Payload):
    type: Text


class ArgillaQuestion(Payload):
    """A question of a data set."""

    name: Text
    settings: _QuestionSettings


class Record(Payload):
    """A record, without its responses."""

    id: Uuid
    external_id: TextOrNone
    fields: Object


class Response(Payload):
    """A response to a record; `values` may be anything, for labelers send it."""

    id: Uuid
    status: _Status
    updated_at: Time
    values: Any


def select_preference_questions(questions: Iterable[ArgillaQuestion]) -> frozenset[str]:
    """Return the names of questions whose answers are stored: by their type, never by an answer."""
    return frozenset(item.name for item in questions if item.settings.type in _PREFERENCES)


def to_answer(
    record: Record, dataset: str, response: Response, labeler: str, questions: Set[str], origin: str
) -> Answer:
    """Return a response to a record of `dataset` (id) as an answer to these questions.

    Only what was submitted is stored of its values: what somebody discarded, or has only drafted
    until now, is not an answer. Their states are stored all the same, so that what was submitted
    before counts no more, and may come back.
    """
    status = response.status
    task = {
        "id": record.id,
        "external_id": record.external_id,
        "dataset_id": dataset,
        "fields": record.fields,
    }
    answer = {
        "id": response.id,
        "user_id": labeler,
        "status": status,
        "updated_at": response.updated_at.text,
        "values": _select_stored_values(response.values, questions) if status == SUBMITTED else {},
    }
    try:
        body = payloads.serialize_padded_task(task, "responses", answer, origin)
    except ValueError:
        raise ConnectorError(
            f"{origin}: record.fields: expected JSON, without NaN and half characters"
        ) from None
    reason = _LEFT_OUT.get(status, "")
    return Answer(response.id, response.updated_at.microseconds, labeler, body, reason)


def _select_stored_values(values: Any, questions: Set[str]) -> dict[str, object]:
    """Return the values to these questions that can be stored.

    An error would depend on what was answered, and stop everybody else's release.
    """
    items = values.items() if isinstance(values, dict) else ()
    answered = {
        name: item["value"]
        for name, item in items
        if name in questions and isinstance(item, dict) and "value" in item
    }
    return {
        name: {"value": payloads.keep_storable_label(value, len(answered))}
        for name, value in answered.items()
    }


_ORIGIN = "Argilla event"
_DELETION = "response.deleted"
_TYPES = ("response.created", "response.updated", _DELETION)


def _declare_field_at(*path: str) -> Any:
    """Declare where a field stands in an event."""
    return Field(validation_alias=AliasPath(*path))


class _EventType(Payload):
    type: Text


class _DatasetEvent(Payload):
    # Of the payload, as Argilla 2 sends it.
    version: Annotated[
        int, payloads.make_validator("1", lambda value: type(value) is int and value == 1)
    ]
    id: Uuid = _declare_field_at("data", "record", "dataset", "id")
    name: Text = _declare_field_at("data", "record", "dataset", "name")
    workspace: Text = _declare_field_at("data", "record", "dataset", "workspace", "name")


class _Deletion(Payload):
    response: Uuid = _declare_field_at("data", "id")
    labeler: Uuid = _declare_field_at("data", "user", "id")
    updated_at: Time = _declare_field_at("data", "updated_at")
    deleted_at: Time = _declare_field_at("timestamp")


class _Change(Payload):
    response: Response = _declare_field_at("data")
    labeler: Uuid = _declare_field_at("data", "user", "id")
    record: Record = _declare_field_at("data", "record")
    dataset: Uuid = _declare_field_at("data", "record", "dataset", "id")
    questions: list[ArgillaQuestion] = _declare_field_at("data", "record", "dataset", "questions")


@dataclass(frozen=True)
class DatasetName:
    """The data set that settings name: by its id, or by its name in a workspace."""

    dataset: str
    workspace: str | None

    @property
    def id(self) -> str | None:
        """Its id, if that is what settings name."""
        return self.dataset.lower() if payloads.is_uuid(self.dataset) else None

    def matches(self, event: _DatasetEvent) -> bool:
        """Return whether an event is about it."""
        if self.id:
            return event.id == self.id
        return (event.name, event.workspace) == (self.dataset, self.workspace)


def parse_event(dataset: DatasetName, body: Any) -> tuple[Answer, ...]:
    """Return the response that an event is about, if it is one of the data set.

    Argilla says no more of a deletion than when the response was last changed; the time of the
    event is when it was deleted.
    """
    kind = parse(_EventType, body, _ORIGIN).type
    if kind not in _TYPES or not dataset.matches(parse(_DatasetEvent, body, _ORIGIN)):
        return ()
    if kind == _DELETION:
        deletion = parse(_Deletion, body, _ORIGIN)
        version = max(deletion.deleted_at.microseconds, deletion.updated_at.microseconds)
        return (Answer(deletion.response, version, deletion.labeler),)
    event = parse(_Change, body, _ORIGIN)
    questions = select_preference_questions(event.questions)
    return (
        to_answer(event.record, event.dataset, event.response, event.labeler, questions, _ORIGIN),
    )
