"""Exports of Label Studio: tasks with their annotations (JSON), or a row for each (JSON_MIN, CSV).

In JSON, preferences (Pairwise, Choices), rankings (Ranker) and ratings of each response are read.

Annotations of people count, the newest of each; cancelled ones are skips. Predictions, drafts, and
annotations marked as ground truth are left out. JSON_MIN and CSV do not tell ground truth, and have
no cancelled annotations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from labelguard.budget.label_values import LabelValues
from labelguard.inputs.columns import NO_PROMPT, TableSchema, group_similar_names
from labelguard.inputs.formats import tasks
from labelguard.inputs.formats.base import FormatQuery
from labelguard.inputs.formats.plain import OUTSIDE
from labelguard.inputs.formats.tasks import SIDES, Fields, Task, find_fields, find_prompt
from labelguard.inputs.readers import identifier, is_text, literal, source_column
from labelguard.text import DRAFT, GROUND_TRUTH, suggest

_TOOL = "Label Studio"
_WORDS = ("pairwise", "choices")
_RANKER, _RATING = "ranker", "rating"
_LEFT, _RIGHT = ("left",), ("right",)
_OF_ROWS = ("annotator", "annotation_id", "lead_time")
# Parsed once: DuckDB takes kilobytes for every element of a list that is parsed by itself.
_RESULT = """from_json(annotation->'result',
    '[{"from_name": "VARCHAR", "to_name": "VARCHAR", "type": "VARCHAR", "value": "JSON"}]')"""
_TAGS = '[{"from_name": "VARCHAR", "to_name": "VARCHAR", "type": "VARCHAR"}]'
_IS_TRUTH = "coalesce((annotation->>'ground_truth')::BOOLEAN, false)"
_ANSWER = identifier("labelguard: answer")
# A column in which a connector notes what the project's labeling interface asks for.
_INTERFACE = "interface"
_TOOL_ROLES = ("labeler_id", "submitted_at", "record_id")
_NAMES = {"labeler_id": "completed_by", "submitted_at": "updated_at"}
_ID = "id"
# Members of an item that may be its text; the first that there is.
_TEXTS = ("body", "html", "text", "content", "title")


def adapt(schema: TableSchema) -> FormatQuery:
    """Read a row for each annotation, of tasks in JSON or of JSON_MIN and CSV."""
    tasks.refuse_named_roles(schema, _TOOL, (*sorted(_TOOL_ROLES), "label", "ranks", "choice"))
    return (_adapt_tasks if schema.has("data", "annotations") else _adapt_rows)(schema)


def _adapt_tasks(schema: TableSchema) -> FormatQuery:
    """Read JSON: a row for each annotation of a task."""
    given = tasks.elements_sql(source_column("annotations"))
    annotations = f"""
        SELECT to_json({source_column("data")}) AS data, {schema.column_sql("id")} AS id,
            unnest({given}) AS annotation
        FROM part"""
    task = Task.from_members(schema, annotations, "data")
    task = replace(task, fields={**task.fields, "id": task.fields.get("id", "id")})
    results = f"SELECT unnest({_RESULT}) AS tag FROM ({annotations})"
    has_interface = schema.has(_INTERFACE)  # of what was ingested, whatever was answered
    if has_interface:
        listed = f"from_json(to_json({source_column(_INTERFACE)}), '{_TAGS}')"
        results = f"SELECT unnest({listed}) AS tag FROM part"
    rows = f"""
        SELECT DISTINCT tag.from_name, tag.type, tag.to_name FROM ({results})
        WHERE tag.from_name IS NOT NULL ORDER BY ALL"""
    is_hidden = schema.treats_blanks_as_ties and not has_interface
    tags = [] if is_hidden else schema.select(rows)
    export = _Export(schema, annotations, task, tags, has_interface)
    # Whether pairs or lists were compared, the data tells, whatever was said of them.
    named = schema.reading.columns.get("responses", "")
    is_list = named in task.structure or not (named or group_similar_names(tuple(task.fields)))
    if is_list and not _has_named_sides(schema) and (items := _find_items(schema, task)):
        return _adapt_items(schema, export, items)
    ratings = export.list_tag_names(_RATING)
    if ratings and (schema.reading.question in ratings or not export.list_tag_names(*_WORDS)):
        return _adapt_ratings(schema, export)
    return _adapt_words(schema, export)


@dataclass(frozen=True)
class _Export:
    """SQL with a row for each annotation, its task, and names, types, objects of control tags: of
    all where they are `all_there`, else of those that were answered.
    """

    schema: TableSchema
    sql: str
    task: Task
    tags: Sequence[Sequence[Any]]
    all_there: bool

    def list_tag_names(self, *kinds: str) -> list[str]:
        """Return the names of control tags of these types."""
        return sorted({tag[0] for tag in self.tags if tag[1] in kinds})

    def choose_tag(self, *kinds: str) -> str:
        """Return the control tag of these types that is read."""
        names = partial(self.list_tag_names, *kinds)
        return tasks.choose_answered_question(
            self.schema, names, "control tag", all_there=self.all_there
        )

    def build_query(
        self,
        columns: str,
        answer: str,
        role: str,
        names: Mapping[str, str],
        values: LabelValues | None = None,
    ) -> FormatQuery:
        """Return SQL of all annotations that count; `answer` is that of those that are no skip."""
        sql = f"""
        SELECT {columns},
            CASE WHEN json_type(annotation->'completed_by') = 'OBJECT'
                THEN annotation->'completed_by'->>'id'
                ELSE annotation->>'completed_by' END AS labeler_id,
            annotation->>'updated_at' AS submitted_at,
            annotation->>'id' AS record_id,
            CASE WHEN NOT coalesce((annotation->>'was_cancelled')::BOOLEAN, false)
                THEN {answer} END AS {role}
        FROM ({self.sql})
        WHERE NOT {_IS_TRUTH}"""
        # In one pass, as streams need it.
        drafts = f"to_json({self.schema.column_sql('drafts')})"
        given = tasks.elements_sql(source_column("annotations"))
        truths = f"list_filter({given}, lambda annotation: {_IS_TRUTH})"
        counts = f"sum(len({truths}))::BIGINT, sum(json_array_length({drafts}))::BIGINT"
        left_out = f"""
        SELECT why, n FROM (SELECT unnest([{literal(GROUND_TRUTH)}, {literal(DRAFT)}]) AS why,
            unnest([{counts}]) AS n FROM part) WHERE n > 0"""
        return tasks.build_query(sql, role, {**names, **_NAMES}, _TOOL_ROLES, values, left_out)


def _has_named_sides(schema: TableSchema) -> bool:
    return any(role in schema.reading.columns for role in SIDES)


def _adapt_words(schema: TableSchema, export: _Export) -> FormatQuery:
    """Read fields that are compared by a word; several become no word.

    A <Pairwise> names in every region what stands on the left. Where that is the second response,
    left and right change places, unless `--columns` names the sides.
    """
    tag = export.choose_tag(*_WORDS)
    fields = find_fields(schema, export.task)
    region = _region_sql(tag, *_WORDS)
    choices = _choices_sql(f"{region}.value")
    columns = export.task.select(schema, fields)
    if not fields.is_pair:
        if tag in export.list_tag_names("pairwise"):
            tasks.require_two_responses(schema, fields, "the left and the right one")
        answer = tasks.answer_choice_sql(choices, fields)
        names = fields.map_roles_to_names(choice=tag)
        return export.build_query(columns, answer, "choice", names, LabelValues(first=0))
    selected = f"({region}.value->>'selected')"
    if not _has_named_sides(schema):
        swapped = f"{region}.to_name = {literal(fields.responses[1])}"
        word = f"CASE {selected} WHEN 'left' THEN 'right' WHEN 'right' THEN 'left' END"
        selected = f"coalesce(CASE WHEN {swapped} THEN {word} END, {selected})"
    answer = f"coalesce({selected}, {choices})"
    names = fields.map_roles_to_names(label=tag)
    meaning = tasks.find_label_values(schema, fields, _LEFT, _RIGHT)
    return export.build_query(columns, answer, "label", names, meaning)


def _adapt_items(schema: TableSchema, export: _Export, items: _Items) -> FormatQuery:
    """Read a list whose items are ranked."""
    tag = export.choose_tag(_RANKER)
    ranking = f"({_region_sql(tag, _RANKER)}.value->'ranker')"
    task = export.task
    prompt = find_prompt(schema, task, (items.field,))
    columns = [f"{task.prompt_sql(prompt)} AS prompt", f"{items.responses_sql()} AS responses"]
    columns += task.select_named_fields(schema, is_list=True)
    names = {"prompt": prompt or NO_PROMPT, "responses": items.field, "ranks": tag}
    return export.build_query(", ".join(columns), items.ranks_sql(ranking, tag), "ranks", names)


def _adapt_ratings(schema: TableSchema, export: _Export) -> FormatQuery:
    """Read ratings of each response by a tag of its own; of two they make a preference."""
    fields = find_fields(schema, export.task)
    tags = _find_rating_tags(schema, fields, export.tags)
    meaning = tasks.find_label_values(schema, fields, _LEFT, _RIGHT)
    role = "label" if fields.is_pair else "ranks"
    names = fields.map_roles_to_names(**{role: "the ratings"})
    columns = export.task.select(schema, fields)
    return export.build_query(columns, _compare_ratings_sql(tags, meaning), role, names, meaning)


def _choices_sql(value: str) -> str:
    """Return SQL of the choices in the value of a region; of what is no list, what is there."""
    words = f"array_to_string(from_json({value}->'choices', '[\"VARCHAR\"]'), chr(10))"
    return f"coalesce({words}, {value}->>'choices')"


def _region_sql(tag: str, *kinds: str) -> str:
    """Return SQL (a struct) of an annotation's region of one control tag of these types."""
    listed = ", ".join(map(literal, kinds))
    this = f"r.from_name = {literal(tag)} AND r.type IN ({listed})"
    return f"list_filter({_RESULT}, lambda r: {this})[1]"


