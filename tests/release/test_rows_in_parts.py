"""A release in many buckets: workers write its rows in parts, and everything reads them as one."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from labelguard_connectors.clusters.sealing import new_key, open_result, run_sealed_task, seal_task
from labelguard_trainer.alignment.contents import read_prompts
from labelguard_trainer.training import fitting
from labelguard_trainer.training.request import open_release, read_noise_and_sides
from support import world
from support.preferences import STATISTIC, TABLE, files
from support.releases import make_release
from support.twice import Twice

import labelguard as lg
from labelguard.analysis.agreement import agreement
from labelguard.errors import LabelguardError, ProjectError
from labelguard.inputs import stager
from labelguard.release import drawn
from labelguard.release.pairs_file import compute_item_keys, read_preference_pairs
from labelguard.release.writer import build_output_schema, verify_release_directory
from labelguard.report import overview
from labelguard.storage import buckets
from labelguard.storage.buckets import ROWS, find_rows_path, list_files
from labelguard.storage.files import SUMS, format_sums, fresh_directory, fsync_path, hash_files

BUDGET: dict[str, Any] = {"epsilon": 3, "delta": 1e-5, "once": True}
RR = BUDGET | {"mechanism": "rr"}
COUNT = 128
NAMES = [f"data-{number:05d}-of-00128.parquet" for number in range(COUNT)]


def release(where: Path, patch: pytest.MonkeyPatch, **options: Any) -> Any:
    """Release under fixed randomness, from a project without an id, which would be another's."""
    world.fix(patch, world.repeatable_bytes())
    project = lg.init(where)
    (project.state / "id").unlink()
    return make_release(TABLE, project=project, **options)


@pytest.fixture(scope="module")
def releases(tmp_path_factory):
    """The same release in parts and in one file."""
    # As directories of partitioned data are called, and a pattern that does not match itself.
    base = tmp_path_factory.mktemp("key=value[1]")
    with pytest.MonkeyPatch.context() as patch:
        return [release(base / str(n), patch, **RR, buckets=n).path for n in (COUNT, 64)]


@pytest.fixture
def copy(releases, tmp_path):
    """A copy of the release in parts, outside its project."""
    return shutil.copytree(releases[0], tmp_path / "copy")


def test_parts_behind_one_another_are_the_rows_of_the_one_file(releases):
    parts, whole = releases
    assert sorted(path.name for path in parts.glob("data*")) == NAMES
    assert [path.name for path in whole.glob("data*")] == [ROWS]
    read = [pl.read_parquet(path.read_bytes()) for path in map(parts.joinpath, NAMES)]
    assert pl.concat(read).equals(pl.read_parquet((whole / ROWS).read_bytes()))
    assert len({len(frame) for frame in read}) > 1 and not min(map(len, read))
    assert (parts / "card.json").read_bytes() == (whole / "card.json").read_bytes()
    assert (parts / SUMS).read_text() == format_sums(
        {name: digest for name, digest in hash_files(parts).items() if name != SUMS}
    )


