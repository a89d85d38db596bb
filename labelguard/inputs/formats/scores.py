"""Labels that are scores of responses: the higher is preferred, equal ones are a tie.

Scores decide the label and are dropped: how far they are apart is as private as which is higher.
"""

from __future__ import annotations

from collections.abc import Sequence

from labelguard.budget.label_values import LabelValues
from labelguard.inputs.columns import TableSchema
from labelguard.inputs.formats.base import (
    CONTENT_ROLES,
    Format,
    FormatQuery,
    select_pairs,
    unify_contents,
)
from labelguard.inputs.readers import literal

# The domain of labels that are made of numbers; a text that is no number is in none.
_SIGNS = LabelValues(a=("a",), b=("b",), tie=("tie",), skip=())
OUTSIDE = literal("no number")

_SCORES = ("score_a", "score_b")
_PREFERENCES = ("overall_preference", "preference_strength")
_REMARKS = ("individual_preference", "preference_statement", "preference_elaboration")
_RESPONSES = (("response1", "response2"), ("response_1", "response_2"))
_PROMPTS = ("context", "prompt")


def _sign_label_sql(number: str, blank: str, known: str = "true") -> str:
    """Return SQL of a label: a where a number is positive, b where negative, a tie where zero.

    NULL where `blank` holds; outside of the domain where the number is none, or not `known`.
    """
    return (
        f"CASE WHEN {blank} THEN NULL WHEN isnan({number}) OR NOT ({known}) THEN {OUTSIDE} "
        f"WHEN {number} > 0 THEN 'a' WHEN {number} < 0 THEN 'b' WHEN {number} = 0 THEN 'tie' "
        f"ELSE {OUTSIDE} END"
    )


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


def _adapt_scores(schema: TableSchema) -> FormatQuery:
    """Read score_a and score_b beside the two responses."""
    missing = [name for name in _SCORES if name not in schema.types]
    if schema.reading.labelled and missing and not schema.sparse:
        raise schema.error(
            f"format scores: no column {' and '.join(missing)}; found: {', '.join(schema.types)}"
        )
    one, other = (schema.trimmed_text_sql(name) for name in _SCORES)
    a, b = (f"try_cast({text} AS DOUBLE)" for text in (one, other))
    # Compared, not subtracted: the difference of two infinite scores is no number.
    number = (
        f"CASE WHEN isnan({a}) OR isnan({b}) THEN NULL "
        f"ELSE ({a} > {b})::DOUBLE - ({a} < {b})::DOUBLE END"
    )
    return _build_pairs_query(
        schema, _sign_label_sql(number, f"{one} IS NULL OR {other} IS NULL"), _SCORES
    )


SCORES = Format(
    "scores",
    "prompt, response_a, response_b and the scores of both, score_a and score_b: the higher is "
    "preferred",
    lambda schema: schema.has_all(*CONTENT_ROLES),
    _adapt_scores,
    has_label_columns=lambda schema: schema.has_any(*_SCORES),
    private=_SCORES,
)


def _find_responses(schema: TableSchema) -> tuple[str, ...]:
    return next((names for names in _RESPONSES if schema.has_all(*names)), ())


def _adapt_helpsteer(schema: TableSchema) -> FormatQuery:
    prompt = next(name for name in _PROMPTS if schema.find_column(name))
    text = f"coalesce({', '.join(map(schema.trimmed_text_sql, _PREFERENCES))})"
    number = f"(-try_cast({text} AS DOUBLE))"
    label = _sign_label_sql(number, f"{text} IS NULL", f"{number} IN (-3, -2, -1, 0, 1, 2, 3)")
    present = [name for name in _PREFERENCES if name in schema.types]
    return _build_pairs_query(schema, label, present, (prompt, *_find_responses(schema)))


HELPSTEER = Format(
    "helpsteer",
    "context (or prompt), response1, response2 and overall_preference from -3 (the first is much "
    "better) to 3",
    lambda schema: bool(_find_responses(schema)) and schema.has_any(*_PROMPTS),
    _adapt_helpsteer,
    "HelpSteer as published names no labelers, and its overall preference is of several people.",
    has_label_columns=lambda schema: schema.has_any(*_PREFERENCES),
    private=(*_PREFERENCES, *_REMARKS),
)
