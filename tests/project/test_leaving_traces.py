"""Of who was erased nothing raw is left, wherever it lay and whenever the process died."""

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import databases, preferences, world
from support.crashes import crash, killed
from support.leaving import (
    ASKED,
    BAD,
    MARK,
    OTHERS,
    PRICE,
    SET_ASIDE,
    WHO,
    assert_sound,
    key_of,
    labels_table,
    pseudonym,
    remembered,
    values,
)
from support.preferences import dump, files, write
from support.rounds import MORE_ROUNDS
from support.traces import where

import labelguard as lg
from labelguard.project import erasure
from labelguard.report import overview
from labelguard.storage import blocks

DRAWN = {"kill_after": "draw", "fresh_randomness": True}
STATISTIC = preferences.STATISTIC | {"epsilon": 3.0, "delta": 1e-5, "uses": 3, "workers": 1}


# ---------------------------------------------------------------- nothing is left


@pytest.mark.quick(".parquet")
@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_after_erasing_neither_the_id_nor_a_raw_row_nor_their_key_is_found_anywhere(
    suffix, project, tmp_path
):
    source, table = tmp_path / f"in{suffix}", labels_table(bad=BAD)
    if suffix == ".jsonl":
        source.write_text("\n".join(json.dumps(row) for row in table.to_pylist()))
    else:
        write(table, source)
    lg.privatize(source, project=project, **SET_ASIDE)
    key = blocks.to_bytes(key_of(project))
    base = project.state.parent
    for secret in (WHO, MARK):  # a control: the search finds what is there
        assert where(base, secret)
    assert remembered(project) == 10

    found = erasure.remove_labeler(WHO, "erased", project)
    assert found.rows_set_aside == 2 and found.rows_remembered == 10
    for secret in (WHO, MARK):
        assert not where(base, secret)
    assert not where(project.private_maps, key)
    assert remembered(project) == 0 < remembered(project, "worker 1")
    [kept] = (project.quarantine).rglob("*.parquet")
    assert sorted(pq.read_table(kept)["input_row"].to_pylist()) == sorted(i + 1 for i in BAD[2:])
    assert kept.stat().st_mode & 0o777 == 0o600
    assert_sound(project)


@pytest.mark.slow  # on PostgreSQL
def test_a_ledger_on_postgresql_never_held_the_id_and_keeps_a_tombstone(
    postgres, tmp_path, monkeypatch
):
    monkeypatch.setenv("LABELGUARD_LEDGER_URL", postgres)
    project = lg.init(tmp_path)
    lg.privatize(labels_table(bad=BAD), project=project, **SET_ASIDE)
    erasure.remove_labeler(WHO, "erased", project)
    tables = databases.dump(postgres)
    text = repr([row for table in tables.values() for row in table])
    assert repr(blocks.to_bytes(key_of(project)[0])) in text  # a control: it tells what is there
    assert WHO not in text and MARK not in text
    assert not where(tmp_path, WHO) and not where(tmp_path, MARK)
    assert [gone.pseudonym for gone in erasure.listing(project)] == [pseudonym(project)]
    assert "left out" in lg.privatize(labels_table(), project=project, **SET_ASIDE).notes[0]
    assert_sound(project)


