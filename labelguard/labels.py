"""What a table of preference labels looks like, and the one query that reads it canonically.

Three layouts are understood: pairs (prompt, response_a, response_b, label[, tie]), chosen pairs
(prompt, chosen, rejected[, tie]) and rankings (prompt, responses, ranks). All become canonical
pairs: the two sides in canonical order, and a label that says whether the first is preferred.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass

import duckdb
from duckdb.sqltypes import DuckDBPyType

from labelguard import canonical
from labelguard.canonical import NoContent, Shape, is_text
from labelguard.errors import InvalidLabels
from labelguard.sources import identifier

LABEL_B, LABEL_A, LABEL_TIE = 0, 1, 2
"""Canonical labels: the second side preferred, the first side preferred, a tie."""

MAX_RANKED = 256

_LAYOUTS: Mapping[str, tuple[str, ...]] = {
    "pairs": ("prompt", "response_a", "response_b", "label"),
    "chosen": ("prompt", "chosen", "rejected"),
    "ranking": ("prompt", "responses", "ranks"),
}
_OPTIONAL = ("labeler_id", "tie", "item_id", "ranking_id", "submitted_at", "record_id")
_IDS = ("labeler_id", "item_id", "ranking_id", "record_id")
ROLES = tuple(dict.fromkeys([*(r for roles in _LAYOUTS.values() for r in roles), *_OPTIONAL]))
PRIVATE_ROLES = ("label", "tie", "ranks")
"""Roles whose columns nothing but the label itself may depend on."""

PUBLIC_FAULTS: Mapping[int, tuple[str, str]] = {
    1: ("labeler_id", "expected an id, found null or an empty string"),
    2: ("prompt", "expected text or chat messages, found null or empty"),
    3: ("response_a", "expected text or chat messages, found null or empty"),
    4: ("response_b", "expected text or chat messages, found null or empty"),
    # One message for both: naming the empty side would name the preferred one.
    5: ("chosen or rejected", "expected text or chat messages, found null or empty"),
    6: ("responses", "expected a list of texts or chats, found null or an empty element"),
    7: ("responses", f"expected 2 to {MAX_RANKED} responses"),
    8: ("item_id", "expected an id, found null or an empty string"),
    9: ("ranking_id", "expected an id, found null or an empty string"),
    10: ("submitted_at", "expected a time (ISO 8601, or a whole number)"),
    11: ("labeler_id", "found a number with a fraction like 7.0; write whole numbers or names"),
}
LABEL_FAULTS: Mapping[int, tuple[str, str]] = {
    100: ("label", "expected 0, 0.5 or 1 (null only where the column tie is true)"),
    101: ("label", "is null, but the column tie does not say that this is a tie"),
    102: ("tie", "contradicts the label"),
    103: ("tie", "expected true or false"),
    104: ("ranks", "expected one number for each response"),
}


@dataclass(frozen=True)
class Layout:
    """How one part's columns are read: its kind, and the column that plays each role.

    `types` are the columns' types by role, `content` is the shape of prompt and responses.
    """

    kind: str
    columns: Mapping[str, str]
    types: Mapping[str, DuckDBPyType]
    content: Shape

    @property
    def chat(self) -> bool:
        """Whether prompt and responses are chat messages."""
        return isinstance(self.content, list)


@dataclass(frozen=True)
class Reading:
    """The choices that decide how rows are read.

    `columns` maps roles to names; `unit` is `labeler` or `item` (labels without labelers).
    """

    columns: Mapping[str, str]
    unit: str = "labeler"


def parse_columns(text: str) -> dict[str, str]:
    """`labeler_id=worker,prompt=…` as a mapping from role to column name."""
    mapping: dict[str, str] = {}
    for assignment in filter(None, (piece.strip() for piece in text.split(","))):
        role, sign, name = (piece.strip() for piece in assignment.partition("="))
        if not sign or not name:
            raise InvalidLabels(f"--columns expects ROLE=NAME pairs, found {assignment!r}")
        if role in mapping:
            raise InvalidLabels(f"--columns names {role} twice")
        mapping[role] = name
    return mapping


def layout(relation: duckdb.DuckDBPyRelation, name: str, reading: Reading) -> Layout:
    """Find each role's column in a part; `InvalidLabels` says what lacks."""
    types = dict(zip(relation.columns, relation.types, strict=True))
    for role, column in reading.columns.items():
        if role not in ROLES:
            raise InvalidLabels(
                f"--columns: unknown role {role!r}{_closest(role, ROLES)}; "
                f"roles: {', '.join(ROLES)}"
            )
        if column not in types:
            raise InvalidLabels(
                f"{name}: no column {column!r} (given for {role}){_closest(column, types)}; "
                f"found: {', '.join(types)}"
            )
    columns = {role: reading.columns.get(role, role) for role in ROLES}
    columns = {role: column for role, column in columns.items() if column in types}
    kind = _kind(columns, types, name)
    used = (*_LAYOUTS[kind], *_OPTIONAL)
    if kind == "ranking":
        used = tuple(role for role in used if role not in ("tie",))
    for role in reading.columns:
        if role not in used:
            raise InvalidLabels(
                f"{name}: --columns names {role}, which does not go with columns "
                f"({', '.join(_LAYOUTS[kind])})"
            )
    columns = {role: column for role, column in columns.items() if role in used}
    if "labeler_id" not in columns and reading.unit == "labeler":
        raise InvalidLabels(
            f"{name}: no column labeler_id{_closest('labeler_id', types)}; name it (--columns "
            "labeler_id=NAME) or, if nobody gave more than one label, use --unit item; "
            f"found: {', '.join(types)}"
        )
    for role, column in columns.items():
        if role in PRIVATE_ROLES and list(columns.values()).count(column) > 1:
            raise InvalidLabels(
                f"{name}: column {column} is {role}, which is private, and cannot be "
                "anything else too"
            )
    kinds = {role: types[column] for role, column in columns.items()}
    _check_types(kinds, columns, name)
    return Layout(kind, columns, kinds, _content(kinds, columns, kind, name))


