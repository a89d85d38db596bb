"""Bad input gets one clear line: file, row, column, what was found, what to do; never content.

After every refusal the project is as it was: nothing written, nothing charged.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support import bounded
from support.commands import PRIVATIZE

import labelguard
from labelguard.cli.main import main
from labelguard.errors import (
    InvalidLabels,
    KeyProblem,
    LabelguardError,
    ProjectError,
)
from labelguard.ingest.readers import readable
from labelguard.project.project import Project
from labelguard.release.writer import Release
from labelguard.report import overview

SECRET = "SECRET-CONTENT"
INVALID_UTF8 = b"\xff\xfe" + SECRET.encode()


def privatize(project: Project, source: Any, **options: Any) -> Release:
    budget = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5}
    return labelguard.privatize(source, **{**budget, "project": project, **options})


def good(number: int = 0, **changes: Any) -> dict[str, Any]:
    row = {
        "labeler_id": f"x{number}",
        "prompt": f"{SECRET} p{number}",
        "response_a": f"{SECRET} a",
        "response_b": f"{SECRET} b",
        "label": number % 2,
    }
    return row | changes


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([good(1), good(2), *rows])


def untouched(project: Project) -> bool:
    kinds = [entry.kind for entry in overview.journal(project.state)]
    folders = [*project.releases.iterdir(), *project.released.iterdir()]
    folders += [*project.quarantine.iterdir()]
    return set(kinds) <= {"created"} and not folders and not project.work.exists()


def refusal(project: Project, source: Any, **options: Any) -> str:
    """The message of a refusal that told no content and left no trace."""
    with pytest.raises(LabelguardError) as caught:
        privatize(project, source, **options)
    message = str(caught.value)
    assert SECRET not in message
    assert "\n" not in message
    assert untouched(project)
    return message


def with_chosen(**changes: Any) -> dict[str, Any]:
    row = {"labeler_id": "x", "prompt": "p", "chosen": "c", "rejected": "r"}
    return row | changes


def with_ranks(**changes: Any) -> dict[str, Any]:
    row = {"labeler_id": "x", "prompt": "p", "responses": ["a", "b", "c"], "ranks": [1, 2, 3]}
    return row | changes


THREE = "table row 3: column "
CONTENT = "prompts and responses must be all text, or all chats"
TEXT = "expected text or chat messages, found null or a chat without messages"
ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "null labeler": (good(labeler_id=None), "labeler_id: expected an id, found null or an empty"),
    "empty labeler": (good(labeler_id=""), "labeler_id: expected an id, found null or an empty"),
    "blank labeler": (good(labeler_id=" \t\u00a0\u3000\n"), "labeler_id: expected an id"),
    "null prompt": (good(prompt=None), f"prompt: {TEXT}"),
    "null response": (good(response_a=None), f"response_a: {TEXT}"),
}


@pytest.mark.quick("null labeler", "blank labeler", "null prompt")
@pytest.mark.parametrize("case", ROWS)
def test_a_bad_row_is_named(case: str, project: Project) -> None:
    row, expected = ROWS[case]
    message = refusal(project, table(row, row))
    assert message.startswith(THREE + expected)
    assert "(1 more bad rows)" in message
    assert 'bad_rows="quarantine"' in message


OUTSIDE = "label: found a value outside the domain"
LABELS: dict[str, tuple[pa.Array, str]] = {
    "infinity": (pa.array([1.0, 0.0, float("inf")]), OUTSIDE),
    "0.7": (pa.array([1.0, 0.0, 0.7]), OUTSIDE),
    "text": (pa.array(["1", "0", "A"]), OUTSIDE),
    "2": (pa.array([1, 0, 2]), OUTSIDE),
    "list": (pa.array([[1], [0], [2]]), OUTSIDE),
    "half float": (pa.array([1, 0, 2], pa.float16()), OUTSIDE),
    "span": (pa.array([None, None, (1, 2, 3)], pa.month_day_nano_interval()), OUTSIDE),
    "NaN text": (pa.array(["1", "0", "NaN"]), OUTSIDE),
}


@pytest.mark.quick("infinity", "text", "half float")
@pytest.mark.parametrize("case", LABELS)
def test_a_label_outside_its_domain_is_named_but_not_shown(case: str, project: Project) -> None:
    labels, expected = LABELS[case]
    message = refusal(project, table(good(3)).set_column(4, "label", labels))
    assert expected in message
    assert 'label_values="a-b"' in message  # whatever the label is


def test_a_tie_that_is_denied_is_outside_the_domain(project: Project) -> None:
    rows = [good(1, tie=False), good(2, tie=None), good(3, label=0.5, tie=False)]
    message = refusal(project, pa.Table.from_pylist(rows))
    assert message.startswith(f"{THREE}tie: contradicts the label")


def test_a_tie_flag_is_true_or_false(project: Project) -> None:
    rows = pa.Table.from_pylist([good(1, tie="no"), good(2, tie="maybe")])
    assert "row 2: column tie: expected true, false or nothing" in refusal(project, rows)
    numbers = pa.Table.from_pylist([good(1, tie=0), good(2, tie=2)])
    assert "row 2: column tie: expected true, false or nothing" in refusal(project, numbers)


def test_an_error_does_not_tell_whether_chosen_or_rejected_was_empty(project: Project) -> None:
    messages = {
        refusal(project, pa.Table.from_pylist([with_chosen(), with_chosen(**{side: None})]))
        for side in ("chosen", "rejected")
    }
    assert len(messages) == 1
    assert f"table row 2: column chosen or rejected: {TEXT}" in messages.pop()


def test_an_error_does_not_tell_whether_chosen_or_rejected_is_no_text(
    project: Project, tmp_path: Path
) -> None:
    """The types of JSON columns follow from the rows, and so from the labels."""
    for strange in (["list"], {"an": "object"}, [{"role": "user", "content": "x"}], [[]], [1, "a"]):
        messages = set()
        for side in ("chosen", "rejected"):
            path = tmp_path / "x.jsonl"
            path.write_text(json.dumps(with_chosen(**{side: strange})) + "\n")
            messages.add(refusal(project, path))
        assert len(messages) == 1
        assert CONTENT in messages.pop()


RANKINGS: dict[str, tuple[dict[str, Any], str]] = {
    "null responses": (with_ranks(responses=None), "responses: expected 2 to 256 responses"),
    "one response": (with_ranks(responses=["a"], ranks=[1]), "responses: expected 2 to 256"),
    "no response": (with_ranks(responses=[], ranks=[]), "responses: expected 2 to 256"),
    "null response": (with_ranks(responses=["a", None, "c"]), "responses: expected a list"),
    "missing rank": (with_ranks(ranks=[1, 2]), "ranks: expected one number for each response"),
    "null rank": (with_ranks(ranks=[1, None, 2]), "ranks: expected one number for each response"),
    "NaN rank": (with_ranks(ranks=[1, float("nan"), 2]), "ranks: expected one number for each"),
    "null prompt": (with_ranks(prompt=None), f"prompt: {TEXT}"),
}


@pytest.mark.quick("null responses", "missing rank")
@pytest.mark.parametrize("case", RANKINGS)
def test_a_bad_ranking_is_named_once(case: str, project: Project) -> None:
    row, expected = RANKINGS[case]
    floats = (
        row if row["ranks"] is None else row | {"ranks": [r and float(r) for r in row["ranks"]]}
    )
    first = with_ranks(ranks=[1.0, 2.0, 3.0])
    message = refusal(project, pa.Table.from_pylist([first, first, floats, floats]))
    assert message.startswith(THREE + expected)
    assert "(1 more " in message


IDS: dict[str, tuple[dict[str, Any], str]] = {
    "null item": ({"item_id": None}, "item_id: expected an id"),
    "empty item": ({"item_id": ""}, "item_id: expected an id"),
    "null ranking": ({"ranking_id": None}, "ranking_id: expected an id"),
    "no time": ({"submitted_at": "yesterday"}, "submitted_at: expected a time"),
    "fraction of a number": ({"submitted_at": "17.5"}, "submitted_at: expected a time"),
    "endless time": ({"submitted_at": "infinity"}, "submitted_at: expected a time"),
}


@pytest.mark.quick("null item", "no time")
@pytest.mark.parametrize("case", IDS)
def test_a_bad_id_or_time_is_named(case: str, project: Project) -> None:
    change, expected = IDS[case]
    fine = {"item_id": "i", "ranking_id": "r", "submitted_at": "2024-01-01"}
    rows = [good(n, **{name: f"{fine[name]}" for name in change}) for n in (1, 2)]
    rows = [
        row | ({"item_id": f"i{n}"} if "item_id" in change else {}) for n, row in enumerate(rows)
    ]
    message = refusal(project, pa.Table.from_pylist([*rows, good(3, **change)]))
    assert message.startswith(THREE + expected)


CHATS: dict[str, Any] = {
    "no message": [],
    "null message": [{"role": "user", "content": "x"}, None],
}


@pytest.mark.parametrize("case", CHATS)
def test_an_empty_chat_is_named(case: str, project: Project) -> None:
    said = [{"role": "user", "content": "x"}]
    fine = good(prompt=said, response_a=said, response_b=[{"role": "user", "content": "y"}])
    rows = pa.Table.from_pylist([fine, fine, fine | {"prompt": CHATS[case]}])
    assert refusal(project, rows).startswith(f"{THREE}prompt: {TEXT}")


COLUMNS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "missing label": (
        table().drop_columns("label"),
        {},
        "table: no column label; expected (prompt, response_a, response_b, label) or",
    ),
    "mistyped": (
        table().rename_columns(["labeler_id", "promt", "response_a", "response_b", "label"]),
        {},
        "no column prompt (did you mean 'promt'?)",
    ),
    "upper case": (
        table().rename_columns(["labeler_id", "Prompt", "response_a", "response_b", "label"]),
        {},
        "no column prompt (did you mean 'Prompt'?)",
    ),
    "mistyped labeler": (
        table().rename_columns(["labelerid", "prompt", "response_a", "response_b", "label"]),
        {},
        "no column labeler_id (did you mean 'labelerid'?)",
    ),
    "other names": (
        table().rename_columns(["who", "task", "one", "other", "vote"]),
        {},
        'name columns with columns={"prompt": NAME, "response_a": NAME, "response_b": NAME, '
        '"label": NAME, "labeler_id": NAME}',
    ),
    "no labeler": (
        table().drop_columns("labeler_id"),
        {},
        'says who gave each label: columns={"labeler_id": NAME}. Without one, unit=',
    ),
    "unknown role": (
        table(),
        {"columns": {"labeller_id": "labeler_id"}},
        "columns: unknown role 'labeller_id' (did you mean 'labeler_id'?)",
    ),
    "unknown name": (
        table(),
        {"columns": {"prompt": "prompts"}},
        "no column 'prompts' (given for prompt) (did you mean 'prompt'?)",
    ),
    "unused role": (
        pa.Table.from_pylist([with_chosen(mark=1)]),
        {"columns": {"label": "mark"}},
        "columns names label, which does not go with columns (prompt, chosen, rejected)",
    ),
    "private twice": (
        table(),
        {"columns": {"item_id": "label"}},
        "column label is label, which is private",
    ),
    "two layouts": (
        pa.Table.from_pylist([good() | with_chosen()]),
        {},
        "columns for pairs and chosen are both",
    ),
    "two of a name": (
        pa.table(
            [["x"], ["p"], ["a"], ["b"], [1], [0]],
            names=["labeler_id", "prompt", "response_a", "response_b", "label", "Label"],
        ),
        {},
        "table: two columns have one name",
    ),
    "labeler as fractions": (
        pa.Table.from_pylist([good(labeler_id=7.0)]),
        {},
        "column labeler_id: expected text or whole numbers, found type DOUBLE",
    ),
    "tie as list": (
        pa.Table.from_pylist([good(tie=[1])]),
        {},
        "column tie: expected true, false or nothing",
    ),
    "time as fraction": (
        pa.Table.from_pylist([good(submitted_at=1.5)]),
        {},
        "column submitted_at: expected timestamps",
    ),
    "prompt as number": (
        pa.Table.from_pylist([good(prompt=1)]),
        {},
        CONTENT,
    ),
    "prompt as bytes": (
        pa.Table.from_pylist([good(prompt=b"1")]),
        {},
        CONTENT,
    ),
    "chat and text": (
        pa.Table.from_pylist([good(response_a=[{"role": "user", "content": "x"}], prompt=1)]),
        {},
        CONTENT,
    ),
    "not a message": (
        pa.Table.from_pylist(
            [good(prompt=[{"from": "x"}], response_a=[{"from": "x"}], response_b=[{"from": "y"}])]
        ),
        {},
        CONTENT,
    ),
    "responses as text": (
        pa.Table.from_pylist([with_ranks(responses="abc")]),
        {},
        "column responses: expected a list",
    ),
    "ranks as text": (
        pa.Table.from_pylist([with_ranks(ranks=["best", "2", "3"])]),
        {},
        "column ranks: expected one number for each response",
    ),
    "no rows": (table().slice(0, 0), {}, "table: no rows in the input"),
    "no columns": (pa.table({}), {}, "table: no columns in the input"),
    "no table": (
        object(),
        {},
        "(pyarrow, polars, pandas, datasets), or a list of rows, found object",
    ),
    "a stream": (table().to_reader(), {}, "found RecordBatchReader"),
    "nothing": ([], {}, "no input"),
    "only identical sides": (
        pa.Table.from_pylist([good(response_a="s", response_b="s")]),
        {},
        "no usable row",
    ),
    "one id, two contents": (
        pa.Table.from_pylist([good(1, item_id="i"), good(2, item_id="i")]),
        {},
        "column item_id: id 'i' stands for several contents (1 such id)",
    ),
    "mixed python values": (
        pd.DataFrame({"label": [1, {"a"}]}, dtype=object),
        {},
        "table: expected values that JSON has",
    ),
    "surrogates": (
        pd.DataFrame({"prompt": ["\ud800"]}, dtype=object),
        {},
        CONTENT,
    ),
    "kinds of parts": (
        [table(), pa.Table.from_pylist([good(9, item_id="i")])],
        {},
        "table 2: its columns differ from those of the files before it",
    ),
    "rankings and pairs": (
        [pa.Table.from_pylist([good(9, ranking_id="i")]), pa.Table.from_pylist([with_ranks()])],
        {},
        "table 2: its columns differ from those of the files before it",
    ),
    "chat after text": (
        [
            table(),
            pa.Table.from_pylist(
                [
                    good(
                        prompt=[{"role": "u", "content": "x"}],
                        response_a=[{"role": "u", "content": "x"}],
                        response_b=[{"role": "u", "content": "y"}],
                    )
                ]
            ),
        ],
        {},
        "table 2: its prompts and responses have another type",
    ),
}


@pytest.mark.quick(
    "missing label",
    "other names",
    "unused role",
    "labeler as fractions",
    "prompt as bytes",
    "ranks as text",
    "a stream",
    "mixed python values",
)
@pytest.mark.parametrize("case", COLUMNS)
def test_wrong_columns_and_tables_are_refused(case: str, project: Project) -> None:
    source, options, expected = COLUMNS[case]
    assert expected in refusal(project, source, **options)


HEADER = "labeler_id,prompt,response_a,response_b,label\n"


def bad_strings() -> pa.Array:
    offsets = pa.array([0, 2, 2 + len(INVALID_UTF8)], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(
        pa.string(), 2, [None, offsets, pa.py_buffer(b"ok" + INVALID_UTF8)]
    )


def bad_text_table() -> pa.Table:
    return pa.Table.from_pylist([good(1), good(2)]).set_column(1, "prompt", bad_strings())


def bad_chat_table() -> pa.Table:
    messages = pa.StructArray.from_arrays([bad_strings(), bad_strings()], ["role", "content"])
    chat = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), messages)
    rows = pa.Table.from_pylist([good(1), good(2)])
    for index in (1, 2, 3):
        rows = rows.set_column(index, rows.column_names[index], chat)
    return rows


def parquet(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    return bytes(sink.getvalue())


def arrow(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def jsonl(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


NOT_UTF8, NOT_CSV = "not UTF-8 text", "x.csv: not CSV in UTF-8"
ROW = f"x,{SECRET},a,b,1\n"
FILES: dict[str, tuple[str, bytes, str]] = {
    "empty parquet": ("x.parquet", b"", "x.parquet: the file is empty"),
    "empty csv": ("x.csv", b"", "x.csv: the file is empty"),
    "empty gz": ("x.jsonl.gz", gzip.compress(b""), "x.jsonl.gz: no rows in the input"),
    "empty csv gz": ("x.csv.gz", gzip.compress(b""), "the first line must name every column"),
    "blank jsonl": ("x.jsonl", b"  \n", "x.jsonl: no rows in the input"),
    "header only": ("x.csv", HEADER.encode(), "x.csv: no rows in the input"),
    "no parquet rows": ("x.parquet", parquet(table().slice(0, 0)), "no rows in the input"),
    "truncated parquet": ("x.parquet", parquet(table())[:-9], "not a complete Parquet file"),
    "torn parquet": ("x.parquet", b"PAR1" + parquet(table())[300:], "x.parquet"),
    "text as parquet": ("x.parquet", HEADER.encode(), "not a complete Parquet file"),
    "compressed parquet": ("x.parquet.gz", b"1", "unknown file type; expected Parquet, CSV"),
    "other type": ("x.xlsx", b"1", "unknown file type; expected Parquet, CSV"),
    "no type": ("x", b"1", "unknown file type; expected Parquet, CSV"),
    "utf-8 in parquet": ("x.parquet", parquet(bad_text_table()), NOT_UTF8),
    "utf-8 in parquet chats": ("x.parquet", parquet(bad_chat_table()), NOT_UTF8),
    "utf-8 in arrow": ("x.arrow", arrow(bad_text_table()), f"x.arrow: {NOT_UTF8}"),
    "utf-8 in arrow chats": ("x.arrow", arrow(bad_chat_table()), f"x.arrow: {NOT_UTF8}"),
    "truncated arrow": ("x.arrow", arrow(table())[:-200], "x.arrow"),
    "noise as arrow": ("x.arrow", b"noise" * 99, "x.arrow"),
    "utf-8 in csv": (
        "x.csv",
        HEADER.encode() + INVALID_UTF8 + b",p,a,b,1\n",
        NOT_CSV,
    ),
    "utf-8 in header": ("x.csv", INVALID_UTF8, "the header is not UTF-8 text"),
    "utf-16": ("x.csv", (HEADER + ROW).encode("utf-16"), "the header is not UTF-8 text"),
    "gzip as csv": ("x.csv", gzip.compress(b"abc" * 99), "the header is not UTF-8 text"),
    "open quote": (
        "x.csv",
        (HEADER + ROW + f'x,"{SECRET},a,b,1\nx,p,a,b,1\n').encode(),
        NOT_CSV,
    ),
    "text after quote": (
        "x.csv",
        (HEADER + f'x,"{SECRET}"x,a,b,1\n').encode(),
        NOT_CSV,
    ),
    "few fields": (
        "x.csv",
        (HEADER + f"x,{SECRET},a\n").encode(),
        NOT_CSV,
    ),
    "many fields": (
        "x.csv",
        (HEADER + f"x,{SECRET},a,b,1,2\n").encode(),
        NOT_CSV,
    ),
    "empty line": ("x.csv", (HEADER + "\n" + ROW).encode(), NOT_CSV),
    "line ends": (
        "x.csv",
        (HEADER + ROW + ROW[:-1] + "\r\n").encode(),
        NOT_CSV,
    ),
    "twice in header": ("x.csv", b"a,b,A\n1,2,3\n", "two columns have one name"),
    "no header": ("x.csv", b"\n1,2,3\n", "the first line must name every column"),
    "cut gzip": (
        "x.csv.gz",
        gzip.compress((HEADER + ROW).encode())[:-12],
        "the compressed file is",
    ),
    "cut gzip jsonl": ("x.jsonl.gz", gzip.compress(jsonl(good()))[:-12], "the compressed file is"),
    "not gzip": ("x.jsonl.gz", jsonl(good()), "x.jsonl.gz"),
    "not zstd": ("x.csv.zst", HEADER.encode(), "x.csv.zst"),
    "broken json": ("x.jsonl", jsonl(good()) + b'{"a": \n', "line 2: not JSON in UTF-8"),
    "two on a line": ("x.jsonl", jsonl(good())[:-1] * 2, "line 1: not JSON in UTF-8"),
    "key twice": (
        "x.jsonl",
        jsonl(good())[:-2] + b', "label": 1}\n',
        "x.jsonl: not the JSON of the lines",
    ),
    "utf-8 in json": ("x.jsonl", b'{"a": "' + INVALID_UTF8 + b'"}', "line 1: not JSON in UTF-8"),
    "surrogate": ("x.jsonl", b'{"a": "\\ud800"}', "line 1: not JSON in UTF-8"),
    "list as row": ("x.jsonl", b"[1, 2]\n", "not JSON of rows; every line, or element of an array"),
    "text as row": ("x.jsonl", b'"text"\n', "not JSON of rows; every line, or element of an array"),
    "objects in json": (
        "x.jsonl",
        jsonl(good(prompt="x"), good(prompt={"a": 1})),
        CONTENT,
    ),
    "mixed content": (
        "x.jsonl",
        jsonl(
            *(
                good(prompt=[{"role": "u", "content": c}], response_a=[], response_b=[])
                for c in ("x", ["y"])
            )
        ),
        CONTENT,
    ),
}


@pytest.mark.quick(
    "empty parquet",
    "header only",
    "other type",
    "utf-8 in arrow chats",
    "gzip as csv",
    "line ends",
    "not zstd",
    "surrogate",
)
@pytest.mark.parametrize("case", FILES)
def test_broken_files_are_refused(case: str, project: Project, tmp_path: Path) -> None:
    name, content, expected = FILES[case]
    (tmp_path / name).write_bytes(content)
    message = refusal(project, tmp_path / name)
    assert message.startswith(str(tmp_path / name))
    assert expected in message


def test_invalid_text_in_a_table_is_refused(project: Project) -> None:
    assert f"table: {NOT_UTF8}" in refusal(project, bad_text_table())
    batches = pa.Table.from_batches([*table().to_batches(), *bad_text_table().to_batches()])
    assert f"table: {NOT_UTF8}" in refusal(project, batches)


def test_a_line_that_does_not_end_is_refused(project: Project, tmp_path: Path) -> None:
    long = "y" * (80 << 20)
    (tmp_path / "x.csv").write_text(HEADER + f"x,{long},a,b,1\n")
    assert "line is longer than 32 MiB" in refusal(project, tmp_path / "x.csv")
    (tmp_path / "x.jsonl").write_bytes(jsonl(good(prompt=long)))
    assert "line is longer than 32 MiB" in refusal(project, tmp_path / "x.jsonl")


def test_labels_as_directories_are_refused(project: Project, tmp_path: Path) -> None:
    """Files in order of their labels would make the order of rows tell them."""
    for name in ("label", "chosen", "Rejected", "tie", "ranks", "verdict"):
        for label in (0, 1):
            folder = tmp_path / name / f"{name}={label}"
            folder.mkdir(parents=True)
            part = table().drop_columns("label") if name in ("label", "verdict") else table()
            pq.write_table(part, folder / "x.parquet")
        named = {"columns": {"label": "verdict"}} if name == "verdict" else {}
        message = refusal(project, tmp_path / name, **named)
        assert f"directories are named by {name.lower()}" in message
        assert f"{name}=" not in message


def test_a_missing_file_or_directory_is_named(project: Project, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "nowhere.parquet: no such file" in refusal(project, tmp_path / "nowhere.parquet")
    assert "no such file" in refusal(project, str(tmp_path / "*.parquet"))
    assert "no readable file in it" in refusal(project, tmp_path / "empty")


def test_a_file_name_of_any_bytes_keeps_the_message_one_line(
    project: Project, tmp_path: Path
) -> None:
    for name in (b"a\nb.csv", b"\xff.csv"):
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        path.write_bytes(HEADER.encode())
        refusal(project, path).encode()


def test_the_second_file_is_named(project: Project, tmp_path: Path) -> None:
    pq.write_table(table(), tmp_path / "1.parquet")
    pq.write_table(table(good(prompt=None)), tmp_path / "2.parquet")
    assert f"{tmp_path}/2.parquet row 3: column prompt" in refusal(project, tmp_path / "*.parquet")


REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "epsilon 0": ({"epsilon": 0}, "epsilon must be a finite number above 0, found 0"),
    "epsilon -1": ({"epsilon": -1}, "epsilon must be"),
    "epsilon NaN": ({"epsilon": float("nan")}, "epsilon must be"),
    "epsilon infinite": ({"epsilon": float("inf")}, "epsilon must be"),
    "delta 1": ({"delta": 1}, "delta must be at least 0 and below 1"),
    "delta NaN": ({"delta": float("nan")}, "delta must be"),
    "delta -1": ({"delta": -1e-9}, "delta must be"),
    "K 0": ({"max_labels_per_labeler": 0}, "max_labels_per_labeler must be at least 1"),
    "drop": ({"ties": "drop"}, "tie_status_public=True"),
    "mechanism": ({"mechanism": "magic"}, "unknown mechanism"),
    "bad rows": ({"bad_rows": "eat"}, "bad_rows must be one of"),
    "workers": ({"workers": 0}, "workers must be at least 1"),
}


@pytest.mark.quick("epsilon 0", "epsilon infinite", "delta -1", "drop")
@pytest.mark.parametrize("case", REQUESTS)
def test_impossible_requests_are_refused(case: str, project: Project) -> None:
    options, expected = REQUESTS[case]
    assert expected in refusal(project, table(), **options)


def test_the_output_directory_must_be_empty(project: Project, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "out", tmp_path / "file", tmp_path / "file" / "below"):
        refusal(project, table(), output=path)
    assert (tmp_path / "out" / "precious").read_text() == "x"
    made = privatize(project, table(), mechanism="rr", output=tmp_path / "new" / "deep")
    assert made.path == tmp_path / "new" / "deep"
    again = privatize(project, table(), mechanism="rr", output=made.path)
    assert (again.reused, again.path) == (True, made.path)
    (made.path / "data.parquet").unlink()
    with pytest.raises(ProjectError, match=r"data.parquet is missing; remove"):
        privatize(project, table(), mechanism="rr", output=made.path)
    with pytest.raises(ProjectError, match="holds another release"):
        privatize(project, table(), mechanism="rr", again=True, output=made.path)
    assert len(overview.releases(project.state)) == 1


def test_an_item_id_keeps_its_content_over_releases(project: Project) -> None:
    rows = [{"item_id": "i", **row} for row in table().to_pylist()[:1]]
    privatize(project, pa.Table.from_pylist(rows))
    changed = pa.Table.from_pylist([{**rows[0], "prompt": "another"}])
    with pytest.raises(InvalidLabels, match="another content in an earlier release"):
        privatize(project, changed)
    assert len(overview.releases(project.state)) == 1


def test_a_project_that_cannot_be_written_is_refused(project: Project) -> None:
    lock = project.state / "lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()
    with pytest.raises(ProjectError, match="cannot be written"):
        privatize(project, table())
    lock.rmdir()
    project.released.rmdir()
    project.released.write_text("a file where a directory should be")
    with pytest.raises(LabelguardError) as caught:
        privatize(project, table())
    assert "\n" not in str(caught.value)


def test_missing_open_and_foreign_keys_are_refused(project: Project, tmp_path: Path) -> None:
    key = project.keys / "project.key"
    kept = key.read_bytes()
    key.chmod(0o644)
    with pytest.raises(KeyProblem, match=r"readable by others \(mode 644\); chmod 600 it"):
        privatize(project, table())
    key.unlink()
    with pytest.raises(KeyProblem, match="is missing; restore it from a backup"):
        privatize(project, table())
    key.write_bytes(kept[:-1])
    key.chmod(0o600)
    with pytest.raises(KeyProblem, match="damaged"):
        privatize(project, table())
    shutil.copy(labelguard.init(tmp_path / "other").keys / "project.key", key)
    with pytest.raises(LabelguardError, match="key"):
        privatize(project, table())
    key.write_bytes(kept)
    privatize(project, table())


def test_bad_rows_are_set_aside_for_the_owner_only(project: Project, tmp_path: Path) -> None:
    rows = [good(1), good(2, prompt=None), good(3), good(4, labeler_id=""), good(5, row=1)]
    path = tmp_path / "x.jsonl"
    path.write_bytes(jsonl(*rows))
    made = privatize(
        project, [path, table(good(labeler_id=" "))], mechanism="rr", bad_rows="quarantine"
    )
    counts = made.card["counts"]
    assert counts["set_aside"] == 3
    assert counts["rows_read"] == 8
    assert counts["rows"] == 4  # the same row lies in both parts
    assert any("3 bad rows set aside" in note for note in made.notes)
    files = sorted(file for file in project.quarantine.rglob("*") if file.is_file())
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600, 0o600]
    for file in project.quarantine.rglob("*"):
        assert not file.is_dir() or stat.S_IMODE(file.stat().st_mode) == 0o700
    kept = pq.read_table(files[0]).to_pylist()
    assert [row["labeler_id"] for row in kept] == ["x2", ""]
    assert [row["input_row"] for row in kept] == [2, 4]
    assert pq.read_table(files[1])["labeler_id"].to_pylist() == [" "]
    for public in (*made.path.iterdir(),):
        assert SECRET.encode() not in public.read_bytes() or public.name == "data.parquet"


def test_whole_rankings_are_set_aside(project: Project) -> None:
    rows = [with_ranks(), with_ranks(prompt=None), with_ranks(responses=None)]
    made = privatize(project, pa.Table.from_pylist(rows), mechanism="rr", bad_rows="quarantine")
    assert made.card["counts"]["set_aside"] == 2
    assert made.card["counts"]["rows"] == 3
    (file,) = (file for file in project.quarantine.rglob("*") if file.is_file())
    assert pq.read_table(file)["input_row"].to_pylist() == [2, 3]


def test_only_bad_rows_are_no_release(project: Project) -> None:
    rows = pa.Table.from_pylist([good(prompt=None), good(labeler_id=None)])
    assert "no usable row" in refusal(project, rows, bad_rows="quarantine")


def command(project: Project, *arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, [*arguments, "--project", str(project.state)])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.stderr


def test_the_command_line_answers_in_one_line_with_an_exit_code(
    project: Project, tmp_path: Path
) -> None:
    path = tmp_path / "x.csv"
    path.write_text(HEADER + ROW + f"x,{SECRET},a,b,7\n")
    money = ("--epsilon", "3", "--delta", "1e-5")
    code, said = command(project, *PRIVATIZE, str(path), *money)
    assert code == 1
    assert said.startswith(f"labelguard: {path} row 2: column {OUTSIDE}")
    assert said.count("\n") == 1
    assert SECRET not in said
    for wrong in ("labeler_id", "=x", "label=a,label=b", "labeller_id=x"):
        code, said = command(project, *PRIVATIZE, str(path), *money, "--columns", wrong)
        assert (code, said.count("\n")) == (1, 1), wrong
    assert command(project, *PRIVATIZE, str(path), *money, "--ties", "toss")[0] == 2
    assert command(project, *PRIVATIZE, str(path), "--epsilon", "3")[0] == 1
    assert command(project, *PRIVATIZE, *money)[0] == 2
    code, said = command(project, *PRIVATIZE, str(path), "--epsilon", "nan", "--delta", "0.1")
    assert (code, said.count("\n")) == (1, 1)
    assert untouched(project)


@pytest.mark.slow  # a disk that is full at any step is among the faults of every run
def test_a_full_disk_leaves_one_charge_and_one_release(project: Project, tmp_path: Path) -> None:
    """Whatever file does not fit, the same command with room again makes the one release."""
    rows = [good(n, labeler_id=f"x{n % 50}", prompt=f"p{n} " + "text " * 40) for n in range(1000)]
    path = tmp_path / "x.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    price = ("--epsilon", "3", "--delta", "1e-5", "--project", project.state)
    failed = 0
    for limit in (512, 1500, 4000, 8000, 14_000, 40_000):
        seen = bounded.run(tmp_path, *PRIVATIZE, path, *price, disk=limit)
        said = [line for line in seen.err.splitlines() if line.startswith("labelguard: ")]
        assert seen.code == 0 or len(said) == 1, (limit, seen.err)
        assert "Traceback" not in seen.err
        failed += seen.code
    assert failed >= 3
    assert bounded.run(tmp_path, *PRIVATIZE, path, *price).code == 0
    kinds = [entry.kind for entry in overview.journal(project.state)]
    assert kinds.count("charged") == kinds.count("committed") == 1
    made = privatize(project, path)
    assert made.reused
    assert made.card["counts"]["charged"] == made.card["counts"]["rows"] == 1000
    assert overview.verify(project.state).ok


def test_too_little_memory_is_said_alike_whether_anything_would_be_charged_or_not() -> None:
    engine = duckdb.connect(config={"memory_limit": "2MB", "temp_directory": ""})
    with pytest.raises(duckdb.Error) as raised:
        engine.execute("SELECT list(range) FROM range(10_000_000)").fetchall()
    error = readable(raised.value, "labels.json")
    assert isinstance(error, ProjectError)
    assert str(error).startswith("labels.json: too little memory")
    assert "charged" not in str(error) and "project" not in str(error)
