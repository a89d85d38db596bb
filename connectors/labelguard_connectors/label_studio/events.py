"""What Label Studio's webhooks tell.

Deletions name annotations alone; where whole tasks are deleted, no annotation is named, and the
next complete pull finds them gone. Where a task gets another ground truth, the annotation that was
it before changes without an event and without a new time: here it stays a ground truth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labelguard.ingest.connector import Answer
from labelguard_connectors.label_studio.answers import answer, interface
from labelguard_connectors.values import Value

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
    body = Value(_ORIGIN, event)
    action = body["action"].text()
    if action not in (*_ONE, _SEVERAL, *_GONE) or _project(body) != project:
        return ()
    if action in _GONE:
        gone = body[_GONE[action]]  # in which version they went is all the same
        several = [gone] if isinstance(gone.value, dict) else gone.elements()
        return [Answer(str(one["id"].number()), 0) for one in several]
    return _answers(body, several=action == _SEVERAL)


def _project(body: Value) -> int:
    """Whose event it is: hooks of a whole organization tell of every project."""
    project = body.get("project")
    if project.value is None:
        raise project.unlike("a project; let the webhook send its payload (send_payload)")
    return (project["id"] if isinstance(project.value, dict) else project).number()


def _answers(body: Value, *, several: bool) -> Sequence[Answer]:
    """Annotations with their tasks: one of each, or a list of each."""
    annotations, tasks = (
        [*body[name].elements()] if several else [body[name]] for name in ("annotation", "task")
    )
    by_id = {task["id"].number(): task for task in tasks}
    wanted = interface(body.get("project").value)
    answers, size = list[Answer](), 0
    for annotation in annotations:
        home = annotation["task"]
        if home.number() not in by_id:
            raise home.unlike("the id of a task in the event")
        if (found := answer(by_id[home.number()], annotation, wanted)) is None:
            continue
        answers.append(found)
        # Each answer holds its task: a small body may tell of very much. Labels count in steps.
        size += len(found.body)
        if size > _MOST:
            raise annotation.unlike(f"at most {_MOST:,} characters with the tasks")
    return answers
