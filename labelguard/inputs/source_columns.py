"""Columns that were declared public and may tell which system wrote each response, and how many.

They come in pairs like `model_a` and `model_b` or as a list beside responses. What nobody declared
is not looked at: by its look it may as well say who won.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import duckdb

from labelguard.inputs import query, scan
from labelguard.inputs.canonical import element, is_text
from labelguard.inputs.formats import Understood
from labelguard.inputs.layouts import FEATURE_SIDES, Layout, side_roles
from labelguard.inputs.readers import identifier
from labelguard.learning.carried import Carried
from labelguard.learning.sources import MOST_SOURCES

__all__ = ["Sources", "source_columns"]


@dataclass(frozen=True)
class Sources:
    """Columns that tell which system wrote each response."""

    features: str
    """what `--features` calls them"""
    columns: tuple[str, ...]
    """one for each side, or a list beside responses"""
    names: int
    """how many sources there are"""
    missing: int
    """rows in which one lacks; they cannot be used with these features"""


def source_columns(
    parts: Sequence[tuple[Understood, Layout]], connection: duckdb.DuckDBPyConnection
) -> tuple[Sources, ...]:
    """Return those of text that every part has, with 2 sources or more."""
    found = [dict(_candidates(one, layout, connection)) for one, layout in parts]
    shared = [key for key in found[0] if all(key in other for other in found)]
    return tuple(
        one
        for one in (_counted(key, found[0][key], parts, connection) for key in shared)
        if 2 <= one.names <= MOST_SOURCES
    )


def _candidates(
    found: Understood, layout: Layout, connection: duckdb.DuckDBPyConnection
) -> Iterator[tuple[Carried, tuple[str, ...]]]:
    types = scan.columns(found.part, connection)
    sides = FEATURE_SIDES[layout.kind]
    given = {*types, *side_roles(found.reading.columns)}
    stems = sorted({name.removesuffix(sides[0]) for name in given if name.endswith(sides[0])})
    for stem in stems:
        one = Carried(stem, "source")
        columns = found.reading.carried(one, layout.kind)
        kinds = [types[column] for column in columns if column in types]
        if len(kinds) < len(sides) or not all(map(found.reading.declares, columns)):
            continue
        if layout.listed:
            kinds = [element(kind) for kind in kinds if kind.id in ("list", "array")]
        if kinds and all(is_text(kind) or str(kind) == "JSON" for kind in kinds):
            yield one, columns


def _counted(
    one: Carried,
    columns: tuple[str, ...],
    parts: Sequence[tuple[Understood, Layout]],
    connection: duckdb.DuckDBPyConnection,
) -> Sources:
    names: set[str] = set()
    missing = 0
    for found, layout in parts:
        values = [query.carried_value(one, identifier(column), layout) for column in columns]
        lists = values[0] if layout.listed else f"[{', '.join(values)}]"
        lacking = f"coalesce(len(list_filter(s, lambda x: {query.blank('x')})) > 0, true)"
        read = f"SELECT {lists} AS s FROM part"
        lacks = scan.rows(found.part, connection, f"SELECT count_if({lacking}) FROM ({read})")
        missing += int(lacks[0][0])
        distinct = (
            f"SELECT DISTINCT name FROM (SELECT unnest(s) AS name FROM ({read})) "
            f"WHERE NOT ({query.blank('name')}) LIMIT {MOST_SOURCES + 1}"
        )
        names |= {name for (name,) in scan.rows(found.part, connection, distinct)}
    return Sources(f"source:{one.name}", columns, len(names), missing)
