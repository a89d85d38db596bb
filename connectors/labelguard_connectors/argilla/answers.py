"""A response of a record becomes an `Answer`: the record with this one response, and nobody's name.

Webhooks and the REST interface tell the same response in two shapes; the answers made of them are
equal, byte by byte."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Any

from labelguard.answers.connector import Answer
from labelguard.inputs.left_out import DRAFT, SKIP
from labelguard_connectors import bounds
from labelguard_connectors.values import Value, is_uuid

SUBMITTED = "submitted"
_LEFT_OUT = {"discarded": SKIP, "draft": DRAFT}
STATUSES = (SUBMITTED, *_LEFT_OUT)

READ = ("label_selection", "ranking", "rating")
"""The types of questions whose answers are preferences. Texts, spans and sets of labels are not
stored: nothing reads them."""


def questions(told: Value) -> dict[str, str]:
    """The type of every question by its name, of the list of a data set's questions."""
    return {one["name"].text(): one["settings"]["type"].text() for one in told.elements()}


def read(types: dict[str, str]) -> frozenset[str]:
    """The names of those whose answers are kept: by their settings, never by what was answered."""
    return frozenset(name for name, kind in types.items() if kind in READ)


def answer(record: Value, dataset: str, response: Value, labeler: Value, kept: Set[str]) -> Answer:
    """The answer that a response to a record of `dataset` (id) is.

    Only what was submitted is kept of its values: what somebody discarded, or has only drafted
    until now, is not an answer. Their states are told all the same, so that what was submitted
    before counts no more, and may come back.
    """
    status = response["status"].text()
    if status not in STATUSES:
        raise response["status"].unlike(f"one of {', '.join(STATUSES)}")
    version = response["updated_at"].time()
    task = {
        "id": record["id"].uuid(),
        "external_id": record["external_id"].text_or_none(),
        "dataset_id": dataset,
        "fields": record["fields"].object(),
    }
    own = {
        "id": response["id"].uuid(),
        "user_id": labeler.uuid(),
        "status": status,
        "updated_at": response["updated_at"].value,
        "values": _values(response["values"].value, kept) if status == SUBMITTED else {},
    }
    try:
        body = bounds.body(task, "responses", own, record.what)
    except ValueError:
        raise record["fields"].unlike("JSON, without NaN and half characters") from None
    return Answer(response["id"].uuid(), version, labeler.uuid(), body, _LEFT_OUT.get(status, ""))


def _values(values: Any, kept: Set[str]) -> dict[str, object]:
    """Return the values to the questions that are kept; what is no value is left out.

    An error would depend on what was answered, and stop everybody else's release.
    """
    own = values if isinstance(values, dict) else {}
    said = {name: one for name, one in own.items() if name in kept and isinstance(one, dict)}
    return {
        name: {"value": one["value"]}
        for name, one in said.items()
        if "value" in one and bounds.is_label(one["value"])
    }


_STATES = ("response.created", "response.updated")
_DELETED = "response.deleted"
_VERSION = 1
"""Of the payload, as Argilla 2 sends it."""


@dataclass(frozen=True)
class Dataset:
    """The data set that settings name: by its id, or by its name in a workspace."""

    dataset: str
    workspace: str | None

    @property
    def id(self) -> str | None:
        """Its id, if that is what settings name."""
        return self.dataset.lower() if is_uuid(self.dataset) else None

    def is_told(self, told: Value) -> bool:
        """Whether an event is about it."""
        if self.id:
            return told["id"].uuid() == self.id
        names = told["name"].text(), told["workspace"]["name"].text()
        return names == (self.dataset, self.workspace)


def hear(dataset: Dataset, event: Any) -> tuple[Answer, ...]:
    """The response that an event is about, if it is one of the data set.

    Argilla says no more of a deletion than when the response was last changed; the time of the
    event is when it was deleted.
    """
    told = Value("Argilla event", event)
    kind = told["type"].text()
    if kind not in (*_STATES, _DELETED):
        return ()
    if told["version"].count() != _VERSION:
        raise told["version"].unlike(str(_VERSION))
    data = told["data"]
    record, labeler = data["record"], data["user"]["id"]
    where = record["dataset"]
    if not dataset.is_told(where):
        return ()
    if kind == _DELETED:
        version = max(told["timestamp"].time(), data["updated_at"].time())
        return (Answer(data["id"].uuid(), version, labeler.uuid()),)
    kept = read(questions(where["questions"]))
    return (answer(record, where["id"].uuid(), data, labeler, kept),)
