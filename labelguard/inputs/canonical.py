"""Format v1: the canonical bytes of prompts, responses and items, as SQL expressions.

`docs/format.md` is the specification with test vectors. In short:

- content is text, or a chat: a list of messages {role, content, name?, tool_calls?} whose content
  is text or a list of parts {type: text, text} or {type: image_url, url}. Everything in it is text,
  so no value is read, cast or printed by the type of the column it stands in, and which side was
  chosen cannot show;
- text is encoded `t<bytes>:<UTF-8>` and a chat `c<bytes>:<JSON>`, where the JSON has sorted keys,
  no spaces and no null members: prefix-free, so that concatenations cannot be confused;
- the responses of an item are sorted by these encodings, whatever order they came in, and the
  label is mapped along: nothing later can depend on which side was preferred;
- an item's digest is SHA-256 of the encoded prompt and the sorted encoded responses, or of the
  given item id; where several questions are asked about a pair, SHA-256 of the question and that.

Nothing is normalised: two texts are one item only if their bytes are equal.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from duckdb.sqltypes import DuckDBPyType

from labelguard.errors import InvalidLabels
from labelguard.storage import blocks
from labelguard.storage.blocks import Blocks

if TYPE_CHECKING:
    import polars as pl

ITEM_TAG = "labelguard/item/1:"
ID_TAG = "labelguard/id/1:"
QUESTION_TAG = "labelguard/question/1:"
GROUP_TAG = "labelguard/ranking/1:"

INTEGERS = ("tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger")
LARGE_INTEGERS = ("ubigint", "hugeint", "uhugeint")
FRACTIONS = ("float", "double", "decimal")

# Members of a message beside `role` and `content`.
_OPTIONAL = ("name", "tool_calls")
_VARCHAR = "VARCHAR"
# The member of a part that is no text.
_IMAGES = "url"


class NotContent(Exception):
    """A type that is neither text nor a chat, or types of which one is text and one is not."""


@dataclass(frozen=True)
class Content:
    """The type of prompts and responses: text, or a chat.

    `parts` says whether the content of messages is a list of parts, None where no message has any
    content; `members` are the optional ones that are there, of messages and of parts.
    """

    chat: bool = False
    parts: bool | None = None
    members: frozenset[str] = frozenset()


TEXT = Content()


def build_content_error(where: str) -> InvalidLabels:
    """Return the error for prompts and responses outside the language of content."""
    return InvalidLabels(
        f"{where}: prompts and responses must be all text, or all chats (messages of role, "
        "content, name and tool_calls, whose content is text or parts of text and image_url), "
        "without numbers, times or other members; see docs/formats.md#chats"
    )


def is_text(kind: DuckDBPyType) -> bool:
    """Return whether a column holds plain text."""
    return kind.id in ("varchar", "enum") and str(kind) != "JSON"


def find_element_type(kind: DuckDBPyType) -> DuckDBPyType:
    """Return the type of a list's elements."""
    child = kind.children[0][1]
    assert isinstance(child, DuckDBPyType)
    return child


def find_content_of_types(kinds: Iterable[DuckDBPyType]) -> Content:
    """Return what columns of these types hold together; raise `NotContent` for anything else.

    Types may differ in optional members and in members that are always null: which column has one
    may follow from the labels, and everything in a chat is text whatever the column says.
    """
    return _merge_shapes(map(_shape_type, kinds))


def find_content_of_structures(structures: Iterable[object]) -> Content:
    """Return the same for the structures that DuckDB's `json_structure` finds in JSON values."""
    return _merge_shapes(map(_shape_structure, structures))


def find_content_of_conversations(kinds: Iterable[DuckDBPyType]) -> Content:
    """Return the same for published conversations, without members that no chat has."""
    return _merge_shapes(keep_chat_members(_shape_type(kind)) for kind in kinds)


def _merge_shapes(shapes: Iterable[object]) -> Content:
    return merge_content_types(_parse_shape(shape) for shape in shapes if shape is not None)


def keep_chat_members(structure: object) -> object:
    """Return a structure without members that no chat has: published conversations have others.

    What is left out is not read, so its type and its values make no difference.
    """
    if isinstance(structure, list):
        return [keep_chat_members(child) for child in structure]
    if not isinstance(structure, dict):
        return structure
    known = ("role", "content", *_OPTIONAL, "type", "text", _IMAGES)
    return {name: keep_chat_members(structure[name]) for name in known if name in structure}


