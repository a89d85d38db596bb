"""JSON files, one object a line or all in one array, and what a column of JSON values is read as.

JSON declares no types, so every value is looked at, and the question is the same for all columns of
prompts and responses. Chats keep their structure, all else is text. Nothing is guessed: guessed
types rewrite ids ("007", "2024-1-1", upper-case UUIDs), and would follow from labels.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from labelguard.errors import InvalidLabels
from labelguard.inputs import canonical
from labelguard.inputs.canonical import Content, NotContent
from labelguard.inputs.contents import (
    CONVERSATIONS,
    content_columns,
    roles_of_content,
    side_columns,
)
from labelguard.inputs.readers import (
    COMPRESSIONS,
    MAX_LINE,
    Opener,
    check_columns,
    file_literal,
    identifier,
    literal,
)

_PEEK = 1 << 16
_BLANKS = b" \t\r\n\xef\xbb\xbf"


def opener(path: Path, name: str, named: Mapping[str, str] | None = None) -> Opener:
    """Opens a file of one object a line, or of one array of objects: its first byte says which.

    Messages call it `name`; `named` says which column was named for a role.
    """

    @cache
    def reading() -> str:
        return (
            f"{file_literal(path)}, format='{_arrangement(path)}', "
            f"maximum_object_size={MAX_LINE}, hive_partitioning=true, hive_types_autocast=false"
        )

    found: dict[str, str] = {}

    def opened(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        options = reading()
        if not found:
            found.update(_types(connection, options, named or {}, name))
        return connection.sql(f"FROM read_json({options}, columns={_listed(found)})")

    return opened


def _arrangement(path: Path) -> str:
    """Of one array, or of an object a line; an object may also be written over several lines."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    with pa.input_stream(str(path), compression=compression) as stream:
        while text := stream.read(_PEEK):
            if begin := text.lstrip(_BLANKS):
                if begin.startswith(b"["):
                    return "array"
                break
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in COMPRESSIONS]
    return "unstructured" if suffixes[-1:] == [".json"] else "newline_delimited"


def _types(
    connection: duckdb.DuckDBPyConnection, options: str, named: Mapping[str, str], where: str
) -> dict[str, str]:
    """Return the columns of a JSON file and the types to read them as."""
    # No deeper: members of an object may differ in upper and lower case, which DuckDB refuses.
    shallow = connection.sql(
        f"FROM read_json({options}, sample_size=-1, maximum_depth=1, map_inference_threshold=-1, "
        "field_appearance_threshold=0)"
    )
    check_columns(_keys(connection, options, shallow.columns), where)
    if shallow.columns[0] == "json":  # DuckDB's name for what is not an object.
        if shallow.limit(1).fetchall():
            raise InvalidLabels(
                f"{where}: not JSON of rows; every line, or element of an array, must be one object"
            )
        raise InvalidLabels(f"{where}: no rows in the input")
    # The others are names of directories.
    columns = zip(shallow.columns, shallow.types, strict=True)
    own = [name for name, kind in columns if str(kind) == JSON]
    types = dict.fromkeys(shallow.columns, "VARCHAR")
    if own:
        raw = connection.sql(
            f"FROM read_json({options}, columns={_listed(dict.fromkeys(own, JSON))})"
        )
        raw = raw.project(", ".join(map(identifier, own)))
        types |= {name: one.type for name, one in read_types(raw, named).items()}
    # In the order of their names: which row has a key first may follow from the labels.
    return dict(sorted(types.items()))


def _keys(
    connection: duckdb.DuckDBPyConnection, options: str, columns: Sequence[str]
) -> Sequence[str]:
    """Return the names of columns as the objects have them.

    Of two that differ in upper and lower case alone, DuckDB calls the second one `NAME_1`.
    """
    lower = {name.lower() for name in columns}
    if not any(name.lower().rpartition("_")[0] in lower for name in columns):
        return columns
    found = connection.sql(
        f"SELECT DISTINCT unnest(json_keys(json)) FROM read_json_objects({options})"
    )
    return [name for (name,) in found.fetchall()]


def _listed(types: Mapping[str, str]) -> str:
    """SQL of columns and their types."""
    pieces = (f"{literal(name)}: {literal(kind)}" for name, kind in types.items())
    return f"{{{', '.join(pieces)}}}"


JSON = "JSON"


@dataclass(frozen=True)
class ReadAs:
    """The SQL type of a column, and for chats and lists the structure that `from_json` takes."""

    type: str
    structure: str = ""


TEXT, ANY, NOTHING = ReadAs("VARCHAR"), ReadAs(JSON), ReadAs('"NULL"')
"""Text; JSON as it is, which is no content; a column that is always null."""
_KINDS: Mapping[str, str] = {
    "nested": "IN ('ARRAY', 'OBJECT')",
    "text": "= 'VARCHAR'",
    "truth": "= 'BOOLEAN'",
    "whole": "IN ('BIGINT', 'UBIGINT')",
    "fraction": "NOT IN ('ARRAY', 'OBJECT', 'VARCHAR', 'BOOLEAN', 'BIGINT', 'UBIGINT', 'NULL')",
}
"""What a value may be, by what DuckDB calls its type."""


