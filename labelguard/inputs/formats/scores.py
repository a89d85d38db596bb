"""Labels that are scores of responses: the higher is preferred, equal ones are a tie.

Scores decide the label and are dropped: how far they are apart is as private as which is higher.
"""

from __future__ import annotations

from collections.abc import Sequence

from duckdb.sqltypes import DuckDBPyType

from labelguard.budget.label_values import LabelValues
from labelguard.inputs import canonical
from labelguard.inputs.canonical import is_text
from labelguard.inputs.columns import TableSchema
from labelguard.inputs.formats.base import (
    CONTENT_ROLES,
    Format,
    FormatQuery,
    has_chosen_layout,
    select_pairs,
    unify_contents,
    unify_prompt_and_sides,
)
from labelguard.inputs.readers import literal

# The domain of labels that are made of numbers; a text that is no number is in none.
_SIGNS = LabelValues(a=("a",), b=("b",), tie=("tie",), skip=())
OUTSIDE = literal("no number")

_SCORES = ("score_a", "score_b")
_BINARIZED = ("score_chosen", "score_rejected")
# The member of a completion that says which model wrote it; of all others only the text is read.
_WRITER = "model"
_MEMBERS = ("overall_score", "fine-grained_score", "rating", "score")
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
    one, other = (schema.text_sql(name) for name in _SCORES)
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


def _member_sql(completion: str, name: str, kind: DuckDBPyType) -> str:
    """Return SQL of a member of a completion (struct or JSON) as text; NULL if missing."""
    if kind.id != "struct":
        path = literal(f'$."{name}"')
        return f"json_extract_string(try_cast({completion} AS JSON), {path})"
    if name not in dict(kind.children):
        return "NULL::VARCHAR"
    return f"struct_extract({completion}, {literal(name)})::VARCHAR"


def _rank_completions(schema: TableSchema) -> FormatQuery:
    """Read every completion's response, and its rank by the first score that all have.

    The scores of one row decide that, never the types of its column: in JSON they follow from what
    is written in all rows.
    """
    kind = schema.find_type("completions")
    inner = _find_completion_type(schema)
    listed = schema.column_sql("completions")
    listed = listed if inner is not kind else f"try_cast({listed} AS JSON[])"

    def members(name: str) -> str:
        value = _member_sql("c", name, inner)
        trimmed = value if name == "response" else f"nullif(trim({value}), '')"
        return f"list_transform({listed}, lambda c: {trimmed})"

    ranks = ""
    if schema.reading.labelled:
        scores = [members(name) for name in _MEMBERS]
        whole = [f"CASE WHEN list_count({s}) = len({s}) THEN {s} END" for s in scores]
        ranks = (
            f", list_transform(coalesce({', '.join(whole)}), lambda s: -try_cast(s AS DOUBLE)) "
            "AS ranks"
        )
    carried = _WRITER in schema.reading.list_feature_columns() and _WRITER not in schema.types
    writers = f", {members(_WRITER)} AS {_WRITER}" if carried else ""
    roles = ("prompt", "responses", "ranks")
    query = (
        f"SELECT {schema.select_all_but(*roles, 'instruction', 'completions')}"
        f"{schema.column_sql('instruction')}::VARCHAR AS prompt, {members('response')} AS responses"
        f"{ranks}{writers} FROM part"
    )
    names = dict(zip(roles, ("instruction", "completions", "completions"), strict=True))
    return FormatQuery(query, frozenset(roles), names=names)


def _find_completion_type(schema: TableSchema) -> DuckDBPyType:
    kind = schema.find_type("completions")
    return canonical.find_element_type(kind) if kind.id in ("list", "array") else kind


def _has_completions(schema: TableSchema) -> bool:
    if not schema.has_all("instruction", "completions"):
        return False
    kind = _find_completion_type(schema)
    return str(kind) == "JSON" or (kind.id == "struct" and "response" in dict(kind.children))


def _is_binarized(schema: TableSchema) -> bool:
    """Return whether score_chosen and score_rejected are labels beside two chats.

    Elsewhere they may be what a model says of the two texts.
    """
    if not (
        has_chosen_layout(schema)
        and schema.has_any(*_BINARIZED)
        and is_text(schema.find_type("prompt"))
    ):
        return False
    kinds = {schema.find_type(role).id for role in ("chosen", "rejected")}
    return kinds - {"null"} == {"list"}  # a side may be null in every row


def _adapt_ultrafeedback(schema: TableSchema) -> FormatQuery | None:
    if _has_completions(schema):
        return _rank_completions(schema)
    return unify_prompt_and_sides(schema, "chosen", "rejected")


ULTRAFEEDBACK = Format(
    "ultrafeedback",
    "instruction and completions with their scores; or prompt, chosen and rejected beside "
    "score_chosen and score_rejected",
    lambda schema: _has_completions(schema) or _is_binarized(schema),
    _adapt_ultrafeedback,
    "UltraFeedback was rated by a model, and its files name no labelers; one of your own in this "
    "shape may.",
    private=(*_BINARIZED, "completions"),
    accepts=lambda schema: _has_completions(schema) or has_chosen_layout(schema),
)


def _find_responses(schema: TableSchema) -> tuple[str, ...]:
    return next((names for names in _RESPONSES if schema.has_all(*names)), ())


def _adapt_helpsteer(schema: TableSchema) -> FormatQuery:
    prompt = next(name for name in _PROMPTS if schema.find_column(name))
    text = f"coalesce({', '.join(map(schema.text_sql, _PREFERENCES))})"
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
