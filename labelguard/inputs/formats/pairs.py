"""Formats of plain columns: the layouts as they are, choices, and whole dialogues (hh-rlhf).

Every function of the two sides here is symmetric, or treats each alone: which of them is called
chosen cannot show.
"""

from __future__ import annotations

from duckdb.sqltypes import SQLNULL

from labelguard.errors import InvalidLabels
from labelguard.inputs import canonical
from labelguard.inputs.canonical import NotContent
from labelguard.inputs.formats import sides
from labelguard.inputs.formats.seen import Adapted, Format, Seen
from labelguard.inputs.formats.sides import BEGINNING, ONE, OTHER, SHARED, adapt_sides, has_chosen
from labelguard.inputs.layouts import LAYOUTS, PRIVATE_ROLES
from labelguard.inputs.readers import identifier, literal

_SIDES = ("response_a", "response_b")
_CHOSEN = ("chosen", "rejected")


def _is_labeled(seen: Seen) -> bool:
    return seen.all("prompt", *_SIDES)


def _adapt(seen: Seen) -> Adapted | None:
    if _is_labeled(seen) and seen.any(*_CHOSEN):
        return None  # both layouts: an error
    return adapt_sides(seen, *(_SIDES if _is_labeled(seen) else _CHOSEN))


PAIRS = Format(
    "pairs",
    "prompt, chosen, rejected; or prompt, response_a, response_b, label",
    lambda seen: _is_labeled(seen) or has_chosen(seen),
    _adapt,
    tells=lambda seen: has_chosen(seen) or "label" in seen.reading.columns or seen.all("label"),
)
RANKINGS = Format(
    "rankings", "prompt, responses, ranks", lambda seen: seen.all("prompt", "responses")
)


CHOICES = Format(
    "choices",
    "prompt, responses, choice (the number of the preferred response, from 0)",
    lambda seen: seen.all("prompt", "responses", "choice") and not seen.all("ranks"),
    fits=lambda seen: seen.all("prompt", "responses"),
)


_TURN = "\n\nAssistant:"
"""Where hh-rlhf lets a reply begin: the prompt ends with it."""
_ONE_TURNS, _OTHER_TURNS, _COUNT, _ONE_WORDS, _OTHER_WORDS = (
    identifier(f"labelguard: {name}")
    for name in ("turns", "other turns", "turns in common", "words", "other words")
)


def _is_dialogue(seen: Seen) -> bool:
    """A sparse part lacks a side that is null in every row: which one it is must not matter."""
    return _has_sides(seen) and not seen.all("prompt")


def _has_sides(seen: Seen) -> bool:
    return seen.any(*_CHOSEN) if seen.sparse else seen.all(*_CHOSEN)


def _implicit(seen: Seen) -> Adapted:
    """chosen and rejected without a prompt: their common beginning is the prompt."""
    kinds = [seen.type(role) if seen.column(role) else SQLNULL for role in _CHOSEN]
    one, other = (seen.sql(role) if seen.column(role) else "NULL" for role in _CHOSEN)
    try:
        content = canonical.content_of_types(kinds)
    except NotContent:
        raise canonical.refuse(seen.part) from None
    rest = seen.rest("prompt", *_CHOSEN)
    if not content.chat:
        query = _texts(rest, f"{one}::VARCHAR", f"{other}::VARCHAR")
    else:
        query = (
            f"SELECT {rest}{BEGINNING} AS prompt, {ONE}[{SHARED} + 1:] AS chosen, "
            f"{OTHER}[{SHARED} + 1:] AS rejected "
            f"FROM {sides.shared_beginning(one, other, content)}"
        )
    return Adapted(query, frozenset(("prompt", *_CHOSEN)), names={"prompt": "chosen or rejected"})


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
    _is_dialogue,
    _implicit,
    "The files of hh-rlhf as published name no labelers, and neither does TRL's implicit prompt; "
    "a collection of your own may.",
    fits=_has_sides,
)


_SINGLE = "completion"
_COMPARED = {role for roles in LAYOUTS.values() for role in roles[1:]} - {*PRIVATE_ROLES}


def refuse_thumbs(seen: Seen) -> None:
    """Raise `InvalidLabels` for one response a row, with the way to a preference.

    By the public columns alone: whether a label is beside them is not asked.
    """
    if seen.all("prompt", _SINGLE) and not seen.any(*_COMPARED):
        raise InvalidLabels(
            f"{seen.part}: columns prompt and {_SINGLE} hold one response a row; KTO-style single "
            "labels (thumbs up or down) are not supported yet, only preferences between responses "
            "to one prompt; see docs/formats.md#thumbs-up-or-down for how to make them of thumbs "
            "without looking at one"
        )
