"""JSON files as relations, and the types that columns of JSON values are read as.

JSON has one object a line or all in one array. It declares no types, so every value is looked at,
and the rule is the same for all columns of prompts and responses. Chats keep their structure, all
else is text. Nothing is guessed: guessed types rewrite ids ("007", "2024-1-1", upper-case UUIDs),
and would follow from labels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from typing import Any

import duckdb

from labelguard.errors import InvalidLabels
from labelguard.inputs import chats
from labelguard.inputs.columns import (
    CONVERSATIONS,
    find_content_role_columns,
    find_possible_content_columns,
    find_side_columns,
)
from labelguard.inputs.csv_files import PIECE, find_foreign_encoding, open_stream
from labelguard.inputs.readers import (
    COMPRESSIONS,
    LONG_LINE,
    MAX_LINE,
    Opener,
    check_column_names,
    identifier,
    literal,
    quote_file_name,
)

_BLANKS = b" \t\r\n\xef\xbb\xbf"
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
_NO_JSON = (
    "not JSON of rows; every line, or element of an array, must be one object, with no key twice"
)
# Where DuckDB says that a fault of JSON is, and which. What follows a transform error is content.
_MALFORMED = re.compile(r'Malformed JSON in file ".*", at byte \d+ in (\w+).* (\d+): ([\w -]+)')
_TRANSFORMED = re.compile(r'JSON transform error in file ".*?", in (\w+)\S* (\d+):')


def find_json_fault(path: Path, name: str, message: str) -> str:
    """Return what is wrong with a file that a reader met with `message`, and in which line.

    Messages call the file `name`.
    """
    if foreign := find_foreign_encoding(path, name):
        return foreign
    if "maximum_object_size" in message:
        return f": a {LONG_LINE}"
    if malformed := _MALFORMED.search(message):  # counted from 2
        return f" {malformed[1]} {int(malformed[2]) - 1}: {malformed[3]}; {_NO_JSON}"
    place = _TRANSFORMED.search(message)
    return f" {place[1]} {place[2]}: {_NO_JSON}" if place else f": {_NO_JSON}"


def build_json_opener(path: Path, name: str, roles: Mapping[str, str]) -> Opener:
    """Return what opens one object a line, or one array of objects; the first byte says which.

    Messages call the file `name`; `roles` says which column was named for a role.
    """

    @cache
    def read_options() -> str:
        return (
            f"{quote_file_name(path)}, format='{_find_json_format(path)}', "
            f"maximum_object_size={MAX_LINE}, hive_partitioning=false"
        )

    types: dict[str, JsonType] = {}

    def open_json(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        if not types:
            types.update(_choose_column_types(connection, read_options(), roles, name))
        # What a reader cannot build itself is read as JSON first.
        read = {name: "JSON" if kind.is_rebuilt else kind.sql for name, kind in types.items()}
        relation = connection.sql(
            f"FROM read_json({read_options()}, columns={_column_types_sql(read)})"
        )
        if not any(kind.is_rebuilt for kind in types.values()):
            return relation
        # The others have their types already.
        rest = {name: kind if kind.is_rebuilt else _JSON for name, kind in types.items()}
        return select_typed(relation, rest)

    return open_json


def _find_json_format(path: Path) -> str:
    """Return how objects are written: in one array, one a line, or over several lines."""
    with open_stream(path) as stream:
        while text := stream.read(PIECE):
            if begin := text.lstrip(_BLANKS):
                if begin.startswith(b"["):
                    return "array"
                break
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() not in COMPRESSIONS]
    return "unstructured" if suffixes[-1:] == [".json"] else "newline_delimited"


def _choose_column_types(
    connection: duckdb.DuckDBPyConnection, options: str, roles: Mapping[str, str], where: str
) -> dict[str, JsonType]:
    """Return the columns of a JSON file and the types to read them as."""
    keys = "list_distinct(flatten(list(DISTINCT json_keys(json))))"
    other = "min(place) FILTER (json_type(json) <> 'OBJECT')"
    objects = f"SELECT json, row_number() OVER () AS place FROM read_json_objects({options})"
    [(names, row)] = connection.sql(f"SELECT {keys}, {other} FROM ({objects})").fetchall()
    if row is not None:
        raise InvalidLabels(f"{where} row {row}: {_NO_JSON}")
    if names is None:
        raise InvalidLabels(f"{where}: no rows in the input")
    if "" in names:
        raise InvalidLabels(f"{where}: a key has no name (an index of pandas?); give it one")
    # In the order of their names: which row has a key first may follow from the labels.
    check_column_names(sorted(names), where)
    listed = _column_types_sql(dict.fromkeys(sorted(names), "JSON"))
    raw = connection.sql(f"FROM read_json({options}, columns={listed})")
    return choose_json_types(raw, roles)


def _column_types_sql(types: Mapping[str, str]) -> str:
    """Return SQL of columns and their types."""
    pieces = (f"{literal(name)}: {literal(kind)}" for name, kind in types.items())
    return f"{{{', '.join(pieces)}}}"


@dataclass(frozen=True)
class JsonType:
    """The SQL type that values of JSON are read as.

    Chats, and lists of them or of texts, have a `structure` that `from_json` takes, which fills in
    and leaves out what is null. `rebuild`, if there is one, is SQL of what becomes of that, and
    `unwrap` of the JSON before.
    """

    sql: str
    structure: str = ""
    unwrap: Callable[[str], str] | None = None
    rebuild: Callable[[str], str] | None = None

    @property
    def is_rebuilt(self) -> bool:
        """True where more is to be done than a cast to the type."""
        return bool(self.unwrap or self.rebuild)

    def read_sql(self, value: str) -> str:
        """Return SQL of a value (JSON) as the type `sql`."""
        if self.structure:
            value = self.unwrap(value) if self.unwrap else value
            read = f"from_json({value}, {literal(self.structure)})"
            return self.rebuild(read) if self.rebuild else read
        casts = {_TEXT.sql: f"{value}->>'$'", _NULL.sql: "NULL", _JSON.sql: value}
        return casts.get(self.sql, f"{value}::{self.sql}")


# Text; JSON as it is, which is no content; a column that is always null.
_TEXT, _JSON, _NULL = JsonType("VARCHAR"), JsonType("JSON"), JsonType('"NULL"')
# Kinds of values, by what DuckDB calls their types.
_KINDS: Mapping[str, str] = {
    "nested": "IN ('ARRAY', 'OBJECT')",
    "text": "= 'VARCHAR'",
    "truth": "= 'BOOLEAN'",
    "whole": "IN ('BIGINT', 'UBIGINT')",
    "fraction": "NOT IN ('ARRAY', 'OBJECT', 'VARCHAR', 'BOOLEAN', 'BIGINT', 'UBIGINT', 'NULL')",
}


def choose_json_types(
    raw: duckdb.DuckDBPyRelation, roles: Mapping[str, str]
) -> dict[str, JsonType]:
    """Return what to read every column (JSON) of `raw` as; `roles` are columns by role."""
    kinds = _find_kinds_of_values(raw)
    strict = find_content_role_columns(raw.columns, roles)
    sides = find_side_columns(raw.columns, roles)
    types = {}
    for name, present in kinds.items():
        if "nested" in present or (name in strict and present - {"text"}):
            types[name] = _JSON
        elif name in sides:
            types[name] = _choose_side_type(present)
        else:
            types[name] = _TEXT if present else _NULL
    chats = [n for n in find_possible_content_columns(raw.columns, roles) if kinds[n] == {"nested"}]
    return types | _choose_chat_types(raw, chats)


def select_typed(
    relation: duckdb.DuckDBPyRelation, types: Mapping[str, JsonType]
) -> duckdb.DuckDBPyRelation:
    """Return a relation whose columns of JSON have these types."""
    pieces = (
        f"{kind.read_sql(identifier(name))} AS {identifier(name)}" for name, kind in types.items()
    )
    return relation.project(", ".join(pieces))


def _find_kinds_of_values(raw: duckdb.DuckDBPyRelation) -> dict[str, frozenset[str]]:
    """Return which of `_KINDS` the values of each column are, nulls aside."""
    checks = (
        f"coalesce(bool_or(json_type({identifier(name)}) {condition}), false)"
        for name in raw.columns
        for condition in _KINDS.values()
    )
    results = iter(raw.aggregate(", ".join(checks)).fetchall()[0])
    return {name: frozenset(kind for kind in _KINDS if next(results)) for name in raw.columns}


def _choose_side_type(kinds: frozenset[str]) -> JsonType:
    """Return what a column that tells of one side is read as: one kind of values, or JSON.

    As text, what is a number in it would be told from the numbers of the other side's column, and
    whether that happens would depend on where the texts stand.
    """
    if not kinds:
        return _NULL
    if kinds == {"text"}:
        return _TEXT
    if kinds == {"truth"}:
        return JsonType("BOOLEAN")
    if kinds == {"whole"}:
        return JsonType("HUGEINT")
    return JsonType("DOUBLE") if kinds <= {"whole", "fraction"} else _JSON


def _choose_chat_types(raw: duckdb.DuckDBPyRelation, names: Sequence[str]) -> dict[str, JsonType]:
    """Return what those of these columns are read as that hold chats, or lists of texts or chats.

    Each has a type of its own, in which all that is there is named: the layout compares them.
    """
    types = {}
    for name, structures in _find_structures(raw, names).items():
        shapes = [chats.shape_structure(structure) for structure in structures]
        inner = [child for shape in shapes if isinstance(shape, list) for child in shape if child]
        is_list = any(child == "VARCHAR" or isinstance(child, list) for child in inner)
        objects = [isinstance(one, dict) for one in (inner if is_list else shapes)]
        wrapped = any(objects) and not all(objects)
        if wrapped and not is_list:
            shapes = [[shape] if isinstance(shape, dict) else shape for shape in shapes]
        shape = reduce(merge_shapes, shapes)
        held = shape[0] if is_list and isinstance(shape, list) else shape
        if name.lower() in CONVERSATIONS:
            shape = held = chats.keep_chat_members(shape)
        if not (chats.is_chat(held) or (is_list and held == "VARCHAR")):
            continue
        parts = _find_parts(raw, name, held, "$[*]" if is_list else "$")
        if read := read_json_chats(shape, parts, wrapped=wrapped):
            types[name] = read
    return types


def _find_parts(raw: duckdb.DuckDBPyRelation, name: str, shape: object, where: str) -> object:
    """Return what parts are in the messages of a column, of which some have text as content; None
    if all or none have, or if some have anything else.
    """
    message = shape[0] if isinstance(shape, list) and shape else shape
    if not isinstance(message, dict) or message.get("content") != "JSON":
        return None
    column = identifier(name)
    many, one = literal(f"{where}[*].content"), literal(f"{where}.content")
    alone = f"json_extract({column}, {one})"
    alone = alone if "*" in where else f"[{alone}]"
    contents = raw.project(f"unnest(json_extract({column}, {many}) || {alone}) AS v")
    structures = contents.project("json_structure(v)::VARCHAR AS s").distinct().fetchall()
    shapes = [chats.shape_structure(json.loads(text)) for (text,) in structures if text is not None]
    listed = [shape for shape in shapes if shape not in (None, "VARCHAR")]
    parts = reduce(merge_shapes, listed) if listed else None
    sound = isinstance(parts, list) and all(isinstance(p, dict | None) for p in parts)
    return parts if sound else None


def _find_structures(raw: duckdb.DuckDBPyRelation, names: Sequence[str]) -> dict[str, list[Any]]:
    """Return the structures that DuckDB finds in the values of each column, without doubles."""
    structures: dict[str, list[Any]] = {name: [] for name in names}
    if not names:
        return structures
    columns = (f"json_structure({identifier(name)})::VARCHAR" for name in names)
    rows = raw.project(f"unnest([{', '.join(columns)}]) AS s, unnest(range({len(names)})) AS n")
    for text, number in rows.distinct().fetchall():
        if text is not None and (structure := json.loads(text)) != "NULL":
            structures[names[number]].append(structure)
    return structures


# ---------------------------------------------------------------- chats in JSON


def merge_shapes(one: object, other: object) -> object:
    """Return the shape of values of both; JSON where they differ in kind."""
    if one is None or other is None:
        return one if other is None else other
    if isinstance(one, list) and isinstance(other, list):
        inner = [*one, *other]
        return [reduce(merge_shapes, inner)] if inner else []
    if isinstance(one, dict) and isinstance(other, dict):
        names = dict.fromkeys([*one, *other])
        return {name: merge_shapes(one.get(name), other.get(name)) for name in names}
    return one if one == other else "JSON"


def read_json_chats(shape: Any, parts: object = None, *, wrapped: bool = False) -> JsonType | None:
    """Return how JSON of this shape is read, which is a chat, or a list of chats or texts.

    Members that no chat has are read as JSON, so that they are named and not missed. `parts`: what
    parts are, where some messages have text as their content. `wrapped`: some values are one
    message. None where two members of one object agree but for case.
    """
    read = _choose_json_type(shape)
    if _has_names_twice(read):
        return None

    def wrap_object(value: str) -> str:
        return f"CASE json_type({value}) WHEN 'OBJECT' THEN json_array({value}) ELSE {value} END"

    unwrap = wrap_object if wrapped else None
    if parts is None:
        return JsonType(chats.shape_sql(read), json.dumps(read), unwrap)
    made = _choose_json_type(_with_parts(shape, parts))
    listed = isinstance(read, list) and isinstance(read[0], list)

    def split_contents(value: str) -> str:
        if isinstance(read, dict):
            return f"CASE WHEN {value} IS NOT NULL THEN {_split_content_sql(value, read, made)} END"
        old, new = (read[0][0], made[0][0]) if listed else (read[0], made[0])
        inner = f"lambda m: {_split_content_sql('m', old, new)})"
        if listed:
            return f"list_transform({value}, lambda x: list_transform(x, {inner})"
        return f"list_transform({value}, {inner}"

    return JsonType(chats.shape_sql(made), json.dumps(read), unwrap, split_contents)


def _with_parts(shape: Any, parts: object) -> Any:
    if isinstance(shape, list):
        return [_with_parts(shape[0], parts)]
    listed = merge_shapes(parts, [{"type": chats.VARCHAR, "text": chats.VARCHAR}])
    return {**shape, "content": listed, "value": chats.VARCHAR}


def _split_content_sql(message: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Return SQL of a message whose content (JSON) is text or a list of parts: text is one part."""
    members = {name: f"struct_extract_at({message}, {n})" for n, name in enumerate(old, 1)}
    content = members["content"]
    text = chats.text_as_content_sql(f"({content}->>'$')", new["content"])
    listed = f"from_json({content}, {literal(json.dumps(new['content']))})"
    members["content"] = (
        f"CASE json_type({content}) WHEN 'ARRAY' THEN {listed} WHEN 'VARCHAR' THEN {text} END"
    )
    return chats.pack_members_sql(new, members)


def _choose_json_type(shape: Any, known: Collection[str] = chats.MESSAGE) -> Any:
    """Return the type, as nested lists and objects, that JSON of this shape is read as."""
    if isinstance(shape, list):
        inner = shape[0] if shape else None
        empty = (
            {"role": chats.VARCHAR, "content": chats.NULL}
            if known is chats.MESSAGE
            else {"type": chats.VARCHAR, "text": chats.VARCHAR}
        )
        return [empty if inner is None else _choose_json_type(inner, known)]
    if isinstance(shape, dict):
        return {
            name: _choose_json_type(child, chats.WITHIN.get(name, ()))
            if name in known and (name == "content" or not isinstance(child, list))
            else "JSON"
            for name, child in shape.items()
            if child is not None
        } | ({"content": chats.NULL} if "content" in shape and shape["content"] is None else {})
    return shape if shape == chats.VARCHAR else "JSON"


def _has_names_twice(shape: object) -> bool:
    if isinstance(shape, list):
        return any(map(_has_names_twice, shape))
    if not isinstance(shape, dict):
        return False
    lower = [name.lower() for name in shape]
    return len({*lower}) < len(lower) or any(map(_has_names_twice, shape.values()))