def _adapt_rows(schema: TableSchema) -> FormatQuery:
    """Read JSON_MIN and CSV: a row is an annotation, control tags are columns beside the fields."""
    tasks.refuse_answer_columns(schema, _TOOL, partial(_may_be_answer, schema.reading.question))
    task = Task.from_columns(schema, (*_OF_ROWS, "created_at", "updated_at"))
    fields = find_fields(schema, task)
    reading = schema.reading
    taken = {fields.prompt, *fields.responses, "id", *reading.columns.values()}
    taken |= {*reading.list_feature_columns()}
    tags = sorted(name for name in task.fields if name not in taken)
    tag = tasks.choose_answered_question(
        schema, lambda: tags, "control tag", all_there=not schema.sparse
    )
    answer = "NULL::VARCHAR"  # a sparse file may lack the column
    if schema.has(tag):
        answer = source_column(tag)
        answer = answer if is_text(schema.types[tag]) else f"to_json({answer})::VARCHAR"
    # A word as it is, or in the JSON of a region: {"selected": "left"}, [{"choices": ["left"]}].
    region = f"(CASE WHEN json_valid({_ANSWER}) THEN {_ANSWER}::JSON END)"
    first = f"coalesce({region}->0, {region})"
    choices = _choices_sql(first)
    updated = f"{schema.column_sql('updated_at')}::VARCHAR"
    annotation = f"{source_column('annotation_id')}::VARCHAR"
    answered = f"coalesce({first}->>'selected', {choices}, {_ANSWER})"
    role = "label" if fields.is_pair else "choice"
    answered = answered if fields.is_pair else tasks.answer_choice_sql(answered, fields)
    query = f"""
        SELECT {task.select(schema, fields)},
            {source_column("annotator")}::VARCHAR AS labeler_id,
            {updated} AS submitted_at,
            {annotation} AS record_id,
            {answered} AS {role}
        FROM (SELECT *, {answer} AS {_ANSWER} FROM part)
        WHERE coalesce({annotation}, '') <> ''"""
    own = {"submitted_at": "updated_at", "labeler_id": "annotator", role: tag}
    names = fields.map_roles_to_names(**own)
    meaning = LabelValues(first=0)
    if fields.is_pair:
        meaning = tasks.find_label_values(schema, fields, _LEFT, _RIGHT)
    return tasks.build_query(query, role, names, _TOOL_ROLES, meaning)


