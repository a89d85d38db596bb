"""The connector: one project of one Label Studio server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from labelguard import extras
from labelguard.answers.connector import Answer, Page, Settings, read_credential
from labelguard.configuration.loader import SettingsTable, Text
from labelguard.configuration.project_file import FILE
from labelguard.errors import ConnectorError
from labelguard_connectors.label_studio import answers
from labelguard_connectors.payloads import parse_server_url

if TYPE_CHECKING:
    from labelguard_connectors.label_studio.rest import LabelStudioClient


class LabelStudioOptions(SettingsTable):
    """Options of Label Studio in `[connectors.NAME]`."""

    url: Annotated[Text, Field(description="of the tool, without user, password or query")]
    project: Annotated[int, Field(description="the number in the project's address")]


class LabelStudio:
    """A project of Label Studio (`LabelStudioOptions`); the key is credential `api_key`.

    Events are read without the key and without the extra, so that a hook needs neither.
    """

    format = "label-studio"

    def __init__(self, settings: Settings) -> None:
        options = settings.parse_options(LabelStudioOptions)
        self._name, self._project = settings.name, options.project
        self._url = parse_server_url(f"{FILE}: connectors.{settings.name}", options.url)

    def about(self) -> Mapping[str, str]:
        """Return the project's title and address, its questions, and counts of its tasks."""
        project = self._client.project(self._project)
        interface = answers.read_interface(project) or {}
        questions = sorted(tag for tag, (kind, _) in interface.items() if kind in answers.LABEL_OF)
        return {
            "project": str(project.get("title")),
            "url": self._project_url,
            "questions": ", ".join(questions),
            "tasks": str(project.get("task_number")),
            "annotations": str(project.get("total_annotations_number")),
        }

    def parse_event(self, event: Any) -> Sequence[Answer]:
        """Return the answers of this project in a webhook's body (parsed JSON)."""
        return answers.parse_event(event, self._project)

    def explain_ignored(self, event: Any) -> str:
        """Return why an event tells of no answer, if labelguard.toml may be wrong; else ""."""
        return answers.explain_ignored(event, self._project)

    def is_completed(self) -> bool:
        """Return whether every task has the annotations it waits for (`maximum_annotations`)."""
        project = self._client.project(self._project)
        tasks, finished = (project.get(f"{which}task_number") for which in ("", "finished_"))
        if not isinstance(tasks, int) or not isinstance(finished, int):
            raise ConnectorError(f"{self._project_url}: expected counts of its tasks")
        return 0 < tasks <= finished

    def pull(self, cursor: str = "") -> Iterator[Page]:
        """Return all answers, or those of tasks that changed since the cursor's pull."""
        from labelguard_connectors.label_studio.rest import pull_pages

        def fetch_interface() -> answers.Interface | None:
            return answers.read_interface(self._client.project(self._project))

        return pull_pages(partial(self._client.tasks, self._project), cursor, fetch_interface)

    def check_access(self) -> None:
        """Raise `ConnectorError` where its key or a package is missing."""
        _ = self._client

    @cached_property
    def _client(self) -> LabelStudioClient:
        extras.require_extra("label-studio", f"connector {self._name}")
        from labelguard_connectors.label_studio.rest import LabelStudioClient

        return LabelStudioClient(self._url, read_credential(self._name, "api_key"))

    @property
    def _project_url(self) -> str:
        return f"{self._url}/projects/{self._project}"