def merge_content_types(contents: Iterable[Content]) -> Content:
    """Return the content that holds every value of all of them, text if there is none."""
    types = list(contents)
    return reduce(_merge_alike_contents, types) if types else TEXT


def content_type_sql(content: Content) -> str:
    """Return its type in SQL, with members in a fixed order."""
    return _shape_sql(build_shape(content))


def build_content_sql(value: str, kind: DuckDBPyType, shape: Any, level: int = 0) -> str:
    """Return SQL of a value of this type, which was checked whole, as one of `shape`.

    It is built of members by their places: a cast would find them by name, without case.
    """
    if kind.id == "null" or str(kind) == _shape_sql(shape):
        return value if kind.id != "null" else f"NULL::{_shape_sql(shape)}"
    if isinstance(shape, list):
        element = f"e{level}"
        inner = build_content_sql(element, find_element_type(kind), shape[0], level + 1)
        return f"list_transform({value}, lambda {element}: {inner})"
    if isinstance(shape, dict):
        return pack_members_sql(
            shape,
            {
                name: build_content_sql(
                    f"struct_extract_at({value}, {place})", child, shape[name], level
                )
                for place, (name, child) in enumerate(kind.children, 1)
                if name in shape and isinstance(child, DuckDBPyType)
            },
        )
    return f"{value}::{_VARCHAR}"


def pack_members_sql(shape: Mapping[str, Any], members: Mapping[str, str]) -> str:
    """Return SQL of an object of `shape` from SQL of its members; those that lack are null."""
    pieces = (
        f"'{name}': {members.get(name, f'NULL::{_shape_sql(kind)}')}"
        for name, kind in shape.items()
    )
    return f"{{{', '.join(pieces)}}}"


def _shape_sql(shape: Any) -> str:
    if isinstance(shape, list):
        return f"{_shape_sql(shape[0])}[]"
    if isinstance(shape, dict):
        members = ", ".join(f'"{name}" {_shape_sql(kind)}' for name, kind in shape.items())
        return f"STRUCT({members})"
    return str(shape)


def content_type_json(content: Content) -> str:
    """Return the same as `from_json` takes it, which fills in and leaves out what is null."""
    return json.dumps(build_shape(content))


def build_shape(content: Content) -> Any:
    """Return the type as nested lists and objects, the inverse of `_parse_shape`."""
    if not content.chat:
        return _VARCHAR
    part = dict.fromkeys(["type", "text", *({_IMAGES} & content.members)], _VARCHAR)
    more = {name: _VARCHAR for name in _OPTIONAL if name in content.members}
    return [{"role": _VARCHAR, "content": [part] if content.parts else _VARCHAR, **more}]


def structure_sql(column: str, rows: str) -> str:
    """Return SQL of what `json_group_structure` finds in a column (JSON) of the rows of a SELECT.

    One row of each structure is enough, and all that fits into memory: the aggregate keeps whole
    documents. Their order is not that of the rows.
    """
    alike = f"SELECT {column} AS v, json_structure({column})::VARCHAR AS s FROM ({rows})"
    return (
        "SELECT json_group_structure(v) "
        f"FROM (SELECT any_value(v) AS v, s FROM ({alike}) GROUP BY s ORDER BY s)"
    )


def encode_sql(expression: str, content: Content) -> str:
    """Return SQL for the canonical encoding of a text or chat; NULL where there is none.

    An empty text has one. Null has none, nor has a chat without messages, or with a message that is
    null or lacks its role, or with a part that is neither text nor an image.
    """
    if content.chat:
        messages = f"list_transform({expression}, lambda m: {_message_json_sql(content)})"
        sound = _all_elements_sql(expression, "m", _is_sound_message_sql(content))
        body = (
            f"CASE WHEN len({expression}) > 0 AND {sound} "
            f"THEN '[' || array_to_string({messages}, ',') || ']' END"
        )
        return f"('c' || strlen({body}) || ':' || {body})"
    # One concat() copies once; a chain of || copies at every step.
    return (
        f"CASE WHEN {expression} IS NOT NULL "
        f"THEN concat('t', strlen({expression}), ':', {expression}) END"
    )


