"""Formats of plain columns: the layouts as they are, choices, whole dialogues, scores, battles.

Every function of the two sides here is symmetric, or treats each alone: which of them is called
chosen cannot show. Scores decide a label and are dropped: how far they are apart is as private as
which is higher.
"""

from __future__ import annotations

from collections.abc import Sequence

from labelguard.budget.label_values import LabelValues
from labelguard.inputs import chats
from labelguard.inputs.chats import NotContent
from labelguard.inputs.columns import (
    CONVERSATIONS,
    LAYOUTS,
    PRIVATE_ROLES,
    TableSchema,
)
from labelguard.inputs.formats.base import (
    CONTENT_ROLES,
    SHARED,
    ContentSql,
    FormatQuery,
    read_chats,
    select_pairs,
    select_roles,
    split_off_shared_beginning,
    unify_contents,
    unify_prompt_and_sides,
)
from labelguard.inputs.readers import is_text, literal, number_sql
from labelguard.inputs.shapes import SHAPES, find_possible_prompts
from labelguard.text import AUTO_FORMAT

_CHOSEN = ("chosen", "rejected")
# Where hh-rlhf lets a reply begin: the prompt ends with it.
_TURN = literal("\n\nAssistant:")
_SINGLE = "completion"
_COMPARED = {role for roles in LAYOUTS.values() for role in roles[1:]} - {*PRIVATE_ROLES}

# The domain of labels that are made of numbers; a text that is no number is in none.
_SIGNS = LabelValues(a=("a",), b=("b",), tie=("tie",), skip=())
OUTSIDE = literal("no number")

_SCORES = SHAPES["scores"].private
_PREFERENCES = SHAPES["helpsteer"].private[:2]

# Columns that say who won: labels, whichever format a file is read as, and nothing else.
WINNERS = ("winner_model_a", "winner_model_b", "winner_tie")

_WINNER_VALUES = LabelValues(
    a=("model_a",),
    b=("model_b",),
    tie=("tie", "tie (bothbad)", "both_bad", "both bad", "bothbad"),
    skip=(),
)
_JUDGES = ("judge", "judge_hash")
_BOTH = " and ".join(CONVERSATIONS)


def unify_pairs(schema: TableSchema) -> FormatQuery | None:
    """Return a query that gives prompt and sides one type; None where they have it already."""
    are_pairs = schema.has_all(*CONTENT_ROLES)
    if are_pairs and schema.has_any(*_CHOSEN):
        return None  # both layouts: an error
    return unify_prompt_and_sides(schema, *(CONTENT_ROLES[1:] if are_pairs else _CHOSEN))


def adapt_dialogues(schema: TableSchema) -> FormatQuery:
    """Read chosen and rejected without a prompt: their common beginning is the prompt.

    Raises `InvalidLabels` where another column evidently holds it, unless the format was named.
    """
    sides = [schema.reading.get_column_name(side) for side in _CHOSEN]
    are_texts = all(map(is_text, map(schema.find_type, _CHOSEN)))
    candidates = find_possible_prompts(schema, schema.types, sides, by_type=are_texts)
    if candidates and schema.reading.format == AUTO_FORMAT:
        raise schema.error(
            f"column {' and '.join(candidates)} may be the prompt: name the one that is, --columns "
            f"prompt={candidates[0]}; or if chosen and rejected hold whole dialogues, whose common "
            "beginning is the prompt, say --format hh-rlhf; or if nothing was asked, --no-prompt"
        )
    try:
        kinds = map(schema.find_type, _CHOSEN)
        content = chats.find_content_of_types(kinds, schema.reading.drop_members or ())
    except NotContent as fault:
        raise chats.build_content_error(f"{schema.name}: columns chosen, rejected", fault) from None
    one, other = read_chats(schema, _CHOSEN, content)
    contents = (split_off_shared_beginning if content.chat else _split_texts)(one, other)
    roles = ("prompt", *_CHOSEN)
    made = dict(zip(roles, (contents.prompt, *contents.sides), strict=True))
    query = select_roles(schema, made, contents.source)
    return FormatQuery(query, frozenset(roles), names={"prompt": "chosen or rejected"})


def _split_texts(one: str, other: str) -> ContentSql:
    """Return texts (SQL) split after the last turn in common; without one there is no prompt."""
    turns = (f"string_split({text}, {_TURN})" for text in (one, other))
    contents = split_off_shared_beginning(*turns)
    prompt, *rests = (
        f"array_to_string({part}, {_TURN})" for part in (contents.prompt, *contents.sides)
    )
    prompt = f"CASE WHEN {SHARED} > 0 THEN {prompt} || {_TURN} END"
    return ContentSql(prompt, tuple(rests), contents.source)


def lacks_prompt(schema: TableSchema) -> bool:
    """Return whether a table of pairs has no prompt: so it was said, or no column can be one.

    Where chats are compared, what was asked is in them: then it has to be said.
    """
    named = schema.reading.columns
    if "prompt" in named or schema.has_all("prompt"):
        return named.get("prompt") == ""
    sides = [schema.find_column(side) for side in CONTENT_ROLES[1:]]
    if not all(sides) or not all(is_text(schema.types[side]) for side in sides if side):
        return False
    own = {"label", "tie", "winner", *_SCORES, *filter(None, sides)}
    return not find_possible_prompts(schema, schema.types, own, by_type=True)


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


def _bind_sql(value: str, expression: str) -> str:
    """Return SQL of an expression in which `x` is a value: written, and computed, once."""
    return f"list_transform([{value}], lambda x: {expression})[1]"


