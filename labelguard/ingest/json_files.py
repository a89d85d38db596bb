"""JSON files, one object a line or all in one array, as relations of DuckDB.

Chats keep their structure, all else is text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import duckdb
import pyarrow as pa

from labelguard.errors import InvalidLabels
from labelguard.ingest import json_values
from labelguard.ingest.files import COMPRESSIONS, MAX_LINE, Opener, check_columns
from labelguard.ingest.sql import file_literal, identifier, literal

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
    own = [name for name, kind in columns if str(kind) == json_values.JSON]
    types = dict.fromkeys(shallow.columns, "VARCHAR")
    if own:
        raw = connection.sql(
            f"FROM read_json({options}, columns={_listed(dict.fromkeys(own, json_values.JSON))})"
        )
        raw = raw.project(", ".join(map(identifier, own)))
        types |= {name: one.type for name, one in json_values.read_types(raw, named).items()}
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