def plain_text_sql(expression: str, content: Content) -> str:
    """Return SQL for the words of a text or chat (VARCHAR), '' if there are none.

    Only what is said: roles, names, tool calls and addresses of images are left out, because an
    exporter may write other ones every night.
    """
    if not content.chat:
        return f"coalesce({expression}, '')"

    def join_list_sql(items: str, name: str, words: str) -> str:
        return f"coalesce(array_to_string(list_transform({items}, lambda {name}: {words}), ''), '')"

    words = "coalesce(m.content, '')"
    if content.parts:
        words = join_list_sql("m.content", "p", "coalesce(p.\"text\", '')")
    return join_list_sql(expression, "m", words)


def item_digest_sql(encoded_prompt: str, sorted_responses: str) -> str:
    """Return SQL for an item's 32-byte digest, from SQL of its encodings."""
    return f"unhex(sha256(concat('{ITEM_TAG}', {encoded_prompt}, {sorted_responses})))"


def id_digest_sql(tag: str, expression: str) -> str:
    """Return SQL for the 32-byte digest of a given identifier (a VARCHAR expression)."""
    return f"unhex(sha256('{tag}' || 't' || strlen({expression}) || ':' || {expression}))"


def question_digest_sql(question: str, digest: str) -> str:
    """Return SQL for the 32-byte digest of an item (SQL of its own digest) under a question."""
    encoded = f"concat('{QUESTION_TAG}', 't', strlen({question}), ':', {question})"
    return f"unhex(sha256(encode({encoded}) || {digest}))"


def id_under_question_sql(item_id: str, question: str) -> str:
    """Return SQL for the name of a given item under a question: `ID#QUESTION`."""
    parts = (f"replace(replace({x}, '%', '%25'), '#', '%23')" for x in (item_id, question))
    return f"({' || chr(35) || '.join(parts)})"


def _shape_type(kind: DuckDBPyType) -> object:
    """Return a type as nested lists and objects, with None for what is always null."""
    if kind.id == "null":
        return None
    if is_text(kind):
        return _VARCHAR
    if kind.id in ("list", "array"):
        return [_shape_type(find_element_type(kind))]
    if kind.id == "struct":
        children = ((n, child) for n, child in kind.children if isinstance(child, DuckDBPyType))
        return {name: _shape_type(child) for name, child in children}
    return str(kind)


def _shape_structure(structure: object, member: str = "") -> object:
    """Return the same of what `json_structure` found; tool calls are text whatever is in them."""
    if structure == "NULL":
        return None
    if member == "tool_calls":
        return _VARCHAR
    if isinstance(structure, list):
        return [_shape_structure(child) for child in structure]
    if isinstance(structure, dict):
        return {name: _shape_structure(child, name) for name, child in structure.items()}
    return structure


def _parse_shape(shape: object) -> Content:
    """Return the content of a shape: the grammar of the language of content."""
    if shape == _VARCHAR:
        return TEXT
    if not isinstance(shape, list):
        raise NotContent
    message = shape[0] if shape else None
    if message is None:
        return Content(chat=True)
    content, members = _parse_content_and_members(message, ("role", "content"), _OPTIONAL)
    if not isinstance(content, list):
        if content not in (None, _VARCHAR):
            raise NotContent
        return Content(True, None if content is None else False, members)
    part = content[0] if content else None
    if part is not None:
        _, images = _parse_content_and_members(part, ("type",), ("text", _IMAGES))
        members |= images - {"text"}
    return Content(True, True, members)


def _parse_content_and_members(
    shape: object, required: Collection[str], optional: Collection[str]
) -> tuple[object, frozenset[str]]:
    """Return the shape of `content` in an object, and which optional members it has."""
    if not isinstance(shape, dict) or not set(required) <= set(shape):
        raise NotContent
    known = {name: child for name, child in shape.items() if child is not None}
    content = known.pop("content", None) if "content" in required else None
    if set(known) - {*required, *optional} or any(child != _VARCHAR for child in known.values()):
        raise NotContent
    return content, frozenset(known) - frozenset(required)


