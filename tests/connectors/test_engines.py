"""Every engine releases the same bytes, whatever runs twice, is lost, or sees no files."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from labelguard_connectors.clusters.processes import Processes
from labelguard_connectors.clusters.sealing import (
    new_key,
    open_result,
    run_sealed_task,
    seal_task,
    unseal,
)
from support import world
from support.codings import CODED
from support.deaths import killed_in
from support.preferences import OF_MANY, STATISTIC, TABLE, files, write_many_pairs
from support.releases import make_release
from support.twice import Twice

import labelguard as lg
from labelguard.errors import InvalidLabels, LabelguardError
from labelguard.inputs import turns
from labelguard.inputs.columns import Reading
from labelguard.inputs.staged import Staged
from labelguard.inputs.staging import StagingOptions, stage
from labelguard.keys.keyring import KeyRing
from labelguard.release.mechanisms import props
from labelguard.report import overview
from labelguard.storage import buckets
from labelguard.storage.executor import run_over_buckets
from labelguard.storage.portions import PORTION

BUDGET: dict[str, Any] = {"epsilon": 3, "delta": 1e-5, "once": True}
FRAME = pl.from_arrow(TABLE)


@pytest.fixture
def shards(tmp_path) -> str:
    """Three files of labels, as a glob."""
    assert isinstance(FRAME, pl.DataFrame)
    (tmp_path / "labels").mkdir()
    for number in range(3):
        part = FRAME[number::3]
        part.write_parquet(tmp_path / "labels" / f"{number}.parquet")
    return str(tmp_path / "labels" / "*.parquet")


def release(where: Path, source: Any, patch: pytest.MonkeyPatch, **options: Any) -> Any:
    """Release under fixed randomness; the files of the release and of its private map."""
    world.fix(patch, world.repeatable_bytes())
    project = lg.init(where)
    made = make_release(source, project=project, **BUDGET | options)
    return files(made.path), files(project.private_maps)


@pytest.mark.quick("rr-2")
@pytest.mark.parametrize("workers", [1, 2, 7])
@pytest.mark.parametrize("options", [{"mechanism": "rr"}, STATISTIC], ids=["rr", "statistic"])
def test_processes_release_the_bytes_of_threads(options, workers, shards, tmp_path, monkeypatch):
    here = release(tmp_path / "here", shards, monkeypatch, **options)
    there = release(
        tmp_path / "there", shards, monkeypatch, **options, engine="processes", workers=workers
    )
    assert here == there and "data.parquet" in here[0] and len(here[1]) > 3


@pytest.mark.slow
def test_processes_compute_features_coordinates_and_sums_of_many_pairs(tmp_path, monkeypatch):
    source = write_many_pairs(tmp_path / "labels.parquet", PORTION + 2000)
    here, there = (
        release(tmp_path / name, source, monkeypatch, **OF_MANY, **engine)
        for name, engine in (("here", {}), ("there", {"engine": "processes", "workers": 2}))
    )
    assert here == there and "head.npz" in here[0]


@pytest.mark.parametrize("options", [{"mechanism": "rr"}, STATISTIC], ids=["rr", "statistic"])
def test_what_an_engine_runs_twice_counts_once(options, shards, tmp_path, monkeypatch):
    here = release(tmp_path / "here", shards, monkeypatch, **options)
    engine = Twice()
    monkeypatch.setattr("labelguard.release.privatize.open_executor", lambda *place: engine)
    assert release(tmp_path / "there", shards, monkeypatch, **options) == here
    assert engine.works[:2] == ["stage_file", "sort_bucket"]
    by_features = {"write_distinct_pairs", "sum_new_labels"} if options == STATISTIC else set()
    assert {"select_bucket", *by_features} <= set(engine.works)
    assert engine.works[-1] == "build_published_rows"
    assert overview.verify(tmp_path / "there").ok


ROW = {"prompt": "?", "response_a": "x", "response_b": "y", "label": "a", "labeler_id": "w"}


def rows(**columns: list[Any]) -> list[dict[str, Any]]:
    """Rows with other values in some columns."""
    return [
        ROW | dict(zip(columns, values, strict=True))
        for values in zip(*columns.values(), strict=True)
    ]


# Files of one input each, and how they are read.
INPUTS: dict[str, tuple[list[list[dict[str, Any]]], dict[str, Any]]] = {
    "withdrawn": (
        [
            rows(submitted_at=["2026-01-01", "2026-01-02"], prompt=["1", "2"]),
            rows(submitted_at=["2026-01-03", "2026-01-01"], prompt=["1", "2"], label=["skip", "b"]),
        ],
        {},
    ),
    "bad rows": (
        [
            rows(prompt=["1", "", "3"], labeler_id=["v", "w", "w"]),
            rows(prompt=["1", "4"], labeler_id=["", "x"]),
        ],
        {"quarantine": True},
    ),
    "given ids": (
        [rows(item_id=["1", "2"], prompt=["1", "2"]), rows(item_id=["3"], prompt=["1"])],
        {},
    ),
    "rankings": (
        [
            [{"prompt": "1", "responses": ["x", "y", "z"], "ranks": [1, 2, 3], "labeler_id": "w"}],
            [{"prompt": "1", "responses": ["x", "y", "z"], "ranks": [3, 1, 2], "labeler_id": "w"}],
        ],
        {},
    ),
    "chats": (
        [
            [
                ROW
                | {
                    side: [{"role": "user", "content": "1"}]
                    for side in ("prompt", "response_a", "response_b")
                }
            ],
            [
                ROW
                | {
                    side: [{"role": "user", "content": side, "name": "n"}]
                    for side in ("prompt", "response_a", "response_b")
                }
            ],
        ],
        {},
    ),
}


def staged_contents(staged: Staged) -> dict[str, Any]:
    """What a staged input is, wherever it was read; texts in the order of their rows."""
    tables = {
        what: [
            None if table is None else table.to_pylist()
            for bucket in range(buckets.BUCKETS)
            if (table := buckets.read_bucket(staged.directory / what, bucket)) or True
        ]
        for what in ("rows", "texts")
    }
    names = sorted(zip(staged.identities.labelers.tolist(), staged.identities.names, strict=True))
    counts = {
        name: value
        for name, value in vars(staged).items()
        if name not in ("directory", "files", "formatted", "identities")
    }
    return {**tables, "names": names, **counts}


@pytest.mark.quick("chats", "withdrawn")
@pytest.mark.parametrize("name", INPUTS)
def test_files_that_workers_read_are_staged_as_if_read_here(name, tmp_path):
    parts, options = INPUTS[name]
    for number, part in enumerate(parts):
        path = tmp_path / f"{number}.jsonl"
        pl.DataFrame(part).write_ndjson(path)
    reading = StagingOptions(Reading({}, values=CODED), "files", **options)
    source = str(tmp_path / "*.jsonl")
    staged = [
        stage(source, tmp_path / where, KeyRing.public(), reading, executor=engine)
        for where, engine in (("here", None), ("there", Twice()))
    ]
    here, there = map(staged_contents, staged)
    assert here == there and here["rows_read"]
    assert not (tmp_path / "there" / "received").exists()


def test_a_bad_row_stops_workers_with_the_sentence_that_it_stops_threads_with(tmp_path):
    pl.DataFrame(rows(prompt=["1", "2"])).write_ndjson(tmp_path / "0.jsonl")
    pl.DataFrame(rows(labeler_id=["1", ""])).write_ndjson(tmp_path / "1.jsonl")
    texts = []
    for engine in (None, Twice()):
        with pytest.raises(InvalidLabels, match=r"1\.jsonl row 2: column labeler_id") as raised:
            stage(
                str(tmp_path / "*.jsonl"),
                tmp_path / "staged",
                KeyRing.public(),
                StagingOptions(Reading({}, values=CODED), ""),
                executor=engine,
            )
        texts.append(str(raised.value))
    assert texts[0] == texts[1]


def test_the_bytes_that_an_input_may_take_are_counted_over_all_workers(shards, tmp_path):
    def fits(source: str, most: int) -> bool:
        options = StagingOptions(Reading({}, values=CODED), "", max_input_bytes=most)
        try:
            stage(source, tmp_path / "staged", KeyRing.public(), options, executor=Twice())
        except InvalidLabels as error:
            assert "--max-input-bytes" in str(error)
            return False
        return True

    one = shards.replace("*", "0")
    size = next(size for size in range(0, 1 << 20, 500) if fits(one, size))
    assert not fits(shards, 2 * size) and fits(shards, 4 * size)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"mechanism": "rr"}, STATISTIC], ids=["rr", "statistic"])
def test_the_number_of_buckets_changes_no_label_and_may_change(
    options, shards, tmp_path, monkeypatch
):
    seen = []
    for count in (16, 128):
        world.fix(monkeypatch, world.repeatable_bytes())
        project = lg.init(tmp_path / str(count))
        uses = BUDGET | options | {"once": None, "uses": 3}
        first = make_release(TABLE.slice(0, 20), project=project, buckets=count, **uses)
        later = make_release(shards, project=project, buckets=64, **uses)
        last = make_release(shards, project=project, buckets=16, **uses)
        seen.append([lg.load(made).rows() for made in (first, later, last)])
        assert last.reused
    assert seen[0] == seen[1]
    with pytest.raises(LabelguardError, match="power of 2 from 16 to 4096, found 48"):
        make_release(shards, project=project, buckets=48, **uses)


@pytest.mark.slow
def test_stages_go_on_in_another_number_of_buckets(shards, tmp_path, monkeypatch):
    seen = []
    stages = BUDGET | {"mechanism": "props", "features": "length", "stages": 2, "components": 1}
    for name in ("whole", "interrupted"):
        world.fix(monkeypatch, world.repeatable_bytes())
        project = lg.init(tmp_path / name)
        if name == "interrupted":
            with killed_in(props, "write_atomically", late=True):
                make_release(shards, project=project, buckets=16, **stages)
        seen.append(lg.load(make_release(shards, project=project, buckets=128, **stages)).rows())
    assert seen[0] == seen[1]


class Blind(Twice):
    """Workers that do not see one directory of the work of one step."""

    def __init__(self, step: str, hidden: Callable[[Any], Path]) -> None:
        super().__init__()
        self.step, self.hidden = step, hidden

    def map(self, work: Any, task: Any, buckets: Any) -> Iterator[Any]:
        if work.__name__ != self.step:
            yield from super().map(work, task, buckets)
            return
        hidden, key = self.hidden(task), new_key()
        hidden.rename(hidden.with_name("elsewhere"))
        sealed = seal_task(key, work, task)
        for bucket in buckets:
            yield open_result(key, run_sealed_task(sealed, key, bucket))


HIDDEN: dict[str, Callable[[Any], Path]] = {
    "sort_bucket": lambda task: task.pieces[0][0],
    "select_bucket": lambda task: task.staged,
    "randomize_bucket": lambda task: task.selected,
    "count_rows_per_law": lambda task: task,
    "build_published_rows": lambda task: task.sources[0][0],
}


@pytest.mark.quick("randomize_bucket", "sort_bucket")
@pytest.mark.parametrize("step", HIDDEN)
def test_a_worker_that_does_not_see_the_files_is_no_empty_bucket(
    step, shards, tmp_path, monkeypatch
):
    engine, project = Blind(step, HIDDEN[step]), lg.init(tmp_path / "project")
    with monkeypatch.context() as patch:
        patch.setattr("labelguard.release.privatize.open_executor", lambda *place: engine)
        with pytest.raises(LabelguardError, match=r"does not find .* that every worker"):
            make_release(shards, project=project, mechanism="rr", **BUDGET)
    made = make_release(shards, project=project, mechanism="rr", **BUDGET)
    assert made.card["counts"]["rows"] == len(TABLE)


@pytest.mark.parametrize("hidden", ["outcomes", "released"])
def test_rows_or_maps_that_a_worker_does_not_see_are_missed(hidden, shards, tmp_path, monkeypatch):
    step = {"outcomes": "build_published_rows", "released": "select_bucket"}[hidden]
    project = lg.init(tmp_path / "project")
    budget = BUDGET | {"once": None, "uses": 2, "mechanism": "rr"}
    if hidden == "released":
        make_release(TABLE.slice(0, 20), project=project, **budget)
    place = (
        (lambda task: task.sources[0][1])
        if hidden == "outcomes"
        else (lambda task: task.released / next(iter(task.earlier)))
    )
    engine = Blind(step, place)
    monkeypatch.setattr("labelguard.release.privatize.open_executor", lambda *place: engine)
    with pytest.raises(LabelguardError, match="every worker"):
        make_release(shards, project=project, **budget)


# One file of several that an old listing of a directory lacks.
UNLISTED: dict[str, tuple[str, Callable[[Any], Path]]] = {
    "rows": ("sort_bucket", lambda task: task.pieces[1][0] / "rows"),
    "texts": ("sort_bucket", lambda task: task.pieces[1][0] / "texts"),
    "map": ("select_bucket", lambda task: task.released / next(iter(task.earlier))),
}


@pytest.mark.parametrize("what", UNLISTED)
def test_a_file_that_a_listing_lacks_is_missed(what, shards, tmp_path, monkeypatch):
    step, place = UNLISTED[what]
    project = lg.init(tmp_path / "project")
    budget = BUDGET | {"once": None, "uses": 20, "mechanism": "rr"}
    make_release(TABLE.slice(0, 20), project=project, **budget)
    # Digests of prompts, which a map has beside its rows, are read by nobody else.
    engine = Blind(
        step, lambda task: min(one for one in place(task).iterdir() if one.name != turns.FILE)
    )
    monkeypatch.setattr("labelguard.release.privatize.open_executor", lambda *place: engine)
    with pytest.raises(LabelguardError, match="every worker"):
        make_release(shards, project=project, **budget)


class Unseen(Twice):
    """Workers whose last file in a map is not seen by who started them."""

    def map(self, work: Any, task: Any, buckets: Any) -> Iterator[Any]:
        yield from super().map(work, task, buckets)
        notes = getattr(task, "notes", task)  # of a sum
        if getattr(notes, "map_path", None):
            max(notes.map_path.glob("*.parquet")).unlink()


@pytest.mark.parametrize("options", [{"mechanism": "rr"}, STATISTIC], ids=["rr", "statistic"])
def test_a_map_that_lacks_a_file_is_never_taken_for_whole(options, shards, tmp_path, monkeypatch):
    project = lg.init(tmp_path / "project")
    with monkeypatch.context() as patch:
        patch.setattr("labelguard.release.privatize.open_executor", lambda *place: Unseen())
        with pytest.raises(LabelguardError, match="every worker"):
            make_release(shards, project=project, **BUDGET | options)
    made = make_release(shards, project=project, **BUDGET | options)
    assert made.card["counts"]["rows"] == len(TABLE)
    assert overview.verify(project.state).ok


def test_what_an_engine_moves_is_sealed():
    key = new_key()
    sealed = seal_task(key, os.path.join, "secret")
    assert b"secret" not in sealed and b"join" not in sealed
    with pytest.raises(LabelguardError, match="what no worker sealed"):
        unseal(new_key(), sealed)
    with pytest.raises(LabelguardError, match="what no worker sealed"):
        open_result(key, sealed[:-1] + bytes([sealed[-1] ^ 1]))


def fail(task: str, bucket: int) -> int:
    """Find something wrong, and say what of a label."""
    raise ValueError(f"{task}: label b")


def test_what_a_worker_says_of_a_label_goes_into_no_log():
    key = new_key()
    with pytest.raises(LabelguardError, match=r"^worker .*: ValueError; nothing is lost") as raised:
        open_result(key, run_sealed_task(seal_task(key, fail, "secret"), key, 0))
    assert "label b" not in str(raised.value) and "secret" not in str(raised.value)


def write_late(task: Path, bucket: int) -> None:
    """Refuse the first bucket, and write for the others when that is long over."""
    if bucket == 0:
        while not (task / "begun").exists():
            time.sleep(0.01)
        raise LabelguardError("refused")
    (task / "begun").touch()
    time.sleep(0.5)
    (task / f"labels-{bucket}").touch()


@pytest.mark.slow
def test_no_process_writes_when_its_job_has_ended(tmp_path):
    with pytest.raises(LabelguardError, match="refused"):
        list(run_over_buckets(Processes(2), write_late, tmp_path, count=16))
    left = sorted(tmp_path.iterdir())
    time.sleep(0.8)
    assert sorted(tmp_path.iterdir()) == left


def test_a_worker_makes_no_directory_of_a_job_anew(tmp_path):
    with pytest.raises(FileNotFoundError):
        buckets.PartWriter(tmp_path / "ended" / "rows", 16)
    assert not list(tmp_path.iterdir())


def kill(task: Path, bucket: int) -> int:
    """Die once, in the middle of the work."""
    if bucket == 5 and not task.exists():
        task.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return bucket


@pytest.mark.slow
def test_a_process_that_dies_loses_nothing_but_the_run(tmp_path):
    engine = Processes(2)
    with pytest.raises(LabelguardError, match="a worker process died"):
        list(run_over_buckets(engine, kill, tmp_path / "died", count=16))
    assert list(run_over_buckets(Processes(2), kill, tmp_path / "died", count=16)) == list(
        range(16)
    )


def test_a_task_that_cannot_travel_is_no_release(tmp_path):
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        list(Processes(1).map(lambda task, bucket: bucket, None, range(2)))
