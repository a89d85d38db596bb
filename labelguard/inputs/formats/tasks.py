"""What exports of annotation tools share: tasks with fields, and answers of several questions.

Fields are public, and so are the names of questions and who answered which. What was answered is
read by the SQL made here, and by nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from labelguard.budget.label_values import DEFAULT, LabelValues
from labelguard.errors import InvalidLabels, NotAnswered
from labelguard.inputs import canonical
from labelguard.inputs.canonical import NotContent
from labelguard.inputs.contents import PROMPTS, families
from labelguard.inputs.formats.seen import Seen
from labelguard.inputs.layouts import ANSWERS
from labelguard.inputs.readers import identifier, literal
from labelguard.spelling import suggest

SIDES = ("response_a", "response_b")
PAIR = ("prompt", *SIDES, "label")
RANKING = ("prompt", "responses", "ranks")


@dataclass(frozen=True)
class Task:
    """The fields of a task: SQL of each by its name, and the structure of those that are JSON.

    `others` are members of its metadata that features read; none of them is a text to compare.
    """

    fields: Mapping[str, str]
    structure: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def columns(cls, seen: Seen, but: Collection[str] = ()) -> Task:
        """Every column is a field, `but` those of the tool."""
        return cls({name: identifier(name) for name in seen.types if name not in but})

    @classmethod
    def members(cls, seen: Seen, objects: str, column: str) -> Task:
        """Fields are the members of a JSON object: `column` here, selected by the SQL `objects`."""
        found = seen.names(canonical.structure(column, objects))
        structure = json.loads(found[0][0]) if found and found[0][0] else {}
        members = structure if isinstance(structure, dict) else {}
        sql = {name: _member(column, name, kind) for name, kind in members.items()}
        return cls(sql, members)

    def beside(self, seen: Seen, column: str) -> Task:
        """The same with what features read of a JSON object beside the fields."""
        wanted = [name for name in seen.reading.all_carried() if name not in self.fields]
        others = {name: f"json_extract({column}, {pointer(name)})" for name in wanted}
        return replace(self, others=others)

    def select(self, seen: Seen, fields: Fields) -> str:
        """SELECT list of prompt and responses, and of other fields that were named."""
        prompt, sides = self.fields[fields.prompt], [self.fields[r] for r in fields.responses]
        pieces = [f"{prompt} AS prompt"]
        if len(sides) == len(SIDES):
            pieces += [f"{side} AS {role}" for side, role in zip(sides, SIDES, strict=True)]
        else:
            pieces.append(f"[{', '.join(sides)}] AS responses")
        return ", ".join([*pieces, *self.further(seen, listed=len(sides) != len(SIDES))])

    def further(self, seen: Seen, *, listed: bool) -> list[str]:
        """Pieces of a SELECT list: other fields that were named, and what is carried for features,
        which stands in one list for all responses where these are `listed`.
        """
        kind = "ranking" if listed else "pairs"
        carried = [c for one in seen.reading.features for c in seen.reading.carried(one, kind)]
        taken = {"prompt", "responses", *SIDES}
        named = [name for role, name in seen.reading.columns.items() if role not in taken]
        others = {name: sql if listed else text(sql) for name, sql in self.others.items()}
        found = {**others, **self.fields}
        return [
            f"{found[name]} AS {identifier(name)}"
            for name in dict.fromkeys((*named, *carried))
            if name in found and name not in taken
        ]


def refuse_named(seen: Seen, tool: str, roles: Collection[str]) -> None:
    """Raise `InvalidLabels` if `--columns` names a role that the export itself tells."""
    for role in roles:
        if role in seen.reading.columns:
            raise InvalidLabels(
                f"{seen.part}: --columns names {role}, which an export of {tool} tells itself; "
                "leave it out"
            )


def refuse_answers(seen: Seen, tool: str, is_answer: Callable[[str, str], bool]) -> None:
    """Raise `InvalidLabels` if `--columns` gives a role a column (role, column) that is an answer,
    or features read one.

    What was answered is private, and the columns of all roles but the label are published.
    """
    carried = {name: name for name in seen.reading.all_carried()}
    for role, name in {**carried, **seen.reading.columns}.items():
        if role not in ANSWERS and seen.has(name) and is_answer(role, name):
            raise InvalidLabels(
                f"{seen.part}: {role}={name} is asked for, but in an export of {tool} that "
                f"column may be an answer, which is private; leave it out, or if it is none, "
                f"rename it to {role}"
            )


def question(
    seen: Seen, names: Sequence[str], noun: str = "question", *, columns: bool = True
) -> str:
    """The question that is read: the one there is, or that `--question` picks.

    Raises `NotAnswered` if there is none of that name, or none at all. Names are shown where they
    are those of `columns`. Others stand in answers, into which an account writes what it likes.
    """
    asked = seen.reading.question
    if asked is not None and asked not in names:
        known = f"{suggest(asked, tuple(names))}; found: {', '.join(names)}"
        raise NotAnswered(
            f"{seen.part}: no {noun} {asked!r}{known if columns else ' was answered'}"
        )
    if asked is None and len(names) != 1:
        if not names:
            raise NotAnswered(f"{seen.part}: no {noun} was answered in it")
        known = f" ({', '.join(names)})" if columns else ""
        raise InvalidLabels(f"{seen.part}: several {noun}s{known}; pick one with --question NAME")
    return asked or names[0]


def answered(
    seen: Seen, names: Callable[[], Sequence[str]], noun: str, *, all_there: bool = False
) -> str:
    """The question that is read, where `names` finds those that were answered at least once.

    Where blanks are private ties, which were answered follows from labels: then `--question` tells
    it, and nothing is looked for; but for columns that are `all_there`, answered or not.
    """
    if all_there or not seen.private_blanks:
        return question(seen, names(), noun, columns=all_there)
    if seen.reading.question is None:
        raise InvalidLabels(
            f"{seen.part}: with --skips tie, which {noun}s were answered is private and is not "
            f"looked at; name the {noun} with --question NAME"
        )
    return seen.reading.question


def shown(seen: Seen) -> str:
    """Return what messages call the question that is read: as it was named, never as answers do."""
    return seen.reading.question or "the answer"


def values(seen: Seen, fields: Fields, a: Sequence[str] = (), b: Sequence[str] = ()) -> LabelValues:
    """What answers mean: as `--label-values` has it; else the names of the two fields, and tie.

    `a` and `b` are the tool's own words for the two sides.
    """
    if seen.reading.values != DEFAULT:
        return seen.reading.values
    one, other = fields.responses[:2]
    own = {*a, *b, "tie"}
    return LabelValues(
        a=(*a, *(name for name in [one] if name not in own)),
        b=(*b, *(name for name in [other] if name not in own)),
        tie=("tie",),
    )


def refuse_lists(seen: Seen, fields: Fields, sides: str = "A and B") -> None:
    """Raise `InvalidLabels` where more than two responses are compared; `sides` are to be named."""
    if len(fields.responses) != len(SIDES):
        raise InvalidLabels(
            f"{seen.part}: fields {', '.join(fields.responses)} are more than two responses; name "
            f"{sides} with --columns response_a=NAME,response_b=NAME"
        )


def label(answer: str, fields: Fields, meaning: LabelValues) -> str:
    """SQL (text) of an answer (SQL of JSON) about two responses: a word, or a ranking of both."""
    first, second = (f"{ranks(answer, fields)}[{number}]" for number in (1, 2))
    tie = literal(meaning.tie[0]) if meaning.tie else "'equal ranks'"
    return f"""CASE WHEN coalesce(json_type({answer}), '') <> 'ARRAY' THEN {text(answer)}
        WHEN {first} < {second} THEN {literal(meaning.a[0])}
        WHEN {first} > {second} THEN {literal(meaning.b[0])}
        WHEN {first} = {second} THEN {tie}
        ELSE 'not a ranking of both' END"""


def ranks(answer: str, fields: Fields) -> str:
    """SQL of the rank of every response in a ranking (SQL of JSON): names in order, or with ranks.

    NULL where there is no answer; a response that is not ranked has none.
    """
    members = elements(answer)
    names = f"list_transform({members}, lambda e: coalesce(e->>'value', e->>'$'))"
    wanted = ", ".join(map(literal, fields.responses))
    place = f"list_position({names}, n)"
    rank = f"coalesce(try_cast({members}[{place}]->>'rank' AS DOUBLE), {place})"
    return (
        f"(CASE WHEN {text(answer)} IS NOT NULL "
        f"THEN list_transform([{wanted}], lambda n: {rank}) END)"
    )


def elements(value: str) -> str:
    """SQL of the elements (JSON) of a list, whatever its type."""
    return f"from_json(to_json({value}), '[\"JSON\"]')"


def text(value: str) -> str:
    """SQL of a JSON value as text; NULL for null."""
    return f"({value}->>'$')"


def pointer(name: str) -> str:
    """SQL of where a member of a JSON object stands."""
    return literal("/" + name.replace("~", "~0").replace("/", "~1"))


def _member(column: str, name: str, kind: Any) -> str:
    """SQL of a member of a JSON object: text, a chat, or JSON as it is."""
    where = pointer(name)
    if not isinstance(kind, list | dict):
        return f"json_extract_string({column}, {where})"
    value = f"json_extract({column}, {where})"
    try:
        content = canonical.content_of_structures([kind])
    except NotContent:
        return value  # no content: whoever needs one refuses it
    return f"from_json({value}, {literal(canonical.json_type(content))})"


@dataclass(frozen=True)
class Fields:
    """The field of the prompt, and those of two or more responses, the first of them being A."""

    prompt: str
    responses: tuple[str, ...]

    def names(self, **others: str) -> dict[str, str]:
        """What messages call the roles of these fields, and `others`."""
        sides = self.responses if len(self.responses) == len(SIDES) else ()
        return {"prompt": self.prompt, **dict(zip(SIDES, sides, strict=False)), **others}


def fields(seen: Seen, names: Sequence[str]) -> Fields:
    """The prompt and the responses among the `names` of a task's fields.

    What `--columns` names is taken first, then what is called like a role, then names that leave no
    doubt. Raises `InvalidLabels` where there is none, or several could be meant.
    """
    named = seen.reading.columns
    for role in ("prompt", *SIDES):
        if role in named and named[role] not in names:
            raise InvalidLabels(
                f"{seen.part}: no field {named[role]!r} (given for {role})"
                f"{suggest(named[role], tuple(names))}; found: {', '.join(names)}"
            )
    return Fields(prompt(seen, names), _responses(seen, names))


def prompt(seen: Seen, names: Sequence[str]) -> str:
    """The prompt among the `names` of a task's fields. Raises `InvalidLabels` as `fields` does."""
    if "prompt" in seen.reading.columns:
        return seen.reading.columns["prompt"]
    found = ["prompt"] if "prompt" in names else [n for n in names if n.lower() in PROMPTS]
    if len(found) == 1:
        return found[0]
    problem = f"fields {' and '.join(found)} may be the prompt" if found else "no field is a prompt"
    raise InvalidLabels(
        f"{seen.part}: {problem}; name it with --columns prompt=NAME; found: {', '.join(names)}"
    )


def _responses(seen: Seen, names: Sequence[str]) -> tuple[str, ...]:
    named = seen.reading.columns
    if any(role in named for role in SIDES):
        if not set(SIDES) <= set(named):
            raise InvalidLabels(f"{seen.part}: --columns must name both response_a and response_b")
        return tuple(named[role] for role in SIDES)
    found = [SIDES] if set(SIDES) <= set(names) else families(names)
    if len(found) == 1:
        return found[0]
    said = " or ".join(f"({', '.join(family)})" for family in found)
    problem = f"fields {said} may be the responses" if found else "no two fields are responses"
    raise InvalidLabels(
        f"{seen.part}: {problem}; name them with --columns response_a=NAME,response_b=NAME; "
        f"found: {', '.join(names)}"
    )
