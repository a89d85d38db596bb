"""Battles of two models: Chatbot Arena and MT-bench (two conversations, a winner, a judge), and
the LMSYS competition at Kaggle (who won, in three columns).
"""

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
from labelguard.inputs.formats.scores import OUTSIDE, make_pairs_query, require_label_columns
from labelguard.inputs.readers import identifier

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
_TURNS = tuple(identifier(f"labelguard: turns of {role}") for role in CONTENT_ROLES)
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
    query = select_pairs(schema, contents, schema.text_sql("winner"), "winner", *consumed)
    if schema.find_column("tstamp") and not schema.find_column("submitted_at"):
        # In seconds; as text with whole microseconds. What is no number stays, and is at fault.
        text = schema.text_sql("tstamp")
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
    turn = f"try_cast({schema.text_sql('turn')} AS BIGINT)"
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


def _adapt_kaggle(schema: TableSchema) -> FormatQuery:
    kinds = [schema.find_type(role) for role in CONTENT_ROLES]
    texts = all(is_text(kind) or kind.id == "null" for kind in kinds)
    contents = _turns_to_chats(*map(schema.column_sql, CONTENT_ROLES)) if texts else None
    return make_pairs_query(schema, _winner_label_sql(schema), WINNERS, contents=contents)


def _winner_label_sql(schema: TableSchema) -> str:
    """Return SQL of the label: NULL where nothing is said, outside its domain unless one is 1."""
    require_label_columns(schema, WINNERS, "kaggle")
    texts = [schema.text_sql(name) for name in WINNERS]
    a, b, tie = map(_flag_number_sql, texts)
    return (
        f"CASE WHEN coalesce({', '.join(texts)}) IS NULL THEN NULL "
        f"WHEN {a} + {b} + {tie} <> 1 THEN {OUTSIDE} "
        f"WHEN {a} = 1 THEN 'a' WHEN {b} = 1 THEN 'b' ELSE 'tie' END"
    )


def _flag_number_sql(text: str) -> str:
    """Return SQL of 1, 0 (as a blank beside others is), or a large number for anything else."""
    number = f"coalesce(try_cast({text} AS DOUBLE), try_cast({text} AS BOOLEAN)::DOUBLE, 9)"
    return f"(CASE WHEN {text} IS NULL THEN 0 WHEN {number} IN (0, 1) THEN {number} ELSE 9 END)"


def _turns_to_chats(prompt: str, *sides: str) -> ContentSql:
    """Return texts as chats: what the user said first, and on both sides all that followed.

    A prompt of n turns goes with n turns on both sides, else neither side is content. A prompt that
    is no list is a text, and so are its responses.
    """
    lists = ", ".join(
        f"{_parse_turns_sql(text)} AS {turns}"
        for text, turns in zip((prompt, *sides), _TURNS, strict=True)
    )
    questions, *replies = _TURNS
    fits = " AND ".join(f"len({turns}) = len({questions})" for turns in replies)
    return ContentSql(
        f"CASE WHEN {prompt} IS NOT NULL THEN "
        f"[{_message_sql('user', f'coalesce({questions}[1], {prompt})')}]::{_CHAT} END",
        tuple(
            f"CASE WHEN {questions} IS NULL AND {side} IS NOT NULL THEN "
            f"[{_message_sql('assistant', side)}]::{_CHAT} "
            f"WHEN {fits} THEN {_rest_of_chat_sql(questions, turns)}::{_CHAT} END"
            for side, turns in zip(sides, replies, strict=True)
        ),
        f"(SELECT *, {lists} FROM part)",
    )


def _parse_turns_sql(text: str) -> str:
    """Return SQL of the turns of a list of texts in JSON, a null as an empty one; NULL if none."""
    listed = f"try_cast({text} AS JSON)"
    members = f"json_extract({listed}, '$[*]')"
    strange = f"list_filter({members}, lambda x: json_type(x) NOT IN ('VARCHAR', 'NULL'))"
    texts = f"list_transform({members}, lambda x: coalesce(json_extract_string(x, '$'), ''))"
    whole = f"json_type({listed}) = 'ARRAY' AND len({members}) > 0 AND len({strange}) = 0"
    return f"CASE WHEN {whole} THEN {texts} END"


def _rest_of_chat_sql(questions: str, replies: str) -> str:
    """Return SQL of a conversation after what the user said first."""
    reply = _message_sql("assistant", f"{replies}[i]")
    both = f"[{_message_sql('user', f'{questions}[i]')}, {reply}]"
    turn = f"CASE WHEN i = 1 THEN [{reply}] ELSE {both} END"
    return f"flatten(list_transform(range(1, len({questions}) + 1), lambda i: {turn}))"


def _message_sql(role: str, text: str) -> str:
    return f"{{'role': '{role}', 'content': {text}}}"


KAGGLE = Format(
    "kaggle",
    "prompt, response_a, response_b (lists of turns in JSON, or texts), and who won: "
    "winner_model_a, winner_model_b or winner_tie",
    lambda schema: schema.has_all(*CONTENT_ROLES),
    _adapt_kaggle,
    "Kaggle's files name nobody.",
    has_label_columns=lambda schema: schema.has_any(*WINNERS),
    private=WINNERS,
)
