"""Format v1: the canonical bytes of prompts, responses and items, as SQL expressions.

`docs/format.md` is the specification with test vectors. In short:

- text is encoded `t<bytes>:<UTF-8>` and a chat `c<bytes>:<JSON>`, where the JSON has sorted keys,
  no spaces, no null or empty members, and whole numbers without a fraction: prefix-free, so that
  concatenations cannot be confused;
- the responses of an item are sorted by these encodings, whatever order they came in, and the
  label is mapped along: nothing later can depend on which side was preferred;
- an item's digest is SHA-256 of the encoded prompt and the sorted encoded responses, or of the
  given item id; where several questions are asked about a pair, SHA-256 of the question and that.

Nothing is normalised: two texts are one item only if their bytes are equal. The encoding of a
value does not depend on the type of its column, which other rows may have decided.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import TypeAlias

from duckdb.sqltypes import DuckDBPyType

from labelguard.ingest.sql import identifier, literal

ITEM_TAG = "labelguard/item/1:"
ID_TAG = "labelguard/id/1:"
QUESTION_TAG = "labelguard/question/1:"
GROUP_TAG = "labelguard/ranking/1:"

ContentType: TypeAlias = "str | list[ContentType] | dict[str, ContentType] | None"
"""What a content column holds: a SQL type, a list, a struct, or nothing yet (only nulls)."""

INTEGERS = ("tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger")
LARGE_INTEGERS = ("ubigint", "hugeint", "uhugeint")
FRACTIONS = ("float", "double", "decimal")
_NUMBERS = ("BIGINT", "HUGEINT", "DOUBLE")
_JSON_TYPES: dict[object, ContentType] = {
    "NULL": None,
    "BOOLEAN": "BOOLEAN",
    "BIGINT": "BIGINT",
    "UBIGINT": "HUGEINT",
    "HUGEINT": "HUGEINT",
    "UHUGEINT": "HUGEINT",
    "DOUBLE": "DOUBLE",
    "VARCHAR": "VARCHAR",
}
_TEXTS = ("varchar", "enum", "uuid", "date", "time", "timestamp", "interval")


class NoContent(Exception):
    """A type that is neither text nor a chat with a canonical form, or types that do not agree."""


def is_text(kind: DuckDBPyType) -> bool:
    """Whether a column holds plain text."""
    return kind.id in ("varchar", "enum") and str(kind) != "JSON"


def element(kind: DuckDBPyType) -> DuckDBPyType:
    """The type of a list's elements."""
    child = kind.children[0][1]
    assert isinstance(child, DuckDBPyType)
    return child


def content_type(kinds: Iterable[DuckDBPyType]) -> ContentType:
    """The one type of several text columns, or of several chat columns; else `NoContent`."""
    # A column that says nothing goes with any other: whether one does may follow from the labels.
    kinds = [kind for kind in kinds if kind.id != "null"]
    if all(is_text(kind) for kind in kinds):
        return "VARCHAR"
    if not all(kind.id in ("list", "array") for kind in kinds):
        raise NoContent
    content = merged(_content_type(kind) for kind in kinds)
    message = content[0] if isinstance(content, list) else None
    if not isinstance(message, dict) or not {"role", "content"} <= set(message):
        raise NoContent
    return content


def merged(contents: Iterable[ContentType]) -> ContentType:
    """The type that holds every value of all of them; `NoContent` if there is none."""
    return reduce(_merge, contents)


def sql_type(content: ContentType, unknown: str = "VARCHAR") -> str:
    """Its type in SQL; `unknown` stands for lists that were always empty."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return f"{sql_type(content[0], unknown)}[]"
    if content:
        # In a fixed order: which column had a member first may follow from the labels.
        names = sorted(content, key=lambda name: (name != "role", name != "content", name))
        known = [name for name in names if content[name] is not None] or names
        members = (f"{identifier(name)} {sql_type(content[name], unknown)}" for name in known)
        return f"STRUCT({', '.join(members)})"
    return unknown


def structure(column: str, rows: str) -> str:
    """SQL of what `json_group_structure` finds in a column (JSON) of the rows of a SELECT.

    One row of each structure is enough, and all that fits into memory: the aggregate keeps whole
    documents. Their order is not that of the rows.
    """
    alike = f"SELECT {column} AS v, json_structure({column})::VARCHAR AS s FROM ({rows})"
    return (
        "SELECT json_group_structure(v) "
        f"FROM (SELECT any_value(v) AS v, s FROM ({alike}) GROUP BY s ORDER BY s)"
    )


def type_of_json(structure: object) -> ContentType:
    """The type of what DuckDB's `json_group_structure` found; empty objects tell nothing."""
    if isinstance(structure, list):
        return [type_of_json(structure[0]) if structure else None]
    if isinstance(structure, dict):
        members = _distinct({name: type_of_json(child) for name, child in structure.items()})
        return members if any(child is not None for child in members.values()) else None
    if structure not in _JSON_TYPES:
        raise NoContent
    return _JSON_TYPES[structure]


def encoded(expression: str, content: ContentType) -> str:
    """SQL for the canonical encoding of a text or chat; NULL where it or a message is null, or a
    chat has no message. An empty text is a text.
    """
    if isinstance(content, list):
        complete = f"len({expression}) > 0 AND list_count({expression}) = len({expression})"
        body = f"CASE WHEN {complete} THEN {_json(expression, content)} END"
        return f"('c' || strlen({body}) || ':' || {body})"
    # One concat() copies once; a chain of || copies at every step.
    return (
        f"CASE WHEN {expression} IS NOT NULL "
        f"THEN concat('t', strlen({expression}), ':', {expression}) END"
    )