@pytest.mark.quick("arrow", "polars")
@pytest.mark.parametrize("kind", ["polars", "arrow", "pandas", "datasets"])
def test_every_reader_reads_parts_as_it_reads_one_file(kind, releases, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    parts, whole = (pl.DataFrame(_columns(lg.load(path, kind))) for path in releases)
    assert parts.equals(whole) and parts.columns == lg.load(releases[0]).columns


def test_load_dataset_finds_the_parts_by_the_card(copy, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    (copy / "CARD.md").rename(copy / "README.md")  # as it is at the Hub
    rows = datasets.load_dataset(str(copy), split="train")
    assert rows["item_id"][:] == lg.load(copy)["item_id"].to_list()


def _columns(table: Any) -> Any:
    """What `pl.DataFrame` takes of a table of any kind."""
    return {name: table[name].tolist() for name in table} if hasattr(table, "iloc") else table[:]


def test_what_learns_from_a_release_reads_parts_as_it_reads_one_file(releases, tmp_path):
    facts = []
    for number, path in enumerate(releases):
        source = open_release(str(path), None)
        columns, (items, first) = read_noise_and_sides(source)
        lg.export(path, tmp_path / str(number), to="axolotl", noise="plain")
        facts.append(
            [
                {name: values.tolist() for name, values in columns.items()},
                (items.tolist(), first.tolist()),
                agreement(path),
                read_prompts(path),
                pl.read_parquet(tmp_path / str(number) / "pairs.parquet").to_dicts(),
            ]
        )
    assert str(facts[0]) == str(facts[1])


def test_a_part_that_is_missing_altered_or_added_is_noticed(copy, releases):
    assert verify_release_directory(copy) == copy
    (copy / NAMES[1]).write_bytes((copy / NAMES[0]).read_bytes() + b" ")
    with pytest.raises(ProjectError, match=f"{NAMES[1]} was altered"):
        verify_release_directory(copy)
    (copy / NAMES[1]).unlink()
    for read in (lg.load, verify_release_directory):
        with pytest.raises(ProjectError, match=f"{NAMES[1]} is missing"):
            read(copy)
    shutil.copy2(releases[0] / NAMES[1], copy)
    shutil.copy2(copy / NAMES[0], copy / "data-00128-of-00128.parquet")
    with pytest.raises(ProjectError, match=r"data-00128-of-00128\.parquet was added"):
        verify_release_directory(copy)


def test_sums_that_name_no_part_are_those_of_no_release(copy):
    sums = [line for line in (copy / SUMS).read_text().splitlines() if NAMES[-1] not in line]
    (copy / SUMS).write_text("\n".join(sums) + "\n")
    (copy / NAMES[-1]).unlink()
    with pytest.raises(ProjectError, match=f"{NAMES[-1]} is missing"):
        verify_release_directory(copy)


def test_what_is_published_of_either_is_a_release(releases, hub, tmp_path):
    for path in releases:
        count = path.parents[2].name
        lg.publish(path.name, f"hf:org/{count}", project=path.parents[1])
        published = hub.download(f"org/{count}", tmp_path / count)
        assert lg.load(published).equals(lg.load(path))
        assert open_release(str(published), None).file == find_rows_path(published)
    names = {path.name for path in list_files(find_rows_path(tmp_path / str(COUNT)))}
    assert names == set(NAMES) and len(list_files(find_rows_path(tmp_path / "64"))) == 1


@pytest.mark.parametrize("number", [0, 1], ids=["parts", "one file"])
def test_a_directory_whose_name_reads_as_a_pattern_is_read_itself(number, releases, tmp_path):
    release = shutil.copytree(releases[number], tmp_path / "run[1]")
    decoy = shutil.copytree(releases[number], tmp_path / "run1")
    for path in decoy.glob("data*.parquet"):
        rows = pl.read_parquet(path)
        rows.with_columns(pl.col("prompt") + " of another").write_parquet(path)
    expected, prompts = lg.load(releases[number]), lg.load(releases[number])["prompt"]
    assert not {*lg.load(decoy)["prompt"]} & {*prompts}  # the decoy has other rows
    for kind in ("polars", "arrow", "pandas"):
        assert pl.DataFrame(_columns(lg.load(release, kind)))["prompt"].equals(prompts)
    rows = fitting._read_dataset(find_rows_path(release), tmp_path / "cache")
    assert rows["prompt"][:] == prompts.to_list()
    assert (
        compute_item_keys(find_rows_path(release)).tolist()
        == compute_item_keys(find_rows_path(releases[number])).tolist()
    )
    assert agreement(release) == agreement(releases[number])
    assert set(read_prompts(release)) == set(prompts)
    for path, other in ((tmp_path / "p[1].jsonl", expected), (tmp_path / "p1.jsonl", expected[:1])):
        other.write_ndjson(path)
    assert len(compute_item_keys(tmp_path / "p[1].jsonl")) == len(expected)
    assert read_preference_pairs(tmp_path / "p[1].jsonl")["prompt"].to_pylist() == prompts.to_list()


@pytest.mark.parametrize(
    "name",
    [ROWS, *(f"data-00000-of-{n:05d}.parquet" for n in (0, 1)), NAMES[0].replace("00000", "00128")],
)
def test_rows_of_two_releases_in_one_directory_are_not_read(name, copy, releases):
    assert len(lg.load(copy)) == len(TABLE)
    shutil.copy2(releases[1] / ROWS, copy / name)
    with pytest.raises(ProjectError, match="holds rows of several releases"):
        lg.load(copy)


# Workers.


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"mechanism": "rr"}, STATISTIC], ids=["rr", "statistic"])
def test_parts_are_the_same_wherever_and_however_often_they_are_written(
    options, tmp_path, monkeypatch
):
    options = BUDGET | options | {"buckets": COUNT}
    here = files(release(tmp_path / "here", monkeypatch, **options).path)
    there = release(tmp_path / "there", monkeypatch, **options, engine="processes", workers=2)
    assert set(NAMES) < here.keys() and files(there.path) == here
    engine = Twice()
    monkeypatch.setattr("labelguard.release.privatize.open_executor", lambda *place: engine)
    twice = release(tmp_path / "twice", monkeypatch, **options)
    assert files(twice.path) == here and engine.works[-1] == "publish_bucket"
    assert overview.verify(tmp_path / "twice").ok
    assert {path.name for path in twice.path.parent.iterdir()} == {twice.id}


