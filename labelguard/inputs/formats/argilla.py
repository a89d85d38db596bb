"""Exports of Argilla: flattened records (Python SDK, Parquet), and records of its REST interface.

Only submitted responses of people count; drafts are left out, discarded ones are skips, and
suggestions are nobody's. Nested records of the SDK drop the status, so that they are refused.

Where every response was rated by a question of its own, a star in the name of the question that is
read stands for the name of the response: the one that was rated higher is preferred.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labelguard.errors import NotAnswered
from labelguard.inputs.columns import TableSchema
from labelguard.inputs.formats import tasks
from labelguard.inputs.formats.base import FormatQuery
from labelguard.inputs.formats.tasks import Task, find_fields
from labelguard.inputs.readers import identifier, is_text, literal, source_column
from labelguard.inputs.shapes import USERS
from labelguard.text import DRAFT

_TOOL = "Argilla"
_VALUES, _STATUS = ".responses", ".responses.status"
_USER, _STATE, _VALUE = (identifier(f"labelguard: {name}") for name in ("user", "status", "value"))
_RESPONSE = "*"
_NOT_COMPARED = "rating of a response that is not compared"
_NO_STATUS = (
    "nested records of Argilla do not tell the status of responses, so that discarded ones and "
    "drafts would count; export them by records.to_list(flatten=True), or the REST interface"
)


@dataclass(frozen=True)
class _Responses:
    """The responses to one question, which messages call `name`: a row for each (SQL), its status
    and value.

    `selected` are columns of the labeler, whom the export calls `labeler`, and of `further` roles.
    """

    name: str
    query: str
    selected: str
    labeler: str
    further: tuple[str, ...] = ()
    # Questions (of ratings) about fields that are not compared.
    beside: tuple[str, ...] = ()


def adapt(schema: TableSchema) -> FormatQuery:
    """Read a row for each response, of flattened records or those of the REST interface."""
    if any(name.endswith(USERS) for name in schema.types):
        return _adapt_flattened(schema)
    if schema.has("_server_id"):
        raise schema.error(_NO_STATUS)
    return _adapt_records(schema)


def _adapt_flattened(schema: TableSchema) -> FormatQuery:
    """Read a row for each response of lists that run side by side: answers, users, status."""
    ends = (_VALUES, USERS, _STATUS, ".suggestion", ".suggestion.score", ".suggestion.agent")
    tasks.refuse_answer_columns(schema, _TOOL, lambda role, name: name.endswith(ends))
    questions = sorted(name.removesuffix(USERS) for name in schema.types if name.endswith(USERS))
    _refuse_ratings(schema)
    question = tasks.choose_question(schema, questions)
    users, status, values = question + USERS, question + _STATUS, question + _VALUES
    if not schema.has(status):
        raise schema.error(
            f"no column {status}, so that discarded responses look submitted; export again with it"
        )
    for name in (users, status):
        _check_list(schema, name)
    answers = tasks.elements_sql(source_column(values)) if schema.has(values) else "[]"
    responses = f"""
        SELECT *,
            unnest({source_column(users)}::VARCHAR[]) AS {_USER},
            unnest({source_column(status)}::VARCHAR[]) AS {_STATE},
            unnest({answers}::JSON[]) AS {_VALUE}
        FROM part"""
    task = Task.from_columns(schema, {name + end for name in questions for end in ends})
    return _adapt_pairs_or_rankings(
        schema, task, _Responses(question, responses, f"{_USER} AS labeler_id", users)
    )


def _find_answered_questions(schema: TableSchema, answers: str) -> list[str]:
    """Return the questions that were answered, from SQL of objects of `answers`."""
    names = f"SELECT DISTINCT unnest(json_keys(answers)) AS name FROM ({answers}) ORDER BY name"
    return [name for (name,) in schema.select(names)]


def _refuse_ratings(schema: TableSchema) -> None:
    if _asks_for_ratings(schema):
        raise schema.error(
            "an export with a list of responses to each question does not tell which "
            "of them belong together; take the REST interface (include=responses) for ratings"
        )


def _check_list(schema: TableSchema, name: str) -> None:
    """Raise `InvalidLabels` for a public column that cannot hold a list for every record."""
    kind = schema.types[name]
    if kind.id in ("list", "array", "null"):
        return
    column = source_column(name)
    unread = f"{column} IS NOT NULL AND try_cast({column}::VARCHAR AS VARCHAR[]) IS NULL"
    is_list = is_text(kind) or str(kind) == "JSON"
    if not is_list or schema.select(f"SELECT 1 FROM part WHERE {unread} LIMIT 1"):
        raise schema.error(
            f"column {name}: expected a list for every record, with one element for each response"
        )


def _adapt_records(schema: TableSchema) -> FormatQuery:
    """Read a row for each response of records as the REST interface gives them."""
    names = ("fields", "metadata", "responses")
    pieces = (f"to_json({schema.column_sql(name)}) AS {name}" for name in names)
    records = f"SELECT {', '.join(pieces)} FROM part"
    if not schema.has("fields"):  # a page of items
        items = tasks.elements_sql(source_column("items"))
        records = (
            "SELECT record->'fields' AS fields, record->'metadata' AS metadata, "
            f"record->'responses' AS responses FROM (SELECT unnest({items}) AS record FROM part)"
        )
    answers = (
        f"SELECT fields, metadata, unnest({tasks.elements_sql('responses')}) AS response "
        f"FROM ({records})"
    )
    values = f"SELECT response->'values' AS answers FROM ({answers})"
    task = Task.from_members(schema, records, "fields").with_features_from(schema, "metadata")
    question, beside = schema.reading.question or "", tuple[str, ...]()
    if _asks_for_ratings(schema):
        rated = find_fields(schema, task).responses
        value = _ranking_from_ratings_sql(schema, values, rated)
        others = [question.replace(_RESPONSE, name) for name in task.fields if name not in rated]
        if not schema.treats_blanks_as_ties:
            beside = tuple({*others} & {*_find_answered_questions(schema, values)})
    else:
        question = tasks.choose_answered_question(
            schema, lambda: _find_answered_questions(schema, values), "question"
        )
        value = _answer_sql(question)
    query = f"""
        SELECT *, response->>'status' AS {_STATE}, {value} AS {_VALUE}
        FROM ({answers})"""
    selected = """response->>'user_id' AS labeler_id, response->>'updated_at' AS submitted_at,
        response->>'id' AS record_id"""
    further = ("submitted_at", "record_id")
    responses = _Responses(question, query, selected, "user_id", further, beside)
    return _adapt_pairs_or_rankings(schema, task, responses)


def _answer_sql(question: str) -> str:
    """Return SQL of the answer to a question (JSON), NULL if there is none."""
    name = tasks.json_pointer_sql(question)
    return f"json_extract(json_extract(response->'values', {name}), '/value')"


def _asks_for_ratings(schema: TableSchema) -> bool:
    return (schema.reading.question or "").count(_RESPONSE) == 1


def _ranking_from_ratings_sql(schema: TableSchema, values: str, responses: Sequence[str]) -> str:
    """Return SQL of the ranking (JSON) that ratings tell; NULL unless every response was rated.

    Raises `NotAnswered` for a response that nobody rated. Where blanks are private ties, which
    questions were answered is not looked at.
    """
    question = schema.reading.question or ""
    questions = [question.replace(_RESPONSE, response) for response in responses]
    if not schema.treats_blanks_as_ties:
        present = _find_answered_questions(schema, values)
        for name in questions:
            if name not in present:
                raise NotAnswered(f"{schema.name}: no question {name!r} was answered")
    ratings = [tasks.json_text_sql(_answer_sql(name)) for name in questions]
    numbers = [f"try_cast({rating} AS DOUBLE)" for rating in ratings]
    ranked = ", ".join(
        f"{{'value': {literal(response)}, 'rank': -{number}}}"
        for response, number in zip(responses, numbers, strict=True)
    )
    return f"""CASE WHEN {" OR ".join(f"{rating} IS NULL" for rating in ratings)} THEN NULL
            WHEN {" AND ".join(f"coalesce(isfinite({number}), false)" for number in numbers)}
            THEN to_json([{ranked}]) ELSE to_json('not a rating of every response') END"""


def _adapt_pairs_or_rankings(schema: TableSchema, task: Task, responses: _Responses) -> FormatQuery:
    """Return pairs where a task has two responses, whatever was asked about them; else rankings."""
    tool_roles = ("labeler_id", *responses.further)
    tasks.refuse_named_roles(schema, _TOOL, (*sorted(tool_roles), "label", "ranks"))
    fields = find_fields(schema, task)
    meaning = tasks.find_label_values(schema, fields)
    submitted = f"(CASE WHEN {_STATE} = 'submitted' THEN {_VALUE} END)"
    if fields.is_pair:
        role, answer = "label", tasks.answer_label_sql(submitted, fields, meaning)
    else:
        role, answer = "ranks", tasks.answer_ranks_sql(submitted, fields)
    query = f"""
        SELECT {task.select(schema, fields)}, {responses.selected}, {answer} AS {role}
        FROM ({responses.query}) WHERE {_STATE} IN ('submitted', 'discarded')"""
    left_out = f"""
        SELECT if({_STATE} = 'draft', {literal(DRAFT)}, 'unknown status'), count(*)
        FROM ({responses.query})
        WHERE coalesce({_STATE}, '') NOT IN ('submitted', 'discarded') GROUP BY ALL ORDER BY ALL"""
    if responses.beside:
        answers = (tasks.json_text_sql(_answer_sql(name)) for name in responses.beside)
        number = " + ".join(f"({answer} IS NOT NULL)::BIGINT" for answer in answers)
        left_out = f"""
        FROM ({left_out}) UNION ALL
        SELECT {literal(_NOT_COMPARED)}, sum({number})::BIGINT
        FROM ({responses.query}) WHERE {_STATE} = 'submitted'"""
    names = fields.map_roles_to_names(**{role: responses.name}, labeler_id=responses.labeler)
    return tasks.build_query(query, role, names, tool_roles, meaning, left_out)
