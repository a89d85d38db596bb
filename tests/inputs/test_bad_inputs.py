"""Bad input gets one clear line: file, row, column, what was found, what to do; never a label.

After every refusal the project is as it was: nothing written, nothing charged.
"""

import gzip
import json
import os
import stat
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from support.codings import CODED, OPTION
from support.commands import PRIVATIZE
from support.releases import make_release

from labelguard.cli.main import main
from labelguard.errors import InvalidLabels, LabelguardError, ProjectError
from labelguard.inputs.columns import Reading
from labelguard.inputs.pairs import find_distinct_pairs
from labelguard.inputs.readers import translate_error
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.keys.keyring import KeyRing
from labelguard.report import overview
from labelguard.report.inspection import inspect

SECRET = "SECRET-CONTENT"
INVALID_UTF8 = b"\xff\xfe" + SECRET.encode()
SAY = [{"role": "user", "content": "x"}]


@pytest.fixture
def refusal(tmp_path):
    """The message of a refusal, which told no content in one line."""

    def refuse(source, **columns):
        options = StagingOptions(Reading(columns, values=CODED), "files")
        with pytest.raises(LabelguardError) as caught:
            staged = stage(source, tmp_path / "staged", KeyRing.public(), options)
            staged.refuse_labels_outside_domain()
            find_distinct_pairs(staged)
        message = str(caught.value)
        assert SECRET not in message and "\n" not in message
        return message

    return refuse


def privatize(project, source, **options):
    budget = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5}
    return make_release(source, **{**budget, "project": project, **options})


def good(number=0, **changes):
    row = {"labeler_id": f"x{number}", "prompt": f"{SECRET} p{number}", "label": number % 2}
    return row | {"response_a": f"{SECRET} a", "response_b": f"{SECRET} b", **changes}


def table(*rows):
    return pa.Table.from_pylist([good(1), good(2), *rows])


def one(row):
    return pa.Table.from_pylist([row])


def rename_columns(**names):
    return table().rename_columns([names.get(name, name) for name in table().column_names])


def is_untouched(project):
    kinds = [entry.kind for entry in overview.read_journal(project.state)]
    folders = [*project.releases.iterdir(), *project.private_maps.iterdir()]
    folders += [*project.quarantine.iterdir()]
    return set(kinds) <= {"created"} and not folders and not project.work.exists()


def with_chosen(**changes):
    return {"labeler_id": "x", "prompt": "p", "chosen": "c", "rejected": "r", **changes}


def with_ranks(**changes):
    ranks = [1.0, 2.0, 3.0]
    return {"labeler_id": "x", "prompt": "p", "responses": list("abc"), "ranks": ranks, **changes}


THREE = "table row 3: column "
CONTENT = "prompts and responses must be all text, or all chats"
TEXT = "expected text or chat messages, found null or a chat without messages"
CHAT = good(prompt=SAY, response_a=SAY, response_b=[{"role": "user", "content": "y"}])
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "null labeler": (good(), {"labeler_id": None}, "labeler_id: expected an id, found null"),
    "blank labeler": (good(), {"labeler_id": " \t\u00a0\u3000\n"}, "labeler_id: expected an id"),
    "null prompt": (good(), {"prompt": None}, f"prompt: {TEXT}"),
    "null response": (good(), {"response_a": None}, f"response_a: {TEXT}"),
    "denied tie": (good(tie=False), {"label": 0.5}, "tie: contradicts the label"),
    "tie as word": (good(tie="no"), {"tie": "maybe"}, "tie: expected true, false or nothing"),
    "tie as number": (good(tie=0), {"tie": 2}, "tie: expected true, false or nothing"),
    "null responses": (with_ranks(), {"responses": None}, "responses: expected 2 to 256"),
    "one response": (with_ranks(), {"responses": ["a"]}, "responses: expected 2"),
    "ranked null": (with_ranks(), {"responses": ["a", None]}, "responses: expected a list"),
    "missing rank": (with_ranks(), {"ranks": [1.0, 2.0]}, "ranks: expected one number for each"),
    "null rank": (with_ranks(), {"ranks": [1.0, None, 2.0]}, "ranks: expected one number"),
    "NaN rank": (with_ranks(), {"ranks": [1.0, float("nan"), 2.0]}, "ranks: expected one number"),
    "null item": (good(item_id="i"), {"item_id": None}, "item_id: expected an id"),
    "null ranking": (good(ranking_id="r"), {"ranking_id": None}, "ranking_id: expected an id"),
    "no time": (good(submitted_at="2024-01-01"), {"submitted_at": "yesterday"}, "submitted_at: "),
    "endless": (good(submitted_at="2024-01-01"), {"submitted_at": "infinity"}, "submitted_at: "),
    "no message": (CHAT, {"prompt": []}, f"prompt: {TEXT}"),
    "null message": (CHAT, {"prompt": [*SAY, None]}, f"prompt: {TEXT}"),
}


