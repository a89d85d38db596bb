"""Of who was erased nothing raw is left, wherever it lay and whenever the process died.

Who leaves is gone from segments and inbox; backups carry segments; verify and doctor look.
"""

import json
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support import databases, preferences, world
from support.commands import run
from support.copies import copy_project
from support.crashes import crash, killed
from support.deaths import killed_in
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
from support.releases import make_release
from support.rounds import MORE_ROUNDS
from support.tools import connected, deliver, take_in
from support.traces import where

import labelguard as lg
from labelguard.answers.inbox import FILE, Inbox
from labelguard.answers.segments import Segments
from labelguard.keys.keyring import KeyRing
from labelguard.ledger import sources
from labelguard.project import erasure, ingestion, restore
from labelguard.project.backup import backup
from labelguard.project.opening import OpenProject
from labelguard.project.project import CONFIG, find
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
    make_release(source, project=project, **SET_ASIDE)
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
    make_release(labels_table(bad=BAD), project=project, **SET_ASIDE)
    erasure.remove_labeler(WHO, "erased", project)
    tables = databases.dump(postgres)
    text = repr([row for table in tables.values() for row in table])
    assert repr(blocks.to_bytes(key_of(project)[0])) in text  # a control: it tells what is there
    assert WHO not in text and MARK not in text
    assert not where(tmp_path, WHO) and not where(tmp_path, MARK)
    assert [gone.pseudonym for gone in erasure.list_departures(project)] == [pseudonym(project)]
    assert "left out" in make_release(labels_table(), project=project, **SET_ASIDE).notes[0]
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
    make_release(labels_table(bad=BAD), project=project, **SET_ASIDE)
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
    make_release(table, project=project, columns={"labeler_id": "worker"}, **SET_ASIDE)
    theirs = who[:14].count("12")
    found = erasure.remove_labeler("12", "erased", project)
    [kept] = project.quarantine.rglob("*.parquet")
    assert found.rows_set_aside == theirs and pq.read_metadata(kept).num_rows == 14 - theirs
    # Where the column was not noted, every column may tell the labeler, but no row's number.
    pq.write_table(pq.read_table(kept).replace_schema_metadata(None), kept)
    other = str(10 + next(u for u in ASKED.labeler[:14] if u != 2))
    assert erasure.remove_labeler(other, "erased", project).rows_set_aside == who[:14].count(other)


def test_a_file_without_any_row_left_goes_with_its_directory(project):
    make_release(labels_table(bad=BAD[:2]), project=project, **SET_ASIDE)
    assert erasure.preview_removal(WHO, "erased", project).rows_set_aside == 2
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
    without, begun = (r.id for r in overview.list_releases(project.state))
    assert {path.name for path in project.private_maps.iterdir()} == {without, begun}
    assert erasure.preview_removal(WHO, kind, project).given_up == [begun]
    found = erasure.remove_labeler(WHO, kind, project)
    assert found.given_up == [begun] and found.statistic_releases == 1
    assert found.rows_remembered == 12 and remembered(project) == 0
    states = {r.id: (r.state, r.charged) for r in overview.list_releases(project.state)}
    assert states == {without: ("drawn", 6), begun: ("abandoned", 1)}
    assert erasure.remove_labeler(WHO, kind, project).given_up == []
    # The other one, begun without them, can still be finished, even from the whole file.
    assert make_release(source, project=project, **STATISTIC).id == without
    assert_sound(project)


@pytest.mark.slow
def test_coins_that_an_unfinished_release_drew_stay_as_they_are(project, tmp_path):
    source = write(labels_table(), tmp_path / "in.parquet")
    job = {"do": "privatize", "project": str(project.state.parent), "options": PRICE}
    killed(job | DRAWN | {"source": str(source)})
    [begun] = (r.id for r in overview.list_releases(project.state))
    home = tmp_path / "finished"
    copy_project(project.state.parent, home)
    finished = make_release(source, project=home, **PRICE)
    assert finished.id == begun
    found = erasure.remove_labeler(WHO, "erased", project)
    assert found.given_up == [begun] and found.randomized_blocks == 1
    release = make_release(source, project=project, **PRICE)
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
    make_release(labels_table(bad=BAD), project=project, **SET_ASIDE)
    make_release(labels_table(ASKED[:60], bad=BAD[:1]), project=project, **SET_ASIDE)
    source = write(labels_table(ASKED[10:]), tmp_path / "in.parquet")
    job = {"do": "privatize", "project": str(base), "source": str(source)}
    options = PRICE | {"again": True, "exhausted": "drop"}
    killed(job | DRAWN | {"options": options})  # an unfinished release, to be given up

    def copy(name):
        copy_project(base, tmp_path / name)
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


ZUZANNA = "Zuzanna-Weatherwax"
OPEN: dict[str, Any] = {"mechanism": "rr", "epsilon": 3.0, "delta": 1e-5, "workers": 1}


@pytest.fixture(params=databases.EACH)
def tool(request, tmp_path, monkeypatch):
    with databases.on(request.param, tmp_path, monkeypatch):
        yield connected(lg.init(tmp_path / "p"), tmp_path, monkeypatch)


@pytest.fixture
def filled(tool):
    """The same, with three answers of each of two people in segments."""
    project, desk = tool
    take_in(project, *(desk.answer(who, n, "left") for who in (ZUZANNA, "otto") for n in range(3)))
    return tool


def rows_of(project, who):
    """How many rows in segments are theirs, whatever counts."""
    opened = OpenProject.open(project)
    held = Segments(project.labels, opened.keys)
    tables = [t for s in opened.ledger.read(sources.read_segments) for t in held.read(s).values()]
    labelers = [t["labeler"].to_pylist() for t in tables if "labeler" in t.column_names]
    return sum(labeler == who for column in labelers for labeler in column)


