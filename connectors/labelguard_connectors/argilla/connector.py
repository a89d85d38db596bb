"""The connector to one data set of Argilla."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from labelguard import extras
from labelguard.answers.connector import Answer, Page, Settings, Unreadable, credential
from labelguard.configuration.loader import SettingsTable, Text
from labelguard.configuration.project_file import FILE
from labelguard.errors import ConnectorError
from labelguard.text import Progress, pluralize
from labelguard_connectors.argilla import answers
from labelguard_connectors.argilla.answers import Dataset
from labelguard_connectors.bounds import OutOfBounds
from labelguard_connectors.values import Value, server_url

if TYPE_CHECKING:
    from labelguard_connectors.argilla.rest import Rest


class ArgillaOptions(SettingsTable):
    """What `[connectors.NAME]` says of Argilla."""

    url: Annotated[Text, Field(description="of the tool, without a password")]
    dataset: Annotated[Text, Field(description="the data set's name, or its id")]
    workspace: Annotated[
        Text | None, Field(description="the data set's workspace; its id needs none")
    ] = None


class Argilla:
    """A data set of Argilla: `url`, and `dataset` by its name with `workspace`, or by its id.

    The API key is read when Argilla is first spoken to: webhooks are heard without one. It must be
    that of an owner or of an admin of the workspace: others see their own responses alone.
    """

    format = "argilla"

    def __init__(self, settings: Settings) -> None:
        own = settings.own(ArgillaOptions)
        self._name, where = settings.name, f"{FILE}: connectors.{settings.name}"
        self._url = server_url(where, own.url)
        named = Dataset(own.dataset, None)
        self._dataset = named if named.id else Dataset(own.dataset, own.workspace)
        if not named.id and own.workspace is None:
            raise ConnectorError(f"{where}.workspace: this is missing, where dataset is no id")

    def about(self) -> Mapping[str, str]:
        """The data set, its questions with their types, and the number of its records."""
        with self._rest() as rest:
            found = self._found(rest)
            path = f"/datasets/{found['id'].uuid()}"
            types = answers.questions(rest.get(f"{path}/questions")["items"])
            # Asked for with responses: whoever may not see them cannot pull.
            total = rest.get(f"{path}/records", include="responses", limit=1)["total"].count()
            return {
                "dataset": found["name"].text(),
                "questions": ", ".join(f"{name} ({kind})" for name, kind in types.items()),
                "records": pluralize(total, "record"),
            }

    def hear(self, event: Any) -> Sequence[Answer]:
        """The response that a webhook tells, if it is one to this data set."""
        return answers.hear(self._dataset, event)

    def completed(self) -> bool:
        """Whether every record has the responses that it waits for (`distribution`)."""
        with self._rest() as rest:
            found = rest.get(f"/datasets/{self._found(rest)['id'].uuid()}/progress")
            return 0 < found["total"].count() == found["completed"].count()

    def pull(self, cursor: str = "") -> Iterator[Page]:
        """All responses that there are, whatever the cursor: Argilla cannot tell those since.

        A response, and still less the deletion of its user, need not touch its record.
        """
        from labelguard_connectors.argilla.rest import pages

        with self._rest() as rest:
            dataset = self._found(rest)["id"].uuid()
            told = rest.get(f"/datasets/{dataset}/questions")["items"]
            kept = answers.read(answers.questions(told))
            for records in pages(rest, dataset):
                found, unreadable = list[Answer](), list[Unreadable]()
                for record in records:
                    for response in record["responses"].elements():
                        who = response["user_id"]
                        try:
                            found.append(answers.answer(record, dataset, response, who, kept))
                        except OutOfBounds as error:
                            unreadable.append(Unreadable(response["id"].uuid(), str(error)))
                yield Page(found, "", unreadable)

    def push(self, release: Path, name: str, progress: Progress) -> str:
        """Publish a release as a new data set of the same workspace; the address of its page."""
        from labelguard_connectors.argilla.releases import publish

        with self._rest() as rest:
            workspace = self._found(rest)["workspace_id"].uuid()
            dataset = publish(rest, workspace, release, name, progress)
        return f"{self._url}/dataset/{dataset}/annotation-mode"

    def _rest(self) -> Rest:
        extras.require("argilla", "the connector to Argilla")
        from labelguard_connectors.argilla.rest import Rest

        return Rest(self._name, self._url, credential(self._name, "api_key"))

    def _found(self, rest: Rest) -> Value:
        """The data set, as Argilla describes it."""
        if self._dataset.id:
            return rest.get(f"/datasets/{self._dataset.id}")
        workspace = self._only(rest.get("/me/workspaces"), "workspace", self._dataset.workspace)
        found = rest.get("/me/datasets", workspace_id=workspace["id"].uuid())
        return self._only(found, "dataset", self._dataset.dataset)

    def _only(self, told: Value, noun: str, name: str | None) -> Value:
        for one in told["items"].elements():
            if one["name"].text() == name:
                return one
        raise ConnectorError(
            f"[connectors.{self._name}]: Argilla has no {noun} of that name that the API key's "
            f"user may see; check {noun}"
        )