def query(layout: Layout, content: Shape) -> str:
    """The SELECT over `part` that yields canonical pairs; `content` is the shape of all parts."""
    content_type = canonical.sql_type(content)
    casts = dict.fromkeys(_IDS, "VARCHAR") | dict.fromkeys(_LAYOUTS[layout.kind][:3], content_type)
    if layout.kind == "ranking":
        casts["responses"] = f"{content_type}[]"
        del casts["ranks"]
    named = ", ".join(
        f"{identifier(column)}{f'::{casts[role]}' if role in casts else ''} AS {role}"
        for role, column in layout.columns.items()
    )
    build = _ranking_query if layout.kind == "ranking" else _pair_query
    return f"WITH named AS (SELECT {named} FROM part), {build(layout, content)}"


def _kind(columns: Mapping[str, str], types: Mapping[str, DuckDBPyType], name: str) -> str:
    complete = [kind for kind, roles in _LAYOUTS.items() if all(r in columns for r in roles)]
    if len(complete) == 1:
        return complete[0]
    if complete:
        raise InvalidLabels(
            f"{name}: columns for {' and '.join(complete)} are both present; "
            "rename or drop the columns that are not meant"
        )
    nearest = max(_LAYOUTS, key=lambda kind: sum(r in columns for r in _LAYOUTS[kind]))
    missing = [role for role in _LAYOUTS[nearest] if role not in columns]
    wanted = " or ".join(f"({', '.join(roles)})" for roles in _LAYOUTS.values())
    free = tuple(column for column in types if column not in columns.values())
    lacking = ", ".join(f"{role}{_closest(role, free)}" for role in missing)
    raise InvalidLabels(
        f"{name}: no column {lacking}; expected {wanted}; found: {', '.join(types)}; "
        f"name columns with --columns {missing[0]}=NAME"
    )


def _check_types(kinds: Mapping[str, DuckDBPyType], columns: Mapping[str, str], name: str) -> None:
    """Refuse ids, times and labels whose columns cannot be what they are named."""
    for role, kind in kinds.items():
        if role in _IDS:
            fits = is_text(kind) or kind.id in (*_INTEGER, "uuid")
            expected = "text or whole numbers"
        elif role == "submitted_at":
            fits = is_text(kind) or kind.id in (*_INTEGER, "date", "null")
            fits = fits or kind.id.startswith("timestamp")
            expected = "timestamps, ISO 8601 text or whole numbers"
        elif role in ("label", "tie"):
            fits = is_text(kind) or kind.id in (*_NUMERIC, "boolean", "null")
            expected = "0, 0.5 or 1" if role == "label" else "true or false"
        elif role == "ranks":
            fits = kind.id in ("list", "array") and canonical.element(kind).id in _NUMERIC
            expected = "a list of numbers"
        else:
            continue
        if not fits:
            raise InvalidLabels(
                f"{name}: column {columns[role]}: expected {expected}, found type {_short(kind)}"
            )


