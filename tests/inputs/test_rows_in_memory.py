"""Rows as Python has them, a list of dictionaries, are read as a table of them is."""

import itertools
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.codings import CODED
from support.exports import read
from support.releases import make_release

import labelguard as lg
from labelguard.errors import InvalidLabels
from labelguard.inputs import sources
from labelguard.inputs.columns import Reading
from labelguard.inputs.pairs import read_public_pairs
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.keys.keyring import KeyRing
from labelguard.storage import buckets as segments

ROOT = Path(__file__).parents[2]
SECRET = "SECRET"
TABLE = lg.simulate(labelers=5, labels=60, items=20)
ROWS: list[dict[str, Any]] = TABLE.to_pylist()
CHAT = [{"role": "user", "content": "2 + 2?"}]
ITSELF: list[Any] = []
ITSELF.append(ITSELF)


def row(**changed):
    return {"prompt": "p", "response_a": "x", "response_b": "y", "label": 1, **changed}


def test_rows_and_their_table_are_the_same_release(tmp_path):
    project = lg.init(str(tmp_path))
    asked: dict[str, Any] = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5, "project": project}
    made = make_release(TABLE, **asked)
    assert make_release(ROWS, **asked).id == made.id
    assert make_release([ROWS[:30], tuple(ROWS[30:])], **asked).id == made.id


NAN = {
    "label": [1.0, 0.0, math.nan, math.nan],
    "tie": [0.0, math.nan, 1.0, math.nan],
    "score_a": [1.0, math.nan, 3.0, 2.0],
    "score_b": [2.0, 2.0, 2.0, math.nan],
}


def _dataset(table):
    import datasets

    return datasets.Dataset(table)


def _parquet(table, directory):
    pq.write_table(table, directory / "t.parquet")
    return directory / "t.parquet"


INPUTS: dict[str, Callable[[pa.Table, Path], Any]] = {
    "arrow": lambda table, path: table,
    "pandas": lambda table, path: table.to_pandas(),
    "polars": lambda table, path: pl.from_arrow(table),
    "datasets": lambda table, path: _dataset(table),
    "rows": lambda table, path: table.to_pylist(),
    "parquet": _parquet,
}


@pytest.mark.quick("pandas", "parquet")
@pytest.mark.parametrize("kind", INPUTS)
def test_a_number_that_is_none_is_a_blank_in_every_type_of_input(kind, tmp_path):
    texts = {one: [f"{one} {n}" for n in range(4)] for one in row(labeler_id=1) if one != "label"}
    for names in (("label",), ("label", "tie"), ("score_a", "score_b")):
        numbers = {name: NAN[name] for name in names}
        blanks = {name: [None if x != x else x for x in NAN[name]] for name in names}
        source, null = INPUTS[kind](pa.table(texts | numbers), tmp_path), pa.table(texts | blanks)
        found, tied = read(source, tmp_path), read(source, tmp_path, skips="tie")
        assert found.equals(read(null, tmp_path))
        assert tied.equals(read(INPUTS[kind](null, tmp_path), tmp_path, skips="tie"))


def test_what_a_row_lacks_is_null_wherever_it_is_lacking():
    for lacking in (row(labeler_id=1), row(labeler_id=1, tie=None)):
        for rows in (
            [lacking, row(labeler_id=2, tie=True)],
            [row(labeler_id=2, tie=True), lacking],
        ):
            (part,) = sources.resolve_input(rows)
            assert part.sparse
            found = lg.inspect(rows)
            assert (found.labels, found.labelers and found.labelers.count) == (2, 2)


def test_the_order_of_columns_does_not_follow_from_which_rows_have_a_label():
    lacking = {name: value for name, value in row(labeler_id=1).items() if name != "label"}
    said = {lg.inspect(rows, columns={}).roles for rows in ([row(), lacking], [lacking, row()])}
    assert len(said) == 1


