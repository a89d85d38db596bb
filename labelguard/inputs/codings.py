"""Meanings of the values of labels: which are plain, which somebody has to give.

Words that name a side say it by themselves: the two columns' names, A and B beside columns a and b.
A number never does: 1 is the first response to some, and the second, counted from 0, to others. By
names and types of columns alone; no label is looked at.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from duckdb.sqltypes import DuckDBPyType

from labelguard.budget.label_values import CODINGS, DEFAULT, LabelValues
from labelguard.errors import NoCoding
from labelguard.inputs.canonical import FRACTIONS, INTEGERS, LARGE_INTEGERS
from labelguard.inputs.columns import SYSTEMS, TableSchema
from labelguard.inputs.readers import is_text
from labelguard.text import suggest

_NUMBERS = (*INTEGERS, *LARGE_INTEGERS, *FRACTIONS)
# Columns that say which system wrote a response, and on which side.
_SYSTEM = re.compile(
    r"((?:model|system|source|generator|policy|agent|bot)(?:[ _-]?(?:name|id))?[ _-]?)([ab])", re.I
)


def name_sides(one: str, other: str) -> LabelValues:
    """Return the words that name a side of two columns by themselves.

    Their names, and the letters or words that these end in: A and B of response_a and response_b,
    left and right of text_left and text_right.
    """
    a, b = [one], [other]
    for first, second in (("a", "b"), ("left", "right")):
        stem = one.lower().removesuffix(first)
        if (one.lower(), other.lower()) == (stem + first, stem + second):
            coding = CODINGS[f"{first}-{second}"]
            a += (*coding[0], *(("model_a",) if first == "a" else ()))
            b += (*coding[1], *(("model_b",) if first == "a" else ()))
    return LabelValues(tuple(dict.fromkeys(a)), tuple(dict.fromkeys(b)))


def explain_codings(one: str, other: str) -> str:
    """Return which codings may be named for two responses, as they are typed."""
    return (
        f"--label-values 1-0 (1: {one} is preferred; 0: {other}), 0-1 (the other way round), 1-2, "
        f"true-false, a-b, left-right, a scale such as 1..7 (1 is best for {one}), every value "
        "as in a=win,b=loss,tie=draw or, where labels name the system that won, "
        "a=@COLUMN,b=@COLUMN with the columns that say which system is on which side"
    )


def explain_domain(values: LabelValues, one: str, other: str) -> str:
    """Return what labels may say, and the ways to say that other values mean something."""
    domain, codings = values.explain(one, other), explain_codings(one, other)
    return f" ({domain}), or say what its values mean: {codings}"


def find_systems(schema: TableSchema, kind: str) -> dict[str, str]:
    """Return the columns that say which system each response is of, where a label names one."""
    names = schema.reading.values.columns if kind == "pairs" and schema.reading.labelled else ()
    for name in names:
        if name not in schema.types:
            raise schema.missing_error(
                f"no column {name!r} for --label-values{suggest(name, schema.listed)}"
            )
    return dict(zip(SYSTEMS, names, strict=False))


def check_coding(
    schema: TableSchema, kind: str, sides: tuple[str, str], types: Mapping[str, DuckDBPyType]
) -> None:
    """Refuse a coding of another kind of labels, and numbers that nobody gave a meaning.

    `sides` is what the file calls the two responses, `types` are those of all columns, labels too.
    """
    values, column = schema.reading.values, schema.reading.get_column_name
    if kind == "choices" and values != replace(DEFAULT, first=values.first):
        raise schema.error(
            "--label-values names words, but choices are numbers of responses, counted "
            "from 0 (--label-values first=0) or from 1 (first=1)"
        )
    if kind != "choices" and values.first is not None:
        raise schema.error(
            f"--label-values first={values.first} goes with choices (prompt, responses, choice) "
            "alone"
        )
    if not schema.reading.has_labelers:
        return  # further pairs: whatever they say of a label, nobody takes it for one
    if kind == "choices" and values.first is None and column("choice") in types:
        raise NoCoding(
            f"{schema.name}: column {column('choice')} has the numbers of preferred responses, "
            "and nothing says whether the first is 0 or 1: --label-values first=0 or first=1"
        )
    label = types.get(column("label"))
    if kind == "pairs" and values == DEFAULT and label and label.id in (*_NUMBERS, "boolean"):
        what = "true and false" if label.id == "boolean" else "numbers"
        raise NoCoding(
            f"{schema.name}: column {column('label')} has {what}, and nothing says what they "
            f"mean: {explain_codings(*sides)}"
        )


def refuse_words_beside_systems(
    schema: TableSchema, unread: Collection[str], ignored: Collection[str]
) -> None:
    """Refuse words of somebody's own for the sides beside two columns that name systems, which are
    neither read nor `ignored`: a system that won may stand on either side. By names alone.
    """
    values, named = schema.reading.values, dict[str, dict[str, str]]()
    known = {word for coding in CODINGS.values() for words in coding for word in words}
    if values.columns or {*values.a, *values.b} <= known or "=" not in str(values):
        return
    for name in unread:
        if is_text(schema.types[name]) and (match := _SYSTEM.fullmatch(name)):
            named.setdefault(match[1].lower(), {})[match[2].lower()] = name
    for one, other in (tuple(map(s.get, "ab")) for s in named.values()):
        if one and other and not {one, other} <= {*ignored}:
            raise schema.error(
                f"columns {one} and {other} say which system wrote which response, and the words "
                "of --label-values may be names of systems, which stand on either side: where the "
                f"label names the system that won, --label-values a=@{one},b=@{other}; where it "
                f"does not, --ignore-columns {one},{other}"
            )