@pytest.mark.parametrize("case", ROWS)
def test_a_bad_row_is_named(case, refusal):
    row, change, expected = ROWS[case]
    message = refusal(pa.Table.from_pylist([row, row, row | change, row | change]))
    assert message.startswith(THREE + expected)
    assert "(1 more " in message
    assert ("--bad-rows quarantine" in message) == (not {"label", "tie", "ranks"} & change.keys())


OUTSIDE = "label: found a value outside the domain"
LABELS: dict[str, pa.Array] = {
    "infinity": pa.array([1.0, 0.0, float("inf")]),
    "text": pa.array(["1", "0", "A"]),
    "2": pa.array([1, 0, 2]),
    "list": pa.array([[1], [0], [2]]),
    "half float": pa.array([1, 0, 2], pa.float16()),
    "span": pa.array([None, None, (1, 2, 3)], pa.month_day_nano_interval()),
    "NaN text": pa.array(["1", "0", "NaN"]),
}


@pytest.mark.parametrize("case", LABELS)
def test_a_label_outside_its_domain_is_named_but_not_shown(case, refusal):
    label = table().column_names.index("label")
    message = refusal(table(good(3)).set_column(label, "label", LABELS[case]))
    assert OUTSIDE in message
    assert "what its values mean: --label-values 1-0" in message  # whatever the label is
    words = "response_a is preferred; 0 or false: response_b is preferred; 0.5: neither is"
    assert f"(1 or true: {words})" in message


@pytest.mark.parametrize("side", ["chosen", "rejected"])
def test_an_error_names_the_side_that_is_empty(side, refusal):
    message = refusal(pa.Table.from_pylist([with_chosen(), with_chosen(**{side: None})]))
    assert message.startswith(f"table row 2: column {side}: {TEXT}")


