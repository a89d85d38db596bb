"""Answers by way of the data manager: page by page in the order of ids, cancelled ones too.

Each page asks for the tasks after the last one, so that none is left out or comes twice when others
are deleted meanwhile. Export snapshots would be three times as fast, but Label Studio 1.23 keeps
their files, raw labels of everybody, on its disk even when they are deleted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from labelguard.answers.connector import Answer, Page, Unreadable
from labelguard.errors import ConnectorError
from labelguard_connectors.bounds import OutOfBounds
from labelguard_connectors.label_studio.answers import Interface, answer
from labelguard_connectors.values import Value

_ORIGIN = "Label Studio task"
_TASKS = 200
_ANSWERS = 500
# An annotation is stamped before its transaction ends, and clocks of several servers differ.
_OVERLAP = timedelta(minutes=10)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Tasks = Callable[[Sequence[Mapping[str, Any]], str, int, str], list[Any]]
"""Filters, order, how many, which fields: tasks of one project (`Client.tasks`)."""


@dataclass(frozen=True)
class Cursor:
    """How far a pull came: of tasks that changed `since` (µs; 0: all) it told those up to the id
    `after`, and what changes from `until` on is for the next one.
    """

    since: int = 0
    after: int = 0
    until: int = 0

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """The inverse of `str`; of nothing, the beginning."""
        try:
            found = json.loads(text) if text else {}
            if not isinstance(found, dict) or any(type(one) is not int for one in found.values()):
                raise TypeError
            return cls(**found)
        except (ValueError, TypeError):
            raise ConnectorError(
                "this is no cursor of a Label Studio connector; pull everything once"
            ) from None

    def __str__(self) -> str:
        return json.dumps(asdict(self))


def pulled(
    tasks: Tasks, cursor: str, interface: Callable[[], Interface | None] = lambda: None
) -> Iterator[Page]:
    """All answers of a project, or those of tasks that changed since the cursor's pull began; of
    each, what its labeling `interface` asks for.
    """
    at, asked = Cursor.parse(cursor), interface()
    at = at if at.until else replace(at, until=_newest(tasks))
    while found := _read(tasks(_filters(at), "tasks:id", _TASKS, "all")):
        read = [one for task in found for one in _answers(task, asked)]
        answers = [one for one in read if isinstance(one, Answer)]
        unreadable = [one for one in read if isinstance(one, Unreadable)]
        # Only the last of several pages of the same tasks leads beyond them.
        beyond = replace(at, after=max(task["id"].number() for task in found))
        *early, last = [answers[i : i + _ANSWERS] for i in range(0, len(answers), _ANSWERS)] or [[]]
        yield from (Page(part, str(at)) for part in early)
        yield Page(last, str(beyond), unreadable)
        at = beyond
    yield Page((), str(Cursor(since=at.until or at.since)))


def _newest(tasks: Tasks) -> int:
    """When a task changed last, by the tool's clock; but not later than now, whatever it says."""
    newest = _read(tasks((), "-tasks:updated_at", 1, "task_only"))
    times = [task["updated_at"].time(zoned=True) for task in newest]
    return min([*times, (datetime.now(UTC) - _EPOCH) // timedelta(microseconds=1)]) if times else 0


def _read(found: list[Any]) -> list[Value]:
    return [Value(_ORIGIN, task) for task in found]


def _filters(at: Cursor) -> list[dict[str, Any]]:
    filters: list[tuple[str, str, str, int | str]] = [("id", "greater", "Number", at.after)]
    if at.since:
        since = _EPOCH + timedelta(microseconds=at.since) - _OVERLAP
        text = since.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        filters.append(("updated_at", "greater_or_equal", "Datetime", text))
    return [
        {"filter": f"filter:tasks:{column}", "operator": operator, "type": kind, "value": value}
        for column, operator, kind, value in filters
    ]


def _answers(task: Value, interface: Interface | None) -> Iterator[Answer | Unreadable]:
    """Every annotation of a task that somebody made."""
    for annotation in task["annotations"].elements():
        try:
            own: Answer | Unreadable | None = answer(task, annotation, interface)
        except OutOfBounds as error:
            own = Unreadable(str(annotation["id"].number()), str(error))
        if own is not None:
            yield own
