"""Battles of two models: Chatbot Arena and MT-bench (two conversations, a winner, a judge)."""

from __future__ import annotations

from duckdb.sqltypes import DuckDBPyType

from labelguard.budget.label_values import LabelValues
from labelguard.inputs import canonical
from labelguard.inputs.canonical import Content, NotContent, is_text
from labelguard.inputs.columns import CONVERSATIONS, TableSchema
from labelguard.inputs.formats.base import (
    CONTENT_ROLES,
    ContentSql,
    Format,
    FormatQuery,
    select_pairs,
    split_off_shared_beginning,
    unify_contents,
)

# Columns that say who won: labels, whichever format a file is read as, and nothing else.
WINNERS = ("winner_model_a", "winner_model_b", "winner_tie")

_WINNER_VALUES = LabelValues(
    a=("model_a",),
    b=("model_b",),
    tie=("tie", "tie (bothbad)", "both_bad", "both bad", "bothbad"),
    skip=(),
)
_NO_JSON = "not JSON (a Python repr? write it with json.dumps), or no list of messages"
_JUDGES = ("judge", "judge_hash")
_PLAIN = Content(chat=True, parts=False)
_CHAT = canonical.content_type_sql(_PLAIN)


def _adapt_arena(schema: TableSchema) -> FormatQuery:
    names = {"label": "winner"}
    if schema.has_all(*CONVERSATIONS):
        contents = _read_conversations(schema)
        consumed: tuple[str, ...] = CONVERSATIONS
        called = ("/".join(CONVERSATIONS), *CONVERSATIONS)
        names |= dict(zip(CONTENT_ROLES, called, strict=True))
    else:
        contents, consumed = unify_contents(schema, *CONTENT_ROLES), ()
    query = select_pairs(schema, contents, schema.trimmed_text_sql("winner"), "winner", *consumed)
    if schema.find_column("tstamp") and not schema.find_column("submitted_at"):
        # In seconds; as text with whole microseconds. What is no number stays, and is at fault.
        text = schema.trimmed_text_sql("tstamp")
        micros = f"try_cast(round(try_cast({text} AS DOUBLE) * 1000000) AS BIGINT)"
        query = f"SELECT *, coalesce({micros}::VARCHAR, {text}) AS submitted_at FROM ({query})"
        names["submitted_at"] = "tstamp"
    judge = next((name for name in _JUDGES if schema.find_column(name)), None)
    columns = {"labeler_id": judge} if judge and not schema.find_column("labeler_id") else {}
    made = frozenset((*CONTENT_ROLES, *names))
    hint = _NO_JSON if consumed and all(map(is_text, map(schema.find_type, consumed))) else ""
    return FormatQuery(query, made, columns, _WINNER_VALUES, names, hint=hint)


def _read_conversations(schema: TableSchema) -> ContentSql:
    """Return two whole conversations, up to the turn that was judged."""
    kinds = [schema.find_type(name) for name in CONVERSATIONS]
    chats = [schema.column_sql(name) for name in CONVERSATIONS]
    if all(map(is_text, kinds)):  # in CSV
        content, chats = _PLAIN, [_parse_chat_sql(text) for text in chats]
    else:
        try:
            content = canonical.find_content_of_conversations(kinds)
        except NotContent:
            raise canonical.build_content_error(schema.name) from None
        if not content.chat:  # the layout says that they are no conversations
            return ContentSql("NULL::VARCHAR", tuple(chats))
        if not all(map(_has_roles, kinds)):
            return split_off_shared_beginning(chats[0], chats[1], content)
    one, other = (_cut_after_judged_turn(schema, chat) for chat in chats)
    return split_off_shared_beginning(one, other, content)


def _has_roles(kind: DuckDBPyType) -> bool:
    message = canonical.find_element_type(kind) if kind.id in ("list", "array") else kind
    return message.id == "struct" and "role" in dict(message.children)


def _parse_chat_sql(text: str) -> str:
    """Return SQL of a chat in JSON, of messages with a text as role and content; NULL if none."""
    chat = f"try_cast({text} AS JSON)"
    roles, contents = (f"json_extract({chat}, '$[*].{name}')" for name in ("role", "content"))
    whole = " AND ".join(
        f"len(list_filter({each}, lambda x: json_type(x) = 'VARCHAR')) = json_array_length({chat})"
        for each in (roles, contents)
    )
    message = ", ".join(
        f"'{name}': json_extract_string({each}[i], '$')"
        for name, each in (("role", roles), ("content", contents))
    )
    messages = f"list_transform(range(1, len({roles}) + 1), lambda i: {{{message}}})"
    return f"(CASE WHEN json_type({chat}) = 'ARRAY' AND {whole} THEN {messages} END::{_CHAT})"


def _cut_after_judged_turn(schema: TableSchema, chat: str) -> str:
    """Return SQL of a conversation before what the user said after the turn that was judged."""
    if not schema.find_column("turn"):
        return chat
    turn = f"try_cast({schema.trimmed_text_sql('turn')} AS BIGINT)"
    questions = f"list_filter(range(1, len({chat}) + 1), lambda i: {chat}[i].role = 'user')"
    end = f"({questions})[{turn} + 1] - 1"
    return f"CASE WHEN {end} > 0 THEN {chat}[:{end}] ELSE {chat} END"


ARENA = Format(
    "arena",
    "conversation_a, conversation_b (or prompt, response_a, response_b), and the winner: model_a, "
    "model_b, tie or both bad",
    lambda schema: schema.has_all(*CONVERSATIONS) or schema.has_all(*CONTENT_ROLES),
    _adapt_arena,
    "Arena's files name who judged in judge or judge_hash; newer ones name nobody.",
    has_label_columns=lambda schema: schema.has_any("winner"),
    private=("winner",),
)