class Unseen(Twice):
    """Workers one of whose parts the command does not see, or not to its end."""

    def __init__(self, left: int | None) -> None:
        super().__init__()
        self.left = left

    def map(self, work: Any, task: Any, buckets: Any) -> Iterator[Any]:
        results = list(super().map(work, task, buckets))
        if work is drawn.publish_bucket:
            path = task.directory / NAMES[-1]
            data = path.read_bytes()
            path.unlink()
            if self.left is not None:
                path.write_bytes(data[: self.left])
        yield from results


@pytest.mark.quick("100")
@pytest.mark.parametrize("left", [None, 0, 100])
def test_a_part_that_the_command_does_not_see_whole_stops_the_release(left, tmp_path, monkeypatch):
    project = lg.init(tmp_path / "project")
    with monkeypatch.context() as patch:
        patch.setattr("labelguard.release.privatize.open_executor", lambda *place: Unseen(left))
        with pytest.raises(LabelguardError, match=r"bytes of data-00127-of-00128.* every worker"):
            make_release(TABLE, project=project, **RR, buckets=COUNT)
    assert not [path for path in project.releases.iterdir() if path.suffix != ".partial"]
    made = make_release(TABLE, project=project, **RR, buckets=16)  # in one file this time
    assert made.card["counts"]["rows"] == len(TABLE) and (made.path / ROWS).is_file()
    assert [path.name for path in project.releases.iterdir()] == [made.id]
    assert overview.verify(project.state).ok


def test_a_worker_that_is_late_changes_nothing(tmp_path, monkeypatch):
    class Late(Twice):
        """Workers whose task is remembered."""

        def map(self, work: Any, task: Any, buckets: Any) -> Iterator[Any]:
            tasks.append((work, task))
            return super().map(work, task, buckets)

    tasks: list[Any] = []
    project = lg.init(tmp_path / "project")
    monkeypatch.setattr("labelguard.release.privatize.open_executor", lambda *place: Late())
    make_release(TABLE, project=project, **RR, buckets=COUNT)
    before, (work, task) = files(project.state), tasks[-1]
    assert work is drawn.publish_bucket
    monkeypatch.setattr(
        drawn, "build_published_rows", lambda task, bucket: None
    )  # its input is gone too
    key = new_key()
    with pytest.raises(LabelguardError, match=rf"does not find .*{task.directory.parent.name}"):
        open_result(key, run_sealed_task(seal_task(key, work, task), key, 0))
    assert files(project.state) == before


