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
from labelguard.canonical import is_chat, is_text
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
    10: ("submitted_at", "expected a time"),
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
    """How one part's columns are read: its kind, and the column that plays each role."""

    kind: str
    columns: Mapping[str, str]
    chat: bool
    query: str


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
        role, sign, name = assignment.partition("=")
        if not sign or not name:
            raise InvalidLabels(f"--columns expects ROLE=NAME pairs, found {assignment!r}")
        mapping[role.strip()] = name.strip()
    return mapping


def layout(relation: duckdb.DuckDBPyRelation, name: str, reading: Reading) -> Layout:
    """Find each role's column in a part and build its query; `InvalidLabels` says what lacks."""
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
    if "labeler_id" not in columns and reading.unit == "labeler":
        raise InvalidLabels(
            f"{name}: no column labeler_id; name it (--columns labeler_id=NAME) or, if nobody "
            f"gave more than one label, use --unit item; found: {', '.join(types)}"
        )
    kinds = {role: types[column] for role, column in columns.items()}
    chat = _check_types(kinds, columns, kind, name)
    named = ", ".join(
        f"{identifier(column)}{'::VARCHAR' if role in _IDS else ''} AS {role}"
        for role, column in columns.items()
    )
    query = (_ranking_query if kind == "ranking" else _pair_query)(kind, kinds)
    return Layout(kind, columns, chat, f"WITH named AS (SELECT {named} FROM part), {query}")


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
    raise InvalidLabels(
        f"{name}: no column {', '.join(missing)}; expected {wanted}; found: {', '.join(types)}; "
        f"name columns with --columns {missing[0]}=NAME"
    )


def _check_types(
    kinds: Mapping[str, DuckDBPyType], columns: Mapping[str, str], kind: str, name: str
) -> bool:
    """Refuse columns that cannot be what they are named; whether the texts are chats."""

    def refuse(role: str, expected: str) -> InvalidLabels:
        found = str(kinds[role])
        return InvalidLabels(
            f"{name}: column {columns[role]}: expected {expected}, found type "
            f"{found if len(found) < 80 else found[:77] + '...'}"
        )

    contents = {"prompt": kinds["prompt"]}
    if kind == "ranking":
        for role in ("responses", "ranks"):
            if kinds[role].id not in ("list", "array"):
                raise refuse(role, "a list")
        contents["responses"] = canonical.element(kinds["responses"])
        if not canonical.element(kinds["ranks"]).id.startswith(_NUMERIC):
            raise refuse("ranks", "a list of numbers")
    else:
        contents.update({role: kinds[role] for role in _LAYOUTS[kind][1:3]})
    for role, content in contents.items():
        if not is_text(content) and not is_chat(content):
            raise refuse(role, "text or chat messages")
    if len({is_chat(content) for content in contents.values()}) > 1:
        raise InvalidLabels(f"{name}: prompt and responses must be all text or all chat messages")
    for role in _IDS:
        if role in kinds and not (is_text(kinds[role]) or kinds[role].id.startswith(_INTEGER)):
            raise refuse(role, "text or whole numbers")
    for role in ("label", "tie"):
        if role in kinds and not (
            is_text(kinds[role]) or kinds[role].id.startswith((*_NUMERIC, "boolean"))
        ):
            raise refuse(role, "a number" if role == "label" else "true or false")
    return is_chat(contents["prompt"])


_INTEGER = (
    "integer",
    "bigint",
    "smallint",
    "tinyint",
    "hugeint",
    "uint",
    "utiny",
    "usmall",
    "ubig",
)
_NUMERIC = (*_INTEGER, "float", "double", "decimal")


