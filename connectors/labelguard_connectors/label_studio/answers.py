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
from typing import Any, TypeAlias

from labelguard.answers.connector import Answer
from labelguard.inputs.left_out import GROUND_TRUTH, SKIP
from labelguard_connectors import bounds
from labelguard_connectors.values import Value

# By the type of a region: the member of its value that is the labeler's answer.
SAYS = {"pairwise": "selected", "choices": "choices", "rating": "rating", "ranker": "ranker"}

Interface: TypeAlias = Mapping[str, tuple[str, frozenset[str]]]
"""What a project asks for: by the name of a control tag, its type and the objects it is about."""


def interface(project: Any) -> Interface | None:
    """Read a project's labeling interface, which annotators cannot change; None if there is none in
    it.
    """
    tags = project.get("parsed_label_config") if isinstance(project, dict) else None
    if not isinstance(tags, dict):
        return None
    found = {}
    for name, tag in tags.items():
        about = tag.get("to_name") if isinstance(tag, dict) else None
        if isinstance(about, list) and all(isinstance(one, str) for one in about):
            found[name] = (str(tag.get("type")).lower(), frozenset(about))
    return found


def answer(task: Value, annotation: Value, interface: Interface | None = None) -> Answer | None:
    """One annotation of a task; None if it is nobody's.

    Of its regions those are read that the `interface` asks for; without one, all. Raises
    `ConnectorError` for anything of another shape than Label Studio's, with the name of the field
    and never with what is in it; nothing in `result` is an error but that it is out of `bounds`.
    """
    record, updated = annotation["id"].number(), annotation["updated_at"]
    version, user = updated.time(zoned=True), annotation["completed_by"]
    if user.value is None:
        return None
    labeler = (user["id"] if isinstance(user.value, dict) else user).number()
    kept = {
        "id": record,
        "completed_by": labeler,
        "updated_at": updated.value,
        "was_cancelled": annotation.get("was_cancelled").flag(),
        "ground_truth": annotation.get("ground_truth").flag(),
        "result": _regions(annotation.get("result"), interface),
    }
    # What was asked is public: by it, and by no answer, a release decides which question is read.
    tags = {
        "interface": [
            {"from_name": name, "to_name": about, "type": kind}
            for name, (kind, objects) in sorted((interface or {}).items())
            for about in sorted(objects)
            if kind in SAYS
        ]
    }
    public = {"id": task["id"].number(), "data": task["data"].object()}
    public |= tags if interface else {}
    try:
        body = bounds.body(public, "annotations", kept, task.what)
    except ValueError:
        raise task["data"].unlike("valid JSON") from None
    left_out = GROUND_TRUTH if kept["ground_truth"] else SKIP if kept["was_cancelled"] else ""
    return Answer(str(record), version, str(labeler), body, left_out)


def _regions(result: Value, interface: Interface | None) -> list[dict[str, Any]]:
    """Return the regions that may be answers.

    Labelers may send any value there is to the tool. What has another shape than an answer, or
    answers what was not asked, is left out: an error would depend on what was answered, and a tag
    of their own would be one question more, and stop all others at the next release.
    """
    found = result.value if isinstance(result.value, list) else []
    kept = [own for one in found if isinstance(one, dict) and (own := _region(one, interface))]
    if len(kept) > bounds.REGIONS:
        raise bounds.OutOfBounds(f"{result.what}: expected at most {bounds.REGIONS:,} regions")
    return kept


def _region(region: Mapping[str, Any], interface: Interface | None) -> dict[str, Any] | None:
    """Return what is kept of a region; None where it is none that may be an answer."""
    own = {name: region.get(name) for name in ("from_name", "to_name", "type")}
    tag, about, kind = own.values()
    if not (isinstance(tag, str) and isinstance(about, str) and isinstance(kind, str)):
        return None
    if kind not in SAYS or not bounds.is_label(own):
        return None
    if interface is not None:
        wanted, objects = interface.get(tag, ("", frozenset[str]()))
        if kind != wanted or about not in objects:
            return None
    given, name = region.get("value"), SAYS[kind]
    said = {name: given[name]} if isinstance(given, dict) and name in given else {}
    return {**own, "value": said if bounds.is_label(said) else {}}


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
            raise body["annotation"].unlike(f"at most {_MOST:,} characters with the tasks")
    return answers