def _content(
    kinds: Mapping[str, DuckDBPyType], columns: Mapping[str, str], kind: str, name: str
) -> Shape:
    """The one shape of prompt and responses."""
    roles = _LAYOUTS[kind][: 2 if kind == "ranking" else 3]
    found = {role: kinds[role] for role in roles}
    if kind == "ranking":
        if found["responses"].id not in ("list", "array"):
            raise InvalidLabels(
                f"{name}: column {columns['responses']}: expected a list, "
                f"found type {_short(found['responses'])}"
            )
        found["responses"] = canonical.element(found["responses"])
    try:
        return canonical.content_shape(found.values())
    except NoContent:
        # Types are not said of chosen and rejected: those of a JSON file follow from the labels.
        said = "" if kind == "chosen" else " found " + ", ".join(map(_short, found.values()))
        names = ", ".join(columns[role] for role in roles)
        raise InvalidLabels(
            f"{name}: columns {names}: expected all text, or all chat messages (lists of role, "
            f"content) that agree in their types;{said or ' found something else'}"
        ) from None


def _short(kind: DuckDBPyType) -> str:
    found = str(kind).replace('"', "")
    return found if len(found) < 80 else found[:77] + "..."


_INTEGER = (*canonical.INTEGERS, *canonical.LARGE_INTEGERS)
_NUMERIC = (*_INTEGER, *canonical.FRACTIONS)