def test_who_is_erased_is_gone_from_segments_inbox_and_dead_letters(filled):
    project, desk = filled
    take_in(project, desk.change("1", "right"))
    deliver(project, desk.change("2", "right"), desk.answer("otto", 9, "left"))
    inbox = Inbox.open(project.state, project.ledger_url, KeyRing(project.keys))
    inbox.store_dead_letter("desk", ZUZANNA.encode(), "not understood")
    assert rows_of(project, ZUZANNA) == 4  # a control
    before = erasure.preview_removal(ZUZANNA, "erased", project)
    assert (before.rows_set_aside, before.unreadable_files) == (5, ["dead letter 1 for desk"])
    assert (rows_of(project, ZUZANNA), inbox.count_waiting(), len(inbox.list_dead_letters())) == (
        4,
        2,
        1,
    )
    kept = run("labeler", "retire", f"desk:{ZUZANNA}", project=project, code=1, input="n\n").stdout
    assert "5 answers of theirs" in kept and "quarantine" not in kept

    found = erasure.remove_labeler(ZUZANNA, "erased", project)
    assert (found.rows_set_aside, found.unreadable_files) == (5, ["dead letter 1 for desk"])
    assert rows_of(project, ZUZANNA) == 0 and rows_of(project, "otto") == 3
    assert (inbox.count_waiting(), inbox.list_dead_letters()) == (1, [])
    inbox.close()
    assert overview.verify(project).ok
    # What comes later of theirs is dropped at the door.
    done = take_in(project, desk.answer(ZUZANNA, 4, "left"))
    assert (done.answers, done.refused) == (1, 1)
    assert ingestion.reconcile("desk", project).refused == 4
    assert rows_of(project, ZUZANNA) == 0
    release = make_release(project=project, **OPEN)
    assert lg.load(release).height == 4


def test_who_is_retired_gives_nothing_more_and_their_rows_stay_unused(filled):
    project, _ = filled
    found = erasure.remove_labeler(f"desk:{ZUZANNA}", "retired", project)
    assert found.rows_set_aside == rows_of(project, ZUZANNA) == 3
    assert lg.load(make_release(project=project, **OPEN)).height == 3


def test_of_who_is_erased_no_forgotten_pair_stays_and_no_event_of_a_connector_that_is_gone(filled):
    project, desk = filled
    make_release(project=project, **OPEN)
    path = project.state / CONFIG
    text = path.read_text()
    path.write_text(f'{text}\n[ingest]\nkeep = "0d"\n')
    assert ingestion.ingest(find(project.state.parent)).forgotten == 6
    deliver(project, desk.answer(ZUZANNA, 4, "left"))
    path.write_text(text.partition("[connectors.desk]")[0])
    project = find(project.state.parent)
    assert rows_of(project, None) == 6
    found = erasure.remove_labeler(f"desk:{ZUZANNA}", "erased", project)
    assert found.rows_set_aside == 3
    assert found.unreadable_files == ["event of desk, which labelguard.toml does not name"]
    assert rows_of(project, None) == 3
    assert OpenProject.open(project).answers.count_stored().waiting == 0


@pytest.mark.parametrize("point", ["rewritten", "listed"])
def test_erasing_can_be_finished_after_a_crash(filled, point):
    project, _ = filled
    dying = {
        "rewritten": killed_in(sources, "record_rewritten_segments"),
        "listed": killed_in(Segments, "complete_rewrites", call=2),
    }
    with dying[point]:
        erasure.remove_labeler(f"desk:{ZUZANNA}", "erased", project)
    assert overview.verify(project).ok  # whichever file counts is there
    erasure.remove_labeler(f"desk:{ZUZANNA}", "erased", project)
    assert rows_of(project, ZUZANNA) == 0 and rows_of(project, "otto") == 3
    assert [path.suffix for path in project.labels.iterdir()] == [".segment"]
    assert overview.verify(project).ok


def test_a_backup_carries_segments_sealed_and_says_that_the_inbox_is_not_in_it(
    filled, tmp_path, monkeypatch
):
    project, desk = filled
    deliver(project, desk.answer("otto", 5, "left"))
    made = backup(tmp_path / "b.tar.zst", project=project)
    assert made.left_out == ["keys", "quarantine", "inbox"]
    with pa.CompressedInputStream(pa.OSFile(made.path), "zstd") as stream:
        data = stream.read()
    assert ZUZANNA.encode() not in data and b"prompt 1" not in data
    with tarfile.open(fileobj=pa.BufferReader(data)) as tar:
        names = tar.getnames()
    assert any(name.startswith("labels/") for name in names)
    assert not any(FILE in name for name in names)

    with monkeypatch.context() as patch:  # what the test sets must not come back after it
        patch.delenv("LABELGUARD_LEDGER_URL", raising=False)
        restore.restore(made.path, tmp_path / "again", nothing_since=True, keys=project.keys)
        again = find(tmp_path / "again")
        assert rows_of(again, "otto") == 3 and overview.verify(again).ok
        # What the inbox had, the tool has still.
        assert ingestion.reconcile("desk", again).answers == 1
        assert lg.load(make_release(project=again, **OPEN)).height == 7


def test_rows_that_others_put_into_the_book_of_segments_are_found(tool):
    project, desk = tool
    take_in(project, desk.answer(ZUZANNA, 1, "left"))
    opened = OpenProject.open(project)
    with opened.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE segments SET source = 'other'")
    assert overview.verify(project).fault == "the segments are not those in the journal"