def _sign_label_sql(number: str, blank: str, known: str = "true") -> str:
    """Return SQL of a label: a where a number is positive, b where negative, a tie where zero.

    NULL where `blank` holds; outside of the domain where the number is none, or not `known` (of
    `x`).
    """
    label = (
        f"CASE WHEN isnan(x) OR NOT ({known}) THEN {OUTSIDE} WHEN x > 0 THEN 'a' "
        f"WHEN x < 0 THEN 'b' WHEN x = 0 THEN 'tie' ELSE {OUTSIDE} END"
    )
    return f"CASE WHEN {blank} THEN NULL ELSE {_bind_sql(number, label)} END"


def _build_pairs_query(
    schema: TableSchema,
    label: str,
    label_columns: Sequence[str],
    names: Sequence[str] = CONTENT_ROLES,
) -> FormatQuery:
    """Return pairs with a label (SQL) that was made of `label_columns`.

    Prompt and sides are the columns or roles `names`, made to agree.
    """
    called = (schema.find_column(name) or name for name in names)
    return FormatQuery(
        select_pairs(schema, unify_contents(schema, *names), label, *names),
        frozenset((*CONTENT_ROLES, "label")),
        values=_SIGNS,
        names={
            **dict(zip(CONTENT_ROLES, called, strict=True)),
            "label": " or ".join(label_columns),
        },
    )


def adapt_scores(schema: TableSchema) -> FormatQuery:
    """Read score_a and score_b beside the two responses."""
    missing = [name for name in _SCORES if name not in schema.types]
    if schema.reading.labelled and missing and not schema.sparse:
        raise schema.missing_error(f"format scores: no column {' and '.join(missing)}")
    one, other = (schema.trimmed_text_sql(name) for name in _SCORES)
    scored = f"coalesce({number_sql('x')}, try_cast(x AS BOOLEAN)::INTEGER)"
    # Compared, not subtracted: the difference of two infinite scores is no number.
    number = _bind_sql(
        f"[{_bind_sql(one, scored)}, {_bind_sql(other, scored)}]",
        "CASE WHEN isnan(x[1]) OR isnan(x[2]) THEN NULL "
        "ELSE (x[1] > x[2])::DOUBLE - (x[1] < x[2])::DOUBLE END",
    )
    return _build_pairs_query(
        schema, _sign_label_sql(number, f"{one} IS NULL OR {other} IS NULL"), _SCORES
    )


def adapt_helpsteer(schema: TableSchema) -> FormatQuery:
    """Read how much the first of two responses is better, as a number below zero."""
    text = f"coalesce({', '.join(map(schema.trimmed_text_sql, _PREFERENCES))})"
    number = _bind_sql(text, f"-{number_sql('x')}")
    label = _sign_label_sql(number, f"{text} IS NULL", "x IN (-3, -2, -1, 0, 1, 2, 3)")
    present = [name for name in _PREFERENCES if schema.has(name)]
    return _build_pairs_query(schema, label, present, SHAPES["helpsteer"].list_shown(schema))


def adapt_arena(schema: TableSchema) -> FormatQuery:
    """Read a battle: two conversations or responses, and who won."""
    names = {"label": "winner"}
    if schema.has_all(*CONVERSATIONS):
        contents = _read_conversations(schema)
        consumed: tuple[str, ...] = CONVERSATIONS
        called = ("/".join(CONVERSATIONS), *CONVERSATIONS)
        names |= dict(zip(CONTENT_ROLES, called, strict=True))
    else:
        contents, consumed = unify_contents(schema, *CONTENT_ROLES), ()
    times = {}
    if schema.find_column("tstamp") and not schema.find_column("submitted_at"):
        # In seconds; as text with whole microseconds. What is no number stays, and is at fault.
        text = schema.trimmed_text_sql("tstamp")
        micros = f"try_cast(round(try_cast({text} AS DOUBLE) * 1000000) AS BIGINT)"
        times = {"submitted_at": f"coalesce({micros}::VARCHAR, {text})"}
        names["submitted_at"] = "tstamp"
    winner = schema.trimmed_text_sql("winner")
    query = select_pairs(schema, contents, winner, *names.values(), *consumed, **times)
    judge = next((name for name in _JUDGES if schema.find_column(name)), None)
    columns = {"labeler_id": judge} if judge and not schema.find_column("labeler_id") else {}
    return FormatQuery(query, frozenset((*CONTENT_ROLES, *names)), columns, _WINNER_VALUES, names)


def _read_conversations(schema: TableSchema) -> ContentSql:
    """Return two whole conversations, up to the turn that was judged."""
    try:
        content = chats.find_content_of_conversations(map(schema.find_type, CONVERSATIONS))
    except NotContent as fault:
        raise chats.build_content_error(f"{schema.name}: columns {_BOTH}", fault) from None
    if not content.chat:
        raise schema.error(f"columns {_BOTH}: expected lists of messages, as JSON or Parquet have")
    whole = read_chats(schema, CONVERSATIONS, content)
    one, other = (_cut_after_judged_turn(schema, chat) for chat in whole)
    return split_off_shared_beginning(one, other)


def _cut_after_judged_turn(schema: TableSchema, chat: str) -> str:
    """Return SQL of a conversation before what the user said after the turn that was judged."""
    if not schema.find_column("turn"):
        return chat
    turn = f"try_cast({schema.trimmed_text_sql('turn')} AS BIGINT)"
    questions = f"list_filter(range(1, len({chat}) + 1), lambda i: {chat}[i].role = 'user')"
    end = f"({questions})[{turn} + 1] - 1"
    return f"CASE WHEN {end} > 0 THEN {chat}[:{end}] ELSE {chat} END"
