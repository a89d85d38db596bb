"""Tables whose rows hold what several people answered: a list of objects, one of each person.

Such a list becomes a row for every person. Which list it is, and which of its members tell who
answered, what and when, follows from names alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from labelguard.inputs import canonical
from labelguard.inputs.columns import TableSchema
from labelguard.inputs.formats import tasks
from labelguard.inputs.readers import find_element_type, identifier, literal, source_column
from labelguard.inputs.shapes import ANSWERED, PEOPLE

# Lists of answers, by what they are called; of another name where the members leave no doubt.
_LISTS = (
    *("annotations", "judgments", "judgements", "labels", "votes", "ratings", "answers"),
    *("preferences", "responses", "reviews", "comparisons", "annotators", "labelers", "workers"),
)
_TIMES = ("submitted_at", "updated_at", "created_at", "timestamp", "time")
_RECORDS = ("record_id", "annotation_id", "assignment_id", "id")
_STATUS = "status"
# Why a row with an empty list of answers is left out.
UNANSWERED = "row without answers"
_ANSWER = identifier("labelguard: answer")


@dataclass(frozen=True)
class NestedAnswers:
    """A column that lists answers, and the member of each that plays a role.

    Answers that have a `status` count where they were submitted; discarded ones are blank.
    """

    column: str
    members: Mapping[str, str]
    has_status: bool

    def query(self, schema: TableSchema) -> str:
        """Return SQL with a row for each answer: the other columns, and those of the roles."""
        others = (
            f"{source_column(name)} AS {identifier(name)}, "
            for name in schema.types
            if name != self.column
        )
        given = tasks.elements_sql(source_column(self.column))
        values = {
            role: f"json_extract_string({_ANSWER}, {tasks.json_pointer_sql(member)})"
            for role, member in self.members.items()
        }
        where = ""
        kind = schema.types[self.column]
        types = {} if str(kind) == "JSON" else dict(find_element_type(kind).children)
        for role, member in self.members.items():
            if str(types.get(member)) in ("FLOAT", "DOUBLE"):  # NaN is no answer
                values[role] = f"nullif(lower({values[role]}), 'nan')"
        if self.has_status:
            status = f"json_extract_string({_ANSWER}, '/{_STATUS}')"
            values |= {
                role: f"CASE WHEN {status} = 'submitted' THEN {value} END"
                for role, value in values.items()
                if role in ("label", "choice")
            }
            where = f" WHERE {status} IN ('submitted', 'discarded')"
        made = ", ".join(f"{value} AS {role}" for role, value in values.items())
        rows = f"SELECT *, unnest({given}) AS {_ANSWER} FROM part"
        return f"SELECT {''.join(others)}{made} FROM ({rows}){where}"

    def count_unanswered_sql(self) -> str:
        """Return SQL of how many rows nobody answered, and why they are left out."""
        answers = f"len({tasks.elements_sql(source_column(self.column))})"
        empty = f"count(*) FILTER (coalesce({answers}, 0) = 0)"
        return f"SELECT {literal(UNANSWERED)}, {empty} AS rows FROM part HAVING rows > 0"

    def describe(self) -> dict[str, str]:
        """Return what messages call the roles."""
        return {role: f"{self.column}[].{member}" for role, member in self.members.items()}


def find_nested_answers(schema: TableSchema) -> NestedAnswers | None:
    """Return the list of answers that a row has, if one has; of several questions the one named.

    Raises `InvalidLabels` where there are several.
    """
    if schema.has_any("labeler_id") or "labeler_id" in schema.reading.columns:
        return None
    lists = {}
    for name, kind in schema.types.items():
        named = name.lower() in _LISTS or schema.has(f"{name}-suggestion")
        if kind.id in ("list", "array") or (named and str(kind) == "JSON"):
            members = _find_members(schema, name)
            if one := _match_members(schema, name, members, named=named):
                lists[name] = one
    if not lists:
        return None
    if len(lists) == 1:
        return next(iter(lists.values()))
    return lists[tasks.choose_question(schema, sorted(lists))]


def _find_members(schema: TableSchema, column: str) -> list[str]:
    """Return the members of the objects in a column of lists; none where it has no such lists."""
    kind = schema.types[column]
    if str(kind) != "JSON":
        element = find_element_type(kind)
        return [name for name, _ in element.children] if element.id == "struct" else []
    rows = f"SELECT to_json({source_column(column)}) AS listed FROM part"
    [(structure,)] = schema.select(canonical.structure_sql("listed", rows)) or [(None,)]
    listed = json.loads(structure) if structure else None
    if not (isinstance(listed, list) and listed and isinstance(listed[0], dict)):
        return []
    return list(listed[0])


def _match_members(
    schema: TableSchema, column: str, members: list[str], *, named: bool
) -> NestedAnswers | None:
    lower = {member.lower(): member for member in members}

    def match(*names: str) -> str:
        return next((lower[name] for name in names if name in lower), "")

    people, label = match("labeler_id", *PEOPLE), match("label", "value", *ANSWERED)
    is_record = people == "user_id" and match(_STATUS) != ""
    if people and schema.sparse and schema.treats_blanks_as_ties and (named or is_record):
        raise schema.error(
            f"with --skips tie, which members of {column} have answers is private, and JSON tells "
            "it: write a row for every person, or Parquet"
        )
    has_status = is_record and label == "value"
    if not people or not label or not (named or has_status):
        return None
    role = "choice" if schema.has_all("responses") else "label"
    candidates = {
        "labeler_id": people,
        role: label,
        "submitted_at": match(*_TIMES),
        "record_id": match(*_RECORDS),
    }
    roles = {role: member for role, member in candidates.items() if member and not schema.has(role)}
    return NestedAnswers(column, roles, has_status)
