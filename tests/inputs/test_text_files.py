"""CSV, TSV and JSON as spreadsheets and data frames write them: read, or met with a command."""

import gzip
import subprocess

import pytest
from support import published

from labelguard.errors import InvalidLabels, OutsideDomain
from labelguard.inputs.columns import Reading
from labelguard.inputs.readers import connect, read_rows
from labelguard.inputs.sources import resolve_file
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.keys.keyring import KeyRing

NAMES = ["labeler_id", "prompt", "response_a", "response_b", "label"]
ROWS = [
    [f"w{n}", f"It’s {n}, naïve", f"größer {n}", f"2\n{n}\tand; “so”", f"{n}"] for n in range(3)
]


def write(path, text, encoding="utf-8"):
    content = text.encode(encoding)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def format_csv(delimiter=",", end="\n", before="", more=()):
    def quote(value):
        return f'"{value}"' if any(mark in value for mark in ",;\t\n") else value

    lines = [[*NAMES, *more], *([*row, *[""] * len(more)] for row in ROWS)]
    return before + "".join(delimiter.join(map(quote, line)) + end for line in lines)


def read(path, scratch):
    """The columns of a file that have a name, as rows."""
    columns = ", ".join(f'"of the file: {name}"' for name in NAMES)
    with connect(scratch) as connection:
        rows = read_rows(resolve_file(path), connection, f"SELECT {columns} FROM part")
    return [list(row) for row in rows]


def refuse(path, scratch):
    """What a file is met with."""
    with pytest.raises(InvalidLabels) as caught:
        stage(path, scratch, KeyRing.public(), StagingOptions(Reading({}), "files"))
    assert str(caught.value).startswith(str(path))
    return str(caught.value).removeprefix(str(path))


READ = {
    "mark": ("x.csv", format_csv(), "utf-8-sig"),
    "semicolon": ("x.csv", format_csv(";", end="\r\n"), "utf-8-sig"),
    "tabs in csv": ("x.csv", format_csv("\t"), "utf-8"),
    "tabs in txt": ("x.txt", format_csv("\t", end="\r\n"), "utf-8"),
    "commas in tsv": ("x.tsv.gz", format_csv(), "utf-8"),
    "declared": ("x.csv", format_csv(";", "\r\n", "sep=;\r\n"), "utf-8-sig"),
    "declared tab": ("x.csv", format_csv("\t", before="SEP=\t\n"), "utf-8"),
    "empty columns at the end": ("x.csv", format_csv(more=["", ""]), "utf-8"),
    "separators in names": ("x.csv", format_csv(";", more=["a,b,c,d,e,f,g"]), "utf-8"),
}


@pytest.mark.parametrize("case", READ)
def test_what_spreadsheets_write_is_read(case, tmp_path):
    name, text, encoding = READ[case]
    assert read(write(tmp_path / name, text, encoding), tmp_path / "spill") == ROWS


