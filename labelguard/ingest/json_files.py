"""JSON files, one object a line or all in one array, as relations of DuckDB.

Chats keep their structure, all else is text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa
from duckdb.sqltypes import DuckDBPyType

from labelguard.errors import InvalidLabels
from labelguard.ingest import canonical
from labelguard.ingest.canonical import NoContent
from labelguard.ingest.files import COMPRESSIONS, MAX_LINE, Opener, check_columns
from labelguard.ingest.sql import file_literal, identifier, literal

_PEEK = 1 << 16
_CHATS = (
    *("prompt", "chosen", "rejected", "response_a", "response_b", "responses"),
    *("context", "conversation_a", "conversation_b"),
)
"""Columns of published formats that are chats, or may be."""
_APART = ("individual_preference", "completions")
"""Columns of published formats that hold labels within lists."""
_BLANKS = b" \t\r\n\xef\xbb\xbf"


def opener(path: Path, name: str) -> Opener:
    """Opens a file of one object a line, or of one array of objects: its first byte says which.

    Messages call it `name`.
    """

    # Two readings: the first finds which columns are nested; the second reads all others as text,
    # because guessed types rewrite ids ("007", "2024-1-1", upper-case UUIDs).
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
            found.update(_columns(connection, options, name))
        columns = ", ".join(f"{literal(own)}: {literal(kind)}" for own, kind in found.items())
        return connection.sql(f"FROM read_json({options}, columns={{{columns}}})")

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


def _columns(connection: duckdb.DuckDBPyConnection, options: str, where: str) -> dict[str, str]:
    """The columns of a JSONL file and the types to read them as."""
    try:
        guessed = connection.sql(
            f"FROM read_json({options}, sample_size=-1, map_inference_threshold=-1, "
            "field_appearance_threshold=0)"
        )
    except duckdb.NotImplementedException as error:
        if "Duplicate name" not in str(error):
            raise
        return _columns_by_structure(connection, options, where)
    check_columns(guessed.columns, where)
    if guessed.columns[0] == "json":  # DuckDB's name for what is not an object.
        if guessed.limit(1).fetchall():
            raise InvalidLabels(
                f"{where}: not JSON of rows; every line, or element of an array, must be one object"
            )
        raise InvalidLabels(f"{where}: no rows in the input")
    columns = dict(zip(guessed.columns, guessed.types, strict=True))
    kinds = {name: canonical.json_type(kind) for name, kind in columns.items()}
    chats = [name for name, kind in columns.items() if _may_be_chat(name, kind)]
    if len(chats) > 1:
        kinds |= dict.fromkeys(chats, _common_type(connection, options, chats))
    mixed = [name for name, kind in kinds.items() if kind == "MIXED"]
    if mixed:  # Numbers and texts go together as text, but lists or objects do not.
        checks = [f"bool_or(json_type({identifier(n)}) IN ('ARRAY', 'OBJECT'))" for n in mixed]
        nested = guessed.aggregate(", ".join(checks)).fetchall()[0]
        kinds |= {n: "JSON" if is_so else "VARCHAR" for n, is_so in zip(mixed, nested, strict=True)}
    return kinds


def _may_be_chat(name: str, kind: DuckDBPyType) -> bool:
    """Whether a column's type is to be that of the chats of its file.

    Lists of other things (what each annotator said, scores) may hold labels, which would decide the
    type of prompts; but sides are sides, whatever is in them.
    """
    if kind.id != "list" or name.lower() in _APART:
        return False
    one = canonical.element(kind)
    if name.lower() in _CHATS:
        return one.id in ("struct", "null") or str(kind) == "JSON[]"
    members = {member for member, _ in one.children} if one.id == "struct" else set()
    return one.id == "null" or bool({"role", "content"} & members)


def _columns_by_structure(
    connection: duckdb.DuckDBPyConnection, options: str, where: str
) -> dict[str, str]:
    """The same where DuckDB cannot guess: members of an object differ in upper and lower case."""
    objects = f"read_json({options}, records=false, columns={{json: 'JSON'}})"
    keys = connection.sql(f"SELECT DISTINCT unnest(json_keys(json)) AS k FROM {objects} ORDER BY k")
    names = [name for (name,) in keys.fetchall()]
    check_columns(names, where)
    found = {name: _structure(connection, options, [name]) for name in names}
    kinds = {
        name: "JSON" if not isinstance(structure, str) or structure == "JSON" else "VARCHAR"
        for name, structure in found.items()
    }
    chats = [name for name, structure in found.items() if isinstance(structure, list)]
    common = _common_type(connection, options, chats) if chats else ""
    return kinds | dict.fromkeys(chats, common)


def _structure(connection: duckdb.DuckDBPyConnection, options: str, names: Sequence[str]) -> object:
    """What DuckDB finds in the values of all these columns of a JSONL file."""
    columns = ", ".join(f"{literal(name)}: 'JSON'" for name in names)
    values = " UNION ALL ".join(f"SELECT {identifier(name)} AS v FROM raw" for name in names)
    query = (
        f"WITH raw AS (FROM read_json({options}, columns={{{columns}}})) "
        f"SELECT json_group_structure(v) FROM ({values})"
    )
    return json.loads(connection.sql(query).fetchall()[0][0])


def _common_type(connection: duckdb.DuckDBPyConnection, options: str, chats: Sequence[str]) -> str:
    """One type for all chats of a JSONL file.

    Guessed one by one, the types of chosen and rejected would follow from the labels.
    """
    try:
        content = canonical.type_of_json(_structure(connection, options, chats))
        return canonical.sql_type(content, "JSON")
    except NoContent:
        return "JSON"
