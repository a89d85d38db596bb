"""The same labels in any format and layout are the same labels: same items, same coins, no charge.

Wherever a second release has `charged` 0, each of its labels was recognised as released before.
"""

from __future__ import annotations

import datetime
import decimal
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pyarrow.parquet as pq
import pytest
from support import world

import labelguard
from labelguard.errors import InvalidLabels
from labelguard.project.project import Project
from labelguard.release.writer import Release

Rows = list[dict[str, Any]]


def release(project: Project, source: Any, **options: Any) -> Release:
    options = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5, **options}
    return labelguard.privatize(source, project=project, **options)


def data(made: Release) -> pa.Table:
    return pq.read_table(made.path / "data.parquet")


def charged(made: Release) -> int:
    """New charges of a release; a repeated command is answered by the release it made before."""
    return 0 if made.reused else int(made.card["counts"]["charged"])


def outcome(made: Release) -> list[tuple[Any, ...]]:
    """Texts and item ids as released, in an order of their own."""
    names = ("item_id", "prompt", "chosen", "rejected")
    return sorted(tuple(str(row[name]) for name in names) for row in data(made).to_pylist())


def base_rows() -> Rows:
    texts = [
        "plain",
        'quote " and, comma',
        "line\nbreak",
        "emoji 🦊 é",
        "tab\tand ; semicolon",
        "007",
    ]
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


def write_jsonl(path: Path, rows: Rows) -> Path:
    return write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_text(path: Path, text: str) -> Path:
    compression = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    with pa.output_stream(str(path), compression=compression) as stream:
        stream.write(text.encode())
    return path


def write_csv(path: Path, rows: Rows) -> Path:
    delimiter = "\t" if ".tsv" in path.name else ","
    return write_text(path, pd.DataFrame(rows).to_csv(index=False, sep=delimiter))


def write_parquet(path: Path, rows: Rows) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def write_dataset(path: Path, rows: Rows) -> Path:
    """A directory as `datasets.Dataset.save_to_disk` leaves it, with a leftover cache file."""
    table = pa.Table.from_pylist(rows)
    path.mkdir()
    half = table.num_rows // 2
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for name, piece in zip(names, (table.slice(0, half), table.slice(half)), strict=True):
        with pa.ipc.new_stream(path / name, table.schema) as writer:
            writer.write_table(piece)
    with pa.ipc.new_stream(path / "cache-1234.arrow", table.schema) as writer:
        writer.write_table(table)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    (path / "state.json").write_text(json.dumps(state))
    (path / "dataset_info.json").write_text("{}")
    return path


def write_arrow_file(path: Path, rows: Rows) -> Path:
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    return path


def partitioned(path: Path, rows: Rows) -> Path:
    table = pa.Table.from_pylist(rows)
    schema = pa.schema([("labeler_id", pa.string())])
    pa_dataset.write_dataset(
        table, path, format="parquet", partitioning=pa_dataset.partitioning(schema, flavor="hive")
    )
    return path


def partitioned_jsonl(path: Path, rows: Rows) -> str:
    for labeler in sorted({row["labeler_id"] for row in rows}):
        folder = path / f"labeler_id={labeler}"
        folder.mkdir(parents=True)
        own = [
            {key: value for key, value in row.items() if key != "labeler_id"}
            for row in rows
            if row["labeler_id"] == labeler
        ]
        write_jsonl(folder / "part.jsonl", own)
    return str(path / "*" / "*.jsonl")


def swapped(rows: Rows) -> Rows:
    return [
        row
        | {"response_a": row["response_b"], "response_b": row["response_a"]}
        | {"label": None if row["label"] is None else 1 - row["label"]}
        for row in rows
    ]


def chosen_layout(rows: Rows) -> Rows:
    made = []
    for row in rows:
        sides = [row["response_a"], row["response_b"]]
        if row["label"] == 0:
            sides.reverse()
        made.append(
            {
                "labeler_id": row["labeler_id"],
                "prompt": row["prompt"],
                "chosen": sides[0],
                "rejected": sides[1],
                "tie": row["tie"],
            }
        )
    return made