def _closest(name: str, candidates: Mapping[str, object] | tuple[str, ...]) -> str:
    matches = difflib.get_close_matches(name, list(candidates), 1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def _pair_query(kind: str, kinds: Mapping[str, DuckDBPyType]) -> str:
    _, a, b = _LAYOUTS[kind][:3]
    faults = _common_faults(kinds)
    if kind == "chosen":
        label = f"CASE WHEN {_tie_flag(kinds)} THEN {LABEL_TIE} ELSE {LABEL_A} END"
        if "tie" in kinds:
            label = f"CASE WHEN {_BAD_TIE} THEN 103 ELSE {label} END"
        faults += ["WHEN ea IS NULL OR eb IS NULL THEN 5"]
    else:
        label = _label(kinds)
        faults += ["WHEN ea IS NULL THEN 3", "WHEN eb IS NULL THEN 4"]
    return f"""
        encoded AS (
            SELECT *,
                {canonical.encoded("prompt", kinds["prompt"])} AS ep,
                {canonical.encoded(a, kinds[a])} AS ea,
                {canonical.encoded(b, kinds[b])} AS eb,
                ({label})::UTINYINT AS given
            FROM named)
        SELECT
            prompt,
            CASE WHEN ea <= eb THEN {a} ELSE {b} END AS first,
            CASE WHEN ea <= eb THEN {b} ELSE {a} END AS second,
            {canonical.item_digest("ep", "least(ea, eb) || greatest(ea, eb)")} AS content,
            {_common_columns(kinds)}
            coalesce(ea = eb, false) AS identical,
            (CASE {" ".join(faults)} ELSE 0 END)::UTINYINT AS fault,
            (CASE WHEN given < 2 AND ea > eb THEN 1 - given ELSE given END)::UTINYINT AS label
        FROM encoded"""


def _ranking_query(kind: str, kinds: Mapping[str, DuckDBPyType]) -> str:
    # Every ranking becomes its pairs (i, j), i < j in canonical order of the responses.
    kind_of_response = canonical.element(kinds["responses"])
    faults = [
        *_common_faults(kinds),
        f"WHEN k IS NULL OR k < 2 OR k > {MAX_RANKED} THEN 7",
        "WHEN list_contains(es, '') THEN 6",
    ]
    return f"""
        encoded AS (
            SELECT *, row_number() OVER () - 1 AS source_row,
                {canonical.encoded("prompt", kinds["prompt"])} AS ep,
                list_transform(responses,
                    lambda r: coalesce({canonical.encoded("r", kind_of_response)}, '')) AS es,
                len(responses) AS k
            FROM named),
        ordered AS (
            SELECT *, list_grade_up(es) AS o,
                (CASE {" ".join(faults)} ELSE 0 END)::UTINYINT AS fault,
                coalesce(len(ranks) = k AND len(list_filter(ranks,
                    lambda x: x IS NOT NULL AND NOT isnan(x::DOUBLE))) = k, false) AS ranked
            FROM encoded),
        pairs AS (
            SELECT *, unnest(CASE WHEN fault > 0 THEN [{{'i': 1, 'j': 1}}] ELSE
                flatten(list_transform(range(1, k), lambda i: list_transform(range(i + 1, k + 1),
                    lambda j: {{'i': i::INTEGER, 'j': j::INTEGER}}))) END) AS p
            FROM ordered)
        SELECT
            prompt,
            responses[o[p.i]] AS first,
            responses[o[p.j]] AS second,
            {canonical.item_digest("ep", "array_to_string(list_sort(es), '')")} AS content,
            {_common_columns(kinds)}
            ((p.i - 1) * k - p.i * (p.i - 1) // 2 + p.j - p.i - 1)::USMALLINT AS pair,
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
        faults.append("WHEN coalesce(trim(labeler_id), '') = '' THEN 1")
    faults.append("WHEN ep IS NULL THEN 2")
    for role, code in (("item_id", 8), ("ranking_id", 9)):
        if role in kinds:
            faults.append(f"WHEN coalesce({role}, '') = '' THEN {code}")
    if "submitted_at" in kinds:
        faults.append(f"WHEN submitted_at IS NOT NULL AND {_time(kinds)} IS NULL THEN 10")
    return faults


def _time(kinds: Mapping[str, DuckDBPyType]) -> str:
    """SQL of the submission time as an integer that sorts by time."""
    if kinds["submitted_at"].id.startswith(_INTEGER):
        return "submitted_at::BIGINT"
    return "epoch_us(try_cast(submitted_at::VARCHAR AS TIMESTAMPTZ))"


_BAD_TIE = "tie IS NOT NULL AND try_cast(tie::VARCHAR AS BOOLEAN) IS NULL"


def _tie_flag(kinds: Mapping[str, DuckDBPyType]) -> str:
    return "coalesce(try_cast(tie::VARCHAR AS BOOLEAN), false)" if "tie" in kinds else "false"


def _label(kinds: Mapping[str, DuckDBPyType]) -> str:
    """SQL of the given label: 0, 1, 2 (tie), or a code of LABEL_FAULTS."""
    value = "try_cast(label AS DOUBLE)"
    tie = _tie_flag(kinds)
    denied = f"(tie IS NOT NULL AND NOT {tie})" if "tie" in kinds else "false"
    bad_tie = f"WHEN {_BAD_TIE} THEN 103" if "tie" in kinds else ""
    return f"""CASE {bad_tie}
        WHEN label IS NULL THEN CASE WHEN {tie} THEN {LABEL_TIE} ELSE 101 END
        WHEN {value} = 0.5 THEN CASE WHEN {denied} THEN 102 ELSE {LABEL_TIE} END
        WHEN {value} IN (0, 1) THEN CASE WHEN {tie} THEN 102 ELSE {value}::UTINYINT END
        ELSE 100 END"""
