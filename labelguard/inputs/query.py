"""The one query that reads a part canonically: what SQL selects for each layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from duckdb.sqltypes import DuckDBPyType

from labelguard.budget.label_values import WHITE_SPACE, is_number
from labelguard.inputs import canonical, chats
from labelguard.inputs.chats import Content
from labelguard.inputs.columns import IDS, LAYOUTS, SYSTEMS
from labelguard.inputs.layouts import INTEGER, Layout
from labelguard.inputs.readers import identifier, is_text, literal, nan_to_null_sql, number_sql
from labelguard.learning.columns import FeatureColumn
from labelguard.text import LABEL_A, LABEL_B, LABEL_SKIP, LABEL_TIE

_MAX_RANKED = 256
NO_ID = "expected an id, found null or an empty string"
NO_CONTENT = "expected text or chat messages, found null or a chat without messages"
# Roles and reasons of faults of public columns, by the number that the query gives them.
PUBLIC_FAULTS: Mapping[int, tuple[str, str]] = {
    1: ("labeler_id", NO_ID),
    2: ("prompt", NO_CONTENT),
    3: ("response_a", NO_CONTENT),
    4: ("response_b", NO_CONTENT),
    5: ("chosen", NO_CONTENT),
    6: ("responses", "expected a list of texts or chats, found null, or a chat without messages"),
    7: ("responses", f"expected 2 to {_MAX_RANKED} responses"),
    8: ("item_id", NO_ID),
    9: ("ranking_id", NO_ID),
    10: ("submitted_at", "expected a time (ISO 8601, or a whole number)"),
    11: ("rejected", NO_CONTENT),
    12: ("of a feature", "expected a finite number for every response"),
    13: ("question", NO_ID),
    14: ("of a source", "expected the name of what wrote each response, found null or blanks"),
    15: ("of a stratum", "expected a name, found null or blanks"),
    16: ("system_a", NO_ID),
    17: ("system_b", NO_ID),
}
# The same of labels, from `LABEL_FAULT` on.
LABEL_FAULT = 100
OUTSIDE = "found a value outside the domain"
LABEL_FAULTS: Mapping[int, tuple[str, str]] = {
    100: ("label", OUTSIDE),
    101: ("tie", "contradicts the label"),
    102: ("tie", "expected true, false or nothing"),
    103: ("ranks", "expected one number for each response"),
    104: (
        "choice",
        "expected the number of a response, counted from 0, or in an export of a tool the name of "
        "a response's field, or the word that --columns 'responses=FIELD=WORD|…' gives it",
    ),
    105: ("choice", "expected the number of a response, counted from 1"),
}


def build_canonical_query(layout: Layout, content: Content) -> str:
    """Return the SELECT over `part` of canonical pairs; `content` is the type in all files."""
    shape = chats.build_shape(content)
    columns = {role: layout.column_sql(column) for role, column in layout.columns.items()}
    pieces = [_role_column_sql(role, column, layout, shape) for role, column in columns.items()]
    if "ranks" in columns:
        pieces.append(f"{columns['ranks']} IS NULL AS skipped")
    if "choice" in columns:
        choice = nan_to_null_sql(columns["choice"], layout.types["choice"])
        pieces.append(f"coalesce({trim_sql(choice)}, '') = '' AS skipped")
    question = layout.reading.question
    if question is not None:
        pieces.append(f"{literal(question)} AS question")
    for feature, sides in layout.features.items():
        for alias, column in zip(_alias_sides(layout, feature), sides, strict=True):
            pieces.append(
                f"{_feature_value_sql(feature, layout.column_sql(column), layout)} AS {alias}"
            )
    named = ", ".join(pieces)
    build = _build_ranking_query if layout.is_list else _build_pair_query
    return f"WITH named AS (SELECT {named} FROM part), {build(layout, content)}"


def _role_column_sql(role: str, column: str, layout: Layout, shape: Any) -> str:
    """Return SQL of a column under the name of its role. Labels are text, whatever their type."""
    if role in ("label", "tie"):
        read = trim_sql(nan_to_null_sql(column, layout.types[role]))
    elif role == "choice":
        # The place of the preferred response, from 1; NULL if that is no whole number.
        number = f"try_cast({trim_sql(column)} AS DOUBLE)"
        place = f"{number} + {1 - (layout.values.first or 0)}"
        read = f"CASE WHEN {number} = trunc({number}) AND isfinite({number}) THEN {place} END"
    elif role == "ranks":
        read = f"try_cast({column} AS DOUBLE[])"
    elif role in LAYOUTS[layout.kind][:3]:
        shape = [shape] if role == "responses" else shape
        read = chats.build_content_sql(column, layout.types[role], shape)
    else:
        read = trim_sql(column) if role in SYSTEMS else column
        read = f"{column}::VARCHAR" if role in IDS and role not in SYSTEMS else read
        # In CSV what is not there is an empty text.
        blank = role == "record_id" or (role == "submitted_at" and is_text(layout.types[role]))
        read = f"nullif({read}, '')" if blank else read
    return f"{read} AS {role}"


def trim_sql(column: str) -> str:
    """Return SQL of a column as text without blanks around it."""
    return f"trim({column}::VARCHAR, {literal(WHITE_SPACE)})"


def _build_pair_query(layout: Layout, content: Content) -> str:
    kinds = layout.types
    _, a, b = LAYOUTS[layout.kind][:3]
    faults = _list_public_fault_cases(kinds)
    codes = (3, 4) if layout.kind == "pairs" else (5, 11)
    faults += [f"WHEN {e} IS NULL THEN {n}" for e, n in zip(("ea", "eb"), codes, strict=True)]
    faults += [
        _feature_fault_sql(feature, _alias_sides(layout, feature)) for feature in layout.features
    ]
    values: dict[str, str] = {}
    for feature in layout.features:
        values |= _ordered_feature_sql(feature, *_alias_sides(layout, feature))
    # Where a label names the system that won, it says nothing of two responses of one.
    same = "ea = eb OR system_a = system_b" if SYSTEMS[0] in kinds else "ea = eb"
    digest = canonical.item_digest_sql("ep", "least(ea, eb), greatest(ea, eb)")
    digest = _digest_under_question_sql(digest, layout)
    return f"""
        encoded AS (
            SELECT *,
                {canonical.encode_sql("prompt", content)} AS ep,
                {canonical.encode_sql(a, content)} AS ea,
                {canonical.encode_sql(b, content)} AS eb,
                {_select_side_words(layout, content, a, b)}
                ({label_ignoring_tie_flag_sql(layout)})::UTINYINT AS said,
                ({_label_or_fault_code_sql(layout)})::UTINYINT AS given
            FROM named)
        SELECT
            prompt,
            CASE WHEN ea <= eb THEN {a} ELSE {b} END AS first,
            CASE WHEN ea <= eb THEN {b} ELSE {a} END AS second,
            {digest} AS content,
            {_select_common_columns(layout)}
            {_select_features(layout, values)}
            coalesce({same}, false) AS identical,
            (CASE {" ".join(faults)} ELSE 0 END)::UTINYINT AS fault,
            (CASE WHEN given < 2 AND ea > eb THEN 1 - given ELSE given END)::UTINYINT AS label
        FROM encoded"""


def _build_ranking_query(layout: Layout, content: Content) -> str:
    # Every ranking becomes its pairs (i, j), i < j in canonical order of the responses.
    lists = [
        _alias_sides(layout, feature)[0] for feature in layout.features if feature.kind != "stratum"
    ]
    ranked, label = _ranking_check_and_label_sql(layout)
    # Equal texts are put in order by what is attached to them, never by their order in the list.
    attached = "".join(f" || strlen({v}[i]::VARCHAR) || ':' || {v}[i]" for v in lists)
    sorted_by = f"list_transform(range(1, k + 1), lambda i: es[i]{attached})" if lists else "es"
    values: dict[str, str] = {}
    for feature in layout.features:
        alias = _alias_sides(layout, feature)[0]
        sides = (alias,) if feature.kind == "stratum" else (f"{alias}[o[p.i]]", f"{alias}[o[p.j]]")
        values |= _pair_feature_sql(feature, *sides)
    digest = canonical.item_digest_sql("ep", "array_to_string(list_sort(es), '')")
    return f"""
        encoded AS (
            SELECT *, row_number() OVER () - 1 AS source_row,
                {canonical.encode_sql("prompt", content)} AS ep,
                list_transform(responses,
                    lambda r: coalesce({canonical.encode_sql("r", content)}, '')) AS es,
                {_select_side_words(layout, content)}
                len(responses) AS k
            FROM named),
        ordered AS (
            SELECT *, list_grade_up({sorted_by}) AS o,
                {_digest_under_question_sql(digest, layout)} AS content,
                (CASE {" ".join(_list_ranking_fault_cases(layout))} ELSE 0 END)::UTINYINT AS fault,
                {ranked} AS ranked
            FROM encoded),
        pairs AS (
            SELECT *, unnest(CASE WHEN fault > 0 THEN [{{'i': 1, 'j': 2}}] ELSE
                flatten(list_transform(range(1, k), lambda i: list_transform(range(i + 1, k + 1),
                    lambda j: {{'i': i::INTEGER, 'j': j::INTEGER}}))) END) AS p
            FROM ordered)
        SELECT
            prompt,
            responses[o[p.i]] AS first,
            responses[o[p.j]] AS second,
            content,
            {_select_common_columns(layout)}
            (CASE WHEN fault > 0 THEN 0
                ELSE (p.i - 1) * k - p.i * (p.i - 1) // 2 + p.j - p.i - 1 END)::USMALLINT AS pair,
            source_row,
            k::USMALLINT AS size,
            {_select_features(layout, values)}
            coalesce(es[o[p.i]] = es[o[p.j]], false) AS identical,
            fault,
            {label}::UTINYINT AS label
        FROM pairs"""


def _list_ranking_fault_cases(layout: Layout) -> list[str]:
    """Return CASE branches for faults of a ranking."""
    return [
        *_list_public_fault_cases(layout.types),
        f"WHEN k IS NULL OR k < 2 OR k > {_MAX_RANKED} THEN 7",
        "WHEN list_contains(es, '') THEN 6",
        *(
            _list_fault_sql(feature, _alias_sides(layout, feature)[0])
            for feature in layout.features
        ),
    ]


def _ranking_check_and_label_sql(layout: Layout) -> tuple[str, str]:
    """Return SQL of whether there is a rank for each response, and of the label of a pair.

    A choice prefers the chosen response to every other one, and says nothing of two others.
    """
    if not layout.reading.labelled:
        return "true", f"{LABEL_TIE}"
    if layout.kind == "choices":
        ranked, fault = "choice BETWEEN 1 AND k", 104 + (layout.values.first or 0)
        a, b = "o[p.i] = choice", "o[p.j] = choice"
    else:
        numbers = "list_filter(ranks, lambda x: x IS NOT NULL AND NOT isnan(x))"
        ranked, fault = f"len(ranks) = k AND len({numbers}) = k", 103
        a, b = "ranks[o[p.i]] < ranks[o[p.j]]", "ranks[o[p.i]] > ranks[o[p.j]]"
    label = f"""(CASE WHEN skipped THEN {_choose_blank_label(layout)}
                WHEN NOT ranked THEN {fault}
                WHEN {a} THEN {LABEL_A}
                WHEN {b} THEN {LABEL_B}
                ELSE {LABEL_TIE} END)"""
    return f"coalesce({ranked}, false)", label


def _alias_sides(layout: Layout, feature: FeatureColumn) -> tuple[str, ...]:
    """Return what the columns of a feature are called in between, one for each side."""
    place = list(layout.features).index(feature)
    return tuple(f"carried_{place}_{side}" for side in range(len(layout.features[feature])))


def _feature_value_sql(feature: FeatureColumn, column: str, layout: Layout) -> str:
    """Return SQL of a feature's column, of whatever type it is."""
    listed = layout.is_list and feature.kind != "stratum"
    if feature.kind == "number":
        if listed:
            return f"list_transform(try_cast({column} AS DOUBLE[]), lambda x: x + 0::DOUBLE)"
        # By way of text where DuckDB does not round to the nearest number.
        exact = f"CASE WHEN typeof({column}) = 'HUGEINT' THEN try_cast({column}::VARCHAR AS DOUBLE)"
        # And a zero has no sign, which only a fraction can have.
        return f"({exact} ELSE {number_sql(column)} END + 0::DOUBLE)"
    # Lists in JSON files are JSON, of which a cast to texts would keep the quotation marks.
    listing = f"from_json(try_cast({column} AS JSON), '[\"VARCHAR\"]')"
    return listing if listed else f"{column}::VARCHAR"


def _ordered_feature_sql(feature: FeatureColumn, *sides: str) -> dict[str, str]:
    """Return `_pair_feature_sql` of the sides in the order of their contents, as the label is."""
    if feature.kind == "stratum":
        return _pair_feature_sql(feature, *sides)
    # A number of both sides together is for the first as one of each side is where the second has
    # 0. Not by a factor of -1: the sign of a zero would tell which side was chosen.
    both = sides if len(sides) > 1 else (f"({sides[0]} + 0::DOUBLE)", "0::DOUBLE")
    values, turned = _pair_feature_sql(feature, *both), _pair_feature_sql(feature, *reversed(both))
    return {
        name: f"(CASE WHEN ea <= eb THEN {value} ELSE {turned[name]} END)"
        for name, value in values.items()
    }


def _pair_feature_sql(feature: FeatureColumn, *sides: str) -> dict[str, str]:
    """Return SQL of a pair's feature, by the name it is carried under; `sides` are its values."""
    values = (f"{sides[0]} - {sides[1]}",) if feature.kind == "number" else sides
    return dict(zip(feature.pair_columns, values, strict=True))


def _feature_fault_sql(feature: FeatureColumn, sides: tuple[str, ...]) -> str:
    """Return the CASE branch for what is carried and is not there."""
    if feature.kind == "number":
        return f"WHEN NOT coalesce(isfinite({' - '.join(sides)}), false) THEN 12"
    missing = " OR ".join(is_blank_sql(side) for side in sides)
    return f"WHEN {missing} THEN {14 if feature.kind == 'source' else 15}"


def _list_fault_sql(feature: FeatureColumn, values: str) -> str:
    """Return the same of what is carried as a list, one for each response."""
    if feature.kind == "stratum":
        return _feature_fault_sql(feature, (values,))
    good = (
        "x IS NOT NULL AND isfinite(x)"
        if feature.kind == "number"
        else f"NOT ({is_blank_sql('x')})"
    )
    return (
        f"WHEN NOT coalesce(len({values}) = k AND len(list_filter({values}, lambda x: {good})) = k,"
        f" false) THEN {12 if feature.kind == 'number' else 14}"
    )


def _select_features(layout: Layout, values: Mapping[str, str]) -> str:
    """Return the SELECT list of features, from SQL by name, and of a digest of names in them."""
    named = [name for f in layout.features if f.kind != "number" for name in f.pair_columns]
    listed = [f"{value} AS {identifier(name)}, " for name, value in values.items()]
    if named:
        parts = ", ".join(f"strlen({values[name]}), ':', {values[name]}" for name in named)
        listed.append(f"unhex(sha256(concat({parts}))) AS carried, ")
    return "".join(listed)


def _digest_under_question_sql(digest: str, layout: Layout) -> str:
    """Return SQL of an item's digest, under the question that the row answers if it tells one."""
    return canonical.question_digest_sql("question", digest) if layout.has_questions else digest


def _select_side_words(layout: Layout, content: Content, *sides: str) -> str:
    """Return the SELECT list of the words of every side, where contents are units."""
    if layout.reading.unit != "item":
        return ""
    prompt, *words = (canonical.plain_text_sql(v, content) for v in ("prompt", *(sides or ("r",))))
    joined = [f"concat({prompt}, {word})" for word in words]
    if sides:
        return f"[{', '.join(joined)}] AS sides, "
    return f"list_transform(responses, lambda r: {joined[0]}) AS sides, "


def _select_common_columns(layout: Layout) -> str:
    """Return the SELECT list of the identifying columns that all layouts share."""
    pieces, kinds = [], layout.types
    if layout.reading.unit == "item":
        pieces.append("sides")
    if "labeler_id" in kinds:
        pieces.append("labeler_id AS labeler")
    if "item_id" in kinds:
        digest = _digest_under_question_sql(
            canonical.id_digest_sql(canonical.ID_TAG, "item_id"), layout
        )
        name = canonical.id_under_question_sql("item_id", "question")
        name = name if layout.has_questions else "item_id"
        pieces += [f"{name} AS item_id", f"{digest} AS given_id"]
    if layout.has_questions:
        pieces.append("question")
    for role in ("ranking_id", "record_id"):
        if role in kinds:
            pieces.append(f"{canonical.id_digest_sql(canonical.GROUP_TAG, role)} AS {role[:-3]}")
    if "submitted_at" in kinds:
        pieces.append(f"{_submission_time_sql(kinds)} AS submitted")
    return "".join(f"{piece}, " for piece in pieces)


def _list_public_fault_cases(kinds: Mapping[str, DuckDBPyType]) -> list[str]:
    """Return CASE branches for faults of public columns."""
    faults = []
    if "labeler_id" in kinds:
        faults.append(f"WHEN {is_blank_sql('labeler_id')} THEN 1")
    faults.append("WHEN ep IS NULL THEN 2")
    ids = (
        ("item_id", 8),
        ("question", 13),
        ("ranking_id", 9),
        *zip(SYSTEMS, (16, 17), strict=True),
    )
    for role, code in ids:
        if role in kinds:
            faults.append(f"WHEN coalesce({role}, '') = '' THEN {code}")
    if "submitted_at" in kinds:
        faults.append(
            f"WHEN submitted_at IS NOT NULL AND {_submission_time_sql(kinds)} IS NULL THEN 10"
        )
    return faults


def is_blank_sql(column: str) -> str:
    """Return SQL that is true where an id (VARCHAR) is null, empty or white space."""
    # The comparison spares nearly all ids the regular expression.
    is_white = rf"NOT coalesce(regexp_matches({column}, '[^\s\p{{Z}}]'), false)"
    return f"CASE WHEN {column} BETWEEN '!' AND '~' THEN false ELSE {is_white} END"


def _submission_time_sql(kinds: Mapping[str, DuckDBPyType]) -> str:
    """Return SQL of the submission time as an integer that sorts by time; NULL if it is no time."""
    kind = kinds["submitted_at"]
    number = "try_cast(submitted_at AS BIGINT)"
    time = "epoch_us(try_cast(submitted_at AS TIMESTAMPTZ))"
    if is_text(kind):  # CSV and JSONL give numbers as text.
        digits = "regexp_full_match(submitted_at, '-?[0-9]+')"
        return f"(CASE WHEN {digits} THEN {number} ELSE {time} END)"
    return number if kind.id in (*INTEGER, "null") else time


_FLAG = """coalesce(try_cast(tie AS BOOLEAN),
            CASE try_cast(tie AS DOUBLE) WHEN 1 THEN true WHEN 0 THEN false END)"""


def label_ignoring_tie_flag_sql(layout: Layout) -> str:
    """Return SQL of the label but for the flag of ties, or 100 outside the domain."""
    if not layout.reading.labelled:
        return f"{LABEL_TIE}"
    if layout.kind == "chosen":
        return f"{LABEL_A}"
    values, texts = layout.values, list[str]()
    if values.columns:
        a, b = SYSTEMS
        texts = [f"WHEN label = {a} THEN {LABEL_A} WHEN label = {b} THEN {LABEL_B}"]
        values = replace(values, a=(), b=())
    coded = (
        (values.a, LABEL_A),
        (values.b, LABEL_B),
        (values.tie, LABEL_TIE),
        (values.skip, LABEL_SKIP),
    )
    numbers = []
    for words, code in coded:
        listed = ", ".join(map(literal, words))
        texts += [f"WHEN label IN ({listed}) THEN {code}"] if words else []
        listed = ", ".join(f"{literal(word)}::DOUBLE" for word in words if is_number(word))
        numbers += [f"WHEN {number_sql('label')} IN ({listed}) THEN {code}"] if listed else []
    cases = " ".join([*texts, *numbers])
    return f"CASE WHEN coalesce(label, '') = '' THEN {LABEL_SKIP} {cases} ELSE {LABEL_FAULT} END"


def _label_or_fault_code_sql(layout: Layout) -> str:
    """Return SQL of the label, from `said` and the flag of ties, or a code of LABEL_FAULTS.

    The flag decides: what stands beside it in a column that can only say A or B is a filler.
    """
    skipped = f"WHEN said = {LABEL_SKIP} THEN {_choose_blank_label(layout)}"
    if "tie" not in layout.columns:
        return f"CASE {skipped} ELSE said END"
    return f"""CASE
        WHEN tie <> '' AND {_FLAG} IS NULL THEN 102
        WHEN {_FLAG} AND said < {LABEL_FAULT} THEN {LABEL_TIE}
        WHEN NOT {_FLAG} AND said = {LABEL_TIE} THEN 101
        {skipped}
        ELSE said END"""


def _choose_blank_label(layout: Layout) -> int:
    """Return what a blank label becomes."""
    return LABEL_TIE if layout.reading.skips == "tie" else LABEL_SKIP
