"""Whole dialogues: both sides hold the prompt (hh-rlhf, TRL's implicit prompt).

What both sides have in common at their beginning is the prompt. It is found the same way whichever
side is called chosen: every function of the two sides here is symmetric, or treats each alone.
"""

from __future__ import annotations

from duckdb.sqltypes import SQLNULL

from labelguard.ingest import canonical
from labelguard.ingest.canonical import NotContent
from labelguard.ingest.formats import sides
from labelguard.ingest.formats.seen import Adapted, Format, Seen
from labelguard.ingest.formats.sides import BEGINNING, ONE, OTHER, SHARED
from labelguard.ingest.sql import identifier, literal

_TURN = "\n\nAssistant:"
"""Where hh-rlhf lets a reply begin: the prompt ends with it."""
_SIDES = ("chosen", "rejected")
_ONE_TURNS, _OTHER_TURNS, _COUNT, _ONE_WORDS, _OTHER_WORDS = (
    identifier(f"labelguard: {name}")
    for name in ("turns", "other turns", "turns in common", "words", "other words")
)


def _recognises(seen: Seen) -> bool:
    """A sparse part lacks a side that is null in every row: which one it is must not matter."""
    return _fits(seen) and not seen.all("prompt")


def _fits(seen: Seen) -> bool:
    return seen.any(*_SIDES) if seen.sparse else seen.all(*_SIDES)


def _implicit(seen: Seen) -> Adapted:
    """chosen and rejected without a prompt: their common beginning is the prompt."""
    kinds = [seen.type(role) if seen.column(role) else SQLNULL for role in _SIDES]
    one, other = (seen.sql(role) if seen.column(role) else "NULL" for role in _SIDES)
    try:
        content = canonical.content_of_types(kinds)
    except NotContent:
        raise canonical.refuse(seen.part) from None
    rest = seen.rest("prompt", *_SIDES)
    if not content.chat:
        query = _texts(rest, f"{one}::VARCHAR", f"{other}::VARCHAR")
    else:
        query = (
            f"SELECT {rest}{BEGINNING} AS prompt, {ONE}[{SHARED} + 1:] AS chosen, "
            f"{OTHER}[{SHARED} + 1:] AS rejected "
            f"FROM {sides.shared_beginning(one, other, content)}"
        )
    return Adapted(query, frozenset(("prompt", *_SIDES)), names={"prompt": "chosen or rejected"})


def _texts(rest: str, one: str, other: str) -> str:
    """The same for texts: up to the last turn in common, else up to the last word in common.

    Lists of turns and words are columns: within a lambda each would be split once an element.
    """
    turn, word = literal(_TURN), literal(" ")
    turns, words = (_ONE_TURNS, _OTHER_TURNS), (_ONE_WORDS, _OTHER_WORDS)

    def rest_of(side: int) -> str:
        """A side without what is common; the blank before its first word of its own is its own."""
        blank = f"CASE WHEN {SHARED} > 0 THEN ' ' ELSE '' END"
        return (
            f"CASE WHEN {_COUNT} > 0 THEN {joined(f'{turns[side]}[{_COUNT} + 1:]', turn)} "
            f"ELSE {blank} || {joined(f'{words[side]}[{SHARED} + 1:]', word)} END"
        )

    def joined(pieces: str, by: str) -> str:
        return f"array_to_string({pieces}, {by})"

    return f"""
        SELECT {rest}
            CASE WHEN {_COUNT} > 0 THEN {joined(f"{_ONE_TURNS}[:{_COUNT}]", turn)} || {turn}
                ELSE {joined(f"{_ONE_WORDS}[:{SHARED}]", word)} END AS prompt,
            {rest_of(0)} AS chosen,
            {rest_of(1)} AS rejected
        FROM (SELECT *, {sides.common(*words)} AS {SHARED}
            FROM (SELECT *,
                    CASE WHEN {_COUNT} = 0 THEN string_split({one}, {word}) END AS {_ONE_WORDS},
                    CASE WHEN {_COUNT} = 0 THEN string_split({other}, {word}) END AS {_OTHER_WORDS}
                FROM (SELECT *, {sides.common(*turns)} AS {_COUNT}
                    FROM (SELECT *,
                            string_split({one}, {turn}) AS {_ONE_TURNS},
                            string_split({other}, {turn}) AS {_OTHER_TURNS}
                        FROM part))))"""


TRANSCRIPTS = Format(
    "hh-rlhf",
    "chosen and rejected hold whole dialogues, whose common beginning is the prompt",
    _recognises,
    _implicit,
    "The files of hh-rlhf as published name no labelers, and neither does TRL's implicit prompt; "
    "a collection of your own may.",
    fits=_fits,
)
