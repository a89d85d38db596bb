"""JSON files, one object a line or all in one array, as relations of DuckDB.

Chats keep their structure, all else is text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa

from labelguard.errors import InvalidLabels
from labelguard.ingest import canonical
from labelguard.ingest.canonical import NoContent
from labelguard.ingest.contents import content_columns
from labelguard.ingest.files import COMPRESSIONS, MAX_LINE, Opener, check_columns
from labelguard.ingest.sql import file_literal, identifier, literal

_PEEK = 1 << 16
_BLANKS = b" \t\r\n\xef\xbb\xbf"


def opener(path: Path, name: str, named: Mapping[str, str] | None = None) -> Opener:
    """Opens a file of one object a line, or of one array of objects: its first byte says which.

    Messages call it `name`; `named` says which column was named for a role.
    """

    # Nothing is guessed but what chats look like: guessed types rewrite ids ("007", "2024-1-1",
    # upper-case UUIDs), and would follow from labels.
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
            found.update(_columns(connection, options, named or {}, name))
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


def _columns(
    connection: duckdb.DuckDBPyConnection, options: str, named: Mapping[str, str], where: str
) -> dict[str, str]:
    """The columns of a JSON file and the types to read them as.

    What is compared is text, chats or lists of these; other columns are text, or JSON as it is.
    """
    # No deeper: members of an object may differ in upper and lower case, which DuckDB refuses.
    shallow = connection.sql(
        f"FROM read_json({options}, sample_size=-1, maximum_depth=1, map_inference_threshold=-1, "
        "field_appearance_threshold=0)"
    )
    names = shallow.columns
    check_columns(names, where)
    if names[0] == "json":  # DuckDB's name for what is not an object.
        if shallow.limit(1).fetchall():
            raise InvalidLabels(
                f"{where}: not JSON of rows; every line, or element of an array, must be one object"
            )
        raise InvalidLabels(f"{where}: no rows in the input")
    kinds = _kinds(shallow)
    nested = [name for name in content_columns(names, named) if kinds[name] == "JSON"]
    found = {name: _structure(connection, options, [name]) for name in nested}
    chats = [name for name, structure in found.items() if _may_be_chat(structure)]
    kinds |= {name: _type(structure) for name, structure in found.items()}
    if chats:
        # One by one, the types of chosen and rejected would follow from the labels.
        kinds |= dict.fromkeys(chats, _type(_structure(connection, options, chats)))
    return kinds


def _kinds(raw: duckdb.DuckDBPyRelation) -> dict[str, str]:
    """Of every column: JSON if a value is a list or an object, else text; or always null."""
    kinds = dict.fromkeys(raw.columns, "VARCHAR")  # of names of directories, too
    names = [name for name, kind in zip(raw.columns, raw.types, strict=True) if str(kind) == "JSON"]
    if not names:
        return kinds
    types = (f"json_type({identifier(name)})" for name in names)
    checks = (f"bool_or({found} IN ('ARRAY', 'OBJECT'))" for found in types)
    nested = raw.aggregate(", ".join(checks)).fetchall()[0]
    said = {None: '"NULL"', False: "VARCHAR", True: "JSON"}
    return kinds | {name: said[is_so] for name, is_so in zip(names, nested, strict=True)}


def _may_be_chat(structure: object) -> bool:
    """Whether values are lists of objects, or may be; sides are sides, whatever is in them."""
    if not isinstance(structure, list):
        return False
    return not structure or isinstance(structure[0], dict) or structure[0] in ("NULL", "JSON")


def _structure(connection: duckdb.DuckDBPyConnection, options: str, names: Sequence[str]) -> object:
    """What DuckDB finds in the values of all these columns of a JSONL file."""
    columns = ", ".join(f"{literal(name)}: 'JSON'" for name in names)
    values = " UNION ALL ".join(f"SELECT {identifier(name)} AS v FROM raw" for name in names)
    query = (
        f"WITH raw AS (FROM read_json({options}, columns={{{columns}}})) "
        f"{canonical.structure('v', values)}"
    )
    return json.loads(connection.sql(query).fetchall()[0][0])


def _type(structure: object) -> str:
    """The type to read values of this structure as."""
    try:
        return canonical.sql_type(canonical.type_of_json(structure), "JSON")
    except NoContent:
        return "JSON"
