"""CSV and TSV files as relations, and the encodings of text files.

Every column is text, and an empty field an empty text: CSV cannot tell it from one that is not
there. The dialect follows from the header alone, and nothing is guessed: a guess would turn a
broken quote into other data, and follow from labels. A text that is not UTF-8 is never read: its
encoding can only be guessed, so it is named with the command that converts it.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import io
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path

import duckdb
import pyarrow as pa

from labelguard.errors import InvalidLabels
from labelguard.inputs.readers import (
    COMPRESSIONS,
    LONG_LINE,
    MAX_LINE,
    Opener,
    check_column_names,
    literal,
    quote_file_name,
)
from labelguard.text import pluralize

PIECE = 1 << 20
# Excel's first line of a file whose fields have another separator than its own.
_DECLARED_DELIMITER = re.compile(rb"sep=([,;\t])(?:\r\n|\r|\n)", re.IGNORECASE)
_NO_CSV = "cannot be read as CSV"
_NO_NAME = "column {} has no name (an index of pandas? to_csv(index=False)); give it one"
_QUOTE = "texts with separators, quotes or line ends must be in quotes, quotes in them doubled"
# Bytes of lines by which an encoding is guessed.
_SAMPLE = 1 << 16
# Encodings that spreadsheets write beside UTF-8, the most usual first, with iconv's names of them.
_ENCODINGS = {
    **{f"cp{n}": f"windows-{n}" for n in (1252, 1250, 1251, 1253, 1254, 1255, 1256, 1257)},
    "gb18030": "gb18030",
    "cp932": "cp932",
    "big5": "big5",
    "cp949": "cp949",
    "euc_jp": "euc-jp",
    "koi8_r": "koi8-r",
    "mac_roman": "macintosh",
}
_LINE_END = re.compile(r"\r\n|\r|\n")
# The ways to end a line: patterns of the end and what is beside it.
_LINE_ENDS = (rb"\r\n", rb"[^\r]\n", rb"\r[^\n]")


def open_stream(path: Path) -> pa.NativeFile:
    """Open a file that may be compressed, as its name says."""
    return pa.input_stream(str(path), compression=COMPRESSIONS.get(path.suffix.lower()))


def find_foreign_encoding(path: Path, name: str) -> str:
    """Return in which line a text is not UTF-8, what it seems to be, and how to convert it."""
    first, foreign, others = 0, b"", 0
    with open_stream(path) as stream:
        lines = iter(partial(io.BufferedReader(stream).readline, MAX_LINE), b"")
        for number, line in enumerate(lines, 1):
            if number == 1 and (wide := _find_wide_encoding(line)):
                return f": the text is {wide.upper()}; {_show_conversion(path, name, wide)}"
            if line.isascii() or len(line) == MAX_LINE:
                continue
            try:
                line.decode()
                others += 1
            except UnicodeDecodeError:
                first, foreign = first or number, foreign + line
            if len(foreign) > _SAMPLE:
                break
    if not first:
        return ""
    where = f" line {first}: the text is not UTF-8"
    if others > foreign.count(b"\n"):
        return f"{where}, though that of other lines is; mend the lines that are not"
    guess = _guess_encoding(foreign)
    if guess is None:
        return f"{where}; find out its encoding, and {_show_conversion(path, name, 'ENCODING')}"
    command = _show_conversion(path, name, guess)
    return f"{where}, and looks like {guess}; look whether its letters are right after {command}"


def _find_wide_encoding(start: bytes) -> str | None:
    """Return which encoding of two bytes or more for a letter a text starts in, if it does."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if start[:_SAMPLE].count(0) * 4 < len(start[:_SAMPLE]):
        return None
    return "utf-16le" if start[1:2] == b"\0" else "utf-16be"


def _guess_encoding(text: bytes) -> str | None:
    """Return what lines in another encoding than UTF-8 are most likely in, by iconv's name.

    Of encodings in which they are the same text, the most usual.
    """
    import charset_normalizer

    matches = charset_normalizer.from_bytes(text, cp_isolation=list(_ENCODINGS), threshold=0.5)
    ranked = [(match.chaos, -match.coherence) for match in matches]
    likely = {
        name
        for match, rank in zip(matches, ranked, strict=True)
        if rank == min(ranked)
        for name in match.could_be_from_charset
    }
    return next((iconv for name, iconv in _ENCODINGS.items() if name in likely), None)


