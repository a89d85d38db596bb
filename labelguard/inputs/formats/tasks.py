"""Common parts of exports of annotation tools: tasks with fields, and answers of several questions.

Fields are public, and so are the names of questions and who answered which. What was answered is
read by the SQL made here, and by nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from labelguard.budget.label_values import DEFAULT, WHITE_SPACE, LabelValues
from labelguard.errors import NotAnswered
from labelguard.inputs import canonical, chats
from labelguard.inputs.columns import (
    ANSWERS,
    NO_PROMPT,
    PROMPTS,
    TableSchema,
    group_similar_names,
)
from labelguard.inputs.formats.base import FormatQuery
from labelguard.inputs.json_files import read_json_chats
from labelguard.inputs.readers import identifier, literal, source_column
from labelguard.inputs.shapes import find_possible_prompts
from labelguard.text import suggest

SIDES = ("response_a", "response_b")
PAIR = ("prompt", *SIDES, "label")
LISTS = {role: ("prompt", "responses", role) for role in ("ranks", "choice")}


@dataclass(frozen=True)
class Fields:
    """The field of the prompt, and those of two or more responses, the first of them being A.

    `words` is what answers call the responses: by the names of their fields, unless others were
    named.
    """

    prompt: str
    responses: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def is_pair(self) -> bool:
        """True where two responses are compared; of more, lists are ranked."""
        return len(self.responses) == len(SIDES)

    def map_roles_to_names(self, **others: str) -> dict[str, str]:
        """Return what messages call the roles of these fields, and `others`."""
        sides = dict(zip(SIDES, self.responses, strict=True)) if self.is_pair else {}
        return {"prompt": self.prompt or NO_PROMPT, **sides, **others}


@dataclass(frozen=True)
class Task:
    """The fields of a task: SQL of each by its name, and the structure of those that are JSON.

    `others` are members of its metadata that features read; none of them is a text to compare.
    """

    fields: Mapping[str, str]
    structure: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)
    # Fields that are no content, with the names of their members.
    unreadable: Mapping[str, Sequence[str]] = field(default_factory=dict)

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
        nested = {name: kind for name, kind in members.items() if isinstance(kind, list | dict)}
        unreadable = {
            name: tuple(inner) if isinstance(inner := _find_element(kind), dict) else ()
            for name, kind in nested.items()
            if not _is_content(kind)
        }
        return cls(sql, members, unreadable=unreadable)

    def with_features_from(self, schema: TableSchema, column: str) -> Task:
        """Add what features read of a JSON object beside the fields."""
        names = [n for n in schema.reading.list_feature_columns() if n not in self.fields]
        return replace(
            self, others={n: f"json_extract({column}, {json_pointer_sql(n)})" for n in names}
        )

    def prompt_sql(self, name: str) -> str:
        """Return SQL of the field of the prompt; an empty text where there is none."""
        return self.fields[name] if name else "''"

    def select(self, schema: TableSchema, fields: Fields) -> str:
        """Return the SELECT list of prompt and responses, and of other fields that were named."""
        sides = [self.fields[response] for response in fields.responses]
        pieces = [f"{self.prompt_sql(fields.prompt)} AS prompt"]
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
    one, other = fields.words[:2]
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
    """Return the query of answers: pairs with a `label`, or lists with `ranks` or a `choice`.

    `names` is what messages call roles, `tool_roles` are those that the export itself tells.
    """
    made = frozenset((*LISTS.get(role, PAIR), *tool_roles))
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
    """Return SQL of the rank of every response in an answer (SQL of JSON): names in their order, or
    with ranks; or the name of the best alone.

    NULL where there is no answer; a response that is not ranked has none.
    """
    members = elements_sql(answer)
    names = f"list_transform({members}, lambda e: coalesce(e->>'value', e->>'$'))"
    responses = ", ".join(map(literal, fields.words))
    place = f"list_position({names}, n)"
    rank = f"coalesce(try_cast({members}[{place}]->>'rank' AS DOUBLE), {place})"
    best = json_text_sql(answer)
    return f"""(CASE WHEN {best} IN ({responses})
        THEN list_transform([{responses}], lambda n: if(n = {best}, 1, 2)::DOUBLE)
        WHEN {best} IS NOT NULL THEN list_transform([{responses}], lambda n: {rank}) END)"""


def answer_choice_sql(answer: str, fields: Fields) -> str:
    """Return SQL of the number of the response that an answer (SQL of text) names, from 0.

    NULL where there is none; what names no response is no number.
    """
    responses = ", ".join(map(literal, fields.words))
    place = f"list_position([{responses}], trim({answer}, {literal(WHITE_SPACE)}))"
    return (
        f"(CASE WHEN coalesce({answer}, '') <> '' "
        f"THEN coalesce(({place} - 1)::VARCHAR, 'no response') END)"
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


def _is_content(kind: Any) -> bool:
    """Return whether a structure of JSON is that of a content."""
    shape = chats.shape_structure(kind)
    return chats.is_chat(shape) and read_json_chats(shape) is not None


def _find_element(kind: Any) -> Any:
    """Return the structure of a list's elements; of anything else, itself."""
    return kind[0] if isinstance(kind, list) and kind else kind


