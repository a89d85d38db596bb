"""Battles of two models: Chatbot Arena and MT-bench (two conversations, a winner, a judge), and
the LMSYS competition at Kaggle (who won, in three columns).
"""

from __future__ import annotations

from duckdb.sqltypes import DuckDBPyType

from labelguard.budget.label_values import LabelValues
from labelguard.inputs import canonical
from labelguard.inputs.canonical import NotContent, is_text
from labelguard.inputs.formats.scores import OUTSIDE, ROLES, made, need, pair
from labelguard.inputs.formats.seen import Adapted, Format, Seen
from labelguard.inputs.formats.sides import (
    BEGINNING,
    ONE,
    OTHER,
    SHARED,
    Agreeing,
    Value,
    agreeing,
    shared_beginning,
)
from labelguard.inputs.readers import identifier

_WINNERS = LabelValues(
    a=("model_a",),
    b=("model_b",),
    tie=("tie", "tie (bothbad)", "both_bad", "both bad", "bothbad"),
    skip=(),
)
_CONVERSATIONS = ("conversation_a", "conversation_b")
_JUDGES = ("judge", "judge_hash")


def _adapt(seen: Seen) -> Adapted:
    whole = seen.all(*_CONVERSATIONS)
    found = _battle(seen) if whole else _answers(seen)
    query = pair(seen, found, seen.text("winner"), "winner", "tie", *_CONVERSATIONS * whole)
    names = {"label": "winner"}
    if whole:
        names |= dict(zip(ROLES, ("/".join(_CONVERSATIONS), *_CONVERSATIONS), strict=True))
    if seen.column("tstamp") and not seen.column("submitted_at"):
        query = f"SELECT *, {_time(seen)} AS submitted_at FROM ({query})"
        names["submitted_at"] = "tstamp"
    judge = next((name for name in _JUDGES if seen.column(name)), None)
    columns = {"labeler_id": judge} if judge and not seen.column("labeler_id") else {}
    return Adapted(query, frozenset((*ROLES, *names)), columns, _WINNERS, names)


def _time(seen: Seen) -> str:
    """SQL of when a battle was: `tstamp`, in seconds, as text with whole microseconds. What is no
    number stays as it is, and is at fault.
    """
    text = seen.text("tstamp")
    micros = f"try_cast(round(try_cast({text} AS DOUBLE) * 1000000) AS BIGINT)"
    return f"coalesce({micros}::VARCHAR, {text})"


def _answers(seen: Seen) -> Agreeing:
    """A winner beside a prompt and two responses."""
    prompt, *sides = (Value(seen.sql(role), seen.type(role)) for role in ROLES)
    return agreeing(prompt, sides)


def _battle(seen: Seen) -> Agreeing:
    """Two whole conversations, up to the turn that was judged."""
    one, other = (_judged(seen, name) for name in _CONVERSATIONS)
    try:
        content = canonical.content_of_conversations([seen.type(name) for name in _CONVERSATIONS])
    except NotContent:
        raise canonical.refuse(seen.part) from None
    if not content.chat:  # the layout says that they are no conversations
        return Agreeing("NULL::VARCHAR", tuple(map(seen.sql, _CONVERSATIONS)))
    return Agreeing(
        BEGINNING,
        (f"{ONE}[{SHARED} + 1:]", f"{OTHER}[{SHARED} + 1:]"),
        shared_beginning(one, other, content),
    )


def _judged(seen: Seen, name: str) -> str:
    """SQL of a conversation without what the user said after the turn that was judged, and on."""
    talk = seen.sql(name)
    if not seen.column("turn") or not _is_chat(seen.type(name)):
        return talk
    turn = f"try_cast({seen.text('turn')} AS BIGINT)"
    asked = f"list_filter(range(1, len({talk}) + 1), lambda i: {talk}[i].role = 'user')"
    end = f"({asked})[{turn} + 1] - 1"
    return f"CASE WHEN {end} > 0 THEN {talk}[:{end}] ELSE {talk} END"


def _is_chat(kind: DuckDBPyType) -> bool:
    if kind.id not in ("list", "array"):
        return False
    message = canonical.element(kind)
    return message.id == "struct" and "role" in [name for name, _ in message.children]


ARENA = Format(
    "arena",
    "conversation_a, conversation_b (or prompt, response_a, response_b), and the winner: model_a, "
    "model_b, tie or both bad",
    lambda seen: seen.all(*_CONVERSATIONS) or seen.all(*ROLES),
    _adapt,
    "Arena's files name who judged in judge or judge_hash; newer ones name nobody.",
    tells=lambda seen: seen.any("winner"),
    private=("winner",),
)


