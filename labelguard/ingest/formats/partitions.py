"""Directories that are named by columns (`labeler_id=7/…`), where such a column tells labels.

Files are read one after the other, so directories named by answers put the rows in their order, and
every message that names a file names an answer. They are refused by the names of columns alone,
without a word of what a directory says; and as far as these tell it, before a file is opened.
"""

from __future__ import annotations

from collections.abc import Collection

from labelguard.errors import InvalidLabels
from labelguard.ingest.contents import side_columns
from labelguard.ingest.formats.seen import Format
from labelguard.ingest.layouts import ANSWERS, ROLES, Reading
from labelguard.ingest.sources import Part

_USUAL = ("split", "date", "year", "month", "day", "hour")
"""What data is often divided by, and nobody is asked."""


def answers(part: Part, reading: Reading) -> frozenset[str]:
    """Columns that tell labels in any format: roles, by their own names or as they were named, and
    what tells of one side.
    """
    sides = side_columns([*part.partitions, *reading.columns.values()], reading.columns)
    named = (reading.columns.get(role, role) for role in ANSWERS)
    asked = () if reading.question is None else (reading.question,)
    return frozenset((*ANSWERS, *named, *asked, *sides))


def refuse(part: Part, names: Collection[str]) -> None:
    """Raise `InvalidLabels` if directories of `part` are named by one of these columns."""
    for name in sorted(names):
        if name.lower() in part.partitions:
            raise InvalidLabels(
                f"the input's directories are named by {name}, so that the order of its rows tells "
                "labels; write them into one table, mixed"
            )


def refuse_of(part: Part, found: Format, reading: Reading) -> None:
    """Raise `InvalidLabels` if directories of `part` are named by what `found` reads labels from.

    In exports of tools, where any column may be an answer, only those are taken that are not.
    """
    refuse(part, found.private)
    if found.of_tool is None:
        return
    roles = [role for role in ROLES if role not in ANSWERS]
    named = [reading.columns[role] for role in roles if role in reading.columns]
    named += reading.all_carried()
    public = {name.lower() for name in (*roles, *named, *_USUAL, *found.of_tool)}
    refuse(part, part.partitions - public)