NOT_A_MESSAGE = [{"from": "x"}]
DIFFER = "table 2: its columns differ from those of the files before it"
COLUMNS: dict[str, tuple[Any, str]] = {
    "missing label": (table().drop_columns("label"), "table: no column label; expected (prompt, "),
    "mistyped": (rename_columns(prompt="promt"), "no column prompt (did you mean 'promt'?)"),
    "mistyped labeler": (rename_columns(labeler_id="who_id"), "no column labeler_id"),
    "other names": (
        rename_columns(
            labeler_id="who", prompt="q", response_a="one", response_b="two", label="vote"
        ),
        "name columns with --columns prompt=NAME,response_a=NAME,response_b=NAME,label=vote,"
        "labeler_id=NAME",
    ),
    "no labeler": (table().drop_columns("labeler_id"), "--labeler-column NAME. Without "),
    "two layouts": (one(good() | with_chosen()), "columns for pairs and chosen are both"),
    "two of a name": (
        pa.table([[0], *table()[:1].columns], names=["Label", *table().column_names]),
        "table: two columns have one name (Label, label; upper and",
    ),
    "labeler as fractions": (one(good(labeler_id=7.0)), "column labeler_id: expected text or"),
    "tie as list": (one(good(tie=[1])), "column tie: expected true, false or nothing"),
    "time as fraction": (one(good(submitted_at=1.5)), "column submitted_at: expected timestamps"),
    "prompt as number": (one(good(prompt=1)), CONTENT),
    "no messages": (one(CHAT | {"prompt": NOT_A_MESSAGE, "response_a": NOT_A_MESSAGE}), CONTENT),
    "responses as text": (one(with_ranks(responses="abc")), "column responses: expected a list"),
    "ranks as text": (one(with_ranks(ranks=["best", "2", "3"])), "column ranks: expected one"),
    "no rows": (table().slice(0, 0), "table: no rows in the input"),
    "no columns": (pa.table({}), "table: no columns in the input"),
    "no table": (object(), "or a list of rows, found object"),
    "nothing": ([], "no input"),
    "only identical sides": (one(good(response_a="s", response_b="s")), "no usable"),
    "one id, two contents": (
        pa.Table.from_pylist([good(1, item_id="i"), good(2, item_id="i")]),
        "column item_id: id 'i' stands for several contents (1 such id)",
    ),
    "python values": (pd.DataFrame({"label": [1, {"a"}]}, dtype=object), "values that JSON has"),
    "surrogates": (pd.DataFrame({"prompt": ["\ud800"]}, dtype=object), CONTENT),
    "kinds of parts": ([table(), one(good(9, item_id="i"))], DIFFER),
    "chat after text": ([table(), one(CHAT)], "table 2: its prompts and responses have another"),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_wrong_columns_and_tables_are_refused(case, refusal):
    source, expected = COLUMNS[case]
    assert expected in refusal(source)


def test_roles_that_are_named_wrongly_are_refused(refusal):
    unknown = refusal(table(), labeller_id="labeler_id")
    assert "unknown role 'labeller_id' (did you mean 'labeler_id'?)" in unknown
    assert "'prompts' (given for prompt) (did you mean" in refusal(table(), prompt="prompts")
    assert "columns names label, which does not go" in refusal(one(with_chosen(m=1)), label="m")
    assert "column label is label, which is private" in refusal(table(), item_id="label")


HEADER = "labeler_id,prompt,response_a,response_b,label\n"


def bad_strings():
    offsets = pa.array([0, 2, 2 + len(INVALID_UTF8)], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(
        pa.string(), 2, [None, offsets, pa.py_buffer(b"ok" + INVALID_UTF8)]
    )


def with_texts(texts):
    rows = table()
    for name in ("prompt", "response_a", "response_b"):
        rows = rows.set_column(rows.column_names.index(name), name, texts)
    return rows


def bad_chat_table():
    messages = pa.StructArray.from_arrays([bad_strings(), bad_strings()], ["role", "content"])
    return with_texts(pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), messages))


def parquet(rows):
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    return bytes(sink.getvalue())


