"""Common parts of exports of annotation tools: tasks with fields, and answers of several questions.

Fields are public, and so are the names of questions and who answered which. What was answered is
read by the SQL made here, and by nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from labelguard.budget.label_values import DEFAULT, LabelValues
from labelguard.errors import NotAnswered
from labelguard.inputs import canonical, chats
from labelguard.inputs.columns import ANSWERS, PROMPTS, TableSchema, group_similar_names
from labelguard.inputs.formats.base import FormatQuery
from labelguard.inputs.json_chats import read_json_chats
from labelguard.inputs.readers import identifier, literal, source_column
from labelguard.text import suggest

SIDES = ("response_a", "response_b")
PAIR = ("prompt", *SIDES, "label")
RANKING = ("prompt", "responses", "ranks")


@dataclass(frozen=True)
class Fields:
    """The field of the prompt, and those of two or more responses, the first of them being A."""

    prompt: str
    responses: tuple[str, ...]

    @property
    def is_pair(self) -> bool:
        """True where two responses are compared; of more, lists are ranked."""
        return len(self.responses) == len(SIDES)

    def map_roles_to_names(self, **others: str) -> dict[str, str]:
        """Return what messages call the roles of these fields, and `others`."""
        sides = dict(zip(SIDES, self.responses, strict=True)) if self.is_pair else {}
        return {"prompt": self.prompt, **sides, **others}


@dataclass(frozen=True)
class Task:
    """The fields of a task: SQL of each by its name, and the structure of those that are JSON.

    `others` are members of its metadata that features read; none of them is a text to compare.
    """

    fields: Mapping[str, str]
    structure: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_columns(cls, schema: TableSchema, but: Collection[str] = ()) -> Task:
        """Take every column as a field, `but` those of the tool."""
        return cls({name: source_column(name) for name in schema.types if name not in but})

    @classmethod
    def from_members(cls, schema: TableSchema, objects: str, column: str) -> Task:
        """Take as fields the members of the JSON objects in a `column` of `objects` (SQL)."""
        rows = schema.select(canonical.structure_sql(column, objects))
        structure = json.loads(rows[0][0]) if rows and rows[0][0] else {}
        members = structure if isinstance(structure, dict) else {}
        sql = {name: _member_sql(column, name, kind) for name, kind in members.items()}
        return cls(sql, members)

    def with_features_from(self, schema: TableSchema, column: str) -> Task:
        """Add what features read of a JSON object beside the fields."""
        names = [n for n in schema.reading.list_feature_columns() if n not in self.fields]
        return replace(
            self, others={n: f"json_extract({column}, {json_pointer_sql(n)})" for n in names}
        )

    def select(self, schema: TableSchema, fields: Fields) -> str:
        """Return the SELECT list of prompt and responses, and of other fields that were named."""
        sides = [self.fields[response] for response in fields.responses]
        pieces = [f"{self.fields[fields.prompt]} AS prompt"]
        if fields.is_pair:
            pieces += [f"{side} AS {role}" for side, role in zip(sides, SIDES, strict=True)]
        else:
            pieces.append(f"[{', '.join(sides)}] AS responses")
        return ", ".join([*pieces, *self.select_named_fields(schema, is_list=not fields.is_pair)])

    def select_named_fields(self, schema: TableSchema, *, is_list: bool) -> list[str]:
        """Return pieces of a SELECT list: other fields that were named, and columns of features,
        which stand in one list for all responses where these are a list.
        """
        reading, kind = schema.reading, "ranking" if is_list else "pairs"
        carried = [name for one in reading.features for name in reading.find_columns_of(one, kind)]
        taken = {"prompt", "responses", *SIDES}
        named = [name for role, name in reading.columns.items() if role not in taken]
        others = {name: sql if is_list else json_text_sql(sql) for name, sql in self.others.items()}
        known = {**others, **self.fields}
        return [
            f"{known[name]} AS {identifier(name)}"
            for name in dict.fromkeys((*named, *carried))
            if name in known and name not in taken
        ]


def refuse_named_roles(schema: TableSchema, tool: str, roles: Collection[str]) -> None:
    """Raise `InvalidLabels` if `--columns` names a role that the export itself tells, or a column
    that is called like one.
    """
    reading = schema.reading
    named = {name.lower() for name in (*reading.columns.values(), *reading.list_feature_columns())}
    for role in roles:
        if role in {*reading.columns, *named}:
            raise schema.error(
                f"--columns names {role}, which an export of {tool} tells itself; leave it out"
            )


def refuse_answer_columns(
    schema: TableSchema, tool: str, is_answer: Callable[[str, str], bool]
) -> None:
    """Raise `InvalidLabels` if `--columns` gives a role a column (role, column) that is an answer,
    or features read one.

    What was answered is private, and the columns of all roles but the label are published.
    """
    carried = {name: name for name in schema.reading.list_feature_columns()}
    for role, name in {**carried, **schema.reading.columns}.items():
        if role not in ANSWERS and schema.has(name) and is_answer(role, name):
            raise schema.error(
                f"{role}={name} is asked for, but in an export of {tool} that column may be an "
                f"answer, which is private; leave it out, or if it is none, rename it to {role}"
            )


def choose_question(schema: TableSchema, names: Sequence[str], noun: str = "question") -> str:
    """Return the question that is read: the one there is, or that `--question` picks.

    Raises `NotAnswered` if there is none of that name, or none at all.
    """
    question = schema.reading.question
    if question is not None and question not in names:
        known = f"{suggest(question, names)}; found: {', '.join(names)}" if names else ""
        raise NotAnswered(f"{schema.name}: no {noun} {question!r} was answered{known}")
    if question is None and len(names) != 1:
        if not names:
            raise NotAnswered(f"{schema.name}: no {noun} was answered in it")
        raise schema.error(f"several {noun}s ({', '.join(names)}); pick one with --question NAME")
    return question or names[0]


def choose_answered_question(
    schema: TableSchema, names: Callable[[], Sequence[str]], noun: str, *, all_there: bool = False
) -> str:
    """Return the question that is read, where `names` finds those that were answered.

    Where blanks are private ties, which were answered follows from labels: then `--question` tells
    it, and nothing is looked for; but for columns that are `all_there`, answered or not.
    """
    if all_there or not schema.treats_blanks_as_ties:
        return choose_question(schema, names(), noun)
    if schema.reading.question is None:
        raise schema.error(
            f"with --skips tie, which {noun}s were answered is private and is not "
            f"looked at; name the {noun} with --question NAME"
        )
    return schema.reading.question


def find_label_values(
    schema: TableSchema, fields: Fields, a: Sequence[str] = (), b: Sequence[str] = ()
) -> LabelValues:
    """Return what answers mean: as `--label-values` has it; else the two fields' names, and tie.

    `a` and `b` are the tool's own words for the two sides.
    """
    if schema.reading.values != DEFAULT:
        return schema.reading.values
    one, other = fields.responses[:2]
    words = {*a, *b, "tie"}
    return LabelValues(
        a=(*a, *([one] if one not in words else ())),
        b=(*b, *([other] if other not in words else ())),
        tie=("tie",),
    )


def require_two_responses(schema: TableSchema, fields: Fields, sides: str = "A and B") -> None:
    """Raise `InvalidLabels` where more than two responses are compared; `sides` are to be named."""
    if not fields.is_pair:
        raise schema.error(
            f"fields {', '.join(fields.responses)} are more than two responses; name "
            f"{sides} with --columns response_a=NAME,response_b=NAME"
        )


def build_query(
    query: str,
    role: str,
    names: Mapping[str, str],
    tool_roles: Collection[str],
    values: LabelValues | None = None,
    left_out: str = "",
) -> FormatQuery:
    """Return the query of answers: pairs with a `label`, or lists with `ranks`.

    `names` is what messages call roles, `tool_roles` are those that the export itself tells.
    """
    made = frozenset((*(PAIR if role == "label" else RANKING), *tool_roles))
    return FormatQuery(query, made, names=names, values=values, left_out=left_out)


def answer_label_sql(answer: str, fields: Fields, meaning: LabelValues) -> str:
    """Return SQL (text) of an answer (SQL of JSON) about two responses: a word, or a ranking."""
    first, second = (f"{answer_ranks_sql(answer, fields)}[{number}]" for number in (1, 2))
    tie = literal(meaning.tie[0]) if meaning.tie else "'equal ranks'"
    return f"""CASE WHEN coalesce(json_type({answer}), '') <> 'ARRAY' THEN {json_text_sql(answer)}
        WHEN {first} < {second} THEN {literal(meaning.a[0])}
        WHEN {first} > {second} THEN {literal(meaning.b[0])}
        WHEN {first} = {second} THEN {tie}
        ELSE 'not a ranking of both' END"""


def answer_ranks_sql(answer: str, fields: Fields) -> str:
    """Return SQL of the rank of every response in a ranking (SQL of JSON): names, or with ranks.

    NULL where there is no answer; a response that is not ranked has none.
    """
    members = elements_sql(answer)
    names = f"list_transform({members}, lambda e: coalesce(e->>'value', e->>'$'))"
    responses = ", ".join(map(literal, fields.responses))
    place = f"list_position({names}, n)"
    rank = f"coalesce(try_cast({members}[{place}]->>'rank' AS DOUBLE), {place})"
    return (
        f"(CASE WHEN {json_text_sql(answer)} IS NOT NULL "
        f"THEN list_transform([{responses}], lambda n: {rank}) END)"
    )


def elements_sql(value: str) -> str:
    """Return SQL of the elements (JSON) of a list, whatever its type."""
    return f"from_json(to_json({value}), '[\"JSON\"]')"


def json_text_sql(value: str) -> str:
    """Return SQL of a JSON value as text; NULL for null."""
    return f"({value}->>'$')"


def json_pointer_sql(name: str) -> str:
    """Return SQL of where a member of a JSON object stands."""
    return literal("/" + name.replace("~", "~0").replace("/", "~1"))


def _member_sql(column: str, name: str, kind: Any) -> str:
    """Return SQL of a member of a JSON object: text, a chat, or JSON as it is."""
    where = json_pointer_sql(name)
    if not isinstance(kind, list | dict):
        return f"json_extract_string({column}, {where})"
    value = f"json_extract({column}, {where})"
    shape = chats.shape_structure(kind)
    read = read_json_chats(shape) if chats.is_chat(shape) else None
    return read.read_sql(value) if read else value  # no content: whoever needs one refuses it


def find_fields(schema: TableSchema, names: Collection[str]) -> Fields:
    """Return the prompt and the responses among the `names` of a task's fields.

    What `--columns` names is taken first, then what is called like a role, then names that leave no
    doubt. Raises `InvalidLabels` where there is none, or several could be meant.
    """
    named = schema.reading.columns
    for role in ("prompt", *SIDES):
        if role in named and named[role] not in names:
            raise schema.error(
                f"no field {named[role]!r} (given for {role}){suggest(named[role], tuple(names))}; "
                f"found: {', '.join(names)}"
            )
    return Fields(find_prompt(schema, names), _find_responses(schema, names))


def find_prompt(schema: TableSchema, names: Collection[str]) -> str:
    """Return the prompt among the `names` of fields. Raises `InvalidLabels` as `find_fields`."""
    if "prompt" in schema.reading.columns:
        return schema.reading.columns["prompt"]
    prompts = ["prompt"] if "prompt" in names else [n for n in names if n.lower() in PROMPTS]
    if len(prompts) == 1:
        return prompts[0]
    several = f"fields {' and '.join(prompts)} may be the prompt"
    raise schema.error(
        f"{several if prompts else 'no field is a prompt'}; name it with --columns prompt=NAME; "
        f"found: {', '.join(names)}"
    )


def _find_responses(schema: TableSchema, names: Collection[str]) -> tuple[str, ...]:
    named = schema.reading.columns
    if any(role in named for role in SIDES):
        if not set(SIDES) <= set(named):
            raise schema.error("--columns must name both response_a and response_b")
        return tuple(named[role] for role in SIDES)
    groups = [SIDES] if set(SIDES) <= set(names) else group_similar_names(tuple(names))
    if len(groups) == 1:
        return groups[0]
    several = " or ".join(f"({', '.join(group)})" for group in groups)
    problem = f"fields {several} may be the responses" if groups else "no two fields are responses"
    raise schema.error(
        f"{problem}; name them with --columns response_a=NAME,response_b=NAME; "
        f"found: {', '.join(names)}"
    )