def _may_be_answer(question: str | None, role: str, name: str) -> bool:
    """Return whether a column may be a control tag, which look like fields here.

    No text of a task, and no id of anything, is one.
    """
    free = role in ("prompt", *SIDES) or name in ("id", role) or name.endswith("_id")
    return name == question or not free


@dataclass(frozen=True)
class _Items:
    """A field with the objects of a <List>, which are the responses: their id and their text."""

    field: str
    text: str

    @property
    def _items_sql(self) -> str:
        return tasks.elements_sql(f"json_extract(data, {tasks.json_pointer_sql(self.field)})")

    def responses_sql(self) -> str:
        """Return SQL of the list of texts."""
        return f"list_transform({self._items_sql}, lambda i: i->>{literal(self.text)})"

    def ranks_sql(self, ranking: str, tag: str) -> str:
        """Return SQL of the rank of every item in what a <Ranker> says (SQL of JSON).

        That is a list of ids, alone or under the tag's name. NULL where nothing is said; an item
        that is not ranked, or of whose id there are two, has none.
        """
        listed = f"""CASE json_type({ranking}) WHEN 'ARRAY' THEN {ranking}
            ELSE json_extract({ranking}, {tasks.json_pointer_sql(tag)}) END"""
        ranked = f"list_transform({tasks.elements_sql(listed)}, lambda e: e->>'$')"
        ids = f"list_transform({self._items_sql}, lambda i: i->>{literal(_ID)})"
        return f"""(CASE WHEN coalesce(json_type({ranking}), 'NULL') <> 'NULL' THEN list_transform(
            {ids}, lambda i: CASE WHEN len(list_filter({ids}, lambda j: j = i)) = 1
                THEN nullif(list_position({ranked}, i), 0) END) END)"""


