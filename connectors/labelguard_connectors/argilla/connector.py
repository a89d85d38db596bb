"""The connector to one data set of Argilla."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from labelguard import extras
from labelguard.answers.connector import Answer, Page, Settings, Unreadable, read_credential
from labelguard.configuration.loader import SettingsTable, Text
from labelguard.configuration.project_file import FILE
from labelguard.errors import ConnectorError
from labelguard.text import Progress, pluralize
from labelguard_connectors.argilla.answers import (
    DatasetName,
    parse_event,
    select_preference_questions,
    to_answer,
)
from labelguard_connectors.payloads import OutOfBounds, parse_server_url

if TYPE_CHECKING:
    from labelguard_connectors.argilla.rest import ArgillaClient


class ArgillaOptions(SettingsTable):
    """Options of Argilla in `[connectors.NAME]`."""

    url: Annotated[Text, Field(description="of the tool, without a password")]
    dataset: Annotated[Text, Field(description="the data set's name, or its id")]
    workspace: Annotated[
        Text | None, Field(description="the data set's workspace; its id needs none")
    ] = None


class Argilla:
    """A data set of Argilla: `url`, and `dataset` by its name with `workspace`, or by its id.

    The API key is read when Argilla is first spoken to: webhooks are read without one. It must be
    that of an owner or of an admin of the workspace: others see their own responses alone.
    """

    format = "argilla"

    def __init__(self, settings: Settings) -> None:
        options = settings.parse_options(ArgillaOptions)
        self._name, where = settings.name, f"{FILE}: connectors.{settings.name}"
        self._url = parse_server_url(where, options.url)
        self._dataset = DatasetName(options.dataset, options.workspace)
        if not self._dataset.id and options.workspace is None:
            raise ConnectorError(f"{where}.workspace: this is missing, where dataset is no id")

    def about(self) -> Mapping[str, str]:
        """Return the data set, its questions with their types, and the number of its records."""
        with self._client() as client:
            dataset = client.dataset(self._dataset)
            questions = client.questions(dataset.id)
            total = client.count_records(dataset.id)
        return {
            "dataset": dataset.name,
            "questions": ", ".join(f"{item.name} ({item.settings.type})" for item in questions),
            "records": pluralize(total, "record"),
        }

    def parse_event(self, event: Any) -> Sequence[Answer]:
        """Return the response in a webhook's body, if it is one to this data set."""
        return parse_event(self._dataset, event)

    def is_completed(self) -> bool:
        """Return whether every record has the responses it waits for (`distribution`)."""
        with self._client() as client:
            progress = client.progress(client.dataset(self._dataset).id)
        return 0 < progress.total == progress.completed

    def pull(self, cursor: str = "") -> Iterator[Page]:
        """Yield all responses that there are, whatever the cursor: Argilla cannot list those since.

        A response, and still less the deletion of its user, need not touch its record.
        """
        from labelguard_connectors.argilla.rest import list_pages

        with self._client() as client:
            dataset = client.dataset(self._dataset).id
            questions = select_preference_questions(client.questions(dataset))
            origin = f"{client.where}: a record"
            for records in list_pages(client, dataset):
                answers, unreadable = list[Answer](), list[Unreadable]()
                for record in records:
                    for response in record.responses:
                        labeler = response.user_id
                        try:
                            answers.append(
                                to_answer(record, dataset, response, labeler, questions, origin)
                            )
                        except OutOfBounds as error:
                            unreadable.append(Unreadable(response.id, str(error)))
                yield Page(answers, "", unreadable)

    def push(self, release: Path, name: str, progress: Progress) -> str:
        """Publish a release as a data set, or complete one; return its page's address.

        `name` may be WORKSPACE/NAME; else it is in the workspace of the data set that is read.
        """
        from labelguard_connectors.argilla.publishing import publish_pairs, read_pairs

        workspace, _, title = name.rpartition("/")
        pairs = read_pairs(release, title)
        with self._client() as client:
            identity = (
                client.workspace(workspace)
                if workspace
                else client.dataset(self._dataset).workspace_id
            )
            key = read_credential(self._name, "api_key")
            dataset = publish_pairs(client, key, identity, title, release, pairs, progress)
        return f"{self._url}/dataset/{dataset}/annotation-mode"

    def check_access(self) -> None:
        """Raise `ConnectorError` where its key or a package is missing."""
        with self._client():
            pass

    def _client(self) -> ArgillaClient:
        extras.require_extra("argilla", "the connector to Argilla")
        from labelguard_connectors.argilla.rest import ArgillaClient

        return ArgillaClient(self._name, self._url, read_credential(self._name, "api_key"))
