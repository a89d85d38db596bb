"""Labels in stores, copied by fsspec, are read as files are. `memory://` is a store of its own."""

import sys

import fsspec
import polars as pl
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from support import world
from support.codings import NUMBERS
from support.preferences import TABLE, files
from support.releases import make_release
from support.twice import Twice

import labelguard as lg
from labelguard.errors import InvalidLabels
from labelguard.extras import MissingExtra
from labelguard.inputs.sources import copy_objects
from labelguard.release import privatize

BUDGET = {"mechanism": "rr", "epsilon": 3, "delta": 1e-5, "once": True, "label_values": NUMBERS}
FRAME = pl.DataFrame(TABLE.to_pylist())


@pytest.fixture(autouse=True)
def store():
    """An empty store."""
    store = fsspec.filesystem("memory")
    store.store.clear()
    store.pseudo_dirs[:] = [""]
    return store


def put(key, frame, suffix="parquet", within="memory://labels"):
    """Write a frame as an object."""
    with fsspec.open(f"{within}/{key}.{suffix}", "wb", auto_mkdir=True) as target:
        if suffix == "parquet":
            frame.write_parquet(target)
        else:
            target.write(frame.write_ndjson().encode())


def release(where, source, patch, **options):
    world.fix(patch, world.repeatable_bytes())
    project = lg.init(where)
    made = make_release(source, project=project, **BUDGET | options)
    return files(made.path), files(project.private_maps)


@pytest.mark.quick("local-parquet")
@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
@pytest.mark.parametrize("engine", ["local", "twice"])
def test_objects_are_released_like_files(suffix, engine, tmp_path, monkeypatch):
    for within in ("memory://labels", f"file://{tmp_path}/files"):
        for number in range(3):
            put(f"run=1/part-{number}", FRAME[number::3], suffix, within)
        put("run=1/_SUCCESS", FRAME, suffix, within)
        put("run=2/part-0", FRAME, suffix, within)
    here = release(tmp_path / "here", str(tmp_path / "files" / "run=1" / "part-*"), monkeypatch)
    if engine == "twice":
        monkeypatch.setattr("labelguard.release.privatize.open_executor", lambda *place: Twice())
    sources = {
        "prefix": "memory://labels/run=1",
        "pattern": f"memory://labels/run=1/part-*.{suffix}",
        "file": f"file://{tmp_path}/files/run=1/",
    }
    for name, source in sources.items():
        assert release(tmp_path / name, source, monkeypatch) == here
        assert not list((tmp_path / name).rglob("part-*"))


def test_objects_of_other_columns_are_read_as_such_files_are(tmp_path, monkeypatch):
    more = FRAME[1::2].with_columns(more=pl.lit("x"), label=pl.col("label").cast(pl.Float64))
    for within in ("memory://labels", f"file://{tmp_path}/files"):
        put("a/0", FRAME[::2], within=within)
        put("a/1", more, within=within)
    here = release(tmp_path / "here", str(tmp_path / "files" / "a" / "*"), monkeypatch)
    assert release(tmp_path / "there", "memory://labels/a", monkeypatch) == here


def test_bad_rows_of_objects_are_set_aside_as_they_were_read(tmp_path, monkeypatch):
    bad = FRAME.with_columns(labeler_id=pl.lit(""))
    put("a/0", FRAME)
    put("a/1", bad[:2])
    whole = privatize.quarantine_bad_rows

    def change(*inputs):
        put("a/1", FRAME[:7])
        return whole(*inputs)

    monkeypatch.setattr(privatize, "quarantine_bad_rows", change)
    project = lg.init(tmp_path)
    made = make_release("memory://labels/a", project=project, bad_rows="quarantine", **BUDGET)
    [path] = (project.quarantine / made.id).iterdir()
    assert pl.read_parquet(path)["prompt"].to_list() == bad[:2]["prompt"].to_list()


def test_an_object_that_is_written_anew_while_it_is_copied_is_refused(tmp_path, monkeypatch):
    put("a/0", FRAME)
    whole = MemoryFileSystem.get

    def change(*arguments):
        put("a/0", FRAME[:7])
        return whole(*arguments)

    monkeypatch.setattr(MemoryFileSystem, "get", change)
    with pytest.raises(InvalidLabels, match=r"a/0.parquet: it was written anew meanwhile"):
        copy_objects("memory://labels/a", tmp_path)


@pytest.mark.parametrize(
    ("keys", "address", "message"),
    [
        ([], "a", "no such object"),
        (["a/0"], "a/b*.parquet", "no such object"),
        (["a/0"], "../a", "names of objects may have|no such object"),
        (["a/.hidden/0"], "a", "names of objects may have"),
        (["a/../../0"], "a", "names of objects may have"),
        (["a/x y"], "a", "names of objects may have"),
        (["a//0"], "a", "names of objects may have"),
    ],
)
def test_names_that_lead_elsewhere_are_refused(store, keys, address, message, tmp_path):
    for key in keys:
        put("0", FRAME)
        store.store[f"/labels/{key}.parquet"] = store.store["/labels/0.parquet"]
    with pytest.raises(InvalidLabels, match=message):
        make_release(f"memory://labels/{address}", project=lg.init(tmp_path), **BUDGET)


def test_copies_are_in_order_and_private(tmp_path):
    for key in ("b", "a/2", "a/10"):
        put(key, FRAME)
    copied = copy_objects("memory://labels/**", tmp_path)
    assert [name.rpartition("labels/")[2] for name, _ in copied] == [
        *("a/10.parquet", "a/2.parquet", "b.parquet")
    ]
    [directory] = tmp_path.iterdir()
    assert directory.stat().st_mode & 0o777 == 0o700
    assert all(path.is_relative_to(directory) for _, path in copied)


def test_what_a_store_refuses_is_said_in_one_line(monkeypatch, tmp_path):
    def fail(*_, **__):
        raise RuntimeError("no route to host\nat line 3")

    monkeypatch.setattr(MemoryFileSystem, "find", fail)
    with pytest.raises(InvalidLabels, match=r"^memory://labels/a: no route to host at line 3$"):
        make_release("memory://labels/a", project=lg.init(tmp_path), **BUDGET)


@pytest.mark.parametrize("package", ["s3fs", "fsspec"])
def test_a_package_that_is_missing_is_named(package, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"{package}.* pip install '.*\[cloud\]'"):
        make_release("s3://bucket/a", project=lg.init(tmp_path), **BUDGET)


def test_a_store_that_nobody_knows_is_refused(tmp_path):
    with pytest.raises(InvalidLabels, match="carrier://pigeon: Protocol not known: carrier"):
        make_release("carrier://pigeon", project=lg.init(tmp_path), **BUDGET)