def with_names(rows: Rows) -> Rows:
    return [
        {WEIRD.get(key, key): value for key, value in row.items()} | {"duration_s": 3, "given": 1}
        for row in rows
    ]


WEIRD = {
    "labeler_id": 'who "is" it',
    "prompt": "select",
    "response_a": "ep",
    "response_b": "part",
    "label": "it's",
    "tie": "is tie",
}

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
    "hugging face": lambda path, rows: write_dataset(path / "hf", rows),
    "arrow file": lambda path, rows: write_arrow_file(path / "x.arrow", rows),
    "partitioned": lambda path, rows: partitioned(path / "hive", rows),
    "partitioned jsonl": lambda path, rows: partitioned_jsonl(path / "hivejson", rows),
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
    "swapped sides": lambda path, rows: pa.Table.from_pylist(swapped(rows)),
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


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, list[tuple[Any, ...]]]:
    """A project that has released `base_rows`, and what it released."""
    project = labelguard.init(tmp_path_factory.mktemp("inputs"))
    first = release(project, pa.Table.from_pylist(base_rows()))
    assert first.card["counts"]["charged"] == 24
    return project, outcome(first)


@pytest.mark.quick("parquet", "jsonl.gz", "partitioned", "pandas")
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_the_same_items_and_labels_at_no_charge(
    name: str, shared: tuple[Project, list[tuple[Any, ...]]], tmp_path: Path
) -> None:
    project, expected = shared
    made = release(project, FORMATS[name](tmp_path, base_rows()))
    assert charged(made) == 0
    assert outcome(made) == expected
    assert pq.read_schema(made.path / "data.parquet").names == [
        *("prompt", "chosen", "rejected", "item_id"),
        *("label_probability", "flip_probability", "residual_flip_estimate"),
    ]


def alike(monkeypatch: pytest.MonkeyPatch, *directories: Path) -> list[Project]:
    """Projects with one key, whose releases draw the same coins."""
    world.fix_randomness(monkeypatch)
    return [labelguard.init(directory) for directory in directories]


