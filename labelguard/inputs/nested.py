"""Types of columns that hold lists and objects, their members by place, and tool calls as text."""

from __future__ import annotations

import json

from duckdb.sqltypes import DuckDBPyType

from labelguard.inputs.readers import literal

# The order of members of tool calls, as OpenAI writes them; others follow by name.
_CALL = " id type function name arguments "


def is_text(kind: DuckDBPyType) -> bool:
    """Return whether a column holds plain text."""
    return kind.id in ("varchar", "enum") and str(kind) != "JSON"


def is_list(kind: DuckDBPyType) -> bool:
    """Return whether a column holds lists, of one length or of several."""
    return kind.id in ("list", "array")


def find_element_type(kind: DuckDBPyType) -> DuckDBPyType:
    """Return the type of a list's elements."""
    child = kind.children[0][1]
    assert isinstance(child, DuckDBPyType)
    return child


def list_members(kind: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    """Return the members of an object with their types, in their order."""
    return [(name, child) for name, child in kind.children if isinstance(child, DuckDBPyType)]


def read_members(value: str, kind: DuckDBPyType) -> dict[str, tuple[str, DuckDBPyType]]:
    """Return SQL of the members of an object by their places, and their types, but for nulls."""
    return {
        name: (f"struct_extract_at({value}, {place})", child)
        for place, (name, child) in enumerate(list_members(kind), 1)
        if child.id != "null"
    }


def calls_sql(value: str, kind: DuckDBPyType) -> str:
    """Return SQL of tool calls as text: what is no text becomes the text of its JSON."""
    return f"({value}->>'$')" if str(kind) == "JSON" else _json_sql(value, kind)


def _json_sql(value: str, kind: DuckDBPyType, level: int = 0) -> str:
    """Return SQL of the JSON of lists and objects of texts, without null members.

    In one order, whatever that of the type is, which may tell a side.
    """
    if is_list(kind):
        element = f"c{level}"
        inner = _json_sql(element, find_element_type(kind), level + 1)
        items = f"list_transform({value}, lambda {element}: coalesce({inner}, 'null'))"
        return f"('[' || array_to_string({items}, ',') || ']')"
    if kind.id == "struct":
        members = read_members(value, kind)
        pieces = (
            f"{literal(json.dumps(name, ensure_ascii=False) + ':')} "
            f"|| {_json_sql(*members[name], level)}"
            for name in sorted(members, key=lambda name: (_CALL.find(f" {name} ") < 0,
                                                          _CALL.find(f" {name} "), name))
        )  # fmt: skip
        joined = f"concat_ws(',', {', '.join(pieces)})" if members else "''"
        return f"CASE WHEN {value} IS NOT NULL THEN '{{' || {joined} || '}}' END"
    return f"to_json({value}::VARCHAR)::VARCHAR" if kind.id != "null" else "NULL::VARCHAR"
