"""Format v1: the canonical bytes of prompts, responses and items, as SQL expressions.

`docs/format.md` is the specification with test vectors. In short:

- content is text or a chat (`labelguard.inputs.chats`), whichever way a file spells it;
- text is encoded `t<bytes>:<UTF-8>` and a chat `c<bytes>:<JSON>`, where the JSON has sorted keys,
  no spaces and no null members: prefix-free, so that concatenations cannot be confused;
- the responses of an item are sorted by these encodings, whatever order they came in, and the
  label is mapped along: nothing later can depend on which side was preferred;
- an item's digest is SHA-256 of the encoded prompt and the sorted encoded responses, or of the
  given item id; where several questions are asked about a pair, SHA-256 of the question and that.

Nothing is normalised: two texts are one item only if their bytes are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from labelguard.inputs.chats import IMAGE, OPTIONAL, Content
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


def _is_sound_message_sql(content: Content) -> str:
    """Return SQL of whether a message `m` has its role, and no part but texts and images."""
    sound = "m.role IS NOT NULL"
    if content.parts:
        part = "p.type = 'text' AND p.text IS NOT NULL"
        if IMAGE in content.members:
            image = f"p.type = 'image_url' AND p.{IMAGE} IS NOT NULL AND p.text IS NULL"
            part = f"({part} AND p.{IMAGE} IS NULL OR {image})"
        sound += f" AND (m.content IS NULL OR {_all_elements_sql('m.content', 'p', part)})"
    return sound


def _all_elements_sql(items: str, name: str, condition: str) -> str:
    """Return SQL of whether all elements of a list meet a condition; a null one does not."""
    return f"len(list_filter({items}, lambda {name}: {condition})) = len({items})"


def _message_json_sql(content: Content) -> str:
    """Return SQL for canonical JSON of a message `m`."""
    words = _json_string_sql("m.content")
    if content.parts:
        names = ("text", "type", *({IMAGE} & content.members))
        part = _json_object_without_nulls_sql(
            {name: (f"p.{name}", _json_string_sql(f"p.{name}")) for name in names}
        )
        words = f"'[' || array_to_string(list_transform(m.content, lambda p: {part}), ',') || ']'"
    if content.strings:  # one text part is that text, however it is spelled
        only = "len(m.content) = 1 AND m.content[1].type = 'text'"
        words = f"CASE WHEN {only} THEN {_json_string_sql('m.content[1].text')} ELSE {words} END"
    names = ("role", *(content.members & set(OPTIONAL)))
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
