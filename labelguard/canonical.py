"""Format v1: the canonical bytes of prompts, responses and items, as SQL expressions.

`docs/format.md` is the specification with test vectors. In short:

- text is encoded `t<bytes>:<UTF-8>` and a chat `c<bytes>:<JSON>`, where the JSON has sorted keys,
  no spaces and no null members: prefix-free, so that concatenations cannot be confused;
- the responses of an item are sorted by these encodings, whatever order they came in, and the
  label is mapped along: nothing later can depend on which side was preferred;
- an item's digest is SHA-256 of the encoded prompt and the sorted encoded responses, or of the
  given item id.

Nothing is normalised: two texts are one item only if their bytes are equal.
"""

from __future__ import annotations

from duckdb.sqltypes import DuckDBPyType

from labelguard.errors import InvalidLabels

ITEM_TAG = "labelguard/item/1:"
ID_TAG = "labelguard/id/1:"
GROUP_TAG = "labelguard/ranking/1:"


def is_text(kind: DuckDBPyType) -> bool:
    """Whether a column holds plain text."""
    return kind.id in ("varchar", "enum")


def is_chat(kind: DuckDBPyType) -> bool:
    """Whether a column holds chats: lists of messages."""
    return kind.id in ("list", "array") and element(kind).id == "struct"


def element(kind: DuckDBPyType) -> DuckDBPyType:
    """The type of a list's elements."""
    child = kind.children[0][1]
    assert isinstance(child, DuckDBPyType)
    return child


def encoded(expression: str, kind: DuckDBPyType) -> str:
    """SQL for the canonical encoding of a text or chat column; NULL where it is null or empty."""
    if is_chat(kind):
        body = f"CASE WHEN len({expression}) > 0 THEN {_json(expression, kind)} END"
        return f"('c' || strlen({body}) || ':' || {body})"
    text = f"nullif({expression}::VARCHAR, '')"
    return f"('t' || strlen({text}) || ':' || {text})"


def item_digest(encoded_prompt: str, sorted_responses: str) -> str:
    """SQL for an item's 32-byte digest; both arguments are SQL of canonical encodings."""
    return f"unhex(sha256('{ITEM_TAG}' || {encoded_prompt} || {sorted_responses}))"


def id_digest(tag: str, expression: str) -> str:
    """SQL for the 32-byte digest of a given identifier (a VARCHAR expression)."""
    return f"unhex(sha256('{tag}' || 't' || strlen({expression}) || ':' || {expression}))"


def _json(expression: str, kind: DuckDBPyType, depth: int = 0) -> str:
    """SQL for canonical JSON of a value that is not null."""
    if kind.id in ("list", "array"):
        name = f"x{depth}"
        inner = _json(name, element(kind), depth + 1)
        items = f"list_transform({expression}, lambda {name}: coalesce({inner}, 'null'))"
        return f"('[' || array_to_string({items}, ',') || ']')"
    if kind.id == "struct":
        members = [
            f"CASE WHEN {field} IS NOT NULL THEN {key} || {_json(field, child, depth)} END"
            for field, key, child in (
                (
                    f"struct_extract({expression}, {_literal(name)})",
                    f"to_json({_literal(name)})::VARCHAR || ':'",
                    child,
                )
                for name, child in sorted(kind.children)
                if isinstance(child, DuckDBPyType)
            )
        ]
        body = f"'{{' || concat_ws(',', {', '.join(members)}) || '}}'"
        return f"CASE WHEN {expression} IS NOT NULL THEN {body} END"
    if kind.id in ("map", "union", "blob", "variant"):
        raise InvalidLabels(f"a chat message holds a {kind}, which has no canonical form")
    return f"to_json({expression})::VARCHAR"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
