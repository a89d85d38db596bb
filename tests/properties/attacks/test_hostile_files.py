"""Files made to exhaust memory, disk or patience end in one clear line, and take little of each."""

import functools
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import bounded, engines
from support.commands import PRIVATIZE
from support.releases import make_release

from labelguard.errors import InvalidLabels
from labelguard.inputs import readers
from labelguard.inputs.readers import MOST_COLUMNS, InputFile
from labelguard.inputs.sources import ByteLimit, resolve_input
from labelguard.project.linking import link_table

NAMES = ("labeler_id", "prompt", "response_a", "response_b", "label")
HEADER = ",".join(NAMES).encode() + b"\n"
ROW = b"u1,question,answer one,answer two,1\n"
OBJECT = dict(zip(NAMES, ("u1", "question", "one", "two", 1), strict=True))
LINE = json.dumps(OBJECT).encode() + b"\n"
# Resident memory that Python, the engines and 32 MiB of one line for some threads may take.
MODEST = 700 << 20
# The same with an engine at its limit, whose last vector of texts is on its way to us.
ENGINE = readers._choose_memory_limit() + (2 << 30)


def zip_pieces(*pieces):
    """A gzip file of pieces, each repeated."""
    return b"".join(
        gzip.compress(piece * min(count, 64)) * (count // min(count, 64)) for piece, count in pieces
    )


def nest(depth, begin, end):
    deep = json.dumps(OBJECT | {"response_b": "HERE"}).replace(
        '"HERE"', begin * depth + "1" + end * depth
    )
    return LINE + deep.encode() + b"\n"


def _table(**columns):
    return pa.table({name: columns.get(name, [OBJECT[name]]) for name in NAMES})


def _deep_parquet(path):
    kind = functools.reduce(lambda kind, _: pa.list_(kind), range(400), pa.int32())
    pq.write_table(_table().append_column("x", pa.array([None], kind)), path)


def _pages_that_are_not_there(path):
    whole = path.with_name("whole.parquet")
    repeated = pa.DictionaryArray.from_arrays(np.zeros(1_000_000, np.int32), ["x" * 1000])
    pq.write_table(pa.table(dict.fromkeys(NAMES, repeated)), whole)
    claims = pq.read_metadata(whole)
    for _ in range(9):
        claims.append_row_groups(claims)
    claims.write_metadata_file(path)
    whole.unlink()
    assert pq.read_metadata(path).num_rows > 500_000_000


def _long_texts(path):
    with pq.ParquetWriter(path, _table().schema, compression="zstd", use_dictionary=False) as file:
        for number in range(40):
            file.write_table(_table(prompt=pa.array([chr(97 + number % 26) * (30 << 20)])))


def _wide(path):
    names = [*NAMES, *(f"x{number}" for number in range(50_000))]
    path.write_bytes((",".join(names) + "\n" + ",".join("1" for _ in names) + "\n").encode())


FILES: dict[str, tuple[str, Callable[[Path], object] | bytes, str]] = {
    "one line without an end": (
        "x.csv.gz",
        zip_pieces((HEADER + ROW, 1), (b"a" * (1 << 20), 512)),
        "line is longer than 32 MiB",
    ),
    "one line of JSON without an end": (
        "x.jsonl.gz",
        zip_pieces((b'{"prompt":"', 1), (b"a" * (1 << 20), 512)),
        "line is longer than 32 MiB",
    ),
    "a header without an end": (
        "x.csv.gz",
        zip_pieces((b"a" * (1 << 20), 512)),
        "the first line must name every column",
    ),
    "a header of one long name": (
        "x.csv",
        b"a" * 200_000 + b"\n",
        "the first line must name every column",
    ),
    "columns without number": ("x.csv", _wide, f"at most {MOST_COLUMNS:,} are read"),
    "keys without number": (
        "x.jsonl",
        b"".join(json.dumps(OBJECT | {f"x{n}": 1}).encode() + b"\n" for n in range(6_000)),
        f"at most {MOST_COLUMNS:,} are read",
    ),
    "deep lists": ("x.jsonl", nest(10_000, "[", "]"), "must be all text"),
    "very deep lists": ("x.jsonl", nest(1_000_000, "[", "]"), "must be all text"),
    "deep objects": ("x.jsonl", nest(10_000, '{"a":', "}"), "must be all text"),
    "deep types": ("x.parquet", _deep_parquet, "the file is damaged"),
    "pages that are not there": ("x.parquet", _pages_that_are_not_there, "the file is damaged"),
    "texts that unpack to gigabytes": ("x.parquet", _long_texts, "its rows take far more room"),
}


_LONG = "texts that unpack to gigabytes"


@pytest.mark.quick("a header of one long name", "deep lists")
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] * (kind == _LONG)) for kind in FILES]
)
def test_a_hostile_file_ends_in_one_line(project, tmp_path, kind):
    name, content, message = FILES[kind]
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)
    assert path.stat().st_size < 20 << 20
    seen = bounded.run(
        tmp_path,
        *(
            *PRIVATIZE,
            path,
            "--label-values",
            "1-0",
            "--epsilon",
            "3",
            "--delta",
            "1e-5",
            "--project",
            project.state,
        ),
    )
    assert seen.refused_in_one_line(), seen.err
    assert message in seen.err
    assert seen.peak < (ENGINE if kind == _LONG else MODEST)
    assert bounded.size(project.state) < 1 << 20