def plain_text(expression: str, content: ContentType) -> str:
    """SQL for the words of a text or chat (VARCHAR): roles, names and JSON left out, '' if none."""
    if isinstance(content, list) and isinstance(content[0], dict) and "content" in content[0]:
        said = _words("m.content", content[0]["content"])
        return f"array_to_string(list_transform({expression}, lambda m: {said}), '')"
    return _words(expression, content)


def item_digest(encoded_prompt: str, sorted_responses: str) -> str:
    """SQL for an item's 32-byte digest, from SQL of its encodings (responses between commas)."""
    return f"unhex(sha256(concat('{ITEM_TAG}', {encoded_prompt}, {sorted_responses})))"


def id_digest(tag: str, expression: str) -> str:
    """SQL for the 32-byte digest of a given identifier (a VARCHAR expression)."""
    return f"unhex(sha256('{tag}' || 't' || strlen({expression}) || ':' || {expression}))"


def question_digest(question: str, digest: str) -> str:
    """SQL for the 32-byte digest of an item under a question (a VARCHAR expression), from SQL of
    the item's own.
    """
    asked = f"concat('{QUESTION_TAG}', 't', strlen({question}), ':', {question})"
    return f"unhex(sha256(encode({asked}) || {digest}))"


def id_under_question(item_id: str, question: str) -> str:
    """SQL for the name of a given item under a question (VARCHAR expressions): `ID#QUESTION`."""
    parts = (f"replace(replace({x}, '%', '%25'), '#', '%23')" for x in (item_id, question))
    return f"({' || chr(35) || '.join(parts)})"


def _content_type(kind: DuckDBPyType) -> ContentType:
    if kind.id == "null":
        return None
    if kind.id in ("list", "array"):
        child = element(kind)  # JSON is what DuckDB guesses for lists that are all empty.
        return [None if str(child) == "JSON" else _content_type(child)]
    if kind.id == "struct":
        members = [
            (name, child) for name, child in kind.children if isinstance(child, DuckDBPyType)
        ]
        return {name: _content_type(child) for name, child in members}
    if kind.id in INTEGERS or kind.id in LARGE_INTEGERS:
        return "BIGINT" if kind.id in INTEGERS else "HUGEINT"
    if kind.id in FRACTIONS:
        return "DOUBLE"
    if kind.id == "boolean":
        return "BOOLEAN"
    if kind.id.startswith(_TEXTS) and str(kind) != "JSON":
        return "VARCHAR"
    raise NoContent


def _merge(one: ContentType, other: ContentType) -> ContentType:
    if one is None or other is None or one == other:
        return other if one is None else one
    if isinstance(one, list) and isinstance(other, list):
        return [_merge(one[0], other[0])]
    if isinstance(one, dict) and isinstance(other, dict):
        both = {name: _merge(child, other.get(name)) for name, child in one.items()}
        return _distinct(other | both)
    if isinstance(one, str) and isinstance(other, str) and {one, other} <= set(_NUMBERS):
        return max(one, other, key=_NUMBERS.index)
    raise NoContent


def _distinct(members: dict[str, ContentType]) -> dict[str, ContentType]:
    """The members of an object, unless DuckDB would take two of them for one: `Id` and `id`."""
    if len({name.lower() for name in members}) < len(members):
        raise NoContent
    return members


def _json(expression: str, content: ContentType, depth: int = 0) -> str:
    """SQL for canonical JSON of a value that is not null."""
    if isinstance(content, list):
        name = f"x{depth}"
        inner = _json(name, content[0], depth + 1)
        items = f"list_transform({expression}, lambda {name}: coalesce({inner}, 'null'))"
        return f"('[' || array_to_string({items}, ',') || ']')"
    if isinstance(content, dict):
        members = [
            f"CASE WHEN {field} IS NOT NULL THEN {key} || {_json(field, child, depth)} END"
            for field, key, child in (
                (
                    f"struct_extract({expression}, {literal(name)})",
                    f"to_json({literal(name)})::VARCHAR || ':'",
                    child,
                )
                for name, child in sorted(content.items())
                if child is not None
            )
        ]
        if not members:
            return "NULL::VARCHAR"
        # An object without members is as good as none: a column where it is always empty has no
        # type for it, and whether it always is may follow from the labels.
        body = f"nullif('{{' || concat_ws(',', {', '.join(members)}) || '}}', '{{}}')"
        return f"CASE WHEN {expression} IS NOT NULL THEN {body} END"
    if content == "DOUBLE":
        whole = f"{expression} = trunc({expression}) AND abs({expression}) < 9007199254740992"
        number = f"CASE WHEN {whole} THEN to_json({expression}::BIGINT) "
        return f"({number} ELSE to_json({expression}) END)::VARCHAR"
    return f"to_json({expression})::VARCHAR"


def _words(expression: str, content: ContentType, depth: int = 0) -> str:
    """SQL for all text within a value, in the order of the canonical JSON; '' for null."""
    if content is None:
        return "''"
    if isinstance(content, list):
        name = f"w{depth}"
        inner = _words(name, content[0], depth + 1)
        return (
            f"coalesce(array_to_string(list_transform({expression}, lambda {name}: {inner}), ''), "
            "'')"
        )
    if isinstance(content, dict):
        members = [
            _words(f"struct_extract({expression}, {literal(name)})", child, depth)
            for name, child in sorted(content.items())
            if name not in ("role", "type")
        ]
        return f"concat({', '.join(members)})" if members else "''"
    # Not the column's way to write a number: other rows may have decided its type.
    said = expression if content == "VARCHAR" else _json(expression, content)
    return f"coalesce({said}, '')"
