"""Exports of Label Studio: tasks with their annotations (JSON), or a row for each (JSON_MIN, CSV).

In JSON, preferences (Pairwise, Choices), rankings (Ranker) and ratings of each response are read.

Annotations of people count, the newest of each; cancelled ones are skips. Predictions, drafts, and
annotations marked as ground truth are left out. JSON_MIN and CSV do not tell ground truth, and have
no cancelled annotations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from labelguard.budget.label_values import LabelValues
from labelguard.errors import InvalidLabels
from labelguard.inputs.canonical import is_text
from labelguard.inputs.contents import families
from labelguard.inputs.formats import tasks
from labelguard.inputs.formats.scores import OUTSIDE
from labelguard.inputs.formats.seen import Adapted, Format, Seen
from labelguard.inputs.formats.tasks import PAIR, RANKING, SIDES, Fields, Task, fields, prompt
from labelguard.inputs.left_out import DRAFT, GROUND_TRUTH
from labelguard.inputs.readers import identifier, literal
from labelguard.spelling import suggest

_TOOL = "Label Studio"
_READ = ("pairwise", "choices")
_LEFT, _RIGHT = ("left",), ("right",)
_OF_ROWS = ("annotator", "annotation_id", "lead_time")
# Parsed once: DuckDB takes kilobytes for every element of a list that is parsed by itself.
_RESULT = """from_json(annotation->'result',
    '[{"from_name": "VARCHAR", "to_name": "VARCHAR", "type": "VARCHAR", "value": "JSON"}]')"""
_IS_TRUTH = "coalesce((annotation->>'ground_truth')::BOOLEAN, false)"
_SAID = identifier("labelguard: said")
_INTERFACE = "interface"
"""Where a connector notes what the project's labeling interface asks for."""
_TOLD = frozenset(("labeler_id", "submitted_at", "record_id"))
_NAMES = {"labeler_id": "completed_by", "submitted_at": "updated_at"}


def _is_tasks(seen: Seen) -> bool:
    return seen.has("data", "annotations")


def _is_rows(seen: Seen) -> bool:
    return seen.has(*_OF_ROWS)


def _adapt(seen: Seen) -> Adapted:
    tasks.refuse_named(seen, _TOOL, (*sorted(_TOLD), "label", "ranks"))
    return _tasks(seen) if _is_tasks(seen) else _rows(seen)


def _tasks(seen: Seen) -> Adapted:
    """JSON: a row for each annotation of a task."""
    annotations = f"""
        SELECT to_json(data) AS data, {_column(seen, "id")},
            unnest({tasks.elements("annotations")}) AS annotation
        FROM part"""
    task = Task.members(seen, annotations, "data")
    if "id" not in task.fields:
        task = Task({**task.fields, "id": "id"}, task.structure)
    results = f"""
        SELECT DISTINCT result.from_name, result.type, result.to_name FROM
            (SELECT unnest({_RESULT}) AS result
            FROM ({annotations}))
        WHERE result.from_name IS NOT NULL ORDER BY ALL"""
    told = seen.has(_INTERFACE)  # of what was ingested, whatever was answered
    if told:
        results = f"""
            SELECT DISTINCT tag.from_name, tag.type, tag.to_name FROM (SELECT unnest(from_json(
                to_json({_INTERFACE}),
                '[{{"from_name": "VARCHAR", "to_name": "VARCHAR", "type": "VARCHAR"}}]')) AS tag
            FROM part) ORDER BY ALL"""
    tags = [] if seen.private_blanks and not told else seen.names(results)
    found = _Annotations(annotations, task, tags, told)
    left_out = _count_left_out(seen)
    # Whether pairs or lists were compared, the data tells, whatever was said of them.
    listed = "responses" in seen.reading.columns or not families(tuple(task.fields))
    if listed and not _names_sides(seen) and (items := _find_items(seen, task)):
        return replace(_ranked(seen, found, items), left_out=left_out)
    return replace(_compared(seen, found), left_out=left_out)


def _count_left_out(seen: Seen) -> str:
    """Return SQL that counts annotations which are no answers, in one pass as streams need it."""
    drafts = "to_json(drafts)" if seen.has("drafts") else "'[]'"
    truths = f"list_filter({tasks.elements('annotations')}, lambda annotation: {_IS_TRUTH})"
    counts = f"sum(len({truths}))::BIGINT, sum(json_array_length({drafts}))::BIGINT"
    return f"""
        SELECT * FROM (SELECT unnest([{literal(GROUND_TRUTH)}, {literal(DRAFT)}]),
            unnest([{counts}]) AS n FROM part) WHERE n > 0"""