ENCODINGS = {
    "cp1252": ("It’s naïve – größer", "windows-1252"),
    "latin-1": ("El niño comió", "windows-1252"),
    "cp1250": ("Příliš žluťoučký kůň", "windows-1250"),
    "cp1251": ("Это хороший ответ", "windows-1251"),
    "gb18030": ("你好，今天天气很好", "gb18030"),
    "cp932": ("こんにちは、元気ですか", "cp932"),
    "mac_roman": ("It’s a café – schön", "macintosh"),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_encoding_is_named_in_its_line_with_the_command_that_converts(encoding, tmp_path):
    text, name = ENCODINGS[encoding]
    path = write(tmp_path / "x.csv", f"{','.join(NAMES)}\nw,p,a,b,1\nw,{text},a,b,1\n", encoding)
    expected = f" line 3: the text is not UTF-8, and looks like {name}; look whether its letters "
    assert refuse(path, tmp_path / "staged").startswith(expected)
    header = write(tmp_path / "h.csv", f"{text},prompt\n1,2\n", encoding)
    assert f"line 1: the text is not UTF-8, and looks like {name}" in refuse(header, tmp_path / "s")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16le", "utf-16be", "cp1252"])
@pytest.mark.parametrize("name", ["x y.csv", "x.csv.gz", "x.txt"])
def test_a_file_is_read_once_it_is_converted_as_the_message_says(name, encoding, tmp_path):
    path = write(tmp_path / name, format_csv("\t", "\r\n"), encoding)
    message = refuse(path, tmp_path / "staged")
    command = message[min(message.find(word) for word in ("iconv", "gzip") if word in message) :]
    subprocess.run(command, shell=True, check=True)
    converted = tmp_path / name.replace(".gz", "").replace(".", ".utf-8.")
    assert read(converted, tmp_path / "spill") == ROWS


FAULTS = {
    "one line of another encoding": (
        b"\xc3\xa9,p,a,b,1\n" * 2 + b"w,\xe9,a,b,1\n",
        " line 4: the ",
    ),
    "a quote": (b'"w\nx",p,a,b,1\nw,5" or more,a,b,1\n', " line 4: a quote within a field; texts"),
    "a field too many": (b'"w\nx",p,a,b,1\nw,p, q,a,b,1\n', " line 4: 6 fields, and the header "),
    "an open quote": (b'w,p,a,b,1\nw,"p,a,b,1\n', " line 3: a quoted text does not end; texts"),
    "an empty line": (b"w,p,a,b,1\n\n", " line 3: the line is empty; remove it"),
    "line ends": (b"w,p,a,b,1\r\n", r" line 2: it ends in '\r\n', and those before it in '\n'; "),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_line_that_is_no_row_is_named(case, tmp_path):
    text, expected = FAULTS[case]
    path = tmp_path / "x.csv"
    path.write_bytes(f"{','.join(NAMES)}\n".encode() + text)
    assert refuse(path, tmp_path / "staged").startswith(expected)


HEADERS = {
    "index of pandas": (",labeler_id,prompt", ": column 1 has no name (an index of pandas? to_csv"),
    "gap": ("labeler_id,,prompt", ": column 2 has no name"),
    "twice": ("labeler_id,prompt,Prompt", ": two columns have one name (prompt, Prompt; upper and"),
    "none": (",,", ": the first line must name every column"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_leaves_a_name_open_is_refused(case, tmp_path):
    header, expected = HEADERS[case]
    path = write(tmp_path / "x.csv", f"{header}\n1,2,3\n")
    assert refuse(path, tmp_path / "staged").startswith(expected)


BROKEN = {
    "cut off": ('{"a": 1}\n{"a": \n', " line 2: unexpected end of data; not JSON"),
    "half a letter": ('{"a": "\\ud800"}\n', " line 1: no low surrogate in string; not JSON"),
    "no key": ('{"": 0, "a": 1}\n', ": a key has no name (an index of pandas?)"),
    "key twice": ('{"a": 1}\n{"a": 1, "a": 2}\n', " line 2: not JSON"),
    "in an array": ('[{"a": 1},\n{"a":}]', " record 2: unexpected character; not JSON"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_the_line_of_broken_json_is_named(case, tmp_path):
    text, expected = BROKEN[case]
    path = write(tmp_path / "x.jsonl", text)
    assert refuse(path, tmp_path / "staged").startswith(expected)


def test_a_decimal_comma_is_read_where_it_cannot_part_thousands(tmp_path):
    names = "labeler_id;prompt;response_a;response_b;score_a;score_b\n"
    scores = [("3,75", "3,5"), ("0,125", "0,5"), ("1,0", "1"), ("-0,5", "0,0001"), (",5", "1,2345")]

    def read_scores(rows):
        text = names + "".join(f"w;p{n};a;b;{a};{b}\n" for n, (a, b) in enumerate(rows))
        path = write(tmp_path / f"{len(list(tmp_path.iterdir()))}.csv", text)
        return published.read(path, path.with_suffix(""), KeyRing.public(), Reading({})).labels

    points = [(a.replace(",", "."), b.replace(",", ".")) for a, b in scores]
    assert read_scores(scores) == read_scores(points) != read_scores([row[::-1] for row in points])
    path = write(tmp_path / "thousands.csv", f"{names}w;p;a;b;3,75;3,5\nw;q;a;b;1,000;999\n")
    staged = stage(path, tmp_path / "s", KeyRing.public(), StagingOptions(Reading({}), "files"))
    with pytest.raises(OutsideDomain, match=r"row 2 \(line 3\)"):
        staged.refuse_labels_outside_domain()
