"""Labels of single responses, as for KTO: prompt, completion, and whether it was liked."""

from __future__ import annotations

from labelguard.errors import InvalidLabels
from labelguard.ingest.formats.seen import Seen
from labelguard.ingest.layouts import LAYOUTS, PRIVATE_ROLES

_SINGLE = "completion"
_COMPARED = {role for roles in LAYOUTS.values() for role in roles[1:]} - {*PRIVATE_ROLES}


def refuse(seen: Seen) -> None:
    """Raise `InvalidLabels` for one response a row, with the way to a preference.

    By the public columns alone: whether a label is beside them is not asked.
    """
    if seen.all("prompt", _SINGLE) and not seen.any(*_COMPARED):
        raise InvalidLabels(
            f"{seen.part}: columns prompt and {_SINGLE} hold one response a row; KTO-style single "
            "labels (thumbs up or down) are not supported yet, only preferences between responses "
            "to one prompt; see docs/formats.md#thumbs-up-or-down for how to make them of thumbs "
            "without looking at one"
        )
