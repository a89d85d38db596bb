"""An annotation as an answer: what the format `label-studio` reads of it, and nothing else.

Names, e-mail addresses, drafts, predictions, times spent and free texts stay behind. An annotation
whose account was deleted (`completed_by` is null) is nobody's: there is no one to protect or to
charge, and it is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from labelguard.errors import ConnectorError
from labelguard.ingest.connector import GROUND_TRUTH, SKIP, Answer
from labelguard_connectors import bounds

# By the type of a region: the member of its value that is the labeler's answer.
SAYS = {"pairwise": "selected", "choices": "choices", "rating": "rating", "ranker": "ranker"}

Interface: TypeAlias = Mapping[str, tuple[str, frozenset[str]]]
"""What a project asks for: by the name of a control tag, its type and the objects it is about."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_GREATEST = 2**63 - 1


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


def answer(
    task: Mapping[str, Any],
    annotation: Mapping[str, Any],
    origin: str,
    interface: Interface | None = None,
) -> Answer | None:
    """One annotation of a task; None if it is nobody's.

    Of its regions those are read that the `interface` asks for; without one, all. `origin` begins
    messages ("Label Studio event"). Raises `ConnectorError` for anything of another
    shape than Label Studio's, with the name of the field and never with what is in it; nothing in
    `result` is an error but that it is out of `bounds`.
    """
    record = number(annotation.get("id"), f"{origin}: annotation.id")
    updated = annotation.get("updated_at")
    version = microseconds(updated, f"{origin}: annotation.updated_at")
    if "completed_by" not in annotation:
        raise expected(f"{origin}: annotation.completed_by", "the id of a user")
    if annotation["completed_by"] is None:
        return None
    labeler = _user(annotation["completed_by"], f"{origin}: annotation.completed_by")
    kept = {
        "id": record,
        "completed_by": labeler,
        "updated_at": updated,
        "was_cancelled": _flag(annotation, "was_cancelled", origin),
        "ground_truth": _flag(annotation, "ground_truth", origin),
        "result": _regions(annotation.get("result"), interface, origin),
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
    own = number(task.get("id"), f"{origin}: task.id")
    data = members(task.get("data"), f"{origin}: task.data")
    try:
        body = bounds.body(
            {"id": own, "data": data, **(tags if interface else {})}, "annotations", kept, origin
        )
    except ValueError:
        raise expected(f"{origin}: task.data", "valid JSON") from None
    left_out = GROUND_TRUTH if kept["ground_truth"] else SKIP if kept["was_cancelled"] else ""
    return Answer(str(record), version, str(labeler), body, left_out)


def expected(field: str, what: str) -> ConnectorError:
    """The error of a field that is something else."""
    return ConnectorError(f"{field}: expected {what}")


def number(value: Any, field: str) -> int:
    """An id: a positive whole number, no true and no text."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _GREATEST:
        raise expected(field, "an id (a whole number)")
    return value


def members(value: Any, field: str) -> Mapping[str, Any]:
    """A JSON object."""
    if not isinstance(value, dict):
        raise expected(field, "an object")
    return value


def elements(value: Any, field: str) -> list[Any]:
    """A JSON array."""
    if not isinstance(value, list):
        raise expected(field, "a list")
    return value


def microseconds(value: Any, field: str) -> int:
    """A time with its zone, as µs since 1970 UTC."""
    try:
        if not isinstance(value, str) or not _TIME.fullmatch(value):
            raise ValueError
        moment = (datetime.fromisoformat(value) - _EPOCH) // timedelta(microseconds=1)
    except ValueError:
        raise expected(field, "a time") from None
    if moment <= 0:
        raise expected(field, "a time after 1970")
    return moment


def _user(value: Any, field: str) -> int:
    """A user's id, bare or in an object with more about her."""
    if isinstance(value, dict):
        return number(value.get("id"), f"{field}.id")
    return number(value, field)


def _flag(annotation: Mapping[str, Any], name: str, origin: str) -> bool:
    value = annotation.get(name)
    if value is not None and not isinstance(value, bool):
        raise expected(f"{origin}: annotation.{name}", "true or false")
    return bool(value)


def _regions(value: Any, interface: Interface | None, origin: str) -> list[dict[str, Any]]:
    """Return the regions that may be answers.

    Labelers may send any value there is to the tool. What has another shape than an answer, or
    answers what was not asked, is left out: an error would depend on what was answered, and a tag
    of their own would be one question more, and stop all others at the next release.
    """
    regions = [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
    kept = [own for one in regions if (own := _region(one, interface))]
    if len(kept) > bounds.REGIONS:
        raise bounds.OutOfBounds(f"{origin}: expected at most {bounds.REGIONS:,} regions")
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
