"""Exports of Argilla: flattened records (Python SDK, Parquet), and records of its REST interface.

Only submitted responses of people count; drafts are left out, discarded ones are skips, and
suggestions are nobody's. Nested records of the SDK drop the status: in them all look submitted.

Where every response was rated by a question of its own, a star in the name of the question that is
read stands for the name of the response: the one that was rated higher is preferred.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from labelguard.errors import InvalidLabels, NotAnswered
from labelguard.inputs.canonical import is_text
from labelguard.inputs.formats import tasks
from labelguard.inputs.formats.seen import Adapted, Format, Seen
from labelguard.inputs.formats.tasks import PAIR, RANKING, SIDES, Task, fields
from labelguard.inputs.left_out import DRAFT
from labelguard.inputs.readers import identifier, literal

_TOOL = "Argilla"
_VALUES, _USERS, _STATUS = ".responses", ".responses.users", ".responses.status"
_USER, _STATE, _VALUE = (identifier(f"labelguard: {name}") for name in ("user", "status", "value"))
_RESPONSE = "*"
_NO_STATUS = (
    "nested records of Argilla do not tell the status of responses, so that discarded ones and "
    "drafts count as submitted; records.to_list(flatten=True) and the REST interface tell it"
)
_LABELERS = (
    "records.to_list(flatten=True), records.to_datasets() and the REST interface with "
    "include=responses name the labelers."
)


@dataclass(frozen=True)
class _Answers:
    """The responses to one question: SQL with a row for each, its status and value.

    `told` selects the labeler, whom the export calls `labeler`, and `further` roles that it tells.
    """

    asked: str
    query: str
    told: str
    labeler: str
    further: tuple[str, ...] = ()


def _is_flattened(seen: Seen) -> bool:
    return any(name.endswith(_USERS) for name in seen.types)


def _is_page(seen: Seen) -> bool:
    return seen.has("items", "total") and len(seen.types) == len(("items", "total"))


def _is_records(seen: Seen) -> bool:
    return seen.has("fields", "responses") and (
        seen.has("external_id") or seen.has("dataset_id") or seen.has("_server_id")
    )


def _adapt(seen: Seen) -> Adapted:
    if _is_flattened(seen):
        return _flattened(seen)
    return _adapt_nested(seen) if seen.has("_server_id") else _records(seen)


def _flattened(seen: Seen) -> Adapted:
    """A row for each response of lists that run side by side: answers, users, status."""
    ends = (_VALUES, _USERS, _STATUS, ".suggestion", ".suggestion.score", ".suggestion.agent")
    tasks.refuse_answers(seen, _TOOL, lambda role, name: name.endswith(ends))
    questions = sorted(name.removesuffix(_USERS) for name in seen.types if name.endswith(_USERS))
    of_tool = {asked + end for asked in questions for end in ends}
    _refuse_ratings(seen)
    asked = tasks.question(seen, questions)
    if not seen.has(asked + _STATUS):
        raise InvalidLabels(
            f"{seen.part}: no column {asked + _STATUS}, so that discarded responses look "
            "submitted; export again with it"
        )
    for name in (asked + _USERS, asked + _STATUS):
        _check_list(seen, name)
    answers = tasks.elements(identifier(asked + _VALUES)) if seen.has(asked + _VALUES) else "[]"
    responses = f"""
        SELECT *,
            unnest({identifier(asked + _USERS)}::VARCHAR[]) AS {_USER},
            unnest({identifier(asked + _STATUS)}::VARCHAR[]) AS {_STATE},
            unnest({answers}::JSON[]) AS {_VALUE}
        FROM part"""
    told = f"{_USER} AS labeler_id"
    return _adapted(
        seen, Task.columns(seen, of_tool), _Answers(asked, responses, told, asked + _USERS)
    )


def _adapt_nested(seen: Seen) -> Adapted:
    """Read records of the SDK as they are: a list of responses to each question, without status.

    All of them are read as submitted, for nothing tells which were discarded or drafted.
    """
    _refuse_ratings(seen)
    records = "SELECT to_json(fields) AS fields, to_json(responses) AS responses FROM part"
    query = f"SELECT DISTINCT unnest(json_keys(responses)) AS name FROM ({records}) ORDER BY name"
    asked = tasks.answered(seen, lambda: [name for (name,) in seen.names(query)], "question")
    listed = tasks.elements(f"json_extract(responses, {tasks.pointer(asked)})")
    responses = f"""
        SELECT *, 'submitted' AS {_STATE}, response->'value' AS {_VALUE}
        FROM (SELECT *, unnest({listed}) AS response FROM ({records}))"""
    told = "response->>'user_id' AS labeler_id"
    answers = _Answers(tasks.shown(seen), responses, told, "user_id")
    return replace(_adapted(seen, Task.members(seen, records, "fields"), answers), note=_NO_STATUS)


def _refuse_ratings(seen: Seen) -> None:
    if _is_rated(seen):
        raise InvalidLabels(
            f"{seen.part}: an export with a list of responses to each question does not tell which "
            "of them belong together; take the REST interface (include=responses) for ratings"
        )


def _check_list(seen: Seen, name: str) -> None:
    """Raise `InvalidLabels` for a public column that cannot hold a list for every record."""
    kind = seen.types[name]
    if kind.id in ("list", "array", "null"):
        return
    column = identifier(name)
    listed = is_text(kind) or str(kind) == "JSON"
    unread = f"{column} IS NOT NULL AND try_cast({column}::VARCHAR AS VARCHAR[]) IS NULL"
    if not listed or seen.names(f"SELECT 1 FROM part WHERE {unread} LIMIT 1"):
        raise InvalidLabels(
            f"{seen.part}: column {name}: expected a list for every record, with one element for "
            "each response"
        )


def _records(seen: Seen) -> Adapted:
    """A row for each response of records as the REST interface gives them."""
    metadata = "to_json(metadata)" if seen.has("metadata") else "NULL::JSON"
    records = (
        f"SELECT to_json(fields) AS fields, {metadata} AS metadata, "
        "to_json(responses) AS responses FROM part"
    )
    if _is_page(seen):
        records = (
            "SELECT record->'fields' AS fields, record->'metadata' AS metadata, "
            "record->'responses' AS responses "
            f"FROM (SELECT unnest({tasks.elements('items')}) AS record FROM part)"
        )
    answers = (
        f"SELECT fields, metadata, unnest({tasks.elements('responses')}) AS response "
        f"FROM ({records})"
    )
    query = (
        f"SELECT DISTINCT unnest(json_keys(response->'values')) AS name FROM ({answers}) "
        "ORDER BY name"
    )
    task = Task.members(seen, records, "fields").beside(seen, "metadata")

    def names() -> list[str]:
        return [name for (name,) in seen.names(query)]

    if _is_rated(seen):
        rated = fields(seen, tuple(task.fields)).responses
        asked, value = _rated(seen, names, rated), _ranking(seen, rated)
    else:
        asked = tasks.answered(seen, names, "question")
        value = _answer(asked)
    responses = f"""
        SELECT *, response->>'status' AS {_STATE}, {value} AS {_VALUE}
        FROM ({answers})"""
    told = """response->>'user_id' AS labeler_id, response->>'updated_at' AS submitted_at,
        response->>'id' AS record_id"""
    further = ("submitted_at", "record_id")
    return _adapted(seen, task, _Answers(tasks.shown(seen), responses, told, "user_id", further))


def _answer(asked: str) -> str:
    """SQL of the answer to a question (JSON), NULL if there is none."""
    return f"json_extract(json_extract(response->'values', {tasks.pointer(asked)}), '/value')"


def _is_rated(seen: Seen) -> bool:
    return (seen.reading.question or "").count(_RESPONSE) == 1


def _rated(seen: Seen, names: Callable[[], Sequence[str]], responses: Sequence[str]) -> str:
    """What is read where every response has a question: as it was named, with its star."""
    # Where blanks are private ties, which questions were answered is not looked at.
    found = None if seen.private_blanks else names()
    for name in _questions(seen, responses):
        if found is not None and name not in found:
            raise NotAnswered(f"{seen.part}: no question {name!r} was answered")
    return seen.reading.question or ""


def _questions(seen: Seen, responses: Sequence[str]) -> list[str]:
    return [(seen.reading.question or "").replace(_RESPONSE, response) for response in responses]


def _ranking(seen: Seen, responses: Sequence[str]) -> str:
    """SQL of the ranking (JSON) that ratings tell; NULL unless every response was rated."""
    given = [tasks.text(_answer(name)) for name in _questions(seen, responses)]
    numbers = [f"try_cast({rating} AS DOUBLE)" for rating in given]
    ranked = ", ".join(
        f"{{'value': {literal(response)}, 'rank': -{number}}}"
        for response, number in zip(responses, numbers, strict=True)
    )
    return f"""CASE WHEN {" OR ".join(f"{rating} IS NULL" for rating in given)} THEN NULL
            WHEN {" AND ".join(f"coalesce(isfinite({number}), false)" for number in numbers)}
            THEN to_json([{ranked}]) ELSE to_json('not a rating of every response') END"""


def _adapted(seen: Seen, task: Task, answers: _Answers) -> Adapted:
    """Pairs where a task has two responses, whatever was asked about them; else rankings."""
    made = frozenset(("labeler_id", *answers.further))
    tasks.refuse_named(seen, _TOOL, (*sorted(made), "label", "ranks"))
    used = fields(seen, tuple(task.fields))
    meaning = tasks.values(seen, used)
    submitted = f"(CASE WHEN {_STATE} = 'submitted' THEN {_VALUE} END)"
    if len(used.responses) == len(SIDES):
        role, said = "label", tasks.label(submitted, used, meaning)
    else:
        role, said = "ranks", tasks.ranks(submitted, used)
    query = f"""
        SELECT {task.select(seen, used)}, {answers.told}, {said} AS {role}
        FROM ({answers.query}) WHERE {_STATE} IN ('submitted', 'discarded')"""
    left_out = f"""
        SELECT if({_STATE} = 'draft', {literal(DRAFT)}, 'unknown status'), count(*)
        FROM ({answers.query})
        WHERE coalesce({_STATE}, '') NOT IN ('submitted', 'discarded') GROUP BY ALL ORDER BY ALL"""
    made |= {*(PAIR if role == "label" else RANKING)}
    names = used.names(**{role: answers.asked}, labeler_id=answers.labeler)
    return Adapted(query, made, names=names, values=meaning, usual=True, left_out=left_out)


ARGILLA = Format(
    "argilla",
    "records of Argilla with the status of every response (Q.responses, Q.responses.users, "
    "Q.responses.status; or items of its REST interface)",
    lambda seen: _is_flattened(seen) or _is_page(seen) or _is_records(seen),
    _adapt,
    _LABELERS,
    of_tool=("id", "external_id"),
)
