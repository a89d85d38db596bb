"""Rankings of Label Studio: a <Ranker> of a <List>, and a <Rating> for each response.

What is read is decided by the task's data, which is public, and by the names of control tags.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from labelguard.errors import InvalidLabels
from labelguard.ingest.formats import tasks
from labelguard.ingest.formats.fields import SIDES, Fields
from labelguard.ingest.formats.scores import OUTSIDE
from labelguard.ingest.formats.seen import Seen
from labelguard.ingest.formats.tasks import Task
from labelguard.ingest.sql import literal
from labelguard.policy.label_values import LabelValues
from labelguard.spelling import closest

RANKER, RATING = "ranker", "rating"
_ID = "id"
_TEXTS = ("body", "html", "text", "content", "title")
"""Members of an item that may be its text; the first that there is."""


@dataclass(frozen=True)
class Items:
    """A field with the objects of a <List>, which are the responses: their id and their text."""

    field: str
    text: str

    def responses(self) -> str:
        """SQL of the list of texts."""
        return f"list_transform({self._elements()}, lambda i: i->>{literal(self.text)})"

    def ranks(self, said: str, tag: str) -> str:
        """SQL of the rank of every item in what a <Ranker> says (SQL of JSON).

        That is a list of ids, alone or under the tag's name. NULL where nothing is said; an item
        that is not ranked, or of whose id there are two, has none.
        """
        listed = f"""CASE json_type({said}) WHEN 'ARRAY' THEN {said}
            ELSE json_extract({said}, {tasks.pointer(tag)}) END"""
        ranked = f"list_transform({tasks.elements(listed)}, lambda e: e->>'$')"
        ids = f"list_transform({self._elements()}, lambda i: i->>{literal(_ID)})"
        return f"""(CASE WHEN coalesce(json_type({said}), 'NULL') <> 'NULL' THEN list_transform(
            {ids}, lambda i: CASE WHEN len(list_filter({ids}, lambda j: j = i)) = 1
                THEN nullif(list_position({ranked}, i), 0) END) END)"""

    def _elements(self) -> str:
        return tasks.elements(f"json_extract(data, {tasks.pointer(self.field)})")


def items(seen: Seen, task: Task) -> Items | None:
    """The list that is ranked, if a task has one: a field of objects with ids and texts.

    `--columns responses=NAME` names one of several. Raises `InvalidLabels` for one that is none.
    """
    found = {name: text for name, kind in task.structure.items() if (text := _text(kind))}
    named = seen.reading.columns.get("responses")
    if named is not None and named not in found:
        raise InvalidLabels(
            f"{seen.part}: no field {named!r} that is a list of items with id and "
            f"{' or '.join(_TEXTS)} (given for responses){closest(named, tuple(found))}; "
            f"found: {', '.join(found)}"
        )
    if named is None and len(found) > 1:
        raise InvalidLabels(
            f"{seen.part}: fields {', '.join(sorted(found))} may be the responses; name one with "
            "--columns responses=NAME"
        )
    return next((Items(n, found[n]) for n in found if named in (None, n)), None)


def ratings(seen: Seen, used: Fields, tags: Collection[Sequence[Any]]) -> Mapping[str, str]:
    """The one <Rating> of each response, by the name of its object, which is that of the field.

    `tags` are names, types and objects of control tags. Raises `InvalidLabels` where a response has
    none or several.
    """
    found: dict[str, list[str]] = {name: [] for name in used.responses}
    for name, kind, about in tags:
        if kind == RATING and about in found:
            found[about].append(name)
    for response, rating in found.items():
        if len(rating) != 1:
            raise InvalidLabels(
                f"{seen.part}: ratings are read as a preference where each response has one "
                f"control tag Rating, its field's name as toName, and {response} has not"
            )
    return {response: rating for response, (rating,) in found.items()}


def rated(used: Fields, tags: Mapping[str, str], result: str, meaning: LabelValues) -> str:
    """SQL of a label (of two responses) or of ranks: the higher rating is preferred.

    NULL where a rating is missing: then nothing is said. A rating that is no number is no label.
    """
    said = [_rating(tags[response], result) for response in used.responses]
    blank = " OR ".join(f"coalesce(json_type({one}), 'NULL') = 'NULL'" for one in said)
    numbers = [f"try_cast({one}->>'$' AS DOUBLE)" for one in said]
    if len(said) != len(SIDES):
        ranks = ", ".join(f"CASE WHEN isfinite({one}) THEN -{one} END" for one in numbers)
        return f"(CASE WHEN {blank} THEN NULL ELSE [{ranks}] END)"
    a, b = numbers
    words = [literal(values[0]) if values else OUTSIDE for values in (meaning.a, meaning.b)]
    tie = literal(meaning.tie[0]) if meaning.tie else OUTSIDE
    return f"""(CASE WHEN {blank} THEN NULL
        WHEN NOT (isfinite({a}) AND isfinite({b})) THEN {OUTSIDE}
        WHEN {a} > {b} THEN {words[0]} WHEN {a} < {b} THEN {words[1]} WHEN {a} = {b} THEN {tie}
        ELSE {OUTSIDE} END)"""


def _rating(tag: str, result: str) -> str:
    """SQL (JSON) of what a <Rating> says."""
    this = f"r.from_name = {literal(tag)} AND r.type = {literal(RATING)}"
    return f"(list_filter({result}, lambda r: {this})[1].value->'rating')"


def _text(structure: Any) -> str | None:
    """Which member of a list's objects is their text; None where it is no list of items."""
    if not (isinstance(structure, list) and structure and isinstance(structure[0], dict)):
        return None
    members = structure[0]
    texts = [name for name in _TEXTS if isinstance(members.get(name), str)]
    return texts[0] if texts and _ID in members else None
