"""Whole dialogues: both sides hold the prompt (hh-rlhf, TRL's implicit prompt), or hold it too.

What both sides have in common at their beginning is the prompt. It is found the same way whichever
side is called chosen: every function of the two sides here is symmetric, or treats each alone.
"""

from __future__ import annotations

from labelguard.ingest.formats.seen import Adapted, Format, Seen
from labelguard.ingest.sql import literal

_TURN = "\n\nAssistant:"
"""Where hh-rlhf lets a reply begin: the prompt ends with it."""


def _is_chat(seen: Seen, role: str) -> bool:
    return seen.type(role).id in ("list", "array")


def _implicit(seen: Seen) -> Adapted:
    """chosen and rejected without a prompt: their common beginning is the prompt."""
    sides = ("chosen", "rejected")
    one, other = map(seen.sql, sides)
    rest = seen.without("prompt", *sides)
    head = f"{rest}, " if rest else ""
    if _is_chat(seen, "chosen") or _is_chat(seen, "rejected"):
        count = (
            f"CASE WHEN {one} IS NOT NULL AND {other} IS NOT NULL THEN {_common(one, other)} END"
        )
        query = (
            f"SELECT {head}{one}[:shared] AS prompt, {one}[shared + 1:] AS chosen, "
            f"{other}[shared + 1:] AS rejected FROM (SELECT *, {count} AS shared FROM part)"
        )
    else:
        query = _texts(head, one, other)
    return Adapted(query, frozenset(("prompt", *sides)))


def _texts(head: str, one: str, other: str) -> str:
    """The same for texts: up to the last turn in common, else up to the last word in common."""
    turn, word = literal(_TURN), literal(" ")
    return f"""
        SELECT {head}
            left({one}, characters) AS prompt,
            substr({one}, characters + 1) AS chosen,
            substr({other}, characters + 1) AS rejected
        FROM (SELECT *,
                CASE WHEN turns > 0
                    THEN length(array_to_string(string_split({one}, {turn})[:turns], {turn}))
                        + {len(_TURN)}
                    ELSE length(array_to_string(string_split({one}, {word})[:words], {word}))
                END AS characters
            FROM (SELECT *,
                    {_common(f"string_split({one}, {turn})", f"string_split({other}, {turn})")}
                        AS turns,
                    {_common(f"string_split({one}, {word})", f"string_split({other}, {word})")}
                        AS words
                FROM part))"""


def _common(one: str, other: str) -> str:
    """SQL of how many elements two lists have in common at their beginning; one is left to each."""
    most = f"least(len({one}), len({other}))"
    differs = f"list_transform(range(1, {most}), lambda i: {one}[i] IS DISTINCT FROM {other}[i])"
    return f"coalesce(list_position({differs}, true), {most}) - 1"


TRANSCRIPTS = Format(
    "hh-rlhf",
    "chosen and rejected hold whole dialogues, which begin with the prompt",
    lambda seen: seen.all("chosen", "rejected") and not seen.all("prompt"),
    _implicit,
    "The published files name no labelers; those of a collection of your own may.",
)
MIXED = Format("pairs", "", lambda seen: False)
