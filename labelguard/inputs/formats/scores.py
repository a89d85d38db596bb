"""Labels that are scores of responses: the higher is preferred, equal ones are a tie.

Scores decide the label and are dropped: how far they are apart is as private as which is higher.
"""

from __future__ import annotations

from collections.abc import Sequence

from duckdb.sqltypes import DuckDBPyType

from labelguard.budget.label_values import LabelValues
from labelguard.errors import InvalidLabels
from labelguard.inputs import canonical
from labelguard.inputs.canonical import is_text
from labelguard.inputs.formats.seen import Adapted, Format, Seen
from labelguard.inputs.formats.sides import Agreeing, Value, adapt_sides, agreeing, has_chosen
from labelguard.inputs.readers import literal

SIGNS = LabelValues(a=("a",), b=("b",), tie=("tie",), skip=())
"""The domain of labels that are made of numbers; a text that is no number is in none."""
OUTSIDE = literal("no number")

ROLES = ("prompt", "response_a", "response_b")
_SCORES = ("score_a", "score_b")
_BINARIZED = ("score_chosen", "score_rejected")
_WRITER = "model"
"""The member of a completion that says which model wrote it; of all others only the text is read.
"""
_MEMBERS = ("overall_score", "fine-grained_score", "rating", "score")


def sign(number: str, blank: str, known: str = "true") -> str:
    """SQL of a label: a where a number is positive, b where it is negative, a tie where it is zero.

    NULL where `blank` holds; outside of the domain where the number is none, or not `known`.
    """
    return (
        f"CASE WHEN {blank} THEN NULL WHEN isnan({number}) OR NOT ({known}) THEN {OUTSIDE} "
        f"WHEN {number} > 0 THEN 'a' WHEN {number} < 0 THEN 'b' WHEN {number} = 0 THEN 'tie' "
        f"ELSE {OUTSIDE} END"
    )


def pair(seen: Seen, prompt: Agreeing, said: str, *consumed: str) -> str:
    """SQL of pairs with what a format found: the sides and, if there are labels, what is `said`."""
    a, b = prompt.sides
    label = f", {said} AS label" if seen.reading.labelled else ""
    return (
        f"SELECT {seen.rest(*ROLES, 'label', *consumed)}"
        f"{prompt.prompt} AS prompt, {a} AS response_a, {b} AS response_b{label} "
        f"FROM {prompt.source}"
    )


def adapt(
    seen: Seen, label: str, told: Sequence[str], names: Sequence[str] = ROLES, *consumed: str
) -> Adapted:
    """Pairs of a prompt and two responses, whose columns or roles are `names`, and of the label
    (SQL) that columns tell which are `told`.
    """
    prompt, *sides = (Value(seen.sql(name), seen.type(name)) for name in names)
    return made(seen, agreeing(prompt, sides), label, told, names, *consumed)


def made(
    seen: Seen,
    found: Agreeing,
    label: str,
    told: Sequence[str],
    names: Sequence[str] = ROLES,
    *consumed: str,
) -> Adapted:
    """The same of a prompt and sides that were found."""
    called = (seen.column(name) or name for name in names)
    return Adapted(
        pair(seen, found, label, *names, "tie", *consumed),
        frozenset((*ROLES, "label")),
        values=SIGNS,
        names=dict(zip(ROLES, called, strict=True)) | {"label": " or ".join(told)},
    )


def need(seen: Seen, names: Sequence[str], name: str) -> None:
    """Raise `InvalidLabels` if columns of labels lack, of which a format has several."""
    missing = [name for name in names if name not in seen.types]
    if seen.reading.labelled and missing and not seen.sparse:
        raise InvalidLabels(
            f"format {name}: no column {' and '.join(missing)}; found: {', '.join(seen.types)}"
        )


def _pairs(seen: Seen) -> Adapted:
    """score_a and score_b beside the two responses."""
    need(seen, _SCORES, "scores")
    one, other = (seen.text(name) for name in _SCORES)
    # Compared, not subtracted: the difference of two infinite scores is no number.
    number = (
        f"CASE WHEN isnan({_number(one)}) OR isnan({_number(other)}) THEN NULL "
        f"ELSE ({_number(one)} > {_number(other)})::DOUBLE - ({_number(one)} < {_number(other)})"
        "::DOUBLE END"
    )
    return adapt(seen, sign(number, f"{one} IS NULL OR {other} IS NULL"), _SCORES)


def _number(text: str) -> str:
    return f"try_cast({text} AS DOUBLE)"


SCORES = Format(
    "scores",
    "prompt, response_a, response_b and the scores of both, score_a and score_b: the higher is "
    "preferred",
    lambda seen: seen.all("prompt", "response_a", "response_b"),
    _pairs,
    tells=lambda seen: seen.any(*_SCORES),
    private=_SCORES,
)


