"""What Label Studio's webhooks tell.

Deletions name annotations alone; where whole tasks are deleted, no annotation is named, and the
next complete pull finds them gone. Where a task gets another ground truth, the annotation that was
it before changes without an event and without a new time: here it stays a ground truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labelguard.ingest.connector import Answer
from labelguard_connectors.label_studio.answers import (
    answer,
    elements,
    expected,
    interface,
    members,
    number,
)

_ORIGIN = "Label Studio event"
_ONE = ("ANNOTATION_CREATED", "ANNOTATION_UPDATED")
_SEVERAL = "ANNOTATIONS_CREATED"
_MOST = 32 << 20
"""Characters of all answers of one event."""
_GONE = {"ANNOTATIONS_DELETED": "annotations", "ANNOTATION_DELETED": "annotation"}


def heard(event: Any, project: int) -> Sequence[Answer]:
    """The answers of `project` that a webhook's body (parsed JSON) tells, or none.

    Raises `ConnectorError` for a body that is not Label Studio's.
    """
    body = members(event, f"{_ORIGIN}: the body")
    action = body.get("action")
    if not isinstance(action, str):
        raise expected(f"{_ORIGIN}: action", "a text")
    if action not in (*_ONE, _SEVERAL, *_GONE) or _project(body) != project:
        return ()
    if action in _GONE:
        return _gone(body, _GONE[action])
    return _told(body, several=action == _SEVERAL)


def _project(body: Mapping[str, Any]) -> int:
    """Whose event it is: hooks of a whole organization tell of every project."""
    value = body.get("project")
    if isinstance(value, dict):
        return number(value.get("id"), f"{_ORIGIN}: project.id")
    if value is None:
        raise expected(
            f"{_ORIGIN}: project", "a project; let the webhook send its payload (send_payload)"
        )
    return number(value, f"{_ORIGIN}: project")


def _told(body: Mapping[str, Any], *, several: bool) -> Sequence[Answer]:
    """Annotations with their tasks: one of each, or a list of each."""
    annotations, tasks = body.get("annotation"), body.get("task")
    if several:
        annotations = elements(annotations, f"{_ORIGIN}: annotation")
        tasks = elements(tasks, f"{_ORIGIN}: task")
    else:
        annotations, tasks = [annotations], [tasks]
    by_id: dict[int, Mapping[str, Any]] = {}
    for one in tasks:
        task = members(one, f"{_ORIGIN}: task")
        by_id[number(task.get("id"), f"{_ORIGIN}: task.id")] = task
    asked = interface(body.get("project"))
    told, size = [], 0
    for one in annotations:
        annotation = members(one, f"{_ORIGIN}: annotation")
        home = number(annotation.get("task"), f"{_ORIGIN}: annotation.task")
        if home not in by_id:
            raise expected(f"{_ORIGIN}: annotation.task", "the id of a task in the event")
        found = answer(by_id[home], annotation, _ORIGIN, asked)
        told.append(found)
        # Each answer holds its task: a small body may tell of very much. Labels count in steps.
        size += len(found.body) if found else 0
        if size > _MOST:
            raise expected(f"{_ORIGIN}: annotation", f"at most {_MOST:,} characters with the tasks")
    return [one for one in told if one is not None]


def _gone(body: Mapping[str, Any], name: str) -> Sequence[Answer]:
    """Deleted annotations; in which version of them is all the same."""
    value = body.get(name)
    gone = [value] if isinstance(value, dict) else elements(value, f"{_ORIGIN}: {name}")
    ids = [members(one, f"{_ORIGIN}: {name}[]").get("id") for one in gone]
    return [Answer(str(number(one, f"{_ORIGIN}: {name}[].id")), 0) for one in ids]
