"""CSV and TSV files as relations of DuckDB: every column is text.

An empty field is an empty text: CSV cannot tell it from one that is not there.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from functools import cache
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from labelguard.errors import InvalidLabels
from labelguard.inputs.readers import (
    COMPRESSIONS,
    CSV,
    LONG_LINE,
    MAX_LINE,
    Opener,
    check_columns,
    file_literal,
    literal,
)

_MAX_HEADER = 1 << 20


def opener(path: Path, name: str) -> Opener:
    """Opens a file of comma-, tab- or semicolon-separated values with a header; messages call it
    `name`.
    """

    @cache
    def check(delimiter: str) -> None:
        if problem := _problem(path, delimiter):
            raise InvalidLabels(f"{name}: {problem}")

    # The dialect is fixed, not guessed: a guess would turn a broken quote into other data.
    def opened(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        names, delimiter = _header(path, name)
        check(delimiter)
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


def _problem(path: Path, delimiter: str) -> str | None:
    """What is wrong with a file that DuckDB would read: a line that is too long, a quote inside a
    field, lines that end in several ways, or an empty one.

    DuckDB leaves out a last line that is too long, empty lines and some carriage returns. So of a
    text with a quote or a line end that is not quoted (pandas does not quote a carriage return), it
    would depend on the side whether the file can be read, and what as.
    """
    problem, length = None, 0
    comma, quote, line, back = (ord(one) for one in (delimiter, '"', "\n", "\r"))
    ways, quotes, before = np.zeros(3, bool), 0, comma
    with pa.input_stream(str(path), compression=COMPRESSIONS.get(path.suffix.lower())) as stream:
        text = stream.read(_MAX_HEADER).removeprefix(codecs.BOM_UTF8)
        while text:
            end = max(text.rfind(b"\n"), text.rfind(b"\r"))
            length = len(text) + (length if end < 0 else -end - 1)
            if length > MAX_LINE:
                return f"a {LONG_LINE}"
            more = stream.read(_MAX_HEADER)
            after = more[0] if more else comma
            found = np.frombuffer(bytes([before]) + text + bytes([after]), np.uint8)
            last, this, following = found[:-2], found[1:-1], found[2:]
            place = np.flatnonzero(this == quote)
            opens = (quotes + np.arange(len(place))) % 2 == 0
            beside = np.where(opens, last[place], following[place])
            if not np.isin(beside, [comma, quote, line, back]).all():
                problem = CSV
            ends = np.flatnonzero((this == line) | (this == back))
            ends = ends[(quotes + np.searchsorted(place, ends)) % 2 == 0]
            last, this, following = last[ends], this[ends], following[ends]
            both = (last == back) & (this == line)
            alone = (this == back) & (following != line)
            ways |= [both.any(), ((this == line) & ~both).any(), alone.any()]
            if ways.sum() > 1 or (np.isin(last, [line, back]) & ~both).any():
                problem = CSV
            quotes, before, text = quotes + len(place), text[-1], more
    return problem