def _member(completion: str, name: str, kind: DuckDBPyType) -> str:
    """SQL of a member of a completion as text, whether it is a struct or JSON; NULL if missing."""
    if kind.id != "struct":
        path = literal(f'$."{name}"')
        return f"nullif(trim(json_extract_string(try_cast({completion} AS JSON), {path})), '')"
    if name not in [member for member, _ in kind.children]:
        return "NULL::VARCHAR"
    return f"nullif(trim(struct_extract({completion}, {literal(name)})::VARCHAR), '')"


def _said(completion: str, kind: DuckDBPyType) -> str:
    """SQL of a completion's response, an empty one too."""
    if kind.id != "struct":
        return f"json_extract_string(try_cast({completion} AS JSON), '$.response')"
    return f"struct_extract({completion}, 'response')::VARCHAR"


def _completions(seen: Seen) -> Adapted:
    """A ranking: every completion's response, and its rank by the first score that all have.

    The scores of one row decide that, never the types of its column: in JSON they follow from what
    is written in all rows.
    """
    kind = seen.type("completions")
    inner = canonical.element(kind) if kind.id in ("list", "array") else kind
    listed = seen.sql("completions")
    listed = listed if inner is not kind else f"try_cast({listed} AS JSON[])"
    responses = f"list_transform({listed}, lambda c: {_said('c', inner)})"
    ranks = ""
    if seen.reading.labelled:
        scores = [
            f"list_transform({listed}, lambda c: {_member('c', name, inner)})" for name in _MEMBERS
        ]
        whole = [
            f"CASE WHEN list_count({found}) = len({found}) THEN {found} END" for found in scores
        ]
        found = f"coalesce({', '.join(whole)})"
        ranks = f", list_transform({found}, lambda s: -try_cast(s AS DOUBLE)) AS ranks"
    writers = ""
    if _WRITER in seen.reading.all_carried() and _WRITER not in seen.types:
        writers = f", list_transform({listed}, lambda c: {_member('c', _WRITER, inner)}) AS model"
    query = (
        f"SELECT {seen.rest('prompt', 'responses', 'ranks', 'instruction', 'completions')}"
        f"{seen.sql('instruction')}::VARCHAR AS prompt, {responses} AS responses{ranks}{writers} "
        "FROM part"
    )
    return Adapted(
        query,
        frozenset(("prompt", "responses", "ranks")),
        names={"prompt": "instruction", "responses": "completions", "ranks": "completions"},
    )


def _is_rated(seen: Seen) -> bool:
    if not seen.all("instruction", "completions"):
        return False
    kind = seen.type("completions")
    one = canonical.element(kind) if kind.id in ("list", "array") else kind
    return str(one) == "JSON" or (one.id == "struct" and "response" in dict(one.children))


def _is_binarized(seen: Seen) -> bool:
    """Elsewhere, score_chosen and score_rejected may be what a model says of the two texts."""
    if not (has_chosen(seen) and seen.any(*_BINARIZED) and is_text(seen.type("prompt"))):
        return False
    kinds = {seen.type(role).id for role in ("chosen", "rejected") if seen.column(role)}
    return kinds - {"null"} == {"list"}  # a side may be null in every row


ULTRAFEEDBACK = Format(
    "ultrafeedback",
    "instruction and completions with their scores; or prompt, chosen and rejected beside "
    "score_chosen and score_rejected",
    lambda seen: _is_rated(seen) or _is_binarized(seen),
    lambda seen: _completions(seen) if _is_rated(seen) else adapt_sides(seen, "chosen", "rejected"),
    "UltraFeedback was rated by a model, and its files name no labelers; one of your own in this "
    "shape may.",
    private=(*_BINARIZED, "completions"),
    fits=lambda seen: _is_rated(seen) or has_chosen(seen),
)


_PREFERENCES = ("overall_preference", "preference_strength")
_SAID = ("individual_preference", "preference_statement", "preference_elaboration")
_RESPONSES = (("response1", "response2"), ("response_1", "response_2"))
_PROMPTS = ("context", "prompt")


def _responses(seen: Seen) -> tuple[str, ...]:
    return next((names for names in _RESPONSES if seen.all(*names)), ())


def _adapt_helpsteer(seen: Seen) -> Adapted:
    given = next(name for name in _PROMPTS if seen.column(name))
    names = _responses(seen)
    text = f"coalesce({', '.join(map(seen.text, _PREFERENCES))})"
    number = f"(-try_cast({text} AS DOUBLE))"
    label = sign(number, f"{text} IS NULL", f"{number} IN (-3, -2, -1, 0, 1, 2, 3)")
    told = [name for name in _PREFERENCES if name in seen.types]
    return adapt(seen, label, told, (given, *names))


HELPSTEER = Format(
    "helpsteer",
    "context (or prompt), response1, response2 and overall_preference from -3 (the first is much "
    "better) to 3",
    lambda seen: bool(_responses(seen)) and seen.any(*_PROMPTS),
    _adapt_helpsteer,
    "HelpSteer as published names no labelers, and its overall preference is of several people.",
    tells=lambda seen: seen.any(*_PREFERENCES),
    private=(*_PREFERENCES, *_SAID),
)
