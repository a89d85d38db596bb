"""An annotation as an answer: what the format `label-studio` reads of it, and nothing else.

Names, e-mail addresses, drafts, predictions, times spent and free texts stay behind. An annotation
whose account was deleted (`completed_by` is null) is nobody's: there is no one to protect or to
charge, and it is left out.

Deletions name annotations alone; where whole tasks are deleted, no annotation is named, and the
next complete pull finds them gone. Where a task gets another ground truth, the annotation that was
it before changes without an event and without a new time: here it stays a ground truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import BeforeValidator

from labelguard.answers.connector import Answer
from labelguard.errors import ConnectorError
from labelguard.text import GROUND_TRUTH, OTHER_CONTROLS, SKIP
from labelguard_connectors import payloads
from labelguard_connectors.payloads import Flag, Id, Object, Payload, Reference, Text, ZonedTime

# By the type of a region: the member of its value that is the labeler's answer.
LABEL_OF = {"pairwise": "selected", "choices": "choices", "rating": "rating", "ranker": "ranker"}
# Names of a region take at most this part of the bytes that labels have.
_MEMBERS = 4
# Of controls that a project has not: how many are told, and how much of their names.
_MOST_NAMES, _LONGEST_NAME = 3, 60
# What a project asks for: by the name of a control tag, its type and the objects it is about, of a
# <Pairwise> the left one first.
Interface: TypeAlias = Mapping[str, tuple[str, tuple[str, ...]]]


class TaskData(Payload):
    """A task, without its annotations."""

    id: Id
    data: Object


class Annotation(Payload):
    """An annotation of a task; `result` may be anything, for labelers send it."""

    id: Id
    updated_at: ZonedTime
    completed_by: Reference | None
    was_cancelled: Flag = False
    ground_truth: Flag = False
    result: Any = None


def read_interface(project: Any) -> Interface | None:
    """Read a project's labeling interface, which annotators cannot change; None if there is none in
    it.
    """
    tags = project.get("parsed_label_config") if isinstance(project, dict) else None
    if not isinstance(tags, dict):
        return None
    interface = {}
    for name, tag in tags.items():
        objects = tag.get("to_name") if isinstance(tag, dict) else None
        if isinstance(objects, list) and all(isinstance(item, str) for item in objects):
            interface[name] = (str(tag.get("type")).lower(), tuple(objects))
    return interface


def to_answer(
    task: TaskData, annotation: Annotation, interface: Interface | None, origin: str
) -> Answer | None:
    """Return one annotation of a task as an answer; None if it is nobody's.

    Of its regions those are read that the `interface` asks for; without one, all. Raises
    `ConnectorError`, which begins with `origin`, for a task that is no JSON, and `OutOfBounds`;
    nothing else in `result` is an error.
    """
    if annotation.completed_by is None:
        return None
    public: dict[str, Any] = {"id": task.id, "data": task.data}
    if interface:
        # What is asked is public: by it, and by no answer, a release decides which question is
        # read.
        public["interface"] = [
            {"from_name": name, "to_name": item, "type": kind}
            for name, (kind, objects) in sorted(interface.items())
            for item in sorted({*objects})
            if kind in LABEL_OF
        ]
    answer = {
        "id": annotation.id,
        "completed_by": annotation.completed_by,
        "updated_at": annotation.updated_at.text,
        "was_cancelled": bool(annotation.was_cancelled),
        "ground_truth": bool(annotation.ground_truth),
        "result": _select_regions(annotation.result, interface),
    }
    try:
        body = payloads.serialize_padded_task(public, "annotations", answer, origin)
    except ValueError:
        raise ConnectorError(f"{origin}: data: expected valid JSON") from None
    reason = GROUND_TRUTH if annotation.ground_truth else SKIP if annotation.was_cancelled else ""
    if not reason and not answer["result"]:
        reason = _describe_other_controls(annotation.result, interface or {})
    version = annotation.updated_at.microseconds
    return Answer(str(annotation.id), version, str(annotation.completed_by), body, reason)


def _describe_other_controls(result: Any, interface: Interface) -> str:
    """Return which controls are answered that the interface has not, and which it has; or ""."""
    regions = map(_select_members, result) if isinstance(result, list) else ()
    names = {f"{one['from_name']} of {one['to_name']}"[:_LONGEST_NAME] for one in regions if one}
    if not names or not interface:
        return ""
    known = sorted(f"{tag} of {', '.join(of)}" for tag, (_, of) in interface.items())
    listed = ", ".join(sorted(names)[:_MOST_NAMES])
    return f"{OTHER_CONTROLS}: {listed}; the project has {'; '.join(known)}"


def _select_regions(result: Any, interface: Interface | None) -> list[dict[str, Any]]:
    """Return the regions that may be answers.

    Labelers may send any value there is to the tool. What has another shape than an answer, or
    answers what was not asked, is left out: an error would depend on what was answered, and a tag
    of their own would be one question more, and stop all others at the next release. Of several
    about one question the first counts, so it alone is stored.
    """
    regions: dict[Any, dict[str, Any]] = {}
    for item in result if isinstance(result, list) else []:
        if region := _select_members(item, interface):
            regions.setdefault((region["from_name"], region["type"], region["to_name"]), region)
    first = list(regions.values())[: payloads.REGIONS]
    for region in first:
        for name, label in region["value"].items():
            region["value"][name] = payloads.keep_storable_label(label, len(first))
    return first


def _select_members(region: Any, interface: Interface | None = None) -> dict[str, Any] | None:
    """Return the members of a region that are stored; None where it cannot be an answer."""
    if not isinstance(region, dict):
        return None
    public = {name: region.get(name) for name in ("from_name", "to_name", "type")}
    tag, item, kind = public.values()
    if not (isinstance(tag, str) and isinstance(item, str) and isinstance(kind, str)):
        return None
    if kind not in LABEL_OF or payloads.keep_storable_label(public, _MEMBERS) is not public:
        return None
    if interface is not None:
        kind_of_tag, objects = interface.get(tag, ("", ()))
        if kind == "pairwise" and item == tag:  # as the page writes it
            public["to_name"] = item = next(iter(objects), "")
        if kind != kind_of_tag or item not in objects:
            return None
    value, name = region.get("value"), LABEL_OF[kind]
    label = {name: value[name]} if isinstance(value, dict) and name in value else {}
    return {**public, "value": label}


_ORIGIN = "Label Studio event"
_CHANGES = ("ANNOTATION_CREATED", "ANNOTATION_UPDATED", "ANNOTATIONS_CREATED")
# By the action that deletes: the member that names what is gone.
_DELETED = {"ANNOTATIONS_DELETED": "annotations", "ANNOTATION_DELETED": "annotation"}
# Characters of the tasks of all answers of one event.
_MOST = 32 << 20
# One annotation or task stands by itself, several in a list.
_LISTED = BeforeValidator(lambda value: [value] if isinstance(value, dict) else value)


class _EventAction(Payload):
    action: Text
    project: Any = None


class _EventAnnotation(Annotation):
    task: Id


class _Tasks(Payload):
    annotation: Annotated[list[_EventAnnotation], _LISTED]
    task: Annotated[list[TaskData], _LISTED]


class _Deleted(Payload):
    id: Id


_DeletedAnnotations = Annotated[list[_Deleted], _LISTED]


def parse_event(body: Any, project: int) -> Sequence[Answer]:
    """Return the answers of `project` in a webhook's body (parsed JSON), or none.

    Raises `ConnectorError` for a body that is not Label Studio's.
    """
    event = payloads.parse(_EventAction, body, _ORIGIN)
    if event.action not in (*_CHANGES, *_DELETED):
        return ()
    if event.project is None:
        raise ConnectorError(
            f"{_ORIGIN}: project: expected a project; let the webhook send its payload "
            "(send_payload)"
        )
    # Hooks of a whole organization report events of every project.
    if _parse_project(event) != project:
        return ()
    if name := _DELETED.get(event.action):
        deleted = payloads.parse(_DeletedAnnotations, body.get(name), _ORIGIN, name)
        # In which version they went does not matter.
        return [Answer(str(annotation.id), 0) for annotation in deleted]
    changes, interface = payloads.parse(_Tasks, body, _ORIGIN), read_interface(event.project)
    by_id = {task.id: task for task in changes.task}
    answers, size = list[Answer](), 0
    for annotation in changes.annotation:
        task = by_id.get(annotation.task)
        if task is None:
            raise ConnectorError(
                f"{_ORIGIN}: annotation.task: expected the id of a task in the event"
            )
        if (answer := to_answer(task, annotation, interface, _ORIGIN)) is None:
            continue
        answers.append(answer)
        # Each answer holds its task: a small body may tell of very much. Labels do not count.
        size += len(str(task.data)) + payloads.STEP
        if size > _MOST:
            raise ConnectorError(
                f"{_ORIGIN}: annotation: expected at most {_MOST:,} characters of tasks"
            )
    return answers


def explain_ignored(body: Any, project: int) -> str:
    """Return of which project an event is, where answers of another are read; else ""."""
    event = payloads.parse(_EventAction, body, _ORIGIN)
    if event.action not in (*_CHANGES, *_DELETED) or (other := _parse_project(event)) == project:
        return ""
    return f"the delivery is of project {other}, labelguard.toml names {project}"


def _parse_project(event: _EventAction) -> int:
    return payloads.parse(Reference, event.project, _ORIGIN, "project")
