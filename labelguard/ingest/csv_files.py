"""CSV and TSV files as relations of DuckDB: every column is text.

An empty field is an empty text: CSV cannot tell it from one that is not there.
"""

from __future__ import annotations

import csv
import io
import os
import re
from functools import cache
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from labelguard.errors import InvalidLabels
from labelguard.ingest.files import COMPRESSIONS, MAX_LINE, Opener, check_columns
from labelguard.ingest.reader_errors import CSV, LONG_LINE
from labelguard.ingest.sql import file_literal, literal

_MAX_HEADER = 1 << 20


def opener(path: Path, name: str) -> Opener:
    """Opens a file of comma-, tab- or semicolon-separated values with a header; messages call it
    `name`.
    """

    @cache
    def check() -> None:
        if _ends_in_long_line(path):
            raise InvalidLabels(f"{name}: a {LONG_LINE}")  # DuckDB would leave it out
        if _has_stray_line_end(path):
            raise InvalidLabels(f"{name}: {CSV}")

    # The dialect is fixed, not guessed: a guess would turn a broken quote into other data.
    def opened(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        names, delimiter = _header(path, name)
        check()
        columns = ", ".join(f"{literal(column)}: 'VARCHAR'" for column in names)
        texts = ", ".join(map(literal, names))
        return connection.sql(
            f"FROM read_csv({file_literal(path)}, auto_detect=false, header=true, "
            f"delim={literal(delimiter)}, quote='\"', escape='\"', strict_mode=true, "
            f"max_line_size={MAX_LINE}, buffer_size={MAX_LINE}, columns={{{columns}}}, "
            f"force_not_null=[{texts}], "
            "hive_partitioning=true, hive_types_autocast=false)"
        )

    return opened


def _header(path: Path, name: str) -> tuple[list[str], str]:
    compression = COMPRESSIONS.get(path.suffix.lower())
    with pa.input_stream(str(path), compression=compression) as stream:
        text = stream.read(_MAX_HEADER)
    first = re.split(rb"\r|\n", text, maxsplit=1)[0]
    if len(first) == _MAX_HEADER:
        raise InvalidLabels(f"{name}: the first line must name every column; it is too long")
    try:
        line = first.decode("utf-8-sig")
        delimiter = max(",\t;", key=line.count)
        names = next(csv.reader(io.StringIO(line), delimiter=delimiter), [])
    except UnicodeDecodeError:
        raise InvalidLabels(f"{name}: the header is not UTF-8 text") from None
    except csv.Error:
        raise InvalidLabels(f"{name}: the first line must name every column") from None
    if not names or not all(names):
        raise InvalidLabels(f"{name}: the first line must name every column")
    check_columns(names, name)
    return names, delimiter


def _ends_in_long_line(path: Path) -> bool:
    compression = COMPRESSIONS.get(path.suffix.lower())
    if compression:
        return _has_long_line(path, compression)
    if path.stat().st_size <= MAX_LINE:
        return False
    with path.open("rb") as file:
        file.seek(-MAX_LINE, os.SEEK_END)
        return len(file.read().rstrip().splitlines()) < 2


def _has_long_line(path: Path, compression: str) -> bool:
    """Whether a line of a compressed file is too long: its end cannot be looked at alone."""
    length = 0
    with pa.input_stream(str(path), compression=compression) as stream:
        while length <= MAX_LINE and (text := stream.read(_MAX_HEADER)):
            end = max(text.rfind(b"\n"), text.rfind(b"\r"))
            length = len(text) + (length if end < 0 else -end - 1)
    return length > MAX_LINE


def _has_stray_line_end(path: Path) -> bool:
    """Whether lines end in several ways outside of quotes, or an empty one is among them.

    DuckDB leaves out empty lines, and some carriage returns at either end of a line. So of a text
    that ends a line without being quoted (pandas does not quote a carriage return), it would depend
    on the side whether the file can be read.
    """
    compression = COMPRESSIONS.get(path.suffix.lower())
    ways = np.zeros(3, bool)
    quotes, ended = 0, False
    with pa.input_stream(str(path), compression=compression) as stream:
        while text := stream.read(_MAX_HEADER):
            while text.endswith(b"\r") and (more := stream.read(1)):
                text += more  # the two bytes of one line end stay together
            found = np.frombuffer(text, np.uint8)
            place = np.flatnonzero((found == ord("\n")) | (found == ord("\r")))
            quote = np.flatnonzero(found == ord('"'))
            place = place[(quotes + np.searchsorted(quote, place)) % 2 == 0]
            line, meets = (
                found[place] == ord("\n"),
                np.diff(place, prepend=-1 if ended else -2) == 1,
            )
            both = meets & line & ~np.append(True, line[:-1])
            ways |= [both.any(), (line & ~both).any(), (~line & ~np.append(both[1:], False)).any()]
            if ways.sum() > 1 or (meets & ~both).any():
                return True
            ended = len(place) > 0 and place[-1] == len(found) - 1
            quotes += len(quote)
    return False