def find_fields(schema: TableSchema, task: Task) -> Fields:
    """Return the prompt and the responses among a task's fields.

    What `--columns` names is taken first, then what is called like a role, then names that leave no
    doubt. Raises `InvalidLabels` where there is none, or several could be meant.
    """
    named, names = schema.reading.columns, task.fields
    for role in ("prompt", *SIDES):
        if named.get(role) and named[role] not in names:
            raise schema.error(
                f"no field {named[role]!r} (given for {role}){suggest(named[role], tuple(names))}; "
                f"found: {', '.join(names)}"
            )
    responses, words = _find_responses(schema, names)
    return Fields(find_prompt(schema, task, responses), responses, words)


def find_prompt(schema: TableSchema, task: Task, responses: Collection[str]) -> str:
    """Return the prompt among the fields that are not `responses`; the empty text where there is
    none. Raises `InvalidLabels` as `find_fields`.
    """
    free = [name for name in task.fields if name not in responses]
    prompts = ["prompt"] if "prompt" in free else [n for n in free if n.lower() in PROMPTS]
    if "prompt" in schema.reading.columns:
        prompts = [schema.reading.columns["prompt"]]
    elif not any(name.lower() != "id" for name in free):
        return ""
    candidates = prompts or find_possible_prompts(schema, free, (), by_type=False)
    readable = [name for name in candidates if name not in task.unreadable]
    if len(prompts) == 1 and readable:
        return prompts[0]
    problem = "no field is a prompt"
    if len(readable) > 1:
        problem = f"fields {' and '.join(readable)} may be the prompt"
    for name in candidates:
        if name in task.unreadable and not readable:
            members = ", ".join(task.unreadable[name])
            problem = (
                f"field {name} is no prompt: expected text, or a chat (a list of messages with "
                f"role and content), found {f'members {members}' if members else 'other JSON'}"
            )
    raise schema.error(
        f"{problem}; name it with --columns prompt={(readable or ['NAME'])[0]}, or if nothing was "
        f"asked, --no-prompt; found: {', '.join(task.fields)}"
    )


def _find_responses(
    schema: TableSchema, names: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields of the responses, and what answers call them."""
    named = schema.reading.columns
    if "responses" in named:
        return _parse_responses(schema, names, named["responses"])
    if any(role in named for role in SIDES):
        if not set(SIDES) <= set(named):
            raise schema.error("--columns must name both response_a and response_b")
        groups = [tuple(named[role] for role in SIDES)]
    else:
        groups = [SIDES] if set(SIDES) <= set(names) else group_similar_names(tuple(names))
    if len(groups) == 1:
        return groups[0], groups[0]
    several = " or ".join(f"({', '.join(group)})" for group in groups)
    problem = f"fields {several} may be the responses" if groups else "no two fields are responses"
    raise schema.error(
        f"{problem}; name them with --columns response_a=NAME,response_b=NAME, or of more than two "
        f"--columns 'responses=NAME|NAME|NAME'; found: {', '.join(names)}"
    )


def _parse_responses(
    schema: TableSchema, names: Collection[str], text: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the fields that `FIELD|FIELD|…` names, where * stands for anything, and what answers
    call them (`FIELD=WORD`). Raises `InvalidLabels` for a field that is not there, and for one
    alone.
    """
    responses: dict[str, str] = {}
    for piece in text.split("|"):
        pattern, sign, word = (part.strip() for part in piece.partition("="))
        matching = [name for name in names if fnmatchcase(name, pattern)]
        fitting = [pattern] if pattern in names else sorted(matching, key=_split_numbers)
        if not fitting or (sign and len(fitting) > 1):
            raise schema.error(
                f"no field {pattern!r} (given for responses){suggest(pattern, tuple(names))}; "
                f"found: {', '.join(names)}"
            )
        responses |= {name: word if sign else name for name in fitting}
    words = tuple(responses.values())
    if len(responses) < len(SIDES) or len({*words}) < len(words):
        raise schema.error(
            "--columns responses names two or more fields, each once and with a word of its own, "
            "as in 'responses=text_1|text_2|text_3' or 'responses=text_1=One|text_2=Two'"
        )
    return tuple(responses), words


def _split_numbers(name: str) -> list[tuple[int, str]]:
    """Return a key by which names are sorted as people do: x-2 before x-10."""
    return [(int(piece) if piece.isdigit() else -1, piece) for piece in re.split(r"(\d+)", name)]
