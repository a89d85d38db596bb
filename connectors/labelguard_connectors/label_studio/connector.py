"""The connector: one project of one Label Studio server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from labelguard import extras
from labelguard.answers.connector import Answer, Page, Settings, credential
from labelguard.configuration.loader import SettingsTable, Text
from labelguard.configuration.project_file import FILE
from labelguard.errors import ConnectorError
from labelguard.release.writer import load
from labelguard.text import Progress
from labelguard_connectors.label_studio.answers import SAYS, Interface, heard, interface
from labelguard_connectors.pairs import pairs
from labelguard_connectors.values import server_url

if TYPE_CHECKING:
    from labelguard_connectors.label_studio.client import Client

_BATCH = 500


class LabelStudioOptions(SettingsTable):
    """What `[connectors.NAME]` says of Label Studio."""

    url: Annotated[Text, Field(description="of the tool, without user, password or query")]
    project: Annotated[int, Field(description="the number in the project's address")]


class LabelStudio:
    """A project of Label Studio (`LabelStudioOptions`); the key is credential `api_key`.

    Events are read without the key and without the extra, so that a hook needs neither.
    """

    format = "label-studio"

    def __init__(self, settings: Settings) -> None:
        own = settings.own(LabelStudioOptions)
        self._name = settings.name
        self._url = server_url(f"{FILE}: connectors.{settings.name}", own.url)
        self._project = own.project

    def about(self) -> Mapping[str, str]:
        """The project's title and address, its questions, how many tasks and annotations."""
        project = self._client.project(self._project)
        asked = interface(project) or {}
        return {
            "project": str(project.get("title")),
            "url": self._place(self._project),
            "questions": ", ".join(
                sorted(name for name, (kind, _) in asked.items() if kind in SAYS)
            ),
            "tasks": str(project.get("task_number")),
            "annotations": str(project.get("total_annotations_number")),
        }

    def hear(self, event: Any) -> Sequence[Answer]:
        """The answers that a webhook's body (parsed JSON) tells of this project."""
        return heard(event, self._project)

    def completed(self) -> bool:
        """Whether every task has the annotations that it waits for (`maximum_annotations`)."""
        project = self._client.project(self._project)
        tasks, finished = (project.get(f"{which}task_number") for which in ("", "finished_"))
        if not isinstance(tasks, int) or not isinstance(finished, int):
            raise ConnectorError(f"{self._place(self._project)}: expected counts of its tasks")
        return 0 < tasks <= finished

    def pull(self, cursor: str = "") -> Iterator[Page]:
        """All answers, or those of tasks that changed since the cursor's pull."""
        from labelguard_connectors.label_studio.pulling import pulled

        def fetch_interface() -> Interface | None:
            return interface(self._client.project(self._project))

        return pulled(partial(self._client.tasks, self._project), cursor, fetch_interface)

    def push(self, release: Path, name: str, progress: Progress) -> str:
        """A new project `name` of the release's pairs; its address. All of it, or nothing."""
        from labelguard_connectors.label_studio import pushing

        title = pushing.checked(name)
        frame = pairs(load(release))
        client = self._client
        project = client.create(title, pushing.config(frame))
        try:
            for start in range(0, frame.height, _BATCH):
                progress("importing pairs", start / frame.height)
                client.fill(project, list(pushing.tasks(frame[start : start + _BATCH])))
        except BaseException as error:
            self._undo(client, project, error)
            raise
        progress("importing pairs", 1.0)
        return self._place(project)

    def _undo(self, client: Client, project: int, error: BaseException) -> None:
        """Remove what was pushed in part; where that fails too, say where it is."""
        try:
            client.remove(project)
        except ConnectorError:
            if isinstance(error, ConnectorError):
                raise ConnectorError(
                    f"{error}; {self._place(project)} holds a part of the release: delete it"
                ) from None

    @cached_property
    def _client(self) -> Client:
        extras.require("label-studio", f"connector {self._name}")
        from labelguard_connectors.label_studio.client import Client

        return Client(self._url, credential(self._name, "api_key"))

    def _place(self, project: int) -> str:
        return f"{self._url}/projects/{project}"