def _merge_alike_contents(first: Content, second: Content) -> Content:
    parts = {first.parts, second.parts} - {None}
    if first.chat != second.chat or len(parts) > 1:
        raise NotContent
    return Content(first.chat, next(iter(parts), None), first.members | second.members)


def _is_sound_message_sql(content: Content) -> str:
    """Return SQL of whether a message `m` has its role, and no part but texts and images."""
    sound = "m.role IS NOT NULL"
    if content.parts:
        part = "p.type = 'text' AND p.text IS NOT NULL"
        if _IMAGES in content.members:
            image = f"p.type = 'image_url' AND p.{_IMAGES} IS NOT NULL AND p.text IS NULL"
            part = f"({part} AND p.{_IMAGES} IS NULL OR {image})"
        sound += f" AND (m.content IS NULL OR {_all_elements_sql('m.content', 'p', part)})"
    return sound


def _all_elements_sql(items: str, name: str, condition: str) -> str:
    """Return SQL of whether all elements of a list meet a condition; a null one does not."""
    return f"len(list_filter({items}, lambda {name}: {condition})) = len({items})"


def _message_json_sql(content: Content) -> str:
    """Return SQL for canonical JSON of a message `m`."""
    words = _json_string_sql("m.content")
    if content.parts:
        names = ("text", "type", *({_IMAGES} & content.members))
        part = _json_object_without_nulls_sql(
            {name: (f"p.{name}", _json_string_sql(f"p.{name}")) for name in names}
        )
        words = f"'[' || array_to_string(list_transform(m.content, lambda p: {part}), ',') || ']'"
    names = ("role", *(content.members & set(_OPTIONAL)))
    members = {name: (f"m.{name}", _json_string_sql(f"m.{name}")) for name in names}
    return _json_object_without_nulls_sql(members | {"content": ("m.content", words)})


def _json_object_without_nulls_sql(members: Mapping[str, tuple[str, str]]) -> str:
    """Return SQL for a JSON object without nulls, from SQL of each member's value and its JSON."""
    pieces = (
        f"CASE WHEN {value} IS NOT NULL THEN '\"{name}\":' || {text} END"
        for name, (value, text) in sorted(members.items())
    )
    return f"'{{' || concat_ws(',', {', '.join(pieces)}) || '}}'"


def _json_string_sql(text: str) -> str:
    return f"to_json({text})::VARCHAR"


_INVISIBLE = r"[\s\p{Z}\p{C}\p{Default_Ignorable_Code_Point}\x{2800}]"


def normalize_words(texts: pa.Array) -> pa.Array:
    """Return words as they are compared: one form for all ways to write them, shape (n,)."""
    import polars as pl

    composed = _normalize_unicode(pl.Series(texts.cast(pa.large_string())))
    # Capitals, because they are fewer: ß and ss, and the three Greek sigmas, become one. By way of
    # small letters, because there is a capital ß; and NFKC writes some marks with a space.
    capitals = composed.str.to_lowercase().str.to_uppercase()
    return _normalize_unicode(capitals).to_arrow()


def _normalize_unicode(texts: pl.Series) -> pl.Series:
    import polars as pl

    visible = texts.str.replace_all(_INVISIBLE, "").to_arrow()
    return pl.Series(pc.utf8_normalize(visible.cast(pa.large_string()), "NFKC"))


def digest_content_units(sides: pa.ListArray, connection: duckdb.DuckDBPyConnection) -> Blocks:
    """Return each row's unit, from the words of its sides (a list of texts a row), shape (n, 2).

    The first 16 bytes of SHA-256 over the sorted distinct SHA-256 of the sides' normal forms.
    """
    flat = normalize_words(sides.flatten()).cast(pa.large_string())
    ends = pc.subtract(sides.offsets, sides.offsets[0]).cast(pa.int64())
    table = pa.table({"sides": pa.LargeListArray.from_arrays(ends, flat)})
    digests = (
        connection.cursor()
        .from_arrow(table)
        .project(
            "unhex(sha256(array_to_string(list_sort(list_distinct(list_transform(sides, "
            "lambda words: sha256(words)))), ''))) AS digest"
        )
    )
    digest = digests.to_arrow_table()["digest"].combine_chunks().cast(pa.binary(32))
    return blocks.from_bytes(b"".join(digest.to_pylist()), 32)
