"""Random tables and flags: a release or one clear line, never a traceback, never half a release."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.rounds import MORE_ROUNDS

import labelguard
from labelguard.errors import LabelguardError
from labelguard.report import overview

FEW, MANY = 12, 150 * MORE_ROUNDS
EXAMPLES = pytest.mark.parametrize("examples", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])


def bound(examples):
    return settings(
        max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


TEXT = st.sampled_from(["a", "b", "c", "", "\0", "🦊", " ", "7.0", "NaN", "null"]) | st.text(
    max_size=3
)

LABEL = st.sampled_from([0, 1, 0, 1, 0.5, None]) | st.floats()
ROLES: dict[str, Any] = {
    "labeler_id": st.sampled_from(["x", "y", "z"]) | TEXT | st.none(),
    "prompt": TEXT | st.none(),
    "response_a": TEXT,
    "response_b": TEXT,
    "label": LABEL,
    "tie": st.none() | st.booleans(),
    "chosen": TEXT,
    "rejected": TEXT,
    "responses": st.lists(TEXT | st.none(), max_size=4),
    "ranks": st.lists(st.integers(0, 3) | st.none(), max_size=4),
    "item_id": st.sampled_from(["i", "j", "k", "", None]),
    "ranking_id": st.sampled_from(["r", "s", "", None]),
    "submitted_at": st.sampled_from(["2024-01-01", "2024-01-02T00:00:00Z", "3", "x", None]),
    "record_id": TEXT | st.none(),
    "duration_s": st.floats(),
}
LAYOUTS = [
    ["labeler_id", "prompt", "response_a", "response_b", "label"],
    ["labeler_id", "prompt", "chosen", "rejected"],
    ["labeler_id", "prompt", "responses", "ranks"],
]
OPTIONAL = ["tie", "item_id", "ranking_id", "submitted_at", "record_id", "duration_s"]
FLAGS = st.fixed_dictionaries(
    {"epsilon": st.sampled_from([3.0, 3.0, 0.1, 0.0]), "delta": st.sampled_from([1e-5, 0.0, 1.0])},
    optional={
        "max_labels_per_labeler": st.integers(0, 9),
        "ties": st.sampled_from(["coin", "zero", "drop"]),
        "tie_status_public": st.booleans(),
        "bad_rows": st.sampled_from(["stop", "quarantine", "quarantine"]),
        "exhausted": st.sampled_from(["refuse", "drop"]),
        "unit": st.sampled_from(["labeler", "item"]),
        "again": st.booleans(),
        "columns": st.dictionaries(
            st.sampled_from(["label", "prompt", "labeler_id", "nonsense"]),
            st.sampled_from(["label", "prompt", "tie", "duration_s"]),
            max_size=1,
        ),
    },
)


@st.composite
def tables(draw):
    names = list(draw(st.sampled_from(LAYOUTS)))
    names += draw(st.lists(st.sampled_from(OPTIONAL), unique=True, max_size=3))
    if draw(st.integers(0, 9)) == 0:
        names.remove(draw(st.sampled_from(names)))
    return draw(st.lists(st.fixed_dictionaries({name: ROLES[name] for name in names}), max_size=6))


def attempt(project, source, **options):
    """Privatize; a refusal is one line that leaves the releases as they were."""
    before = overview.list_releases(project.state)
    try:
        made = labelguard.privatize(source, project=project, workers=1, **options)
    except LabelguardError as error:
        assert "\n" not in str(error)
        assert overview.list_releases(project.state) == before
        assert len(list(project.releases.iterdir())) == len(before)
    else:
        assert pq.read_metadata(made.path / "data.parquet").num_rows == made.card["counts"]["rows"]
        assert all(
            release.state == "committed" for release in overview.list_releases(project.state)
        )
    assert overview.verify(project.state).ok


@EXAMPLES
def test_random_tables_and_flags(examples):
    bound(examples)(_random_tables_and_flags)()


@given(first=tables(), second=tables(), flags=FLAGS, as_json=st.booleans())
def _random_tables_and_flags(first, second, flags, as_json):
    with tempfile.TemporaryDirectory() as directory:
        project = labelguard.init(Path(directory))
        for rows in (first, second):
            path = Path(directory) / "in.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            attempt(project, path if as_json else pa.Table.from_pylist(rows), **flags)


@EXAMPLES
def test_random_damage_to_files(examples):
    bound(examples)(_random_damage_to_files)()


@given(
    suffix=st.sampled_from([".csv", ".jsonl", ".parquet", ".csv.gz", ".jsonl.zst"]),
    cut=st.integers(0, 400),
    noise=st.binary(max_size=6),
)
def _random_damage_to_files(suffix, cut, noise):
    rows = [
        {"labeler_id": str(n % 3), "prompt": f"p{n}", "response_a": "a", "response_b": "b"}
        | {"label": n % 2}
        for n in range(8)
    ]
    table = pa.Table.from_pylist(rows)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / f"x{suffix}"
        kind = suffix.split(".")[1]
        compression = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
        if kind == "parquet":
            pq.write_table(table, path)
        else:
            lines = [",".join(table.column_names)] + [",".join(map(str, r.values())) for r in rows]
            if kind == "jsonl":
                lines = [json.dumps(row) for row in rows]
            with pa.output_stream(str(path), compression=compression) as stream:
                stream.write("\n".join(lines).encode())
        content = path.read_bytes()
        path.write_bytes(content[:cut] + noise + content[cut + len(noise) :])
        attempt(labelguard.init(Path(directory)), path, epsilon=3, delta=1e-5)
