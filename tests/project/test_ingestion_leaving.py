"""Who leaves is gone from segments and inbox; backups carry segments; verify and doctor look."""

import tarfile
from typing import Any

import pyarrow as pa
import pytest
from support import databases
from support.tools import connected, deliver, take_in

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
    inbox = Inbox.at(project.state, project.ledger_url, KeyRing(project.keys))
    inbox.bury("desk", ZUZANNA.encode(), "not understood")
    assert rows_of(project, ZUZANNA) == 4  # a control
    before = erasure.preview(ZUZANNA, "erased", project)
    assert (before.rows_set_aside, before.unreadable_files) == (5, ["dead letter 1 for desk"])
    assert (rows_of(project, ZUZANNA), inbox.waiting(), len(inbox.letters())) == (4, 2, 1)

    found = erasure.remove_labeler(ZUZANNA, "erased", project)
    assert (found.rows_set_aside, found.unreadable_files) == (5, ["dead letter 1 for desk"])
    assert rows_of(project, ZUZANNA) == 0 and rows_of(project, "otto") == 3
    assert (inbox.waiting(), inbox.letters()) == (1, [])
    inbox.close()
    assert overview.verify(project).ok
    # What comes later of theirs is dropped at the door.
    done = take_in(project, desk.answer(ZUZANNA, 4, "left"))
    assert (done.answers, done.refused) == (1, 1)
    assert ingestion.reconcile("desk", project).refused == 4
    assert rows_of(project, ZUZANNA) == 0
    release = lg.privatize(project=project, **OPEN)
    assert lg.load(release).height == 4


def test_the_same_id_of_another_source_is_another_person(tool, tmp_path):
    project, desk = tool
    take_in(project, desk.answer("7", 1, "left"))
    erasure.remove_labeler("files:7", "erased", project, never_seen=True)
    assert rows_of(project, "7") == 1
    erasure.remove_labeler("desk:7", "erased", project)
    assert rows_of(project, "7") == 0


def test_who_is_retired_gives_nothing_more_and_their_rows_stay_unused(filled):
    project, _ = filled
    found = erasure.remove_labeler(f"desk:{ZUZANNA}", "retired", project)
    assert found.rows_set_aside == rows_of(project, ZUZANNA) == 3
    assert lg.load(lg.privatize(project=project, **OPEN)).height == 3


def test_of_who_is_erased_no_forgotten_pair_stays_and_no_event_of_a_connector_that_is_gone(filled):
    project, desk = filled
    lg.privatize(project=project, **OPEN)
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
    assert OpenProject.open(project).answers.count().waiting == 0


POINTS = ("rewritten", "listed")


@pytest.mark.parametrize("point", POINTS)
def test_erasing_can_be_finished_after_a_crash(filled, point, monkeypatch):
    project, _ = filled

    class Crash(BaseException):
        pass

    def crash(*args, **kwargs):
        raise Crash

    with monkeypatch.context() as patch:
        if point == "rewritten":
            patch.setattr(sources, "replace_segments", crash)
        else:
            real, calls = Segments.settle, []

            def settle(self, counted):
                calls.append(1)
                if len(calls) > 1:
                    raise Crash
                real(self, counted)

            patch.setattr(Segments, "settle", settle)
        with pytest.raises(Crash):
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
        assert lg.load(lg.privatize(project=again, **OPEN)).height == 7


def test_rows_that_others_put_into_the_book_of_segments_are_found(tool):
    project, desk = tool
    take_in(project, desk.answer(ZUZANNA, 1, "left"))
    opened = OpenProject.open(project)
    with opened.ledger.transaction() as connection:
        connection.exec_driver_sql("UPDATE segments SET source = 'other'")
    assert overview.verify(project).fault == "the segments are not those in the journal"