def test_the_search_sees_into_compressed_files(tmp_path):
    table = pa.table({"a": ["some secret"] * 3})
    pq.write_table(table, tmp_path / "1.parquet", compression="zstd")
    with pa.ipc.new_stream(str(tmp_path / "2.arrow"), table.schema) as writer:
        writer.write_table(table)
    for name, kind in (("3.gz", "gzip"), ("4.zst", "zstd")):
        with pa.output_stream(str(tmp_path / name), compression=kind) as stream:
            stream.write(b"some secret")
    with zipfile.ZipFile(tmp_path / "5.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("inner", "some secret" * 9)
    found = {Path(name.split(" ")[0]).name[:1] for name in where(tmp_path, "some secret")}
    assert found | {"i"} == {"1", "2", "3", "4", "i"}


def test_files_that_cannot_be_read_go_whole_when_erasing_and_stay_when_retiring(project):
    lg.privatize(labels_table(bad=BAD), project=project, **SET_ASIDE)
    [whole] = project.quarantine.rglob("*.parquet")
    torn = whole.with_name("part-0007.parquet")
    torn.write_bytes(whole.read_bytes()[:-30])
    name = str(torn.relative_to(project.quarantine))
    retired = erasure.remove_labeler(WHO, "retired", project)
    assert retired.unreadable_files == [name] and torn.exists()
    assert retired.rows_set_aside == 2 and where(project.quarantine, MARK)
    assert any("erase" in line for line in retired.remains)
    assert erasure.remove_labeler(WHO, "erased", project).unreadable_files == [name]
    assert not torn.exists() and not where(project.state, MARK)


def test_rows_are_told_by_the_column_of_labelers_alone(project):
    table = labels_table(bad=tuple(range(14)))
    who = [str(10 + u) for u in ASKED.labeler]  # 11 to 14 are numbers of rows as well
    table = table.drop_columns("labeler_id").append_column("worker", pa.array(who))
    table = table.append_column("seat", pa.array(["12"] * len(who)))
    lg.privatize(table, project=project, columns={"labeler_id": "worker"}, **SET_ASIDE)
    theirs = who[:14].count("12")
    found = erasure.remove_labeler("12", "erased", project)
    [kept] = project.quarantine.rglob("*.parquet")
    assert found.rows_set_aside == theirs and pq.read_metadata(kept).num_rows == 14 - theirs
    # Where the column was not noted, every column may tell the labeler, but no row's number.
    pq.write_table(pq.read_table(kept).replace_schema_metadata(None), kept)
    other = str(10 + next(u for u in ASKED.labeler[:14] if u != 2))
    assert erasure.remove_labeler(other, "erased", project).rows_set_aside == who[:14].count(other)


def test_a_file_without_any_row_left_goes_with_its_directory(project):
    lg.privatize(labels_table(bad=BAD[:2]), project=project, **SET_ASIDE)
    assert erasure.preview(WHO, "erased", project).rows_set_aside == 2
    erasure.remove_labeler(WHO, "erased", project)
    assert list(project.quarantine.rglob("*")) == [] and project.quarantine.is_dir()


# ---------------------------------------------------------------- unfinished releases, crashes


@pytest.mark.slow
@pytest.mark.quick("retired")
@pytest.mark.parametrize("kind", ["retired", "erased"])
def test_an_unfinished_statistic_that_holds_their_labels_is_given_up(kind, project, tmp_path):
    source = write(labels_table(), tmp_path / "in.parquet")
    rest = write(labels_table().take(pa.array(OTHERS)), tmp_path / "rest.parquet")
    job = {"do": "privatize", "project": str(project.state.parent), "options": STATISTIC}
    killed(*(job | DRAWN | {"source": str(path)} for path in (rest, source)))
    without, begun = (r.id for r in overview.releases(project.state))
    assert {path.name for path in project.private_maps.iterdir()} == {without, begun}
    assert erasure.preview(WHO, kind, project).given_up == [begun]
    found = erasure.remove_labeler(WHO, kind, project)
    assert found.given_up == [begun] and found.statistic_releases == 1
    assert found.rows_remembered == 12 and remembered(project) == 0
    states = {r.id: (r.state, r.charged) for r in overview.releases(project.state)}
    assert states == {without: ("drawn", 6), begun: ("abandoned", 1)}
    assert erasure.remove_labeler(WHO, kind, project).given_up == []
    # The other one, begun without them, can still be finished, even from the whole file.
    assert lg.privatize(source, project=project, **STATISTIC).id == without
    assert_sound(project)


@pytest.mark.slow
def test_coins_that_an_unfinished_release_drew_stay_as_they_are(project, tmp_path):
    source = write(labels_table(), tmp_path / "in.parquet")
    job = {"do": "privatize", "project": str(project.state.parent), "options": PRICE}
    killed(job | DRAWN | {"source": str(source)})
    [begun] = (r.id for r in overview.releases(project.state))
    home = tmp_path / "finished"
    shutil.copytree(project.state.parent, home)
    finished = lg.privatize(source, project=home, **PRICE)
    assert finished.id == begun
    found = erasure.remove_labeler(WHO, "erased", project)
    assert found.given_up == [begun] and found.randomized_blocks == 1
    release = lg.privatize(source, project=project, **PRICE)
    assert release.card["counts"]["charged"] == 0
    assert len(values(release)) == len(OTHERS)
    assert all(row in values(finished) for row in values(release))
    assert_sound(project)


@pytest.mark.slow
@pytest.mark.parametrize("every", [max(1, 16 // MORE_ROUNDS)])
def test_killed_at_a_step_the_same_command_ends_as_if_nothing_had_happened(
    every, tmp_path, monkeypatch
):
    world.fix(monkeypatch)
    base = tmp_path / "base"
    project = lg.init(base)
    lg.privatize(labels_table(bad=BAD), project=project, **SET_ASIDE)
    lg.privatize(labels_table(ASKED[:60], bad=BAD[:1]), project=project, **SET_ASIDE)
    source = write(labels_table(ASKED[10:]), tmp_path / "in.parquet")
    job = {"do": "privatize", "project": str(base), "source": str(source)}
    options = PRICE | {"again": True, "exhausted": "drop"}
    killed(job | DRAWN | {"options": options})  # an unfinished release, to be given up

    def copy(name):
        shutil.copytree(base, tmp_path / name)
        return tmp_path / name

    def observe(place):
        found: dict[str, Any] = dict(files(place / ".labelguard"))
        found |= dump(place / ".labelguard")
        found["meta"] = [row for row in found["meta"] if row[0] != "epoch"]
        return {k: v for k, v in found.items() if k not in ("ledger.sqlite3", "lock")}

    expected = copy("expected")
    raw = len(where(base, WHO))
    assert raw >= 2
    job = {"do": "leave", "options": {"labeler_id": WHO, "kind": "erased"}}
    [end] = crash(job | {"project": str(expected)})
    steps = end["steps"]
    assert steps > 20 and not end["error"], end
    places = {step: copy(f"killed at {step}") for step in range(1, steps + 1, every)}
    jobs = (job | {"project": str(place), "kill_at": step} for step, place in places.items())
    killed(*jobs)
    for step, place in places.items():
        half_done = observe(place)
        purged = len(where(place / ".labelguard" / "quarantine", WHO)) < raw
        assert half_done["tombstones"] or not purged, f"killed at {step}: not refused yet"
        forgotten = len(half_done["journal"]) > len(observe(base)["journal"]) + 2
        assert not forgotten or not where(place, WHO), f"killed at {step}: raw rows are left"
        erasure.remove_labeler(WHO, "erased", place)
        assert observe(place) == observe(expected), f"killed at {step}"
        assert not where(place, WHO) and not where(place, MARK)