@pytest.mark.quick("parquet")
@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_columns_may_have_any_name_and_others_are_ignored(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, project = alike(monkeypatch, tmp_path / "plain", tmp_path / "named")
    expected = outcome(release(plain, pa.Table.from_pylist(base_rows())))
    write = {"parquet": write_parquet, "csv": write_csv, "jsonl": write_jsonl}[suffix]
    source = write(tmp_path / f"x.{suffix}", with_names(base_rows()))
    made = release(project, source, columns=WEIRD)
    assert outcome(made) == expected
    assert b"duration_s" not in (made.path / "data.parquet").read_bytes()


def test_roles_can_be_exchanged_by_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, project = alike(monkeypatch, tmp_path / "plain", tmp_path / "exchanged")
    expected = outcome(release(plain, pa.Table.from_pylist(base_rows())))
    exchanged = {"response_a": "response_b", "response_b": "response_a"}
    rows = [r | {"response_a": r["response_b"], "response_b": r["response_a"]} for r in base_rows()]
    made = release(project, pa.Table.from_pylist(rows), columns=exchanged)
    assert outcome(made) == expected


LABELS: dict[str, Sequence[Any]] = {
    "integers": pa.array([0, 1, 1, None], pa.int8()),
    "floats": pa.array([0.0, 1.0, 1.0, 0.5]),
    "float32": pa.array([0.0, 1.0, 1.0, 0.5], pa.float32()),
    "booleans": pa.array([False, True, True, None]),
    "decimals": pa.array([decimal.Decimal(v) for v in ("0.0", "1.0", "1.0", "0.5")]),
    "strings": pa.array(["0", "1", "1.0", "0.5"]),
    "words": pa.array(["false", "true", "True", None]),
    "dictionary": pa.array(["0", "1", "1", "0.5"]).dictionary_encode(),
}
TIES: dict[str, pa.Array] = {
    "booleans": pa.array([False, False, None, True]),
    "integers": pa.array([0, 0, None, 1]),
    "floats": pa.array([0.0, 0.0, None, 1.0]),
    "strings": pa.array(["false", "False", None, "true"]),
}


def test_labels_and_tie_flags_of_every_type_mean_the_same(project: Project) -> None:
    texts = {
        "labeler_id": ["x"] * 4,
        "prompt": ["p1", "p2", "p3", "p4"],
        "response_a": ["a"] * 4,
        "response_b": ["b"] * 4,
    }
    seen = []
    for labels in LABELS.values():
        table = pa.table(texts | {"label": labels, "tie": TIES["booleans"]})
        seen.append(outcome(release(project, table)))
    for ties in TIES.values():
        table = pa.table(texts | {"label": LABELS["floats"], "tie": ties})
        seen.append(outcome(release(project, table)))
    assert seen == [seen[0]] * len(seen)


def test_a_column_of_null_labels_is_all_ties_if_tie_says_so(project: Project) -> None:
    rows = {"labeler_id": ["x"], "prompt": ["p"], "response_a": ["a"], "response_b": ["b"]}
    made = release(project, pa.table(rows | {"label": pa.nulls(1), "tie": [True]}))
    assert made.card["counts"]["rows"] == 1


def test_whole_number_ids_are_the_same_as_text(project: Project, tmp_path: Path) -> None:
    rows = [{"labeler_id": 7, "prompt": "p", "response_a": "a", "response_b": "b", "label": 1}]
    as_text = [row | {"labeler_id": "7"} for row in rows]
    release(project, pa.Table.from_pylist(rows))
    for source in (
        pa.Table.from_pylist(as_text),
        pa.Table.from_pylist(rows).cast(
            pa.schema(
                [
                    ("labeler_id", pa.uint64()),
                    *((n, pa.string()) for n in ("prompt", "response_a", "response_b")),
                    ("label", pa.int64()),
                ]
            )
        ),
        write_jsonl(tmp_path / "n.jsonl", rows),
        write_jsonl(tmp_path / "t.jsonl", as_text),
        write_jsonl(tmp_path / "m.jsonl", rows + as_text),
        write_csv(tmp_path / "n.csv", rows),
    ):
        assert charged(release(project, source)) == 0


def chats() -> Rows:
    def say(role: str, content: str, **extra: Any) -> dict[str, Any]:
        return {"role": role, "content": content, **extra}

    return [
        {
            "labeler_id": "x",
            "prompt": [say("system", "be brief"), say("user", f"q{number}", name=name)],
            "response_a": [say("assistant", "2024-1-1", tool_calls="[1, 2.0]")],
            "response_b": [say("assistant", 'no 🦊 \0 "quoted"', tool_calls=None)],
            "label": number % 2,
        }
        for number, name in enumerate(["Ann", None, "Bob", None])
    ]


def without_nulls(rows: Rows) -> Rows:
    lean: Rows = json.loads(
        json.dumps(rows), object_hook=lambda o: {k: v for k, v in o.items() if v is not None}
    )
    return lean


def test_chats_are_the_same_in_every_format(project: Project, tmp_path: Path) -> None:
    rows = chats()
    first = release(project, write_parquet(tmp_path / "c.parquet", rows))
    assert first.card["counts"]["charged"] == 4
    reordered = [
        row | {"prompt": [dict(reversed(message.items())) for message in row["prompt"]]}
        for row in rows
    ]
    lean = without_nulls(rows)
    sources = [
        write_jsonl(tmp_path / "c.jsonl", rows),
        write_jsonl(tmp_path / "lean.jsonl", lean),
        write_jsonl(tmp_path / "c.jsonl.gz", reordered),
        write_dataset(tmp_path / "hf", rows),
        pl.DataFrame(rows),
        pa.Table.from_pylist(chosen_layout([row | {"tie": False} for row in rows])),
        write_jsonl(tmp_path / "chosen.jsonl", chosen_layout([r | {"tie": False} for r in lean])),
        # Members and types differ from file to file.
        [write_jsonl(tmp_path / f"one{n}.jsonl", [row]) for n, row in enumerate(lean)],
        [write_parquet(tmp_path / f"o{n}.parquet", [row]) for n, row in enumerate(lean)][::-1],
    ]
    for source in sources:
        made = release(project, source)
        assert charged(made) == 0, source
        table = data(made)
        assert table["item_id"].to_pylist() == data(first)["item_id"].to_pylist()
        told = [[m.get("name") for m in prompt] for prompt in table["prompt"].to_pylist()]
        assert sorted(map(str, told)) == sorted(
            map(str, [[None, n] for n in ("Ann", None, "Bob", None)])
        )
        kind = table.schema.field("prompt").type
        assert table.schema.field("chosen").type == kind == table.schema.field("rejected").type


def test_which_side_was_chosen_does_not_show_in_the_type_of_chats(
    tmp_path: Path, project: Project
) -> None:
    """Members that only one side has make the columns' types follow the labels."""
    with_x = [{"role": "assistant", "content": "a", "name": "x"}]
    with_y = [{"role": "assistant", "content": "b", "tool_calls": [{"y": 0.5}]}]
    prompt = [{"role": "user", "content": "q"}]
    schemas = []
    for number, (chosen, rejected) in enumerate([(with_x, with_y), (with_y, with_x)]):
        row = {"labeler_id": "l", "prompt": prompt, "chosen": chosen, "rejected": rejected}
        made = release(project, write_jsonl(tmp_path / f"{number}.jsonl", [row]), again=number > 0)
        schemas.append(pq.read_schema(made.path / "data.parquet"))
    assert schemas[0] == schemas[1]


def ranking_rows() -> Rows:
    return [
        {
            "labeler_id": "r1",
            "prompt": "p1",
            "responses": ["a", "b", "c", "d"],
            "ranks": [2, 1, 2, 4],
        },
        {"labeler_id": "r1", "prompt": "p2", "responses": ["x", "y"], "ranks": [1, 2]},
        {"labeler_id": "r2", "prompt": "p3", "responses": ["s", "t", "s"], "ranks": [1, 2, 3]},
    ]


def test_rankings_become_all_their_pairs(project: Project, tmp_path: Path) -> None:
    made = release(project, pa.Table.from_pylist(ranking_rows()))
    counts = made.card["counts"]
    assert counts["rows_read"] == 3
    assert counts["identical_sides"] == 1
    assert counts["charged"] == counts["rows"] == 6 + 1 + 2
    found = {
        (row["prompt"], *sorted((row["chosen"], row["rejected"]))) for row in data(made).to_pylist()
    }
    assert {pair[1:] for pair in found if pair[0] == "p1"} == {
        ("a", "b"),
        ("a", "c"),
        ("a", "d"),
        ("b", "c"),
        ("b", "d"),
        ("c", "d"),
    }
    # One ranking is one item, whatever order its responses come in, and in any format.
    turned = [
        row | {"responses": row["responses"][::-1], "ranks": row["ranks"][::-1]}
        for row in ranking_rows()
    ]
    floats = [row | {"ranks": [r + 0.5 for r in row["ranks"]]} for row in ranking_rows()]
    for source in (
        pa.Table.from_pylist(turned[:2]),
        write_jsonl(tmp_path / "r.jsonl", ranking_rows()),
        write_parquet(tmp_path / "r.parquet", floats),
    ):
        assert charged(release(project, source)) == 0


def test_a_ranking_of_two_is_the_pair(project: Project) -> None:
    first = release(project, pa.Table.from_pylist(ranking_rows()[1:2]))
    pair = {"labeler_id": "r1", "prompt": "p2", "response_a": "y", "response_b": "x", "label": 0}
    made = release(project, pa.Table.from_pylist([pair]))
    assert charged(made) == 0
    assert outcome(made) == outcome(first)


def test_the_bound_keeps_or_drops_a_ranking_whole(project: Project) -> None:
    rows = [
        {"labeler_id": "r", "prompt": f"p{n}", "responses": list("abc"), "ranks": [3, 1, 2]}
        for n in range(4)
    ]
    made = release(project, pa.Table.from_pylist(rows), max_labels_per_labeler=8)
    assert made.card["counts"]["dropped_by_bound"] == 6
    assert set(data(made)["prompt"].value_counts().field("counts").to_pylist()) == {3}


def test_the_bound_keeps_or_drops_pairs_of_one_ranking_id_together(project: Project) -> None:
    rows = [
        {"labeler_id": "r", "prompt": f"p{n}", "response_a": a, "response_b": b, "label": 1}
        | {"ranking_id": f"ranking {n}"}
        for n in range(4)
        for a, b in ("ab", "ac", "bc")
    ]
    made = release(project, pa.Table.from_pylist(rows), max_labels_per_labeler=8)
    assert made.card["counts"]["dropped_by_bound"] == 6
    assert set(data(made)["prompt"].value_counts().field("counts").to_pylist()) == {3}


def pair(number: int, label: Any, **more: Any) -> dict[str, Any]:
    row = {"labeler_id": "x", "prompt": f"p{number}", "response_a": "a", "response_b": "b"}
    return row | {"label": label, "tie": label in (None, 0.5)} | more


@pytest.mark.parametrize(
    ("ties", "public", "rows"),
    [("coin", False, 6), ("drop", True, 4)],
)
def test_ties_are_treated_as_the_policy_says(
    project: Project, ties: str, public: bool, rows: int
) -> None:
    labels = [0, 1, 0.5, None, 1, 0]
    table = pa.Table.from_pylist([pair(number, label) for number, label in enumerate(labels)])
    made = release(project, table, ties=ties, tie_status_public=public or None)
    counts = made.card["counts"]
    assert counts["charged"] == counts["rows"] == data(made).num_rows == rows


def test_unit_item_needs_no_labelers(project: Project) -> None:
    rows = [pair(0, 1), pair(0, 0), pair(1, 1)]
    nameless = pa.Table.from_pylist(rows).drop_columns("labeler_id")
    with pytest.raises(InvalidLabels, match=r'"labeler_id": NAME.*unit="item"'):
        release(project, nameless)
    made = release(project, nameless, unit="item")
    assert made.card["counts"]["charged"] == made.card["counts"]["rows"] == 2
    assert charged(release(project, nameless.slice(2))) == 0


def test_unit_item_with_labelers_takes_one_label_of_each(project: Project) -> None:
    rows = [pair(0, 1), pair(0, 0), pair(0, 0, labeler_id="y"), pair(1, 1)]
    made = release(project, pa.Table.from_pylist(rows), unit="item", max_labels_per_labeler=2)
    assert made.card["counts"]["duplicates"] == 1
    assert made.card["counts"]["rows"] == 3


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


EXACT: dict[str, Any] = {"epsilon": 20_000, "delta": 0}
"""All but deterministic: so large an ε leaves labels as they are."""


@pytest.mark.quick("timestamps", "iso zones")
@pytest.mark.parametrize("kind", TIMES)
def test_the_latest_submission_counts(kind: str, tmp_path: Path) -> None:
    """The side that was chosen tells which of three submissions was taken."""
    project = labelguard.init(tmp_path, max_epsilon=20_000)
    latest = 2 if kind == "one missing" else 0
    rows = [pair(0, int(row == latest), submitted_at=time) for row, time in enumerate(TIMES[kind])]
    for again in (False, True):
        made = release(project, pa.Table.from_pylist(rows), again=again, **EXACT)
        assert data(made)["chosen"].to_pylist() == ["a"]
        assert made.card["counts"]["duplicates"] == 2


def test_times_mean_the_same_in_every_format(tmp_path: Path) -> None:
    """Which submission wins shows in the side that was chosen, whatever the format."""
    for kind in ("iso", "iso zones", "integers"):
        project = labelguard.init(tmp_path / kind, max_epsilon=20_000)
        rows = [
            pair(0, label, submitted_at=time)
            for label, time in zip([1, 0, 0], TIMES[kind], strict=True)
        ]
        for source in (
            write_jsonl(tmp_path / f"{kind}.jsonl", rows),
            write_csv(tmp_path / f"{kind}.csv", rows),
        ):
            made = release(project, source, **EXACT)
            assert data(made)["chosen"].to_pylist() == ["a"]


def test_record_ids_decide_between_equal_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_identical_sides_are_dropped_and_counted(project: Project) -> None:
    rows = [pair(0, 1), pair(1, 1, response_b="a")]
    made = release(project, pa.Table.from_pylist(rows))
    assert made.card["counts"]["identical_sides"] == made.card["counts"]["rows"] == 1


def test_long_texts_emoji_and_nul_characters_come_out_as_they_went_in(
    project: Project, tmp_path: Path
) -> None:
    texts = ["long " * 1_000_000, "\0", "a\0b", "🦊" * 3, "e\u0301", "é", " ", "\r", "\ufeff"]
    rows = [
        pair(0, 1, labeler_id=str(n), response_a=text, response_b=f"{n}")
        for n, text in enumerate(texts)
    ]
    made = release(project, pa.Table.from_pylist(rows))
    released = data(made)
    out = set(released["chosen"].to_pylist()) | set(released["rejected"].to_pylist())
    assert out == {*texts, *(str(n) for n in range(len(texts)))}
    assert charged(release(project, write_jsonl(tmp_path / "l.jsonl", rows))) == 0
    lines = [row for row in rows if row["response_a"] != "\r"]
    assert charged(release(project, write_csv(tmp_path / "l.csv", lines))) == 0


NAMES = ["a[1].csv", "b*.csv", "c?.csv", "d e.csv", "f'g.csv", "h\\i.csv", "{j,k}.csv", "l=m.csv"]


@pytest.mark.slow
def test_file_names_may_hold_signs_of_globs(project: Project, tmp_path: Path) -> None:
    for number, name in enumerate(NAMES):
        write_csv(tmp_path / name, [pair(number, 1)])
    counts = [release(project, tmp_path / name).card["counts"]["rows"] for name in NAMES]
    assert counts == [1] * len(NAMES)
    every = release(project, str(tmp_path / "*.csv"))
    assert charged(every) == 0
    assert every.card["counts"]["rows"] == len(NAMES)


def test_partitions_are_read_whether_the_shell_or_labelguard_expands_the_glob(
    project: Project, tmp_path: Path
) -> None:
    rows = [pair(n, 1, labeler_id=name) for n, name in enumerate(["a/b c", "ü", "007"])]
    root = partitioned(tmp_path / "hive", rows)
    first = release(project, pa.Table.from_pylist(rows))
    for source in (root, str(root / "*" / "*.parquet"), sorted(root.rglob("*.parquet"))):
        made = release(project, source)
        assert charged(made) == 0
        assert outcome(made) == outcome(first)


def test_one_row_is_an_input(project: Project) -> None:
    assert release(project, pa.Table.from_pylist([pair(0, 1)])).card["counts"]["rows"] == 1


def test_given_item_ids_are_kept(project: Project) -> None:
    rows = [pair(0, 1, item_id="seven"), pair(1, 0, item_id="8")]
    made = release(project, pa.Table.from_pylist(rows))
    assert sorted(data(made)["item_id"].to_pylist()) == ["8", "seven"]


def test_extra_columns_of_unreadable_types_are_ignored(project: Project, tmp_path: Path) -> None:
    table = pa.Table.from_pylist([pair(0, 1)]).append_column(
        "embedding", pa.array([[1.0]], pa.list_(pa.float16()))
    )
    with pa.ipc.new_stream(tmp_path / "x.arrow", table.schema) as writer:
        writer.write_table(table)
    assert release(project, table).card["counts"]["rows"] == 1
    assert charged(release(project, tmp_path / "x.arrow")) == 0


@pytest.mark.slow
def test_memory_stays_bounded_when_rows_grow_wider(tmp_path: Path) -> None:
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
made = labelguard.privatize(path / "x.parquet", epsilon=3, delta=1e-5, project=project,
                            max_labels_per_labeler=100, workers=1)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert int(run.stdout) < 1000
