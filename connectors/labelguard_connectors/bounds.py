"""What one answer may have, whatever tool it is of: bytes, levels, regions.

Labelers may send a tool any value there is. An answer beyond these bounds is a dead letter, in a
delivery and in a pull; within them, what is no label is left out. So nobody's answer stops others'
at the next release, and no error depends on what was answered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from labelguard.errors import ConnectorError

REGIONS, LABEL_BYTES, TASK_BYTES = 64, 8 << 10, 2 << 20
"""The most regions of an answer, bytes of its labels, bytes of the whole with its task."""
_LABEL_LEVELS, _TASK_LEVELS = 8, 100
"""The most levels that a label has, and a task; the reader takes 128 with what is around them."""
_STEP = 2_048
"""What is said in an answer takes so many bytes or a multiple: blanks fill up the rest, so that the
sizes of what is stored do not tell "left" from "right".
"""


class OutOfBounds(ConnectorError):
    """An answer has more than may be in one. The message names the bound, and nothing of it."""


def is_label(value: Any) -> bool:
    """Return whether it can be written: no NaN, no half of a surrogate pair, not too deep."""
    try:
        _json(value, _LABEL_LEVELS)
    except ValueError:
        return False
    return True


def body(task: Mapping[str, Any], name: str, answer: Mapping[str, Any], origin: str) -> str:
    """Return the JSON of a task with one answer, in its list `name`, filled up with blanks.

    Its length depends on that of the answer in large steps alone. Raises `ValueError` for what
    cannot be written, and `OutOfBounds`, whose message begins with `origin`.
    """
    public, own = _json(task, _TASK_LEVELS), _json(answer, _TASK_LEVELS)
    size = len(own.encode())
    if size > LABEL_BYTES:
        raise OutOfBounds(f"{origin}: expected an answer of at most {LABEL_BYTES:,} bytes")
    if len(public.encode()) + size > TASK_BYTES:
        raise OutOfBounds(f"{origin}: expected at most {TASK_BYTES:,} bytes with the task")
    said = len(json.dumps(own)) - 2  # as it is written in the inbox, in a JSON of its own
    return f'{public[:-1]},"{name}":[{own}]}}{" " * (-said % _STEP)}'


def _json(value: Any, levels: int) -> str:
    """Return compact JSON that every reader takes; raise `ValueError` where there is none."""
    if not _is_within(value, levels):
        raise ValueError
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except (TypeError, RecursionError):
        raise ValueError from None
    return text


def _is_within(value: Any, levels: int) -> bool:
    """Return whether parsed JSON has at most so many levels of objects and lists."""
    found = [value]
    for _ in range(levels + 1):
        inner = [one for one in found if isinstance(one, dict | list)]
        if not inner:
            return True
        found = [own for one in inner for own in (one.values() if isinstance(one, dict) else one)]
    return False