def test_a_worker_that_stops_in_the_middle_leaves_no_part(tmp_path, monkeypatch):
    def stop(path: Path) -> None:
        if path.name.startswith(f".{NAMES[3]}") or path.name == NAMES[3]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync_path(path)

    project = lg.init(tmp_path / "project")
    with monkeypatch.context() as patch:
        patch.setattr(drawn, "fsync_path", stop)
        with pytest.raises(ProjectError, match="No space left on device; nothing is lost"):
            make_release(TABLE, project=project, **RR, buckets=COUNT, workers=1)
    [begun] = project.releases.iterdir()
    assert sorted(path.name for path in (begun / "whole").iterdir()) == NAMES[:3]
    made = make_release(TABLE, project=project, **RR, buckets=COUNT)
    assert made.id == begun.name.partition(".")[0] and not begun.exists()
    assert overview.verify(project.state).ok


CHATS = pa.list_(pa.struct({"role": pa.string(), "content": pa.string()}))


@pytest.mark.parametrize("content", [pa.string(), CHATS], ids=["texts", "chats"])
def test_bytes_do_not_depend_on_portions_nor_on_the_pieces_of_an_input(
    content, tmp_path, monkeypatch
):
    rng, count = np.random.default_rng(0), 40_000
    number = np.arange(count, dtype=np.uint64)
    item = {"item_hi": rng.integers(2**60, size=count).astype(np.uint64), "item_lo": number}

    def compose(side):
        texts = [f"{side} {n}" + "," * (n * 7919 % 89) for n in range(count)]
        if content == pa.string():
            return pa.array(texts)
        return pa.array(
            [[{"role": "user", "content": t}] * (1 + len(t) % 3) for t in texts], content
        )

    texts = {name: compose(name) for name in ("prompt", "first", "second")}
    table = pa.table({"row": number, **item, **texts})
    drawn_rows = {"row": number, "key_hi": number, "key_lo": number, "value": number % 2}
    drawn_rows["flip_probability"] = rng.random(count)
    chosen = rng.permutation(count)[:38_000]
    outcomes = pa.table(drawn_rows).take(pa.array(chosen))
    buckets.write_part(tmp_path / "drawn", 0, outcomes, np.zeros(len(chosen), np.uint16), 16)
    schema = build_output_schema(content)

    def publish(name, *edges):
        bounds = zip((0, *edges), (*edges, count), strict=True)
        pieces = pa.concat_tables([table[start:end] for start, end in bounds])
        buckets.write_bucket(fresh_directory(tmp_path / name), 0, pieces)
        (tmp_path / f"{name}-rows").mkdir()
        sources = ((tmp_path / name, tmp_path / "drawn"),)
        task = drawn.Outcomes(sources, schema, tmp_path / f"{name}-rows", 16)
        part = drawn.publish_bucket(task, 0)
        return (task.directory / part.name).read_bytes(), drawn.build_published_rows(task, 0)

    one, rows = publish("one")
    monkeypatch.setattr(buckets, "_MOST_AT_ONCE", table.nbytes // 9)
    portions, same = publish("portions", 1234, 30_001)
    assert rows["chosen"].num_chunks == 1 and same["chosen"].num_chunks > 5
    assert rows.equals(same) and one == portions
    monkeypatch.setattr(drawn, "write_rows", pq.ParquetWriter.write_table)
    assert publish("as-they-are", 1234, 30_001)[0] != one


@pytest.mark.parametrize("rows", [[], [3], [2, 0, 2, 1, 3, 3]])
def test_rows_are_taken_in_their_order_whatever_the_portions(rows, monkeypatch):
    table, rows = pa.table({"a": ["x", "yy", None, "z"], "b": range(4)}), np.array(rows, np.intp)
    monkeypatch.setattr(buckets, "_MOST_AT_ONCE", 2 * table.nbytes // 4)
    taken = buckets.take_rows(table, rows)
    assert taken.equals(table.take(pa.array(rows)))


@pytest.mark.parametrize("limit", [0, 2])
def test_labelers_beyond_those_that_arrow_looks_up_are_numbered_alike(
    limit, releases, tmp_path, monkeypatch
):
    monkeypatch.setattr(stager, "_FIRST_LABELERS", limit)
    path = release(tmp_path / "p", monkeypatch, **RR, buckets=64).path
    assert files(path) == files(releases[1])
