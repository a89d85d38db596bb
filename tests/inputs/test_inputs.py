"""The same labels in any format and layout are the same: same items, same coins, no charge."""

import datetime
import decimal
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import published, world
from support.codings import CODED, NUMBERS
from support.published import as_jsonl, as_table, pairs
from support.releases import make_release

import labelguard
from labelguard.errors import InvalidLabels
from labelguard.inputs import json_files
from labelguard.inputs.columns import Reading
from labelguard.inputs.pairs import read_public_pairs
from labelguard.keys.keyring import KeyRing

Rows = list[dict[str, Any]]
KEYS = KeyRing.public()


@pytest.fixture
def read(tmp_path):
    """What staging makes of an input: labels by labeler and item, of several the latest."""
    places = (tmp_path / f"staged {number}" for number in itertools.count())

    def staged(source, **columns):
        found = published.read(source, next(places), KEYS, Reading(columns, values=CODED))
        assert found.labels, found.public
        return found

    return staged


def release(project, source, **options):
    options = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5, **options}
    return make_release(source, project=project, **options)


def data(made):
    return pq.read_table(made.path / "data.parquet")


def count_charges(made):
    """New charges of a release; a repeated command is answered by the release it made before."""
    return 0 if made.reused else int(made.card["counts"]["charged"])


def base_rows():
    texts = ["plain", 'quote " and, comma', "line\nbreak", "emoji 🦊 é"]
    texts += ["tab\tand ; semicolon", "007"]
    rows = []
    for number in range(24):
        label = [0, 1, 0.5, None][number % 4]
        rows.append(
            {
                "labeler_id": str(number % 5),
                "prompt": f"{texts[number % 6]} {number}",
                "response_a": f"a{number % 7}",
                "response_b": texts[number % 6],
                "label": label,
                "tie": label in (0.5, None),
            }
        )
    return rows


def write_jsonl(path, rows):
    return write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_text(path, text):
    compression = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    with pa.output_stream(str(path), compression=compression) as stream:
        stream.write(text.encode())
    return path


def write_csv(path, rows):
    delimiter = "\t" if ".tsv" in path.name else ","
    return write_text(path, pd.DataFrame(rows).to_csv(index=False, sep=delimiter))


def write_parquet(path, rows):
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def swap_sides(rows):
    return [
        row
        | {"response_a": row["response_b"], "response_b": row["response_a"]}
        | {"label": None if row["label"] is None else 1 - row["label"]}
        for row in rows
    ]


def chosen_layout(rows):
    layout = []
    for row in rows:
        order = "ba" if row["label"] == 0 else "ab"
        sides = {
            role: row[f"response_{side}"]
            for role, side in zip(("chosen", "rejected"), order, strict=True)
        }
        layout.append({name: row[name] for name in ("labeler_id", "prompt", "tie")} | sides)
    return layout


WEIRD = {"labeler_id": 'who "is" it', "prompt": "select", "response_a": "ep"}
WEIRD |= {"response_b": "part", "label": "it's", "tie": "is tie"}