def _rows_csv(path):
    path.write_bytes(zip_pieces((HEADER, 1), (ROW * 10_000, 256)))


def _rows_jsonl(path):
    path.write_bytes(zip_pieces((LINE * 10_000, 128)))


def _rows_parquet(path):
    def column(name):
        value = pa.array([str(OBJECT[name])])
        return pa.DictionaryArray.from_arrays(np.zeros(1_000_000, np.int32), value)

    table = pa.table({name: column(name) for name in NAMES})
    with pq.ParquetWriter(path, table.schema) as writer:
        for _ in range(5):
            writer.write_table(table)


BOMBS = {"x.csv.gz": _rows_csv, "x.jsonl.gz": _rows_jsonl, "x.parquet": _rows_parquet}


_PRIVATIZE, _PLAN = ((*PRIVATIZE, "--epsilon", "3", "--delta", "1e-5"), ("plan",))


@pytest.mark.quick("command0")
@pytest.mark.parametrize(
    ("command", "name"),
    [
        *(pytest.param(_PRIVATIZE, name) for name in BOMBS),
        *(pytest.param(_PLAN, name, marks=pytest.mark.slow) for name in BOMBS),
    ],
)
def test_rows_that_unpack_to_more_than_is_allowed_stop_the_reading(
    project, tmp_path, name, command
):
    BOMBS[name](tmp_path / name)
    most = 20 << 20
    where = ("--project", project.state) if command[0] == "privatize" else ()
    limit = ("--max-input-bytes", str(most))
    seen = bounded.run(tmp_path, *command, tmp_path / name, *limit, *where, disk=2 * most)
    assert seen.refused_in_one_line(), seen.err
    assert "--max-input-bytes" in seen.err
    assert seen.peak < MODEST
    assert bounded.size(project.state) < 1 << 20


def test_what_is_allowed_follows_from_the_size_of_the_files(tmp_path):
    for name in BOMBS:
        (tmp_path / name).write_bytes(b"x" * 1000)
    files = resolve_input([tmp_path / name for name in BOMBS])
    assert ByteLimit.from_file_sizes(files, None).left == (1 << 30) + 200 * 3000
    assert ByteLimit.from_file_sizes(files, 5).left == 5
    allowed = ByteLimit.from_file_sizes(files, 5)
    allowed.subtract("x", 5)
    with pytest.raises(InvalidLabels, match="allow it: --max-input-bytes"):
        allowed.subtract("x", 1)


def test_tables_in_memory_are_as_large_as_they_are():
    table = InputFile("table", lambda connection: connection.sql("SELECT 1"))
    ByteLimit.from_file_sizes([table], None).subtract("table", 1 << 50)


@pytest.mark.quick("None")
@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
def test_a_long_line_at_the_end_is_never_left_out_silently(project, tmp_path, compression):
    path = tmp_path / {None: "x.csv", "gzip": "x.csv.gz", "zstd": "x.csv.zst"}[compression]
    with pa.output_stream(str(path), compression=compression) as stream:
        stream.write(HEADER + ROW * 10)
        for _ in range(40):
            stream.write(b"a" * (1 << 20))
    with pytest.raises(InvalidLabels, match="line is longer than 32 MiB"):
        make_release(path, mechanism="rr", epsilon=3, delta=1e-5, project=project)


def test_every_engine_spills_within_the_project(project, tmp_path, monkeypatch):
    """Also the one that copies rows which are set aside, raw, with their labels."""
    monkeypatch.setattr(readers, "connect", engines.of_its_own)
    places: list[str] = []
    connect = duckdb.connect

    def note_place(*arguments, **options):
        connection = connect(*arguments, **options)
        places.extend(connection.execute("SELECT current_setting('temp_directory')").fetchall()[0])
        return connection

    monkeypatch.setattr(duckdb, "connect", note_place)
    bad = json.dumps(OBJECT | {"prompt": None}).encode() + b"\n"
    (tmp_path / "labels.jsonl").write_bytes(LINE + bad)
    (tmp_path / "links.csv").write_text("labeler_id,same_as\n3,4\n")
    price = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5, "project": project}
    make_release(tmp_path / "labels.jsonl", bad_rows="quarantine", **price)
    assert [*project.quarantine.rglob("*.parquet")]
    link_table(tmp_path / "links.csv", project)
    assert len(places) >= 3
    assert [one for one in places if not Path(one).is_relative_to(project.work)] == []