def _closest(name: str, candidates: Mapping[str, object] | tuple[str, ...]) -> str:
    matches = difflib.get_close_matches(name, list(candidates), 1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def _pair_query(layout: Layout, content: Shape) -> str:
    kinds = layout.types
    _, a, b = _LAYOUTS[layout.kind][:3]
    faults = _common_faults(kinds)
    if layout.kind == "chosen":
        label = f"CASE WHEN coalesce({_tie(kinds)}, false) THEN {LABEL_TIE} ELSE {LABEL_A} END"
        if "tie" in kinds:
            label = f"CASE WHEN {_bad_tie(kinds)} THEN 103 ELSE {label} END"
        faults += ["WHEN ea IS NULL OR eb IS NULL THEN 5"]
    else:
        label = _label(kinds)
        faults += ["WHEN ea IS NULL THEN 3", "WHEN eb IS NULL THEN 4"]
    return f"""
        encoded AS (
            SELECT *,
                {canonical.encoded("prompt", content)} AS ep,
                {canonical.encoded(a, content)} AS ea,
                {canonical.encoded(b, content)} AS eb,
                ({label})::UTINYINT AS given
            FROM named)
        SELECT
            prompt,
            CASE WHEN ea <= eb THEN {a} ELSE {b} END AS first,
            CASE WHEN ea <= eb THEN {b} ELSE {a} END AS second,
            {canonical.item_digest("ep", "least(ea, eb), greatest(ea, eb)")} AS content,
            {_common_columns(kinds)}
            coalesce(ea = eb, false) AS identical,
            (CASE {" ".join(faults)} ELSE 0 END)::UTINYINT AS fault,
            (CASE WHEN given < 2 AND ea > eb THEN 1 - given ELSE given END)::UTINYINT AS label
        FROM encoded"""


def _ranking_query(layout: Layout, content: Shape) -> str:
    # Every ranking becomes its pairs (i, j), i < j in canonical order of the responses.
    kinds = layout.types
    faults = [
        *_common_faults(kinds),
        f"WHEN k IS NULL OR k < 2 OR k > {MAX_RANKED} THEN 7",
        "WHEN list_contains(es, '') THEN 6",
    ]
    return f"""
        encoded AS (
            SELECT *, row_number() OVER () - 1 AS source_row,
                {canonical.encoded("prompt", content)} AS ep,
                list_transform(responses,
                    lambda r: coalesce({canonical.encoded("r", content)}, '')) AS es,
                len(responses) AS k
            FROM named),
        ordered AS (
            SELECT *, list_grade_up(es) AS o,
                {canonical.item_digest("ep", "array_to_string(list_sort(es), '')")} AS content,
                (CASE {" ".join(faults)} ELSE 0 END)::UTINYINT AS fault,
                coalesce(len(ranks) = k AND len(list_filter(ranks,
                    lambda x: x IS NOT NULL AND NOT isnan(x::DOUBLE))) = k, false) AS ranked
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
            {_common_columns(kinds)}
            (CASE WHEN fault > 0 THEN 0
                ELSE (p.i - 1) * k - p.i * (p.i - 1) // 2 + p.j - p.i - 1 END)::USMALLINT AS pair,
            source_row,
            coalesce(es[o[p.i]] = es[o[p.j]], false) AS identical,
            fault,
            (CASE WHEN NOT ranked THEN 104
                WHEN ranks[o[p.i]] < ranks[o[p.j]] THEN {LABEL_A}
                WHEN ranks[o[p.i]] > ranks[o[p.j]] THEN {LABEL_B}
                ELSE {LABEL_TIE} END)::UTINYINT AS label
        FROM pairs"""


def _common_columns(kinds: Mapping[str, DuckDBPyType]) -> str:
    """SELECT list of the identifying columns that all layouts share."""
    pieces = []
    if "labeler_id" in kinds:
        pieces.append("labeler_id AS labeler")
    if "item_id" in kinds:
        pieces += ["item_id", f"{canonical.id_digest(canonical.ID_TAG, 'item_id')} AS given_id"]
    for role in ("ranking_id", "record_id"):
        if role in kinds:
            pieces.append(f"{canonical.id_digest(canonical.GROUP_TAG, role)} AS {role[:-3]}")
    if "submitted_at" in kinds:
        pieces.append(f"{_time(kinds)} AS submitted")
    return "".join(f"{piece}, " for piece in pieces)


def _common_faults(kinds: Mapping[str, DuckDBPyType]) -> list[str]:
    """CASE branches for faults of public columns."""
    faults = []
    if "labeler_id" in kinds:
        # The comparison spares nearly all ids the regular expression.
        blank = r"NOT coalesce(regexp_matches(labeler_id, '[^\s\p{Z}]'), false)"
        fraction = "try_cast(labeler_id AS DOUBLE) IS NOT NULL"
        faults += [
            f"WHEN CASE WHEN labeler_id BETWEEN '!' AND '~' THEN false ELSE {blank} END THEN 1",
            f"WHEN CASE WHEN ends_with(labeler_id, '.0') THEN {fraction} ELSE false END THEN 11",
        ]
    faults.append("WHEN ep IS NULL THEN 2")
    for role, code in (("item_id", 8), ("ranking_id", 9)):
        if role in kinds:
            faults.append(f"WHEN coalesce({role}, '') = '' THEN {code}")
    if "submitted_at" in kinds:
        faults.append(f"WHEN submitted_at IS NOT NULL AND {_time(kinds)} IS NULL THEN 10")
    return faults


def _time(kinds: Mapping[str, DuckDBPyType]) -> str:
    """SQL of the submission time as an integer that sorts by time; NULL if it is no time."""
    kind = kinds["submitted_at"]
    number = "try_cast(submitted_at AS BIGINT)"
    time = "epoch_us(try_cast(submitted_at AS TIMESTAMPTZ))"
    if is_text(kind):  # CSV and JSONL give numbers as text.
        digits = "regexp_full_match(submitted_at, '-?[0-9]+')"
        return f"(CASE WHEN {digits} THEN {number} ELSE {time} END)"
    return number if kind.id in (*_INTEGER, "null") else time


def _tie(kinds: Mapping[str, DuckDBPyType]) -> str:
    """SQL of the tie flag as a boolean; NULL if it is absent or no boolean."""
    if "tie" not in kinds:
        return "NULL::BOOLEAN"
    if kinds["tie"].id in _NUMERIC:
        return "(CASE WHEN tie = 1 THEN true WHEN tie = 0 THEN false END)"
    return "try_cast(tie AS BOOLEAN)"


def _bad_tie(kinds: Mapping[str, DuckDBPyType]) -> str:
    return f"tie IS NOT NULL AND {_tie(kinds)} IS NULL"


def _label(kinds: Mapping[str, DuckDBPyType]) -> str:
    """SQL of the given label: 0, 1, 2 (tie), or a code of LABEL_FAULTS."""
    value = "try_cast(label AS DOUBLE)"
    if is_text(kinds["label"]):  # CSV and JSONL give booleans as text.
        words = "WHEN 'true' THEN 1 WHEN 'false' THEN 0"
        value = f"(CASE lower(label) {words} ELSE {value} END)"
    tie, bad_tie = _tie(kinds), f"WHEN {_bad_tie(kinds)} THEN 103" if "tie" in kinds else ""
    return f"""CASE {bad_tie}
        WHEN label IS NULL THEN CASE WHEN {tie} THEN {LABEL_TIE} ELSE 101 END
        WHEN {value} = 0.5 THEN CASE WHEN NOT {tie} THEN 102 ELSE {LABEL_TIE} END
        WHEN {value} IN (0, 1) THEN CASE WHEN {tie} THEN 102 ELSE {value}::UTINYINT END
        ELSE 100 END"""
