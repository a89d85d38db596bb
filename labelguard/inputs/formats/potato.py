"""Exports of Potato: one row for each annotator and instance, with the answers of every schema.

They name instances without their texts, so the fields of the task's data file must be joined to
them first. Machine annotators, which a study may declare, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping

from labelguard.inputs.columns import TableSchema
from labelguard.inputs.formats import tasks
from labelguard.inputs.formats.base import Format, FormatQuery
from labelguard.inputs.formats.tasks import SIDES, Task, find_fields
from labelguard.inputs.readers import identifier, literal
from labelguard.text import MACHINE

_TOOL = "Potato"
_PEOPLE = ("user_id", "annotator")
_SELECTION = ".selection"
_A, _B = ("A", "a"), ("B", "b")
_ANSWERS = ("labels", "spans", "links")
_ORIGINS = ("annotator_origin", "annotator_origin_detail")
_OF_TOOL = ("instance_id", *_PEOPLE, *_ORIGINS, *_ANSWERS)
# Answers are in SCHEMA.selection, SCHEMA.likert, SCHEMA:::label, or in one column.
_SIGNS = (".", ":::")


def _recognises(schema: TableSchema) -> bool:
    is_plain = schema.has("labeler_id") or schema.find_column("label")
    return schema.has("instance_id") and not is_plain


def _adapt(schema: TableSchema) -> FormatQuery | None:
    people = (schema.reading.columns.get("labeler_id", ""), *_PEOPLE)
    person = next((name for name in people if schema.has(name)), None)
    if schema.has_all("prompt", "chosen", "rejected"):
        columns = {"labeler_id": person} if person else {}
        return FormatQuery("SELECT * FROM part", frozenset(), columns)
    tasks.refuse_named_roles(schema, _TOOL, ("label",))
    tasks.refuse_answer_columns(schema, _TOOL, lambda role, name: _is_answer(name))
    answers = _list_answers_sql(schema)
    task = _find_task_fields(schema, answers)
    fields = find_fields(schema, task.fields)
    in_objects = schema.has("labels")
    question = tasks.choose_answered_question(
        schema, lambda: sorted(answers), "schema", all_there=not in_objects and not schema.sparse
    )
    answer = _answer_sql(question) if in_objects else answers.get(question, "NULL::VARCHAR")
    tasks.require_two_responses(schema, fields)
    labeler = f", {identifier(person)}::VARCHAR AS labeler_id" if person else ""
    is_human = "true"
    if schema.has("annotator_origin"):
        origin = "annotator_origin::VARCHAR"
        kind = f"CASE WHEN json_valid({origin}) THEN {origin}::JSON->>'kind' END"
        is_human = f"coalesce({kind}, {origin}, 'human') IN ('human', '')"
    query = f"""
        SELECT {task.select(schema, fields)}{labeler}, {answer} AS label
        FROM part WHERE {is_human}"""
    machines = f"SELECT {literal(MACHINE)}, count(*) AS n FROM part WHERE NOT {is_human}"
    tool_roles = {"labeler_id": person} if person else {}
    label = tasks.describe_question(schema) if in_objects else question
    return tasks.build_query(
        query,
        "label",
        fields.map_roles_to_names(label=label, **tool_roles),
        tool_roles,
        tasks.find_label_values(schema, fields, _A, _B),
        f"SELECT * FROM ({machines}) WHERE n > 0",
    )


def _is_answer(name: str) -> bool:
    return any(sign in name for sign in _SIGNS) or name in (*_ANSWERS, "chosen")


def _list_answers_sql(schema: TableSchema) -> dict[str, str]:
    """Return SQL (text) of the answer of every schema; of none where which there are is private."""
    if schema.has("labels"):  # JSONL: {"schema": {"selection": "A"}}
        if schema.treats_blanks_as_ties:
            return {}
        names = schema.select(
            "SELECT DISTINCT unnest(json_keys(to_json(labels))) AS name FROM part ORDER BY name"
        )
        return {name: _answer_sql(name) for (name,) in names}
    columns = [name for name in schema.types if name.endswith(_SELECTION)]  # CSV, TSV
    if columns:
        return {name.removesuffix(_SELECTION): f"{identifier(name)}::VARCHAR" for name in columns}
    return {"chosen": "chosen::VARCHAR"} if schema.has("chosen") else {}  # coding_eval: A or B


def _answer_sql(name: str) -> str:
    answer = f"json_extract(to_json(labels), {tasks.json_pointer_sql(name)})"
    return f"coalesce({answer}->>'selection', {answer}->>'label')"


def _find_task_fields(schema: TableSchema, answers: Mapping[str, str]) -> Task:
    """Return the fields that were joined to the answers; a list of two responses is A and B."""
    task = Task.from_columns(
        schema, (*_OF_TOOL, *answers, *(name + _SELECTION for name in answers))
    )
    fields = dict(task.fields)
    if "responses" in fields and not set(SIDES) & set(fields):
        listed = fields.pop("responses")
        fields |= {
            role: f"(CASE WHEN len({listed}) = {len(SIDES)} THEN {listed}[{place}] END)"
            for place, role in enumerate(SIDES, 1)
        }
    fields["instance_id"] = "instance_id"
    if len(fields) <= len(SIDES):
        raise schema.error(
            "exports of Potato name instances without their texts; join your data "
            "file to it by instance_id first, so that every row has its prompt and responses"
        )
    return Task(fields)


POTATO = Format(
    "potato",
    "answers of Potato (instance_id, user_id or annotator, SCHEMA.selection or labels), joined "
    "with the fields of its data file",
    _recognises,
    _adapt,
    "Potato names them in its exports csv, tsv and jsonl (user_id) and coding_eval (annotator).",
    of_tool=("instance_id", *_PEOPLE),
)
