"""Label Studio's REST interface, and answers by way of its data manager.

They are read page by page in the order of tasks' ids, cancelled ones too. Each page asks for the
tasks after the last one, so that none is left out or comes twice when others are deleted meanwhile.
Export snapshots would be three times as fast, but Label Studio 1.23 keeps their files, raw labels
of everybody, on its disk even when they are deleted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, ValidationError

from labelguard.answers.connector import Answer, Page, Unreadable
from labelguard.errors import ConnectorError
from labelguard_connectors.http import HttpClient
from labelguard_connectors.label_studio.answers import Annotation, Interface, TaskData, to_answer
from labelguard_connectors.payloads import Object, OutOfBounds, Payload, Text, ZonedTime, parse

_HINTS = {
    401: "the API key is not accepted; check it, and whether it has expired",
    403: "the API key's user may not do this; ask for a role that may see the whole project",
    404: "there is no such project; check url and project in labelguard.toml",
}


class _Token(Payload):
    access: Text


class _TaskList(Payload):
    tasks: list[Any]


class LabelStudioClient(HttpClient):
    """One server, with one key."""

    def __init__(self, url: str, key: str) -> None:
        where = f"Label Studio at {urlsplit(url).netloc}"
        if not re.fullmatch(r"[!-~]+", key):
            raise ConnectorError(f"{where}: the API key has characters that no key has")
        self._key, self._access = key, ""
        super().__init__("Label Studio", where, url, _HINTS, self._make_authorization_headers)

    def project(self, project: int) -> Mapping[str, Any]:
        """Return title, questions and counts of a project."""
        return self.get(Object, f"/api/projects/{project}/")

    def tasks(
        self, project: int, filters: Sequence[Mapping[str, Any]], order: str, size: int, fields: str
    ) -> list[Any]:
        """Return the first `size` tasks of a project that pass all filters of the data manager.

        `fields` is `task_only`, or `all` for annotations too, the cancelled ones among them.
        """
        view = {"filters": {"conjunction": "and", "items": filters}, "ordering": [order]}
        query: dict[str, str | int] = {
            "project": project,
            "query": json.dumps(view),
            "page": 1,
            "page_size": size,
            "fields": fields,
            "resolve_uri": "false",  # texts as they are, as webhooks tell them
        }
        return self.get(_TaskList, "/api/tasks/", **query).tasks

    def _make_authorization_headers(self, renew: bool) -> Mapping[str, str]:
        """Send a legacy token as it is; exchange a personal one for one of some minutes."""
        if self._key.count(".") != 2:  # personal ones are JSON Web Tokens, of three parts
            return {"Authorization": f"Token {self._key}"}
        if renew or not self._access:
            with HttpClient(self.tool, self.where, self.url, _HINTS, lambda renew: {}) as exchange:
                body = {"refresh": self._key}
                token = exchange.send("POST", "/api/token/refresh/", body=body)
            self._access = parse(_Token, token, f"{self.where}: a token").access
        return {"Authorization": f"Bearer {self._access}"}


_ORIGIN = "Label Studio task"
_TASKS, _ANSWERS = 200, 500
# An annotation is stamped before its transaction ends, and clocks of several servers differ.
_OVERLAP = timedelta(minutes=10)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Filters, order, how many, which fields: tasks of one project (`LabelStudioClient.tasks`).
ListTasks = Callable[[Sequence[Mapping[str, Any]], str, int, str], list[Any]]


class _PulledTask(TaskData):
    annotations: list[Annotation]


class _ChangedTask(Payload):
    updated_at: ZonedTime


class Cursor(BaseModel):
    """The point that a pull came to: of tasks that changed `since` (µs; 0: all) it read those up to
    the id `after`, and what changes from `until` on is for the next one.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    since: int = 0
    after: int = 0
    until: int = 0

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Return the inverse of `str`; of an empty text, the beginning."""
        try:
            return cls.model_validate_json(text or "{}")
        except ValidationError:
            raise ConnectorError(
                "this is no cursor of a Label Studio connector; pull everything once"
            ) from None

    def __str__(self) -> str:
        return self.model_dump_json()


def pull_pages(
    list_tasks: ListTasks,
    cursor: str,
    fetch_interface: Callable[[], Interface | None] = lambda: None,
) -> Iterator[Page]:
    """Yield all answers of a project, or those of tasks that changed since the cursor's pull began;
    of each, what its labeling interface asks for.
    """
    at, interface = Cursor.parse(cursor), fetch_interface()
    at = at if at.until else at.model_copy(update={"until": _fetch_newest_change(list_tasks)})
    while listed := list_tasks(_build_filters(at), "tasks:id", _TASKS, "all"):
        tasks = [parse(_PulledTask, task, _ORIGIN) for task in listed]
        results = [result for task in tasks for result in _parse_annotations(task, interface)]
        answers = [result for result in results if isinstance(result, Answer)]
        unreadable = [result for result in results if isinstance(result, Unreadable)]
        # Only the last of several pages of the same tasks leads beyond them.
        beyond = at.model_copy(update={"after": max(task.id for task in tasks)})
        *early, last = [answers[i : i + _ANSWERS] for i in range(0, len(answers), _ANSWERS)] or [[]]
        yield from (Page(part, str(at)) for part in early)
        yield Page(last, str(beyond), unreadable)
        at = beyond
    yield Page((), str(Cursor(since=at.until or at.since)))


def _fetch_newest_change(list_tasks: ListTasks) -> int:
    """Return when a task changed last (µs), by the tool's clock, but not later than now; 0 if there
    is none.
    """
    newest = list_tasks((), "-tasks:updated_at", 1, "task_only")
    if not newest:
        return 0
    changed = parse(_ChangedTask, newest[0], _ORIGIN).updated_at.microseconds
    return min(changed, (datetime.now(UTC) - _EPOCH) // timedelta(microseconds=1))


def _build_filters(at: Cursor) -> list[dict[str, Any]]:
    filters: list[tuple[str, str, str, int | str]] = [("id", "greater", "Number", at.after)]
    if at.since:
        since = _EPOCH + timedelta(microseconds=at.since) - _OVERLAP
        text = since.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        filters.append(("updated_at", "greater_or_equal", "Datetime", text))
    return [
        {"filter": f"filter:tasks:{column}", "operator": operator, "type": kind, "value": value}
        for column, operator, kind, value in filters
    ]


def _parse_annotations(
    task: _PulledTask, interface: Interface | None
) -> Iterator[Answer | Unreadable]:
    """Yield every annotation of a task that somebody made."""
    for annotation in task.annotations:
        try:
            if answer := to_answer(task, annotation, interface, _ORIGIN):
                yield answer
        except OutOfBounds as error:
            yield Unreadable(str(annotation.id), str(error))
