"""Labels in S3, before moto's server: they are read as files are, by workers or here."""

from __future__ import annotations

import polars as pl
import pytest
from support import world
from support.preferences import TABLE, files
from support.s3 import serve_bucket
from support.twice import Twice

import labelguard as lg
from labelguard.errors import InvalidLabels
from labelguard.release import privatize

pytestmark = pytest.mark.integration
BUDGET = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5, "once": True}
ROWS = TABLE.to_pylist()


@pytest.fixture
def s3(monkeypatch):
    """Storage with an empty bucket."""
    with serve_bucket(monkeypatch, "labels-here") as filesystem:
        yield filesystem


def put(s3, key, frame, suffix="parquet"):
    """Write a frame as an object."""
    with s3.open_output_stream(f"labels-here/{key}.{suffix}") as target:
        if suffix == "parquet":
            frame.write_parquet(target)
        else:
            target.write(frame.write_ndjson().encode())


def release(where, source, patch, **options):
    world.fix(patch, world.repeatable_bytes())
    project = lg.init(where)
    made = lg.privatize(source, project=project, **BUDGET | options)
    return files(made.path), files(project.private_maps)


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
@pytest.mark.parametrize("engine", ["local", "twice"])
def test_objects_are_released_like_files(s3, suffix, engine, tmp_path, monkeypatch):
    frame = pl.DataFrame(ROWS)
    for number in range(3):
        put(s3, f"run=1/part-{number}", frame[number::3], suffix)
        (tmp_path / "files" / "run=1").mkdir(parents=True, exist_ok=True)
        path = tmp_path / "files" / "run=1" / f"part-{number}.{suffix}"
        path.write_bytes(s3.open_input_file(f"labels-here/run=1/part-{number}.{suffix}").read())
    put(s3, "run=1/_SUCCESS", frame, suffix)
    put(s3, "run=2/part-0", frame, suffix)
    here = release(tmp_path / "here", str(tmp_path / "files" / "*" / "*"), monkeypatch)
    if engine == "twice":
        monkeypatch.setattr("labelguard.release.privatize.open_executor", lambda *place: Twice())
    for name, source in (("one", "run=1"), ("two", f"run=1/part-*.{suffix}")):
        there = release(tmp_path / name, f"s3://labels-here/{source}", monkeypatch)
        assert there == here
        assert not list((tmp_path / name).rglob("part-*"))


def test_bad_rows_of_objects_are_set_aside(s3, tmp_path):
    frame = pl.DataFrame(ROWS)
    bad = frame.with_columns(labeler_id=pl.lit(""))
    put(s3, "a/0", frame)
    put(s3, "a/1", bad[:2])
    project = lg.init(tmp_path)
    made = lg.privatize("s3://labels-here/a", project=project, bad_rows="quarantine", **BUDGET)
    [path] = (project.quarantine / made.id).iterdir()
    assert pl.read_parquet(path)["prompt"].to_list() == bad[:2]["prompt"].to_list()


def test_rows_of_an_object_that_changed_are_not_set_aside(s3, tmp_path, monkeypatch):
    frame = pl.DataFrame(ROWS)
    put(s3, "a/0", frame)
    put(s3, "a/1", frame[:2].with_columns(labeler_id=pl.lit("")))
    whole = privatize.quarantine_bad_rows

    def change(*inputs):
        put(s3, "a/1", frame[:7])
        return whole(*inputs)

    monkeypatch.setattr(privatize, "quarantine_bad_rows", change)
    project = lg.init(tmp_path)
    with pytest.raises(InvalidLabels, match=r"a/1.parquet: it was written anew meanwhile"):
        lg.privatize("s3://labels-here/a", project=project, bad_rows="quarantine", **BUDGET)
    assert not list(project.quarantine.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("keys", "address", "message"),
    [
        ([], "a", "no such object"),
        (["a/0"], "a/b*.parquet", "no such object"),
        (["a/0"], "../a", "no such object|cannot"),
        (["a/.hidden/0"], "a", "names of objects may have"),
    ],
)
def test_names_that_lead_elsewhere_are_refused(s3, keys, address, message, tmp_path):
    for key in keys:
        put(s3, key, pl.DataFrame(ROWS))
    with pytest.raises(InvalidLabels, match=message):
        lg.privatize(f"s3://labels-here/{address}", project=lg.init(tmp_path), **BUDGET)


def test_objects_of_other_columns_are_refused(s3, tmp_path):
    frame = pl.DataFrame(ROWS)
    put(s3, "a/0", frame)
    put(s3, "a/1", frame.with_columns(more=pl.lit("x")))
    with pytest.raises(InvalidLabels, match=r"a/1.parquet: its columns, or their types, differ"):
        lg.privatize("s3://labels-here/a", project=lg.init(tmp_path), **BUDGET)


def test_what_cannot_be_reached_is_said_in_one_line(s3, monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    with pytest.raises(InvalidLabels) as raised:
        lg.privatize("s3://no-such-bucket-here/a", project=lg.init(tmp_path), **BUDGET)
    assert "\n" not in str(raised.value) and "very-secret" not in str(raised.value)