def read_types(raw: duckdb.DuckDBPyRelation, named: Mapping[str, str]) -> dict[str, ReadAs]:
    """Return what to read every column (JSON) of `raw` as; `named` are columns by role."""
    kinds = _kinds(raw)
    strict = roles_of_content(raw.columns, named)
    sides = side_columns(raw.columns, named)
    types = {}
    for name, found in kinds.items():
        if "nested" in found or (name in strict and found - {"text"}):
            types[name] = ANY
        elif name in sides:
            types[name] = _side_type(found)
        else:
            types[name] = TEXT if found else NOTHING
    chats = [n for n in content_columns(raw.columns, named) if kinds[n] == {"nested"}]
    return types | _chat_types(raw, chats)


def select(
    relation: duckdb.DuckDBPyRelation, types: Mapping[str, ReadAs]
) -> duckdb.DuckDBPyRelation:
    """Return a relation with its columns of JSON under these types, the others as they are."""
    pieces = []
    for column, read_as in ((identifier(name), types.get(name)) for name in relation.columns):
        if read_as is None:
            pieces.append(column)
            continue
        value = f"{column}::JSON"
        if read_as == TEXT:
            value = f"{value}->>'$'"
        elif read_as == NOTHING:
            value = "NULL"
        elif read_as.structure:
            value = f"from_json({value}, {literal(read_as.structure)})"
        elif read_as != ANY:
            value = f"({value})::{read_as.type}"
        pieces.append(f"{value} AS {column}")
    return relation.project(", ".join(pieces))


def _kinds(raw: duckdb.DuckDBPyRelation) -> dict[str, frozenset[str]]:
    """Return which of `_KINDS` the values of each column are, nulls aside."""
    checks = (
        f"coalesce(bool_or(json_type({identifier(name)}) {condition}), false)"
        for name in raw.columns
        for condition in _KINDS.values()
    )
    found = iter(raw.aggregate(", ".join(checks)).fetchall()[0])
    return {name: frozenset(kind for kind in _KINDS if next(found)) for name in raw.columns}


def _side_type(kinds: frozenset[str]) -> ReadAs:
    """Return what a column that tells of one side is read as: by one kind of values, or as `ANY`.

    As text, what is a number in it would be told from the numbers of the other side's column, and
    whether that happens would depend on where the texts stand.
    """
    if not kinds:
        return NOTHING
    if kinds == {"text"}:
        return TEXT
    if kinds == {"truth"}:
        return ReadAs("BOOLEAN")
    if kinds == {"whole"}:
        return ReadAs("HUGEINT")
    return ReadAs("DOUBLE") if kinds <= {"whole", "fraction"} else ANY


def _chat_types(raw: duckdb.DuckDBPyRelation, names: Sequence[str]) -> dict[str, ReadAs]:
    """Return what those of these columns are read as that hold chats, or lists of texts or chats.

    All chats have one type: one by one, the types of chosen and rejected would follow from labels.
    """
    contents: dict[str, tuple[Content, bool]] = {}
    for name, structures in _structures(raw, names).items():
        if name.lower() in CONVERSATIONS:
            structures = [canonical.drop_other_members(one) for one in structures]
        with contextlib.suppress(NotContent):
            contents[name] = _content(structures)
    try:
        chat = canonical.merge(content for content, _ in contents.values() if content.chat)
    except NotContent:
        contents = {name: found for name, found in contents.items() if not found[0].chat}
    types = {}
    for name, (content, listed) in contents.items():
        one = chat if content.chat else content
        kind, structure = canonical.sql_type(one), canonical.json_type(one)
        types[name] = ReadAs(f"{kind}[]", f"[{structure}]") if listed else ReadAs(kind, structure)
    return types


def _content(structures: Sequence[Any]) -> tuple[Content, bool]:
    """Return the content that has these structures (lists), and whether it is lists of contents."""
    inner = [child for one in structures for child in one if child != "NULL"]
    listed = any(child == "VARCHAR" or isinstance(child, list) for child in inner)
    return canonical.content_of_structures(inner if listed else structures), listed


def _structures(raw: duckdb.DuckDBPyRelation, names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the structures that DuckDB finds in the values of each column, without doubles."""
    if not names:
        return {}
    found: dict[str, list[Any]] = {name: [] for name in names}
    columns = (f"json_structure({identifier(name)})::VARCHAR" for name in names)
    rows = raw.project(f"unnest([{', '.join(columns)}]) AS s, unnest(range({len(names)})) AS n")
    for structure, number in rows.distinct().fetchall():
        if structure is not None and (one := json.loads(structure)) != "NULL":
            found[names[number]].append(one)
    return found
