"""What a webhook of Argilla tells: responses of one data set that came, changed or went."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labelguard.ingest.connector import Answer
from labelguard_connectors.argilla import answers
from labelguard_connectors.values import Value, is_uuid

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
    kept = answers.read(answers.questions(where["questions"]))
    return (answers.answer(record, where["id"].uuid(), data, labeler, kept),)