def _find_items(schema: TableSchema, task: Task) -> _Items | None:
    """Return the list that is ranked, if a task has one: a field of objects with ids and texts.

    `--columns responses=NAME` names one of several. Raises `InvalidLabels` for one that is none.
    """
    lists = {
        name: text for name, kind in task.structure.items() if (text := _find_text_member(kind))
    }
    named = schema.reading.columns.get("responses")
    if named is not None and named not in lists:
        raise schema.error(
            f"no field {named!r} that is a list of items with id and "
            f"{' or '.join(_TEXTS)} (given for responses){suggest(named, tuple(lists))}; "
            f"found: {', '.join(lists)}"
        )
    if named is None and len(lists) > 1:
        raise schema.error(
            f"fields {', '.join(sorted(lists))} may be the responses; name one with "
            "--columns responses=NAME"
        )
    return next((_Items(n, lists[n]) for n in lists if named in (None, n)), None)


def _find_text_member(structure: Any) -> str | None:
    """Return the member of a list's objects that is their text; None where it is no item list."""
    if not (isinstance(structure, list) and structure and isinstance(structure[0], dict)):
        return None
    members = structure[0]
    texts = [name for name in _TEXTS if isinstance(members.get(name), str)]
    return texts[0] if texts and _ID in members else None


def _find_rating_tags(
    schema: TableSchema, fields: Fields, tags: Sequence[Sequence[Any]]
) -> list[str]:
    """Return the one <Rating> of each response, which names the response's field as its object.

    `tags` are names, types and objects of control tags. Raises `InvalidLabels` where a response has
    none or several.
    """
    names = []
    for response in fields.responses:
        ratings = [name for name, kind, field in tags if (kind, field) == (_RATING, response)]
        if len(ratings) != 1:
            raise schema.error(
                f"ratings are read as a preference where each response has one "
                f"control tag Rating, its field's name as toName, and {response} has not"
            )
        names += ratings
    return names


def _compare_ratings_sql(tags: Sequence[str], meaning: LabelValues) -> str:
    """Return SQL of a label (of two responses) or of ranks: the higher rating is preferred.

    NULL where a rating is missing: then nothing is said. A rating that is no number is no label.
    """
    ratings = [f"({_region_sql(tag, _RATING)}.value->'rating')" for tag in tags]
    blank = " OR ".join(f"coalesce(json_type({rating}), 'NULL') = 'NULL'" for rating in ratings)
    numbers = [f"try_cast({rating}->>'$' AS DOUBLE)" for rating in ratings]
    if len(ratings) != len(SIDES):
        ranks = ", ".join(f"CASE WHEN isfinite({number}) THEN -{number} END" for number in numbers)
        return f"(CASE WHEN {blank} THEN NULL ELSE [{ranks}] END)"
    a, b = numbers
    words = (meaning.a, meaning.b, meaning.tie)
    first, second, tie = (literal(values[0]) if values else OUTSIDE for values in words)
    return f"""(CASE WHEN {blank} THEN NULL
        WHEN NOT (isfinite({a}) AND isfinite({b})) THEN {OUTSIDE}
        WHEN {a} > {b} THEN {first} WHEN {a} < {b} THEN {second} WHEN {a} = {b} THEN {tie}
        ELSE {OUTSIDE} END)"""