WINNERS = ("winner_model_a", "winner_model_b", "winner_tie")
"""Who won: labels, whichever format a part is read as, and nothing else."""

_TURNS = tuple(identifier(f"labelguard: turns of {role}") for role in ROLES)
_CHAT = 'STRUCT("role" VARCHAR, "content" VARCHAR)[]'


def _adapt_kaggle(seen: Seen) -> Adapted:
    values = [Value(seen.sql(role), seen.type(role)) for role in ROLES]
    texts = all(is_text(value.kind) or value.kind.id == "null" for value in values)
    found = _conversations(values) if texts else agreeing(values[0], values[1:])
    return made(seen, found, _winner(seen), WINNERS)


def _winner(seen: Seen) -> str:
    """SQL of the label: NULL where nothing is said, and outside of the domain unless one is 1."""
    need(seen, WINNERS, "kaggle")
    texts = [seen.text(name) for name in WINNERS]
    a, b, tie = map(_flag, texts)
    return (
        f"CASE WHEN coalesce({', '.join(texts)}) IS NULL THEN NULL "
        f"WHEN {a} + {b} + {tie} <> 1 THEN {OUTSIDE} "
        f"WHEN {a} = 1 THEN 'a' WHEN {b} = 1 THEN 'b' ELSE 'tie' END"
    )


def _flag(text: str) -> str:
    """SQL of 1, 0 (as a blank beside others is), or a large number for anything else."""
    number = f"coalesce(try_cast({text} AS DOUBLE), try_cast({text} AS BOOLEAN)::DOUBLE, 9)"
    return f"(CASE WHEN {text} IS NULL THEN 0 WHEN {number} IN (0, 1) THEN {number} ELSE 9 END)"


def _conversations(values: list[Value]) -> Agreeing:
    """Texts as chats: what the user said first, and on both sides all that followed.

    A prompt of n turns goes with n turns on both sides, else neither side is content. A prompt that
    is no list is a text, and so are its responses.
    """
    lists = ", ".join(
        f"{_turns(value.sql)} AS {turns}" for value, turns in zip(values, _TURNS, strict=True)
    )
    asked, *said = _TURNS
    prompt, *sides = (value.sql for value in values)
    fits = " AND ".join(f"len({turns}) = len({asked})" for turns in said)
    return Agreeing(
        f"CASE WHEN {prompt} IS NOT NULL THEN "
        f"[{_message('user', f'coalesce({asked}[1], {prompt})')}]::{_CHAT} END",
        tuple(
            f"CASE WHEN {asked} IS NULL AND {side} IS NOT NULL THEN "
            f"[{_message('assistant', side)}]::{_CHAT} "
            f"WHEN {fits} THEN {_following(asked, turns)}::{_CHAT} END"
            for side, turns in zip(sides, said, strict=True)
        ),
        f"(SELECT *, {lists} FROM part)",
    )


def _turns(text: str) -> str:
    """SQL of the turns of a list of texts in JSON, a null as an empty one; NULL if it is none."""
    listed = f"try_cast({text} AS JSON)"
    members = f"json_extract({listed}, '$[*]')"
    strange = f"list_filter({members}, lambda x: json_type(x) NOT IN ('VARCHAR', 'NULL'))"
    texts = f"list_transform({members}, lambda x: coalesce(json_extract_string(x, '$'), ''))"
    whole = f"json_type({listed}) = 'ARRAY' AND len({members}) > 0 AND len({strange}) = 0"
    return f"CASE WHEN {whole} THEN {texts} END"


def _following(asked: str, said: str) -> str:
    """SQL of a conversation after what the user said first."""
    one = _message("assistant", f"{said}[i]")
    both = f"[{_message('user', f'{asked}[i]')}, {one}]"
    turn = f"CASE WHEN i = 1 THEN [{one}] ELSE {both} END"
    return f"flatten(list_transform(range(1, len({asked}) + 1), lambda i: {turn}))"


def _message(role: str, text: str) -> str:
    return f"{{'role': '{role}', 'content': {text}}}"


KAGGLE = Format(
    "kaggle",
    "prompt, response_a, response_b (lists of turns in JSON, or texts), and who won: "
    "winner_model_a, winner_model_b or winner_tie",
    lambda seen: seen.all(*ROLES),
    _adapt_kaggle,
    "Kaggle's files name nobody.",
    tells=lambda seen: seen.any(*WINNERS),
    private=WINNERS,
)
