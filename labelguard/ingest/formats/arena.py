"""Battles of two models (Chatbot Arena, MT-bench): two conversations, a winner, a judge.

Both conversations hold the prompt: the messages that they have in common at the beginning. Of a
judged turn, what was said after it is not there: MT-bench judges the first of two turns, too.
"""

from __future__ import annotations

from duckdb.sqltypes import DuckDBPyType

from labelguard.ingest import canonical
from labelguard.ingest.canonical import NotContent
from labelguard.ingest.formats.scores import pair
from labelguard.ingest.formats.seen import Adapted, Format, Seen
from labelguard.ingest.formats.sides import (
    BEGINNING,
    ONE,
    OTHER,
    SHARED,
    Agreeing,
    Value,
    agreeing,
    shared_beginning,
)
from labelguard.policy.label_values import LabelValues

WINNERS = LabelValues(
    a=("model_a",),
    b=("model_b",),
    tie=("tie", "tie (bothbad)", "both_bad", "both bad", "bothbad"),
    skip=(),
)
_CONVERSATIONS = ("conversation_a", "conversation_b")
_ROLES = ("prompt", "response_a", "response_b")
_JUDGES = ("judge", "judge_hash")


def _adapt(seen: Seen) -> Adapted:
    whole = seen.all(*_CONVERSATIONS)
    found = _battle(seen) if whole else _answers(seen)
    consumed = ["winner", "tie", *(_CONVERSATIONS if whole else ())]
    made = [*_ROLES, "label"]
    names = {"label": "winner"}
    if whole:
        names |= dict(zip(_ROLES, ("/".join(_CONVERSATIONS), *_CONVERSATIONS), strict=True))
    query = pair(seen, found, seen.text("winner"), *consumed)
    if seen.column("tstamp") and not seen.column("submitted_at"):
        query = f"SELECT *, {_time(seen)} AS submitted_at FROM ({query})"
        made.append("submitted_at")
        names["submitted_at"] = "tstamp"
    judge = next((name for name in _JUDGES if seen.column(name)), None)
    columns = {"labeler_id": judge} if judge and not seen.column("labeler_id") else {}
    return Adapted(query, frozenset(made), columns, WINNERS, names)


def _time(seen: Seen) -> str:
    """SQL of when a battle was: `tstamp`, in seconds, as text with whole microseconds. What is no
    number stays as it is, and is at fault.
    """
    text = seen.text("tstamp")
    micros = f"try_cast(round(try_cast({text} AS DOUBLE) * 1000000) AS BIGINT)"
    return f"coalesce({micros}::VARCHAR, {text})"


def _answers(seen: Seen) -> Agreeing:
    """A winner beside a prompt and two responses."""
    prompt, *sides = (Value(seen.sql(role), seen.type(role)) for role in _ROLES)
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
    lambda seen: seen.all(*_CONVERSATIONS) or seen.all(*_ROLES),
    _adapt,
    "Arena's files name who judged in judge or judge_hash; newer ones name nobody.",
    tells=lambda seen: seen.any("winner"),
    private=("winner",),
)
