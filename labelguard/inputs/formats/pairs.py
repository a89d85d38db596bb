"""Formats of plain columns: the layouts as they are, choices, and whole dialogues (hh-rlhf).

Every function of the two sides here is symmetric, or treats each alone: which of them is called
chosen cannot show.
"""

from __future__ import annotations

from labelguard.inputs import canonical
from labelguard.inputs.canonical import NotContent
from labelguard.inputs.columns import LAYOUTS, PRIVATE_ROLES, PROMPTS, TableSchema
from labelguard.inputs.formats.base import (
    CONTENT_ROLES,
    SHARED,
    Format,
    FormatQuery,
    common_prefix_length_sql,
    has_chosen_and_rejected,
    has_prompt_chosen_and_rejected,
    split_off_shared_beginning,
    unify_prompt_and_sides,
)
from labelguard.inputs.readers import identifier, literal
from labelguard.text import AUTO_FORMAT

_CHOSEN = ("chosen", "rejected")
# Where hh-rlhf lets a reply begin: the prompt ends with it.
_TURN = literal("\n\nAssistant:")
_TURNS = identifier("labelguard: turns"), identifier("labelguard: other turns")
_WORDS = identifier("labelguard: words"), identifier("labelguard: other words")
_COUNT = identifier("labelguard: turns in common")
_SINGLE = "completion"
# Columns that hold what was asked, whatever else is in a file: its sides are no whole dialogues.
_ASKED = {*PROMPTS, "query", "input", "problem", "user_prompt", "conversations"}
_COMPARED = {role for roles in LAYOUTS.values() for role in roles[1:]} - {*PRIVATE_ROLES}


def _has_two_responses(schema: TableSchema) -> bool:
    return schema.has_all(*CONTENT_ROLES)


def _unify_pairs_if_needed(schema: TableSchema) -> FormatQuery | None:
    """Return a query that gives prompt and sides one type; None where they have it already."""
    if _has_two_responses(schema) and schema.has_any(*_CHOSEN):
        return None  # both layouts: an error
    return unify_prompt_and_sides(
        schema, *(CONTENT_ROLES[1:] if _has_two_responses(schema) else _CHOSEN)
    )


def _adapt_dialogues(schema: TableSchema) -> FormatQuery:
    """Read chosen and rejected without a prompt: their common beginning is the prompt.

    Raises `InvalidLabels` where another column evidently holds it, unless the format was named.
    """
    free = schema.types.keys() - set(schema.reading.columns.values())
    candidates = sorted(name for name in free if name.lower() in _ASKED)
    if candidates and schema.reading.format == AUTO_FORMAT:
        raise schema.error(
            f"column {' and '.join(candidates)} may be the prompt: name the one that is, --columns "
            f"prompt={candidates[0]}; or if chosen and rejected hold whole dialogues, whose common "
            "beginning is the prompt, say --format hh-rlhf"
        )
    one, other = map(schema.column_sql, _CHOSEN)
    try:
        content = canonical.find_content_of_types(map(schema.find_type, _CHOSEN))
    except NotContent:
        raise canonical.build_content_error(schema.name) from None
    columns = schema.select_public_except("prompt", *_CHOSEN)
    if not content.chat:
        query = _split_texts_sql(columns, f"{one}::VARCHAR", f"{other}::VARCHAR")
    else:
        contents = split_off_shared_beginning(one, other, content)
        chosen, rejected = contents.sides
        query = (
            f"SELECT {columns}{contents.prompt} AS prompt, {chosen} AS chosen, "
            f"{rejected} AS rejected FROM {contents.source}"
        )
    made = frozenset(("prompt", *_CHOSEN))
    return FormatQuery(query, made, names={"prompt": "chosen or rejected"})


def _split_texts_sql(columns: str, one: str, other: str) -> str:
    """Return SQL of texts split after the last turn in common, else after the last word in common.

    Lists of turns and words are columns: within a lambda each would be split once an element.
    """

    def join_list_sql(pieces: str, separator: str) -> str:
        return f"array_to_string({pieces}, {separator})"

    def drop_common_words_sql(turns: str, words: str) -> str:
        """Return SQL of a side without what is common; the blank before its first word stays."""
        blank = f"CASE WHEN {SHARED} > 0 THEN ' ' ELSE '' END"
        return (
            f"CASE WHEN {_COUNT} > 0 THEN {join_list_sql(f'{turns}[{_COUNT} + 1:]', _TURN)} "
            f"ELSE {blank} || {join_list_sql(f'{words}[{SHARED} + 1:]', literal(' '))} END"
        )

    return f"""
        SELECT {columns}
            CASE WHEN {_COUNT} > 0 THEN {join_list_sql(f"{_TURNS[0]}[:{_COUNT}]", _TURN)} || {_TURN}
                ELSE {join_list_sql(f"{_WORDS[0]}[:{SHARED}]", literal(" "))} END AS prompt,
            {drop_common_words_sql(_TURNS[0], _WORDS[0])} AS chosen,
            {drop_common_words_sql(_TURNS[1], _WORDS[1])} AS rejected
        FROM (SELECT *, {common_prefix_length_sql(*_WORDS)} AS {SHARED}
            FROM (SELECT *,
                    CASE WHEN {_COUNT} = 0 THEN string_split({one}, ' ') END AS {_WORDS[0]},
                    CASE WHEN {_COUNT} = 0 THEN string_split({other}, ' ') END AS {_WORDS[1]}
                FROM (SELECT *, {common_prefix_length_sql(*_TURNS)} AS {_COUNT}
                    FROM (SELECT *,
                            string_split({one}, {_TURN}) AS {_TURNS[0]},
                            string_split({other}, {_TURN}) AS {_TURNS[1]}
                        FROM part))))"""


def refuse_thumbs(schema: TableSchema) -> None:
    """Raise `InvalidLabels` for one response a row, with the way to a preference.

    By the public columns alone: whether a label is beside them is not asked.
    """
    if schema.has_all("prompt", _SINGLE) and not schema.has_any(*_COMPARED):
        raise schema.error(
            f"columns prompt and {_SINGLE} hold one response a row; KTO-style single "
            "labels (thumbs up or down) are not supported yet, only preferences between responses "
            "to one prompt; see docs/formats.md#thumbs-up-or-down for how to make them of thumbs "
            "without looking at one"
        )


PAIRS = Format(
    "pairs",
    "prompt, chosen, rejected; or prompt, response_a, response_b, label",
    lambda schema: _has_two_responses(schema) or has_prompt_chosen_and_rejected(schema),
    _unify_pairs_if_needed,
    has_label_columns=lambda schema: (
        has_prompt_chosen_and_rejected(schema)
        or "label" in schema.reading.columns
        or schema.has_all("label")
    ),
)
RANKINGS = Format(
    "rankings", "prompt, responses, ranks", lambda schema: schema.has_all("prompt", "responses")
)
CHOICES = Format(
    "choices",
    "prompt, responses, choice (the number of the preferred response, from 0)",
    lambda schema: schema.has_all("prompt", "responses", "choice") and not schema.has_all("ranks"),
    accepts=lambda schema: schema.has_all("prompt", "responses"),
)
TRANSCRIPTS = Format(
    "hh-rlhf",
    "chosen and rejected hold whole dialogues, whose common beginning is the prompt",
    lambda schema: has_chosen_and_rejected(schema) and not schema.has_all("prompt"),
    _adapt_dialogues,
    "The files of hh-rlhf as published name no labelers, and neither does TRL's implicit prompt; "
    "a collection of your own may.",
    accepts=has_chosen_and_rejected,
)