def jsonl(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def csv(*lines):
    return "".join([HEADER, *lines]).encode()


NOT_UTF8, NOT_JSON = "not UTF-8 text", "not JSON of rows; every line, or element of an array"
BAD_TEXT = f"x.parquet row 2: column prompt: {NOT_UTF8}"
BAD_CHAT = BAD_TEXT.replace(" row 2", "")
UNKNOWN = "unknown file type; expected Parquet"
DAMAGED = "the file is damaged, cut off, or not what its name says"
ROW, NO_NAME = f"x,{SECRET},a,b,1\n", "column 1 has no name (an index of pandas?"
UTF16 = "the text is UTF-16; iconv -f utf-16 -t utf-8 "
FILES: dict[str, tuple[str, bytes, str]] = {
    "empty parquet": ("x.parquet", b"", "x.parquet: the file is empty"),
    "empty gz": ("x.jsonl.gz", gzip.compress(b""), "x.jsonl.gz: no rows in the input"),
    "empty csv gz": ("x.csv.gz", gzip.compress(b""), "the first line must name every column"),
    "header only": ("x.csv", csv(), "x.csv: no rows in the input"),
    "truncated parquet": ("x.parquet", parquet(table())[:-9], DAMAGED),
    "torn parquet": ("x.parquet", b"PAR1" + parquet(table())[300:], "x.parquet"),
    "compressed parquet": ("x.parquet.gz", b"1", UNKNOWN),
    "other type": ("x.xlsx", b"1", "(.gz, .zst); save the sheet as CSV UTF-8"),
    "arrow": ("x.arrow", b"ARROW1", UNKNOWN),
    "utf-8 in parquet": ("x.parquet", parquet(with_texts(bad_strings())), BAD_TEXT),
    "utf-8 in parquet chats": ("x.parquet", parquet(bad_chat_table()), BAD_CHAT),
    "utf-8 in csv": ("x.csv", csv() + INVALID_UTF8 + b",p,a,b,1\n", "line 2: the text is not"),
    "utf-16": ("x.csv", csv(ROW).decode().encode("utf-16"), UTF16),
    "open quote": ("x.csv", csv(ROW, f'x,"{SECRET},a,b,1\nx,p,a,b,1\n'), "line 3: a quoted text"),
    "text after quote": ("x.csv", csv(f'x,"{SECRET}"x,a,b,1\n'), "line 2: a quote within a field"),
    "few fields": (
        "x.csv",
        csv(ROW, f"x,{SECRET},a\n"),
        "line 3: 3 fields, and the header names 5",
    ),
    "empty line": ("x.csv", csv("\n", ROW), "line 2: the line is empty"),
    "line ends": ("x.csv", csv(ROW, ROW[:-1] + "\r\n"), "line 3: it ends in '\\r\\n'"),
    "no first name": ("x.csv", b"," + csv(f"0,{ROW}"), NO_NAME),
    "twice in header": ("x.csv", b"a,b,A\n1,2,3\n", "two columns have one name"),
    "no header": ("x.csv", b"\n1,2,3\n", "the first line must name every column"),
    "cut gzip": ("x.csv.gz", gzip.compress(csv(ROW))[:-12], DAMAGED),
    "not gzip": ("x.jsonl.gz", jsonl(good()), "x.jsonl.gz"),
    "not zstd": ("x.csv.zst", csv(), "x.csv.zst"),
    "broken json": (
        "x.jsonl",
        jsonl(good()) + b'{"a": \n',
        "line 2: unexpected end of data; not JSON",
    ),
    "two on a line": ("x.jsonl", jsonl(good())[:-1] * 2, NOT_JSON),
    "key twice": ("x.jsonl", jsonl(good())[:-2] + b', "label": 1}\n', "no key twice"),
    "utf-8 in json": (
        "x.jsonl",
        b'{"a": "' + INVALID_UTF8 + b'"}',
        "line 1: the text is not UTF-8",
    ),
    "surrogate": ("x.jsonl", b'{"a": "\\ud800"}', NOT_JSON),
    "list as row": ("x.jsonl", jsonl({}) + b"[1]\n", f"row 2: {NOT_JSON}"),
    "objects in json": ("x.jsonl", jsonl(good(), good(prompt={"a": 1})), CONTENT),
    "mixed content": (
        "x.jsonl",
        jsonl(*(CHAT | {"prompt": [{"role": "u", "content": c}]} for c in ("x", ["y"]))),
        CONTENT,
    ),
    "long csv": ("x.csv", csv(f"x,{'y' * (80 << 20)},a,b,1\n"), "line is longer than 32 MiB"),
    "long json": ("x.jsonl", jsonl(good(prompt="y" * (80 << 20))), "line is longer than 32 MiB"),
}


@pytest.mark.parametrize("case", FILES)
def test_broken_files_are_refused(case, refusal, tmp_path):
    name, content, expected = FILES[case]
    (tmp_path / name).write_bytes(content)
    message = refusal(tmp_path / name)
    assert message.startswith(str(tmp_path / name))
    assert expected in message


def test_invalid_text_in_a_table_is_refused(refusal):
    bad = with_texts(bad_strings())
    for row, source in ((2, bad), (4, pa.concat_tables([table(), bad]))):
        assert f"table row {row}: column prompt: {NOT_UTF8}" in refusal(source)
    assert f"table: column prompt: {NOT_UTF8}" in refusal(bad_chat_table())


def test_missing_files_and_the_one_of_several_are_named(refusal, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "nowhere.parquet: no such file" in refusal(tmp_path / "nowhere.parquet")
    assert "no such file" in refusal(str(tmp_path / "*.parquet"))
    assert "is a directory; name its files" in refusal(tmp_path / "empty")
    pq.write_table(table(), tmp_path / "1.parquet")
    pq.write_table(table(good(prompt=None)), tmp_path / "2.parquet")
    assert f"{tmp_path}/2.parquet row 3: column prompt" in refusal(tmp_path / "*.parquet")
    for name in (b"a\nb.csv", b"\xff.csv"):  # a name of any bytes keeps the message one line
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
        path.write_bytes(csv())
        refusal(path).encode()


def test_one_fault_of_many_files_is_one_message(refusal, tmp_path):
    for number in range(3):
        path = tmp_path / f"{number}.csv"
        path.write_bytes(csv(f'x,"{SECRET}\n",a,b,1\n', f"x,p,a,b,{number}\n", ",p,a,b,1\n"))
    message = refusal(tmp_path / "*.csv")
    assert message.startswith(f"{tmp_path}/0.csv row 3 (line 5): column labeler_id: expected an id")
    assert "(2 more bad rows in 3 files); mend" in message
    assert "row 2 (line 4): column label: found a value" in refusal(
        tmp_path / "2.csv", labeler_id="prompt"
    )
    for number in range(3):
        pq.write_table(table().drop_columns("label"), tmp_path / f"{number}.parquet")
    message = refusal(tmp_path / "*.parquet")
    assert message.startswith(f"{tmp_path}/0.parquet: no column label")
    assert message.endswith("(the same in 2 more files)")
    assert inspect(tmp_path / "*.parquet").problems == (message,)


REQUESTS: dict[str, dict[str, Any]] = {
    "epsilon must be a finite number above 0": {"epsilon": float("inf")},
    "delta must be at least 0 and below 1": {"delta": 1},
    "max-labels-per-labeler must be at least 1": {"max_labels_per_labeler": 0},
    "bad-rows must be one of": {"bad_rows": "eat"},
    "workers must be at least 1": {"workers": 0},
    "stands for several contents": {"source": COLUMNS["one id, two contents"][0]},
    OUTSIDE: {"source": table(good(3, label=7))},
    "no usable row": {"source": one(good(prompt=None)), "bad_rows": "quarantine"},
}


@pytest.mark.parametrize("expected", REQUESTS)
def test_a_refusal_leaves_the_project_as_it_was(expected, project):
    with pytest.raises(LabelguardError, match=expected):
        privatize(project, **{"source": table()} | REQUESTS[expected])
    assert is_untouched(project)


def test_the_output_directory_must_be_empty(project, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("x")
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "out", tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(LabelguardError):
            privatize(project, table(), output=path)
    assert (tmp_path / "out" / "precious").read_text() == "x" and is_untouched(project)
    made = privatize(project, table(), output=tmp_path / "new" / "deep")
    assert made.path == tmp_path / "new" / "deep"
    again = privatize(project, table(), output=made.path)
    assert (again.reused, again.path) == (True, made.path)
    (made.path / "data.parquet").unlink()
    with pytest.raises(ProjectError, match=r"data.parquet is missing; remove"):
        privatize(project, table(), output=made.path)
    with pytest.raises(ProjectError, match="holds another release"):
        privatize(project, table(), again=True, output=made.path)
    assert len(overview.list_releases(project.state)) == 1


def test_an_item_id_keeps_its_content_over_releases(project):
    privatize(project, one(good(item_id="i")))
    with pytest.raises(InvalidLabels, match="another content in an earlier release"):
        privatize(project, one(good(item_id="i", prompt="another")))
    assert len(overview.list_releases(project.state)) == 1


def test_bad_rows_are_set_aside_for_the_owner_only(project, tmp_path):
    path = tmp_path / "x.jsonl"
    rows = [good(1), good(2, prompt=None), good(3), good(4, labeler_id=""), good(5, row=1)]
    path.write_bytes(jsonl(*rows))
    made = privatize(project, [path, table(good(labeler_id=" "))], bad_rows="quarantine")
    counts = made.card["counts"]
    # The same row lies in both parts.
    assert (counts["set_aside"], counts["rows_read"], counts["rows"]) == (3, 8, 4)
    assert any("3 bad rows set aside" in note for note in made.notes)
    found = sorted(project.quarantine.rglob("*"))
    for file in found:
        assert stat.S_IMODE(file.stat().st_mode) == (0o700 if file.is_dir() else 0o600)
    first, second = (pq.read_table(file) for file in found if file.is_file())
    assert first["labeler_id"].to_pylist() == ["x2", ""]
    assert first["input_row"].to_pylist() == [2, 4]
    assert second["labeler_id"].to_pylist() == [" "]
    for public in made.path.iterdir():
        assert SECRET.encode() not in public.read_bytes() or public.name == "data.parquet"


def test_whole_rankings_are_set_aside(project):
    rows = [with_ranks(), with_ranks(prompt=None), with_ranks(responses=None)]
    made = privatize(project, pa.Table.from_pylist(rows), bad_rows="quarantine")
    assert (made.card["counts"]["set_aside"], made.card["counts"]["rows"]) == (2, 3)
    (file,) = (file for file in project.quarantine.rglob("*") if file.is_file())
    assert pq.read_table(file)["input_row"].to_pylist() == [2, 3]


def test_the_command_line_answers_in_one_line_with_an_exit_code(project, tmp_path):
    def command(*arguments):
        where = ("--project", str(project.state))
        result = CliRunner().invoke(main, [*PRIVATIZE, *OPTION, *arguments, *where])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.exit_code, result.stderr

    path = tmp_path / "x.csv"
    path.write_bytes(csv(ROW, f"x,{SECRET},a,b,7\n"))
    money = ("--epsilon", "3", "--delta", "1e-5")
    code, said = command(str(path), *money)
    assert (code, said.count("\n")) == (1, 1) and SECRET not in said
    assert said.startswith(f"labelguard: {path} row 2 (line 3): column {OUTSIDE}")
    for wrong in ("labeler_id", "=x", "label=a,label=b", "labeller_id=x"):
        code, said = command(str(path), *money, "--columns", wrong)
        assert (code, said.count("\n")) == (1, 1), wrong
    assert command(str(path), *money, "--ties", "toss")[0] == 2
    assert command(str(path), "--epsilon", "3")[0] == 1
    assert command(*money)[0] == 2
    assert is_untouched(project)


def test_too_little_memory_is_said_alike_whether_anything_would_be_charged_or_not():
    engine = duckdb.connect(config={"memory_limit": "2MB", "temp_directory": ""})
    with pytest.raises(duckdb.Error) as raised:
        engine.execute("SELECT list(range) FROM range(10_000_000)").fetchall()
    error = translate_error(raised.value, "labels.json")
    assert isinstance(error, ProjectError)
    assert str(error).startswith("labels.json: too little memory")
    assert "charged" not in str(error) and "project" not in str(error)