def test_numbers_beside_texts_are_read_as_in_json(tmp_path):
    rows = [
        row(labeler_id=who, prompt=f"p{number}", label=label)
        for who in (7, "7", "x")
        for number, label in enumerate([0, 1, True, 0.5, "tie", "b", 2**80, None])
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    found = []
    for name, source in (("rows", rows), ("file", path)):
        options = StagingOptions(Reading({}, values=CODED), "")
        staged = stage(source, tmp_path / name, KeyRing.public(), options)
        buckets = [segments.read_bucket(staged.rows_directory, n) for n in range(segments.BUCKETS)]
        read = [row for one in buckets if one is not None for row in one.to_pylist()]
        found.append((read, staged.label_fault_count, staged.skipped))
    assert found[0] == found[1]
    assert len({str(row["unit_hi"]) for row in found[0][0]}) == 2


def test_chats_are_nested_rows():
    answers = {"chosen": [{"role": "assistant", "content": "4"}], "rejected": CHAT}
    found = lg.inspect([{"prompt": CHAT, "labeler_id": 7, **answers}])
    assert (found.labels, found.examples[0].prompt, found.problems) == (1, "user: 2 + 2?", ())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no input: the list of files or tables is empty"),
        ([{}], "rows: no columns in the input"),
        ([row(), "labels.parquet"], r"rows \(dictionaries\) stand beside paths or tables"),
        ([row(prompt=CHAT), row()], "rows: columns prompt, response_a, response_b: prompts and"),
        ([row(label=object())], "rows row 1: column label: expected values that JSON has"),
        ([row(prompt=CHAT), row(prompt=2**80)], "rows: columns prompt, response_a"),
        ([row(prompt="\ud800")], "rows row 1: column prompt: prompts"),
        ([row(prompt=ITSELF)], "rows row 1: column prompt: prompts"),
        ([{7: SECRET}], "rows: a key is no text"),
        ([None], "expected a path, a table .*, or a list of rows, found NoneType"),
        ([row(Label=0)], "rows: two columns have one name .Label, label;"),
    ],
)
def test_what_is_no_table_is_refused_in_one_line_without_a_value(rows, message):
    with pytest.raises(InvalidLabels, match=message) as refused:
        lg.inspect(rows)
    said = str(refused.value)
    assert "\n" not in said and SECRET not in said and len(said) < 350


# Labels of single responses are refused with a way out, and that way looks at no label.


PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
COMPLETED = {"prompt": [{"role": "user", "content": "q"}]}
COMPLETED |= {"completion": [{"role": "assistant", "content": "a"}]}


@pytest.mark.parametrize("texts", [{"prompt": "p", "completion": "a"}, COMPLETED])
def test_single_labels_are_named_whether_or_not_a_label_is_there(texts, tmp_path):
    rows = pl.DataFrame([texts | {"label": up, "labeler_id": "u"} for up in (1, 0)])
    said = set()
    for frame in (rows, rows.drop("label")):
        frame.write_parquet(tmp_path / "x.parquet")
        frame.write_ndjson(tmp_path / "x.jsonl")
        for act, path in (
            (lg.inspect, "x.parquet"),
            (lg.inspect, "x.jsonl"),
            (read_public_pairs, "x.jsonl"),
        ):
            with pytest.raises(InvalidLabels, match=r"thumbs up or down\) are not") as error:
                act(tmp_path / path)
            said.add(str(error.value).replace(path, "x"))
    (one,) = said
    anchor = re.findall(r"docs/formats.md#(\S+)", one)[0]
    headings = re.findall(r"(?m)^#+ (.*)$", PAGE.read_text(encoding="utf-8"))
    assert anchor in [heading.lower().replace(" ", "-") for heading in headings]
    sides = {"response_a": "x", "response_b": "y"}  # then a completion is a column like any other
    assert lg.inspect([{"prompt": "p", "completion": "a", "label": 1, **sides}]).format == "pairs"


@pytest.mark.slow
def test_the_page_makes_rankings_of_thumbs_that_exist_whatever_the_thumbs_say(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    (code,) = (c for c in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "thumbs" in c)
    rated = [("u", "p", "b"), ("u", "p", "a"), ("v", "p", "a"), ("v", "q", "c"), ("v", "q", "d")]
    public, seen = set(), set()
    for labels in itertools.product([True, False, None], repeat=len(rated)):
        rows = [
            {"labeler_id": labeler, "prompt": prompt, "completion": text, "label": label}
            for (labeler, prompt, text), label in zip(rated, labels, strict=True)
        ]
        Path("thumbs.jsonl").write_text("\n".join(map(json.dumps, rows)))
        exec(code, {})
        found = pl.read_parquet("rankings.parquet")
        public.add(str(found.drop("ranks").rows()))
        seen.add(str(found["ranks"].to_list()))
    assert public == {str([("u", "p", ["a", "b"]), ("v", "q", ["c", "d"])])}
    assert len(seen) == 3**4  # a single rating of v compares nothing
    release = make_release(
        found, mechanism="rr", epsilon=3, delta=1e-5, project=lg.init(tmp_path / "p")
    )
    assert release.card["counts"]["rows"] == 2