@dataclass(frozen=True)
class _Annotations:
    """SQL with a row for each annotation, its task, and names, types, objects of control tags: of
    all that are `asked`, or of those that were answered.
    """

    sql: str
    task: Task
    tags: Sequence[Sequence[Any]]
    asked: bool

    def named(self, *kinds: str) -> list[str]:
        """The control tags of these types."""
        return sorted({tag[0] for tag in self.tags if tag[1] in kinds})

    def query(self, select: str, said: str, role: str) -> str:
        """SQL of all that count; `said` is what those say that are no skip."""
        return f"""
        SELECT {select},
            CASE WHEN json_type(annotation->'completed_by') = 'OBJECT'
                THEN annotation->'completed_by'->>'id'
                ELSE annotation->>'completed_by' END AS labeler_id,
            annotation->>'updated_at' AS submitted_at,
            annotation->>'id' AS record_id,
            CASE WHEN NOT coalesce((annotation->>'was_cancelled')::BOOLEAN, false)
                THEN {said} END AS {role}
        FROM ({self.sql})
        WHERE NOT {_IS_TRUTH}"""


def _names_sides(seen: Seen) -> bool:
    return any(role in seen.reading.columns for role in SIDES)


def _compared(seen: Seen, found: _Annotations) -> Adapted:
    """Fields are compared: by a word, or by the rating of each."""
    task = found.task
    rating = found.named(RATING)
    if rating and (seen.reading.question in rating or not found.named(*_READ)):
        return _rated(seen, found)
    asked = tasks.answered(seen, lambda: found.named(*_READ), "control tag", all_there=found.asked)
    used = fields(seen, tuple(task.fields))
    query = found.query(task.select(seen, used), _answer(seen, used, asked), "label")
    return _pairs(seen, used, query, label=tasks.shown(seen), labeler_id="completed_by")


def _ranked(seen: Seen, found: _Annotations, items: Items) -> Adapted:
    """The items of a list are ranked."""
    asked = tasks.answered(seen, lambda: found.named(RANKER), "control tag", all_there=found.asked)
    said = f"({_region(asked, (RANKER,))}.value->'ranker')"
    asking = prompt(seen, [name for name in found.task.fields if name != items.field])
    select = [f"{found.task.fields[asking]} AS prompt", f"{items.responses()} AS responses"]
    select += found.task.further(seen, listed=True)
    query = found.query(", ".join(select), items.ranks(said, asked), "ranks")
    return Adapted(
        query,
        _TOLD | {*RANKING},
        names={"prompt": asking, "responses": items.field, "ranks": tasks.shown(seen)} | _NAMES,
    )


def _rated(seen: Seen, found: _Annotations) -> Adapted:
    """Each response is rated by a control tag of its own; of two the ratings make a preference."""
    used = fields(seen, tuple(found.task.fields))
    tags = ratings(seen, used, found.tags)
    meaning = tasks.values(seen, used, _LEFT, _RIGHT)
    told = rated(used, tags, _RESULT, meaning)
    role = "label" if len(used.responses) == len(SIDES) else "ranks"
    query = found.query(found.task.select(seen, used), told, role)
    if role == "label":
        return _pairs(seen, used, query, label="the ratings", labeler_id="completed_by")
    return Adapted(query, _TOLD | {*RANKING}, names=used.names(ranks="the ratings", **_NAMES))


def _answer(seen: Seen, used: Fields, asked: str) -> str:
    """SQL of what an annotation says under one control tag: a word; several become no word.

    A <Pairwise> names in every region what stands on the left. Where that is the second response,
    left and right change places, unless `--columns` names the sides.
    """
    region = _region(asked, _READ)
    choices = f"array_to_string(from_json({region}.value->'choices', '[\"VARCHAR\"]'), chr(10))"
    selected = f"({region}.value->>'selected')"
    if not _names_sides(seen) and len(used.responses) == len(SIDES):
        swapped = f"{region}.to_name = {literal(used.responses[1])}"
        word = f"CASE {selected} WHEN 'left' THEN 'right' WHEN 'right' THEN 'left' END"
        selected = f"coalesce(CASE WHEN {swapped} THEN {word} END, {selected})"
    return f"coalesce({selected}, {choices})"


