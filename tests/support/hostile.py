"""JSON that no tool sends: every place of an event with another value, or with none."""

import sys
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str | int, ...]

DEEP: Any = []
for _ in range(sys.getrecursionlimit()):
    DEEP = [DEEP]
HOSTILE = [
    *(None, True, False, 0, -1, 1, 2**63, 10**5000, 0.5, float("nan"), float("-inf"), "", "7"),
    *("\x00", "\ud83d", "left", "2026-11-22T07:00:00Z", "2026-11-22T07:00:00", "x" * 10_000),
    *([], {}, [None], [[[[]]]], {"id": True}, {"id": {"id": 1}}, [{"id": 1}] * 3, {"": None}),
    *({"id": 1, "data": {}}, {"action": "ANNOTATION_CREATED"}, DEEP),
]


def paths(value, at=()):
    """Every place in a JSON value; of a project, its id alone, as the rest is never read."""
    yield at
    if isinstance(value, dict):
        for name, member in value.items():
            if at[:1] != ("project",) or name == "id":
                yield from paths(member, (*at, name))
    elif isinstance(value, list):
        for number, member in enumerate(value):
            yield from paths(member, (*at, number))


def replaced(event, path, value):
    """The event with another value at that place."""
    if not path:
        return value
    changed = dict(event) if isinstance(event, dict) else list(event)
    changed[path[0]] = replaced(event[path[0]], path[1:], value)
    return changed


def without(event, path):
    """The event without what is at that place."""
    changed = dict(event) if isinstance(event, dict) else list(event)
    if len(path) > 1:
        changed[path[0]] = without(event[path[0]], path[1:])
    else:
        del changed[path[0]]
    return changed