def _show_conversion(path: Path, name: str, encoding: str) -> str:
    """Return a command that converts a file to UTF-8."""
    program = COMPRESSIONS.get(path.suffix.lower())
    plain = Path(name).with_suffix("") if program else Path(name)
    target = shlex.quote(str(plain.with_suffix(f".utf-8{plain.suffix}")))
    source, iconv = shlex.quote(name), f"iconv -f {encoding} -t utf-8"
    if program:
        return f"{program} -dc {source} | {iconv} > {target}"
    return f"{iconv} {source} > {target}"


@dataclass(frozen=True)
class Dialect:
    """The names of the columns of a CSV file, the character between its fields, and the number of
    lines before its header.
    """

    names: tuple[str, ...]
    delimiter: str
    skipped: int = 0


def build_csv_opener(path: Path, name: str) -> Opener:
    """Return what opens comma-, tab- or semicolon-separated values with a header.

    Messages call the file `name`.
    """

    @cache
    def has_quoted_lines(delimiter: str) -> bool:
        sound, quoted_lines = _scan_csv(path, delimiter)
        if not sound:
            raise InvalidLabels(f"{name}{find_csv_fault(path, name)}")
        return quoted_lines

    # The dialect is fixed, not guessed: a guess would turn a broken quote into other data.
    def open_csv(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyRelation:
        dialect = _read_dialect(path, name)
        # A thread that begins within a quoted text takes its lines for rows.
        parallel = not has_quoted_lines(dialect.delimiter)
        columns = ", ".join(f"{literal(column)}: 'VARCHAR'" for column in dialect.names)
        texts = ", ".join(map(literal, dialect.names))
        return connection.sql(
            f"FROM read_csv({quote_file_name(path)}, auto_detect=false, header=true, "
            f"delim={literal(dialect.delimiter)}, quote='\"', escape='\"', strict_mode=true, "
            f"skip={dialect.skipped}, max_line_size={MAX_LINE}, buffer_size={MAX_LINE}, "
            f"columns={{{columns}}}, force_not_null=[{texts}], hive_partitioning=false, "
            f"parallel={parallel})"
        )

    return open_csv


def _read_dialect(path: Path, name: str) -> Dialect:
    """Return the dialect that the header tells, and a line `sep=;` before it.

    Columns without a name at the end, which a spreadsheet left empty, are called by their places.
    """
    with open_stream(path) as stream:
        start = stream.read(PIECE).removeprefix(codecs.BOM_UTF8)
    declared = _DECLARED_DELIMITER.match(start)
    header = re.split(rb"\r|\n", start[declared.end() if declared else 0 :], maxsplit=1)[0]
    if len(header) >= PIECE:
        raise InvalidLabels(f"{name}: the first line must name every column; it is too long")
    line = header.decode(errors="replace")
    if {"\0", "\ufffd"} & {*line} and (foreign := find_foreign_encoding(path, name)):
        raise InvalidLabels(f"{name}{foreign}")
    bare = re.sub('"[^"]*"', "", line)
    delimiter = declared[1].decode() if declared else max(",\t;", key=bare.count)
    with contextlib.suppress(csv.Error):
        names = next(csv.reader(io.StringIO(line), delimiter=delimiter), [])
        if any(names):
            named = max(place for place, one in enumerate(names, 1) if one)
            if (blank := names.index("") + 1 if "" in names else named) < named:
                raise InvalidLabels(f"{name}: {_NO_NAME.format(blank)}")
            names[named:] = [f"column {place + 1}" for place in range(named, len(names))]
            check_column_names(names, name)
            return Dialect(tuple(names), delimiter, 1 if declared else 0)
    raise InvalidLabels(f"{name}: the first line must name every column")


def _scan_csv(path: Path, delimiter: str) -> tuple[bool, bool]:
    """Return whether a file has no fault that DuckDB would overlook (a line that is too long, a
    quote inside a field, lines that end in several ways, or an empty one), and whether a quoted
    text has lines.

    DuckDB leaves out a last line that is too long, empty lines and some carriage returns. So of a
    text with a quote or a line end that is not quoted (pandas does not quote a carriage return), it
    would depend on the side whether the file can be read, and what as.
    """
    comma = delimiter.encode()
    beside = rb'[^%b\r\n"]' % comma
    fault = re.compile(rb'%b"|"%b|\n\n|\r\r|\r\n\r\n' % (beside, beside))
    # What is not quoted, with a quote for each part that is, as far as the next piece needs it.
    plain, is_quoted, length = comma, False, 0
    sound, ends, quoted_lines = True, set[bytes](), False
    with open_stream(path) as stream:
        text = stream.read(PIECE).removeprefix(codecs.BOM_UTF8)
        while text:
            end = max(text.rfind(b"\n"), text.rfind(b"\r"))
            length = len(text) + (length if end < 0 else -end - 1)
            if length > MAX_LINE:
                return False, quoted_lines
            parts = text.split(b'"')
            quoted_lines |= any(
                b"\n" in part or b"\r" in part for part in parts[not is_quoted :: 2]
            )
            plain = plain[-3:] + b'"'.join(parts[is_quoted::2])
            is_quoted ^= len(parts) % 2 == 0
            plain += b'"' * (is_quoted and len(parts) > 1)
            text = stream.read(PIECE)
            followed = plain if text else plain + comma
            ends |= {end for end in _LINE_ENDS if re.search(end, followed)}
            if len(ends) > 1 or fault.search(plain):
                sound = False
    return sound and not is_quoted, quoted_lines


def find_csv_fault(path: Path, name: str, message: str = "") -> str:
    """Return in which line a file is not UTF-8, or else no row like the others, and what to do.

    Messages call the file `name`; the `message` of a reader says less. Raises `InvalidLabels` for
    its header.
    """
    if foreign := find_foreign_encoding(path, name):
        return foreign
    dialect = _read_dialect(path, name)
    delimiter, width = dialect.delimiter, len(dialect.names)
    inside = re.compile(rf'[^{delimiter}\r\n"]"')
    after = re.compile(rf'"[^{delimiter}\r\n"]')
    line_end = ""
    for place, (line, record) in enumerate(_read_records(path)):
        # A quoted text stands for one quote here, and so does a quote that nothing ends.
        plain = re.sub('"[^"]*"', '"', record)
        row, begin = plain.rstrip("\r\n"), re.sub('"[^"]*"', '"', _LINE_END.split(record, 1)[0])
        end, fields = plain[len(row) :], row.count(delimiter) + 1
        line_end = line_end or end
        problem = ""
        if len(record) >= MAX_LINE:
            problem = f"a {LONG_LINE}, or a quoted text does not end"
        elif inside.search(begin) or (record.count('"') % 2 == 0 and after.search(row)):
            problem = f"a quote within a field; {_QUOTE}"
        elif record.count('"') % 2:
            problem = f"a quoted text does not end; {_QUOTE}"
        elif not row:
            problem = "the line is empty; remove it"
        elif inside.search(row):
            problem = f"a quote within a field; {_QUOTE}"
        elif end and end != line_end:
            problem = f"it ends in {end!r}, and those before it in {line_end!r}; {_QUOTE}"
        elif fields != width and place >= dialect.skipped:
            problem = f"{pluralize(fields, 'field')}, and the header names {width}; {_QUOTE}"
        if problem:
            return f" line {line}: {problem}"
    return f": {_NO_CSV}"


def find_line_of_row(path: Path, name: str, row: int) -> int:
    """Return the line in which a row of a readable file (from 1 on) begins."""
    before = row + _read_dialect(path, name).skipped
    return next(islice(_read_records(path), before, None))[0]


def _read_records(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the header and the rows of a file as text, each with the number of its first line.

    A quoted text that does not end goes on to the end of the file, or for 32 MiB.
    """
    with open_stream(path) as stream:
        text = io.TextIOWrapper(io.BufferedReader(stream), "utf-8-sig", newline="")
        first, record, is_quoted = 1, "", False
        for number, line in enumerate(iter(partial(text.readline, MAX_LINE), ""), 1):
            record += line
            is_quoted ^= line.count('"') % 2 == 1
            if not is_quoted or len(record) >= MAX_LINE:
                yield first, record
                first, record, is_quoted = number + 1, "", False
        if record:
            yield first, record