def _region(asked: str, kinds: Sequence[str]) -> str:
    """SQL (a struct) of an annotation's region of one control tag of these types."""
    listed = ", ".join(map(literal, kinds))
    this = f"r.from_name = {literal(asked)} AND r.type IN ({listed})"
    return f"list_filter({_RESULT}, lambda r: {this})[1]"


def _rows(seen: Seen) -> Adapted:
    """JSON_MIN and CSV: a row is an annotation, its control tags are columns beside the fields."""
    tasks.refuse_answers(seen, _TOOL, partial(_is_answer, seen.reading.question))
    task = Task.columns(seen, (*_OF_ROWS, "created_at", "updated_at"))
    used = fields(seen, tuple(task.fields))
    taken = {used.prompt, *used.responses, "id", *seen.reading.columns.values()}
    taken |= {*seen.reading.all_carried()}
    tags = [name for name in task.fields if name not in taken]
    asked = tasks.answered(seen, lambda: tags, "control tag", all_there=not seen.sparse)
    said = _said(seen, asked)
    # A word as it is, or in the JSON of a region: {"selected": "left"}, [{"choices": ["left"]}].
    region = f"(CASE WHEN json_valid({_SAID}) THEN {_SAID}::JSON END)"
    first = f"coalesce({region}->0, {region})"
    choices = f"array_to_string(from_json({first}->'choices', '[\"VARCHAR\"]'), chr(10))"
    updated = "updated_at" if seen.has("updated_at") else "NULL::VARCHAR"
    query = f"""
        SELECT {task.select(seen, used)},
            annotator::VARCHAR AS labeler_id,
            {updated} AS submitted_at,
            annotation_id::VARCHAR AS record_id,
            coalesce({first}->>'selected', {choices}, {_SAID}) AS label
        FROM (SELECT *, {said} AS {_SAID} FROM part)
        WHERE coalesce(annotation_id::VARCHAR, '') <> ''"""
    return _pairs(seen, used, query, label=asked, labeler_id="annotator")


def _is_answer(asked: str | None, role: str, name: str) -> bool:
    """Control tags look like fields here. No text of a task, and no id of anything, is one."""
    free = role in ("prompt", *SIDES) or name in ("id", role) or name.endswith("_id")
    return name == asked or not free


def _said(seen: Seen, asked: str) -> str:
    """SQL (text) of a control tag's column, which a sparse part may lack."""
    if not seen.has(asked):
        return "NULL::VARCHAR"
    column = identifier(asked)
    return column if is_text(seen.types[asked]) else f"to_json({column})::VARCHAR"


def _pairs(seen: Seen, used: Fields, query: str, **told: str) -> Adapted:
    """Pairs; `told` is what the export calls other roles than those of the texts."""
    tasks.refuse_lists(seen, used, "the left and the right one")
    meaning = tasks.values(seen, used, _LEFT, _RIGHT)
    names = used.names(submitted_at="updated_at", **told)
    return Adapted(query, _TOLD | {*PAIR}, names=names, values=meaning, usual=True)


def _column(seen: Seen, name: str) -> str:
    return name if seen.has(name) else f"NULL AS {name}"


LABEL_STUDIO = Format(
    "label-studio",
    "tasks of Label Studio with data and annotations (JSON), or with annotator, annotation_id and "
    "lead_time beside the data (JSON_MIN, CSV)",
    lambda seen: _is_tasks(seen) or _is_rows(seen),
    _adapt,
    "Label Studio names the annotator in its exports JSON, JSON_MIN and CSV.",
    of_tool=("id", "annotator", "annotation_id"),
)


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


def _find_items(seen: Seen, task: Task) -> Items | None:
    """The list that is ranked, if a task has one: a field of objects with ids and texts.

    `--columns responses=NAME` names one of several. Raises `InvalidLabels` for one that is none.
    """
    found = {name: text for name, kind in task.structure.items() if (text := _text(kind))}
    named = seen.reading.columns.get("responses")
    if named is not None and named not in found:
        raise InvalidLabels(
            f"{seen.part}: no field {named!r} that is a list of items with id and "
            f"{' or '.join(_TEXTS)} (given for responses){suggest(named, tuple(found))}; "
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