FORMATS: dict[str, Callable[[Path, Rows], Any]] = {
    "parquet": lambda path, rows: write_parquet(path / "x.parquet", rows),
    "csv": lambda path, rows: write_csv(path / "x.csv", rows),
    "csv.gz": lambda path, rows: write_csv(path / "x.csv.gz", rows),
    "csv.zst": lambda path, rows: write_csv(path / "x.csv.zst", rows),
    "tsv": lambda path, rows: write_csv(path / "x.tsv", rows),
    "tsv.gz": lambda path, rows: write_csv(path / "x.tsv.gz", rows),
    "jsonl": lambda path, rows: write_jsonl(path / "x.jsonl", rows),
    "jsonl.gz": lambda path, rows: write_jsonl(path / "x.jsonl.gz", rows),
    "jsonl.zst": lambda path, rows: write_jsonl(path / "x.jsonl.zst", rows),
    "json lines": lambda path, rows: write_jsonl(path / "x.json", rows),
    "json array": lambda path, rows: write_text(path / "x.json", json.dumps(rows)),
    "json array.zst": lambda path, rows: write_text(path / "y.json.zst", f" {json.dumps(rows)}"),
    "json over lines": lambda path, rows: write_text(path / "z.json", json.dumps(rows, indent=1)),
    "pyarrow": lambda path, rows: pa.Table.from_pylist(rows),
    "batch": lambda path, rows: pa.RecordBatch.from_pylist(rows),
    "dictionary": lambda path, rows: pa.Table.from_pylist(rows).set_column(
        0, "labeler_id", pa.array([row["labeler_id"] for row in rows]).dictionary_encode()
    ),
    "polars": lambda path, rows: pl.DataFrame(rows),
    "polars categorical": lambda path, rows: pl.DataFrame(rows).with_columns(
        pl.col("response_a", "labeler_id").cast(pl.Categorical)
    ),
    "pandas": lambda path, rows: pd.DataFrame(rows),
    "pandas object": lambda path, rows: pd.DataFrame(rows).astype(
        {"prompt": object, "tie": object}
    ),
    "swapped sides": lambda path, rows: pa.Table.from_pylist(swap_sides(rows)),
    "chosen and rejected": lambda path, rows: pa.Table.from_pylist(chosen_layout(rows)),
    "chosen in jsonl": lambda path, rows: write_jsonl(path / "c.jsonl", chosen_layout(rows)),
    "reversed rows": lambda path, rows: pa.Table.from_pylist(rows[::-1]),
    "many files": lambda path, rows: [
        write_parquet(path / f"many{number:02}.parquet", [row]) for number, row in enumerate(rows)
    ],
    "mixed kinds": lambda path, rows: [
        write_csv(path / "mixed.csv", rows[:8]),
        write_jsonl(path / "mixed.jsonl", rows[8:16]),
        pl.DataFrame(rows[16:]),
        pa.Table.from_pylist(rows[:3]),
    ],
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_items_and_labels(name, read, tmp_path):
    given = read(pa.Table.from_pylist(base_rows()))
    found = read(FORMATS[name](tmp_path, base_rows()))
    assert len(given.labels) == 24
    assert (found.labels, found.told) == (given.labels, given.told)


def test_columns_may_have_any_name_and_be_exchanged_and_others_are_ignored(read, tmp_path):
    rows = base_rows()
    given = read(pa.Table.from_pylist(rows))
    named = [{WEIRD[key]: v for key, v in row.items()} | {"duration_s": 3} for row in rows]
    for suffix, writer in (("parquet", write_parquet), ("csv", write_csv), ("jsonl", write_jsonl)):
        assert read(writer(tmp_path / f"x.{suffix}", named), **WEIRD).public[:1] == given.public[:1]
    other = [r | {"response_a": r["response_b"], "response_b": r["response_a"]} for r in rows]
    exchanged = {"response_a": "response_b", "response_b": "response_a"}
    assert read(pa.Table.from_pylist(other), **exchanged).labels == given.labels


LABELS: dict[str, Sequence[Any]] = {
    "integers": pa.array([0, 1, 1, None], pa.int8()),
    "floats": pa.array([0.0, 1.0, 1.0, 0.5]),
    "float32": pa.array([0.0, 1.0, 1.0, 0.5], pa.float32()),
    "booleans": pa.array([False, True, True, None]),
    "decimals": pa.array([decimal.Decimal(v) for v in ("0.0", "1.0", "1.0", "0.5")]),
    "strings": pa.array(["+0", "1", " 1.0\t", "0.50"]),
    "words": pa.array(["false", "TRUE", "True", None]),
    "dictionary": pa.array(["0", "1", "1", "0.5"]).dictionary_encode(),
}
TIES: dict[str, pa.Array] = {
    "booleans": pa.array([False, False, None, True]),
    "integers": pa.array([0, 0, None, 1]),
    "floats": pa.array([0.0, 0.0, None, 1.0]),
    "strings": pa.array(["false", "False", None, "true"]),
}


def test_labels_and_tie_flags_of_every_type_mean_the_same(read):
    texts = {"labeler_id": ["x"] * 4, "prompt": ["p1", "p2", "p3", "p4"]}
    texts |= {"response_a": ["a"] * 4, "response_b": ["b"] * 4}
    pairs = [(labels, TIES["booleans"]) for labels in LABELS.values()]
    pairs += [(LABELS["floats"], ties) for ties in TIES.values()]
    seen = [read(pa.table(texts | {"label": one, "tie": tie})).labels for one, tie in pairs]
    assert seen == [seen[0]] * len(seen) and sorted(seen[0].values()) == [0, 1, 1, 2]
    null = pa.table({name: some[:1] for name, some in texts.items()} | {"label": pa.nulls(1)})
    assert set(read(null.append_column("tie", pa.array([True]))).labels.values()) == {2}


def test_whole_number_ids_are_the_same_as_text(read, tmp_path):
    rows = [pair(0, 1, labeler_id=7)]
    as_text = [row | {"labeler_id": "7"} for row in rows]
    wide = pa.Table.from_pylist(rows)
    found = [
        read(source).labels
        for source in (
            *(wide, pa.Table.from_pylist(as_text)),
            wide.set_column(0, "labeler_id", wide["labeler_id"].cast(pa.uint64())),
            write_jsonl(tmp_path / "n.jsonl", rows),
            write_jsonl(tmp_path / "m.jsonl", rows + as_text),
            write_csv(tmp_path / "n.csv", rows),
        )
    ]
    assert found == [found[0]] * len(found) and len(found[0]) == 1


def chats():
    def say(role, content, **extra):
        return [{"role": role, "content": content, **extra}]

    return [
        {
            "labeler_id": "x",
            "prompt": say("system", "be brief") + say("user", f"q{number}", name=name),
            "response_a": say("assistant", "2024-1-1", tool_calls="[1, 2.0]"),
            "response_b": say("assistant", 'no 🦊 \0 "quoted"', tool_calls=None),
            "label": number % 2,
        }
        for number, name in enumerate(["Ann", None, "Bob", None])
    ]


def test_chats_are_the_same_in_every_format(read, tmp_path):
    rows = chats()
    given = read(write_parquet(tmp_path / "c.parquet", rows))
    assert len(given.labels) == 4
    reordered = [
        row | {"prompt": [dict(reversed(message.items())) for message in row["prompt"]]}
        for row in rows
    ]
    lean: Rows = json.loads(
        json.dumps(rows), object_hook=lambda o: {k: v for k, v in o.items() if v is not None}
    )
    told = [row | {"tie": False} for row in rows]
    for source in (
        write_jsonl(tmp_path / "c.jsonl", rows),
        write_jsonl(tmp_path / "lean.jsonl", lean),
        write_jsonl(tmp_path / "c.jsonl.gz", reordered),
        pl.DataFrame(rows),
        pa.Table.from_pylist(chosen_layout(told)),
        write_jsonl(tmp_path / "chosen.jsonl", chosen_layout(told)),
        # Members and types differ from file to file.
        [write_jsonl(tmp_path / f"one{n}.jsonl", [row]) for n, row in enumerate(lean)],
        [write_parquet(tmp_path / f"o{n}.parquet", [row]) for n, row in enumerate(lean)][::-1],
    ):
        found = read(source)
        assert (found.public[0], found.labels) == (given.public[0], given.labels), source
        assert found.public[-1] == given.public[-1]  # the type of contents


def ranking_rows():
    return [
        {"labeler_id": "r1", "prompt": "p1", "responses": list("abcd"), "ranks": [2, 1, 2, 4]},
        {"labeler_id": "r1", "prompt": "p2", "responses": ["x", "y"], "ranks": [1, 2]},
        {"labeler_id": "r2", "prompt": "p3", "responses": list("sts"), "ranks": [1, 2, 3]},
    ]


def test_rankings_become_all_their_pairs(read, tmp_path):
    rows = ranking_rows()
    given = read(pa.Table.from_pylist(rows))
    assert len(given.labels) == 6 + 1 + 2  # of three pairs of one ranking, one has equal sides
    # One ranking is one item, whatever order its responses come in, and in any format.
    turned = [r | {"responses": r["responses"][::-1], "ranks": r["ranks"][::-1]} for r in rows]
    floats = [row | {"ranks": [r + 0.5 for r in row["ranks"]]} for row in rows]
    for source in (
        pa.Table.from_pylist(turned[:2] + rows[2:]),
        write_jsonl(tmp_path / "r.jsonl", rows),
        write_parquet(tmp_path / "r.parquet", floats),
    ):
        assert read(source).labels == given.labels
    # A ranking of two is the pair.
    two = {"labeler_id": "r1", "prompt": "p2", "response_a": "y", "response_b": "x", "label": 0}
    assert read(pa.Table.from_pylist([two])).told <= given.told


def pair(number, label, **more):
    row = {"labeler_id": "x", "prompt": f"p{number}", "response_a": "a", "response_b": "b"}
    return row | {"label": label, "tie": label in (None, 0.5)} | more


def test_unit_item_needs_no_labelers(tmp_path):
    project, other = (labelguard.init(tmp_path / name) for name in ("one", "other"))
    nameless = pa.Table.from_pylist([pair(0, 1), pair(0, 0), pair(1, 1)])
    nameless = nameless.drop_columns("labeler_id")
    with pytest.raises(InvalidLabels, match=r"--labeler-column NAME.*--unit item"):
        release(project, nameless)
    made = release(project, nameless, unit="item")
    assert (made.card["counts"]["charged"], made.card["counts"]["rows"]) == (2, 3)
    assert count_charges(release(project, nameless.slice(2))) == 0
    rows = [pair(0, 1), pair(0, 0), pair(0, 0, labeler_id="y"), pair(1, 1)]
    table = pa.Table.from_pylist(rows)
    made = release(other, table, unit="item", max_labels_per_labeler=1)
    assert (made.card["counts"]["duplicates"], made.card["counts"]["rows"]) == (1, 2)


TIMES: dict[str, Sequence[Any]] = {
    "timestamps": [datetime.datetime(2024, 1, day) for day in (3, 1, 2)],
    "zones": [
        datetime.datetime(2024, 1, day, tzinfo=datetime.timezone(datetime.timedelta(hours=day)))
        for day in (3, 1, 2)
    ],
    "dates": [datetime.date(2024, 1, day) for day in (3, 1, 2)],
    "iso": ["2024-01-03", "2024-01-01 10:00", "2024-01-02T10:00:00"],
    # Later by the clock on the wall, earlier in fact.
    "iso zones": ["2024-01-01T10:00:00Z", "2024-01-01T11:00:00+05:00", "2024-01-01 09:30:00.5+00"],
    "integers": [30, 10, 20],
    "integers as text": ["30", "-10", "20"],
    "one missing": [None, 10, 20],
}


@pytest.mark.parametrize("kind", TIMES)
def test_the_latest_submission_counts_in_every_format(kind, read, tmp_path):
    latest = 2 if kind == "one missing" else 0
    rows = [pair(0, int(row == latest), submitted_at=time) for row, time in enumerate(TIMES[kind])]
    sources = [pa.Table.from_pylist(rows), pa.Table.from_pylist(rows[::-1])]
    if kind in ("iso", "iso zones", "integers"):
        sources += [write_jsonl(tmp_path / "x.jsonl", rows), write_csv(tmp_path / "x.csv", rows)]
    assert [list(read(source).labels.values()) for source in sources] == [[1]] * len(sources)


def test_the_latest_submission_counts(tmp_path):
    """The side that was chosen tells which of three submissions was taken: ε is so large."""
    project = labelguard.init(tmp_path, max_epsilon=20_000)
    rows = [pair(0, int(row == 0), submitted_at=time) for row, time in enumerate(TIMES["iso"])]
    for again in (False, True):
        made = release(
            project, pa.Table.from_pylist(rows), again=again, uses=2, epsilon=20_000, delta=0
        )
        assert data(made)["chosen"].to_pylist() == ["a"]
        assert made.card["counts"]["duplicates"] == 2


def test_record_ids_decide_between_equal_times(tmp_path, monkeypatch):
    """Whatever order the two come in, and whatever they say, the same one wins."""
    world.fix_randomness(monkeypatch)
    made = []
    for number, first in enumerate((0, 1, 0)):
        rows = [
            pair(n, abs(first - record), submitted_at=1, record_id=f"record {n}/{record}")
            for n in range(16)
            for record in (0, 1)
        ]
        table = pa.Table.from_pylist(rows[::-1] if number == 2 else rows)
        project = labelguard.init(tmp_path / str(number))
        made.append(data(release(project, table)))
    one, other, reversed_rows = made
    assert one.equals(reversed_rows) and one.num_rows == 16
    assert one["chosen"].equals(other["rejected"])
    assert len(set(one["chosen"].to_pylist())) == 2


def test_long_texts_emoji_and_nul_characters_come_out_as_they_went_in(project, tmp_path):
    texts = ["long " * 1_000_000, "\0", "a\0b", "🦊" * 3, "e\u0301", "é", " ", "\r", "\ufeff"]
    rows = [
        pair(0, 1, labeler_id=str(n), response_a=text, response_b=f"{n}", item_id=f"item {n}")
        for n, text in enumerate(texts)
    ]
    released = data(release(project, pa.Table.from_pylist(rows)))
    out = set(released["chosen"].to_pylist()) | set(released["rejected"].to_pylist())
    assert out == {*texts, *(str(n) for n in range(len(texts)))}
    assert sorted(released["item_id"].to_pylist()) == [row["item_id"] for row in rows]
    assert count_charges(release(project, write_jsonl(tmp_path / "l.jsonl", rows))) == 0
    lines = [row for row in rows if row["response_a"] != "\r"]
    assert count_charges(release(project, write_csv(tmp_path / "l.csv", lines))) == 0


NAMES = ["a[1].csv", "b*.csv", "c?.csv", "d e.csv", "f'g.csv", "h\\i.csv", "{j,k}.csv", "l=m.csv"]


def test_file_names_may_hold_signs_of_globs(read, tmp_path):
    for number, name in enumerate(NAMES):
        write_csv(tmp_path / name, [pair(number, 1)])
    assert [len(read(tmp_path / name).labels) for name in NAMES] == [1] * len(NAMES)
    assert len(read(str(tmp_path / "*.csv")).labels) == len(NAMES)


def test_extra_columns_of_unreadable_types_are_ignored(read):
    floats = pa.array([[1.0]], pa.list_(pa.float16()))
    table = pa.Table.from_pylist([pair(0, 1)]).append_column("embedding", floats)
    assert read(table).labels == read(table.drop_columns("embedding")).labels


@pytest.mark.slow
def test_memory_stays_bounded_when_rows_grow_wider(tmp_path):
    """400 MB of text, of which the first rows are short, are staged with less than that."""
    script = f"""
import resource, pyarrow as pa, pyarrow.parquet as pq, pathlib, labelguard
path = pathlib.Path({str(tmp_path)!r})
schema = pa.schema([(n, pa.string()) for n in ("labeler_id", "prompt", "response_a", "response_b")]
                   + [("label", pa.int8())])
with pq.ParquetWriter(path / "x.parquet", schema, compression="zstd") as writer:
    for part in range(21):
        n = 1000
        prompts = [f"{{part}}/{{i}} " * (1 if part == 0 else 2500) for i in range(n)]
        table = pa.table([["u"] * n, prompts, ["a"] * n, ["b"] * n, [1] * n], schema=schema)
        writer.write_table(table, row_group_size=250)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
project = labelguard.init(path / "p")
made = labelguard.privatize(path / "x.parquet", label_values="1-0", once=True, epsilon=3,
                            delta=1e-5, project=project,
                            max_labels_per_labeler=100, block=1, workers=1, accept_little_use=True)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert int(run.stdout) < 1000


# Splits of a dataset are never mixed unasked, and a directory is no input.

TRAIN, TEST = as_table(pairs(["a", "b", "a"])), as_table(pairs(["b", "a"] * 4))


def test_one_of_several_splits_must_be_named():
    source = {"train": TRAIN, "test": TEST}
    with pytest.raises(InvalidLabels, match="splits train, test; choose one, as in --split train"):
        read_public_pairs(source)
    with pytest.raises(InvalidLabels, match=r"no split is called .tset. .did you mean .test."):
        read_public_pairs(source, split="tset")
    assert len(read_public_pairs(source, split="test", label_values=NUMBERS).rows) == TEST.num_rows
    with pytest.raises(InvalidLabels, match="found dict"):
        read_public_pairs({})


def test_several_splits_are_read_together_or_all():
    source = {"train": TRAIN, "test": TEST, "rest": "no table"}
    both = read_public_pairs([TEST, TRAIN])
    assert read_public_pairs(source, split=("test", "train")).table.equals(both.table)
    del source["rest"]
    assert read_public_pairs(source, split="all").table.equals(both.table)


def test_one_split_alone_need_not_be_named():
    assert len(read_public_pairs({"train": TRAIN}, label_values=NUMBERS).rows) == TRAIN.num_rows
    with pytest.raises(InvalidLabels, match="--split test: the input has no splits; leave it out"):
        read_public_pairs(TRAIN, split="test")


def test_a_directory_is_refused_with_how_its_files_are_named(tmp_path):
    (tmp_path / "labeler_id=7").mkdir()
    as_jsonl(pairs(["a"]), tmp_path / "labeler_id=7" / "x.jsonl")
    for source in (tmp_path / "labeler_id=7", str(tmp_path / "*")):
        with pytest.raises(InvalidLabels, match=r"labeler_id=7 is a directory; name its files, as"):
            read_public_pairs(source)
    assert len(public_pairs(str(tmp_path / "**" / "*.jsonl")).rows) == 1
    nameless = [{k: v for k, v in row.items() if k != "labeler_id"} for row in pairs(["a"])]
    as_jsonl(nameless, tmp_path / "labeler_id=7" / "x.jsonl")
    with pytest.raises(InvalidLabels, match="no column labeler_id"):
        read_public_pairs(str(tmp_path / "*" / "*.jsonl"))


def public_pairs(source, **options):
    return read_public_pairs(source, label_values=NUMBERS, **options)


def test_a_dataset_is_read_in_its_own_order_and_selection():
    datasets = pytest.importorskip("datasets")
    rows = pairs(["a", "b", "a", "b"])
    dataset = datasets.Dataset.from_list(rows)
    assert public_pairs(dataset).table.equals(public_pairs(as_table(rows)).table)
    half = dataset.select([3, 1]).with_format("numpy", columns=["prompt"])
    assert sorted(public_pairs(half).table["prompt"].to_pylist()) == [
        "What of 1?",
        "What of 3?",
    ]
    both = datasets.DatasetDict({"train": dataset, "test": half})
    with pytest.raises(InvalidLabels, match="splits train, test; choose one, as in --split"):
        public_pairs(both)
    assert public_pairs(both, split="train").table.equals(public_pairs(dataset).table)
    with pytest.raises(InvalidLabels, match="load it without streaming=True"):
        public_pairs(dataset.to_iterable_dataset())


def test_a_quoted_text_of_a_csv_file_may_go_over_the_end_of_a_buffer(tmp_path, monkeypatch):
    """A thread that began within it took its lines for rows."""
    monkeypatch.setattr(json_files, "MAX_LINE", 1 << 20)
    path = tmp_path / "labels.csv"
    lines = "x,y,z,w\n" * 30_000
    rows = [f'u{n},"p{n}","{lines}","{lines}{n}"\n' for n in range(20)]
    path.write_text("".join(["labeler_id,prompt,chosen,rejected\n", *rows]))
    assert len(public_pairs(path).table) == 20
