"""Answers of tools come into a project once, and from there into releases as they are there."""

import contextlib
import json
import time
from collections import Counter
from functools import partial
from typing import Any

import pytest
from support.commands import run
from support.deaths import killed_in
from support.lives import put_into_force
from support.releases import make_release
from support.tools import DeskConnector, connected, deliver, take_in

import labelguard as lg
from labelguard.answers.connector import Answer
from labelguard.answers.inbox import Event, Inbox
from labelguard.answers.segments import Segments
from labelguard.errors import (
    ConnectorError,
    GoneFromTool,
    InvalidLabels,
    NothingIngested,
    PolicyError,
    ProjectError,
)
from labelguard.ledger import sources
from labelguard.ledger.ledger import Ledger
from labelguard.project import ingestion, linking, retention
from labelguard.project.opening import OpenProject
from labelguard.project.project import CONFIG, find
from labelguard.report import doctor, overview
from labelguard.storage import blocks
from labelguard.text import UNREADABLE

# So much ε that no label is flipped, whatever the coins: what was answered is what is released.
OPEN: dict[str, Any] = {
    "mechanism": "rr",
    "epsilon": 2000.0,
    "delta": 0.0,
    "uses": 3,
    "accept_delta": True,
    "workers": 1,
}


@pytest.fixture
def tool(tmp_path, monkeypatch):
    project = lg.init(tmp_path / "p", max_epsilon=10_000.0, max_delta=0.5)
    return connected(project, tmp_path, monkeypatch)


def release_counts(project, **options):
    """How often each response was chosen, by prompt, in a release of what was ingested."""
    rows = lg.load(make_release(project=project, **OPEN | options))
    return Counter(rows.select("prompt", "chosen").iter_rows())


def test_the_latest_state_of_every_answer_is_released(tool):
    project, desk = tool
    events = [desk.answer("maria", task, "left") for task in (1, 2)]
    events += [desk.answer("otto", task, "right") for task in (1, 2)]
    events += [desk.answer(who, 3, "left") for who in ("otto", "zoe")]
    events.append(desk.change("2", "right"))  # Maria changes her mind
    events.append(desk.change("4", None))  # Otto skips what he had answered
    events.append(desk.delete("5"))  # and deletes another
    events.append(desk.delete("6"))  # Zoe deletes hers, and answers again
    events.append(desk.answer("zoe", 3, "right"))
    done = take_in(project, *events)
    assert (done.answers, done.deleted) == (9, 2)
    assert release_counts(project) == {
        ("prompt 1", "left 1"): 1,
        ("prompt 1", "right 1"): 1,
        ("prompt 2", "right 2"): 1,
        ("prompt 3", "right 3"): 1,
    }


def test_the_order_of_events_decides_nothing_that_the_tools_clock_decides(tool):
    project, desk = tool
    first = desk.answer("maria", 1, "left")
    second = desk.change("1", "right")
    other = desk.answer("otto", 1, "left")
    gone = desk.delete("2")
    take_in(project, gone, second, first, other, first, second)
    assert release_counts(project) == {("prompt 1", "right 1"): 1}


def test_a_released_value_stays_whatever_happens_in_the_tool(tool):
    project, desk = tool
    take_in(project, desk.answer("maria", 1, "left"), desk.answer("otto", 2, "left"))
    before = release_counts(project)
    deliver(project, desk.change("1", "right"), desk.delete("2"), desk.answer("otto", 2, "right"))
    take_in(project, desk.answer("zoe", 1, "right"))
    after = release_counts(project)
    assert after == {**before, ("prompt 1", "right 1"): 1}


def test_pulling_takes_what_is_new_and_reconciling_mends_what_was_not_heard(tool):
    project, desk = tool
    for task in range(7):
        desk.answer("maria", task, "left")
    assert ingestion.pull("desk", project).answers == 7
    assert ingestion.pull("desk", project) == ingestion.IngestionResult(0, 0, 0, 0, 0)
    deliver(project, desk.answer("otto", 1, "right"))
    desk.change("3", "right")
    assert ingestion.ingest(project).answers == 1
    done = ingestion.pull("desk", project)
    assert (done.answers, done.known) == (1, 1)
    # The hook is down: nothing of this is heard.
    desk.delete("1")
    desk.change("4", None)
    desk.answer("zoe", 2, "left")
    done = ingestion.reconcile("desk", project)
    assert (done.answers, done.deleted, done.known) == (2, 1, 6)
    assert ingestion.reconcile("desk", project).answers == 0
    found = release_counts(project)
    assert ("prompt 0", "left 0") not in found and ("prompt 3", "left 3") not in found
    assert found["prompt 2", "right 2"] == found["prompt 2", "left 2"] == 1


def test_what_happens_while_a_tool_is_read_is_not_undone_by_what_was_read(tool, monkeypatch):
    project, desk = tool
    for task in range(9):
        desk.answer("maria", task, "left")
    ingestion.pull("desk", project)
    read = DeskConnector.pull

    def reading(self, cursor=""):
        pages = list(read(self, cursor))
        gone = [desk.delete(record) for record in "1456789" if record in desk.records]
        take_in(project, *gone, desk.answer("otto", 7, "left"), desk.change("3", "right"))
        yield from pages

    monkeypatch.setattr(DeskConnector, "pull", reading)
    done = ingestion.reconcile("desk", project)
    assert (done.answers, done.deleted) == (0, 0)
    assert release_counts(project) == {
        ("prompt 1", "left 1"): 1,
        ("prompt 2", "right 2"): 1,
        ("prompt 7", "left 7"): 1,
    }


@pytest.mark.parametrize("skips", [None, "public", "tie"])
def test_a_pull_counts_what_no_release_will_and_skips_only_where_they_are_public(skips, tool):
    project, desk = tool
    if skips:
        put_into_force(project, "p", "rr:uses=9,block=1", epsilon=1, skips=skips)
    desk.mark_truth(desk.answer("maria", 1, "left")["record"])
    desk.answer("maria", 2, None)
    done = ingestion.pull("desk", project)
    public = {"skip": 1} if skips == "public" else {}
    assert (done.answers, done.left_out) == (2, {"ground truth": 1} | public)
    assert ingestion.pull("desk", project) == ingestion.IngestionResult(0, 0, 0, 0, 0)


def test_an_answer_that_a_pull_finds_again_is_there_again(tool):
    project, desk = tool
    desk.answer("maria", 1, "left")
    kept = dict(desk.records)
    ingestion.pull("desk", project)
    desk.delete("1")
    assert ingestion.reconcile("desk", project).deleted == 1
    desk.records = kept
    desk.save()
    assert ingestion.reconcile("desk", project).answers == 1
    assert release_counts(project) == {("prompt 1", "left 1"): 1}
    # What is announced late of an answer that was deleted is not.
    late = desk.change("1", "right")
    take_in(project, desk.delete("1"), late)
    with pytest.raises(InvalidLabels, match="no answer of source 'desk' is left"):
        make_release(project=project, **OPEN)


def test_a_tool_that_lists_little_of_what_it_had_deletes_nothing(tool):
    project, desk = tool
    for task in range(30):
        desk.answer("maria", task, "left")
    ingestion.pull("desk", project)
    desk.records = dict(list(desk.records.items())[:5])
    desk.answer("otto", 99, "left")
    with pytest.raises(ConnectorError, match=r"lists 5 of 30 .* --accept-deletions"):
        ingestion.reconcile("desk", project)
    assert len(labelers(project)) == 31  # what is new was stored
    assert ingestion.reconcile("desk", project, accept_deletions=True).deleted == 25
    assert labelers(project) == ["maria"] * 5 + ["otto"]


def test_an_answer_from_the_future_is_a_dead_letter_and_loses_to_its_correction(tool):
    project, desk = tool
    desk.clock = int((time.time() + 90_000) * 1e6)  # a clock that is wrong
    told = desk.answer("maria", 1, "left")
    done = ingestion.reconcile("desk", project)
    assert (done.answers, done.left_out) == (0, {UNREADABLE: 1})
    with contextlib.closing(OpenProject.open(project).answers.open_inbox()) as inbox:
        assert [
            "ahead of this machine's clock" in one.why for one in inbox.list_dead_letters()
        ] == [True]
        desk.clock = int(time.time() * 1e6)
        desk.change(told["record"], "right")
        assert ingestion.reconcile("desk", project).answers == 1
        assert inbox.list_dead_letters() == []
    assert release_counts(project) == {("prompt 1", "right 1"): 1}


def test_what_was_deleted_goes_also_where_a_crash_came_between(tool):
    project, desk = tool
    take_in(project, desk.answer("maria", 1, "left"), desk.answer("otto", 1, "left"))
    deliver(project, desk.delete("1"))

    with killed_in(retention, "forget_due_answers"):
        ingestion.ingest(project)
    assert labelers(project) == ["maria", "otto"]
    ingestion.ingest(project)
    assert labelers(project) == ["otto"]


def stored(project):
    """All answers that segments hold."""
    opened = OpenProject.open(project)
    held = Segments(project.labels, opened.keys)
    tables = [t for s in opened.ledger.read(sources.read_segments) for t in held.read(s).values()]
    return [row for table in tables if "body" in table.column_names for row in table.to_pylist()]


def labelers(project):
    """Of whom segments hold rows."""
    return sorted(row["labeler"] or "" for row in stored(project))


def keep(project, days):
    """The project, whose answers are kept so long after their release."""
    with (project.state / CONFIG).open("a") as file:
        file.write(f'\n[ingest]\nkeep = "{days}"\n')
    return find(project.state.parent)


POINTS = {
    "claimed": (Inbox, "read_claimed"),
    "written": (Segments, "write"),
    "counted": (ingestion._Ingestion, "_write_segment"),  # by the ledger; the inbox does not know
}


@pytest.mark.quick("ingest-counted")
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("how", ["ingest", "pull"])
def test_whatever_crashes_every_answer_is_there_once(tool, point, how):
    project, desk = tool
    events = [desk.answer(f"worker {u}", task, "left") for u in range(3) for task in range(4)]
    deliver(project, *events[: 6 if how == "pull" else None])
    with killed_in(*POINTS[point], late=True):
        getattr(ingestion, how)(*(["desk"] if how == "pull" else []), project)
    ingestion.pull("desk", project) if how == "pull" else ingestion.ingest(project)
    assert sum(release_counts(project).values()) == 12
    held = OpenProject.open(project).answers.count_stored()
    assert held.segments == len(list(project.labels.iterdir()))
    assert (held.answers, held.waiting) == (12, 0) and overview.verify(project).ok


def test_two_questions_about_one_pair_are_two_labels(tool):
    project, desk = tool
    take_in(project, desk.answer("maria", 1, "left", harmless="right"))
    with pytest.raises(InvalidLabels, match=r"several control tags .harmless, helpful.; "):
        make_release(project=project, **OPEN)
    assert release_counts(project, question="helpful") == {("prompt 1", "left 1"): 1}
    assert release_counts(project, question="harmless") == {("prompt 1", "right 1"): 1}


def test_what_was_not_ingested_is_said_and_events_of_a_connector_that_is_gone_wait(tool):
    project, desk = tool
    for options in ({}, {"namespace": "other"}):
        with pytest.raises(NothingIngested):
            make_release(project=project, **OPEN | options)
    with pytest.raises(ConnectorError, match=r"no \[connectors.other\]; found: desk"):
        ingestion.pull("other", project)
    deliver(project, desk.answer("maria", 1, "left"))
    path = project.state / CONFIG
    text = path.read_text()
    path.write_text(text.partition("[connectors.desk]")[0])
    with pytest.raises(ConnectorError, match=r"no \[connectors.desk\]"):
        ingestion.ingest(find(project.state.parent))
    path.write_text(text)
    assert ingestion.ingest(find(project.state.parent)).answers == 1


def test_a_segment_that_was_altered_or_is_missing_stops_the_project(tool):
    project, desk = tool
    take_in(project, desk.answer("maria", 1, "left"))
    [path] = project.labels.iterdir()
    whole = path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"maria" not in whole and b"prompt" not in whole
    for data in (whole[:-1] + bytes([whole[-1] ^ 1]), whole[:100], None):
        path.unlink() if data is None else path.write_bytes(data)
        assert "segment" in (overview.verify(project).fault or "")
        with pytest.raises(ProjectError, match=r"segment .* missing, or not the one"):
            make_release(project=project, **OPEN)


# ---------------------------------------------------------------- retention


@pytest.mark.slow
def test_labels_are_forgotten_after_their_release_and_pulls_know_them_still(tool):
    project, desk = tool
    for who in ("maria", "otto"):
        for task in range(3):
            desk.answer(who, task, "left")
    ingestion.pull("desk", project)
    before = release_counts(project)
    desk.answer("zoe", 1, "right")
    ingestion.pull("desk", project)
    project = keep(project, "0d")
    assert ingestion.ingest(project).forgotten == 6
    assert labelers(project) == [""] * 6 + ["zoe"]
    forgotten = [row for row in stored(project) if row["labeler"] is None]
    assert all(row["body"] is None and row["id"] is None for row in forgotten)
    assert all(len(row["rows"]) == 1 for row in forgotten)
    assert {json.loads(row["pair"])["prompt"] for row in forgotten} == {
        f"prompt {task}" for task in range(3)
    }
    # Nothing of them comes back, changed or not; what is new does.
    desk.change("1", "right")
    done = ingestion.reconcile("desk", project)
    assert (done.answers, done.deleted, done.known) == (0, 0, 7)
    assert ingestion.ingest(project).forgotten == 0
    assert overview.verify(project).ok
    after = release_counts(project)
    assert sum(after.values()) == 1 and before


def test_an_answer_is_forgotten_only_once_all_its_rows_were_released():
    one, two, three = (number.to_bytes(16, "big") for number in (1, 2, 3))
    rows = {"both": [one, two], "other": [two], "neither": [three], "some": [two, three]}
    asked = {name.encode(): ("a pair", own) for name, own in rows.items()}
    found = retention._select_released(asked, blocks.from_bytes(one + two))
    assert found == {name: asked[name] for name in (b"both", b"other")}
    assert not retention._select_released(asked, blocks.from_bytes(one))


@pytest.mark.slow
def test_an_answer_is_kept_until_all_its_questions_were_released(tool):
    project, desk = tool
    deliver(project, desk.answer("maria", 1, "left", harmless="right"))
    take_in(project, desk.answer("otto", 1, "left", harmless="right"))
    release_counts(project, question="helpful")
    release_counts(project, question="harmless")
    take_in(project, desk.answer("zoe", 1, "left", harmless="right"))
    release_counts(project, question="helpful")
    project = keep(project, "0d")
    assert ingestion.ingest(project).forgotten == 2
    assert release_counts(project, question="harmless") == {("prompt 1", "right 1"): 1}
    assert ingestion.ingest(project).forgotten == 1


def raise_gone(self, cursor=""):
    raise GoneFromTool("HTTP 404")
    yield


@pytest.mark.parametrize("read", [ingestion.pull, ingestion.reconcile])
def test_what_the_tool_no_longer_has_is_not_released_until_that_is_accepted(read, tool):
    project, desk = tool
    for task in (1, 2):
        desk.answer("maria", task, "left")
    assert read("desk", project).answers == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeskConnector, "pull", raise_gone)
        for _ in range(2):
            with pytest.raises(GoneFromTool):
                read("desk", project)
        with pytest.raises(ConnectorError, match="labelguard connect reconcile desk --accept-del"):
            release_counts(project)
        checks = {one.name: one for one in doctor.check_installation(project)}
        assert "no longer has its project" in checks["ingested answers"].detail
    desk.answer("maria", 3, "left")
    assert read("desk", project).answers == 1  # it is there again
    assert release_counts(project).total() == 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeskConnector, "pull", raise_gone)
        assert ingestion.reconcile("desk", project, accept_deletions=True).deleted == 3
        assert ingestion.reconcile("desk", project, accept_deletions=True).deleted == 0
    with pytest.raises(InvalidLabels, match="all were deleted in the tool"):
        release_counts(project)


def set_connectors(project, **lines):
    """The project with these connectors to one tool, all of source `desk`, and lines of each."""
    config = project.state / CONFIG
    text = config.read_text()
    file = next(line for line in text.splitlines() if line.startswith("file = "))
    tables = [
        f'[connectors.{name}]\nkind = "desk"\nsource = "desk"\n{file}\n{more}\n'
        for name, more in lines.items()
    ]
    config.write_text("\n".join([text.partition("[connectors")[0], *tables]))
    return find(project.state.parent)


HARMLESS = 'question = "harmless"'


def test_connectors_of_one_source_agree_where_answers_come_in(tool):
    project, desk = tool
    desk.answer("maria", 1, "left")
    ingestion.pull("desk", project)
    project = set_connectors(project, desk="", other=HARMLESS)
    deliver(project, desk.answer("otto", 1, "left"), name="other")
    for read in (
        lambda: ingestion.pull("other", project),
        lambda: ingestion.reconcile("other", project),
        lambda: ingestion.ingest(project),
        lambda: doctor.check_connector("other", project),
        lambda: release_counts(project),
    ):
        with pytest.raises(ConnectorError, match="differ in columns or question"):
            read()
    checks = {one.name: one for one in doctor.check_installation(project)}
    assert not checks["ingested answers"].ok
    assert {one.connector for one in OpenProject.open(project).answers.list_segments()} == {"desk"}


def test_answers_are_read_as_the_connector_said_that_brought_them(tool):
    project, desk = tool
    project = set_connectors(project, desk='question = "helpful"')
    desk.answer("maria", 1, "left", harmless="right")
    ingestion.pull("desk", project)
    project = set_connectors(project, other=HARMLESS)
    for read in (partial(ingestion.pull, "other"), release_counts):
        with pytest.raises(ConnectorError, match="other columns or another question than desk did"):
            read(project)
    assert release_counts(set_connectors(project)) == {("prompt 1", "left 1"): 1}


def test_a_connector_is_forgotten_but_for_what_was_released(tool):
    project, desk = tool
    take_in(project, desk.answer("maria", 1, "left"), desk.answer("otto", 1, "left"))
    release_counts(project)
    take_in(project, desk.answer("zoe", 2, "left"), desk.delete("2"))
    deliver(project, desk.answer("zoe", 3, "left"))
    shown = run("connect", "forget", "desk", "--yes", "--json", project=project)
    told = json.loads(shown.stdout)
    assert told == {"connector": "desk", "dropped": 1, "waiting": 1, "released": 1}
    again = retention.forget_connector("desk", project)
    assert (again.dropped, again.waiting, again.released) == (0, 0, 1)
    assert release_counts(project) == {("prompt 1", "left 1"): 1}
    assert ingestion.pull("desk", project).answers == 2  # both of Zoe's, from the start
    assert release_counts(project).total() == 3
    assert overview.verify(project).ok
    with pytest.raises(ConnectorError, match="nothing is known of a connector 'clinic'; known: de"):
        retention.forget_connector("clinic", project)


def test_what_was_forgotten_binds_nobody_to_how_it_was_read(tool):
    project, desk = tool
    for task in (1, 2):
        desk.answer("maria", task, "left", harmless="right")
    ingestion.pull("desk", project)
    project = set_connectors(project, desk=HARMLESS)
    with pytest.raises(ConnectorError, match="labelguard connect forget desk"):
        ingestion.pull("desk", project)
    assert retention.forget_connector("desk", project).dropped == 2
    assert ingestion.pull("desk", project).answers == 2
    assert release_counts(project) == {("prompt 1", "right 1"): 1, ("prompt 2", "right 2"): 1}


def test_a_connector_is_forgotten_whole_wherever_it_is_killed(tool):
    project, desk = tool
    desk.answer("maria", 1, "left")
    for name in ("rewrite", "complete_rewrites"):
        ingestion.pull("desk", project)
        with killed_in(Segments, name):
            retention.forget_connector("desk", project)
        retention.forget_connector("desk", project)
        assert not any(one.rows for one in OpenProject.open(project).answers.list_segments())
        assert ingestion.pull("desk", project).answers == 1
        assert overview.verify(project).ok


@pytest.fixture
def two_released(tool):
    """A tool with two answers, both released."""
    project, desk = tool
    take_in(project, desk.answer("maria", 1, "left"), desk.answer("otto", 1, "right"))
    release_counts(project)
    return project, desk


def test_a_pull_during_which_its_connector_is_forgotten_is_taken_again(two_released, monkeypatch):
    project, desk = two_released
    ingestion.pull("desk", project)
    desk.answer("zoe", 2, "left")
    whole = DeskConnector.pull

    def forget_meanwhile(self, cursor=""):
        pages = list(whole(self, cursor))
        retention.forget_connector("desk", project)
        yield from pages

    desk.answer("ann", 3, "left")
    with monkeypatch.context() as patch:
        patch.setattr(DeskConnector, "pull", forget_meanwhile)
        with pytest.raises(ProjectError, match="pull again"):
            ingestion.pull("desk", project)
    ingestion.pull("desk", project)
    assert release_counts(project).total() == 4


def test_where_it_cannot_be_told_what_was_released_nothing_is_forgotten(two_released):
    project, desk = two_released
    take_in(project, desk.answer("zoe", 2, "left", harmless="right"))
    deliver(project, desk.answer("ann", 3, "left"))
    segments = OpenProject.open(project).answers.list_segments()
    with pytest.raises(
        InvalidLabels, match="none is dropped: answers of desk: several control tags"
    ):
        retention.forget_connector("desk", project)
    assert OpenProject.open(project).answers.list_segments() == segments
    assert ingestion.ingest(project).answers == 1
    with pytest.raises(ConnectorError, match="another question than desk did"):
        ingestion.pull("desk", set_connectors(project, desk=HARMLESS))


def test_what_was_released_under_an_earlier_source_stays(two_released):
    project, desk = two_released
    linking.add_source("desk2", "new", project)
    config = project.state / CONFIG
    config.write_text(config.read_text() + 'source = "desk2"\n')
    project = find(project.state.parent)
    take_in(project, desk.change("1", "right"))
    found = retention.forget_connector("desk", project)
    assert (found.dropped, found.released) == (1, 2)
    config.write_text(config.read_text().replace('source = "desk2"\n', ""))
    assert release_counts(find(project.state.parent), namespace="desk").total() == 2


def test_what_nobody_answered_is_dropped(two_released):
    project, _ = two_released
    body = {"id": 5, "data": {"prompt": "x", "answer1": "a", "answer2": "b"}}
    body["annotations"] = [{"id": 77, "result": []}]
    event = Event("desk", (Answer("77", 5, "zoe", json.dumps(body)),))
    with contextlib.closing(OpenProject.open(project).answers.open_inbox()) as inbox:
        inbox.store_events([event])
    ingestion.ingest(project)
    found = retention.forget_connector("desk", project)
    assert (found.dropped, found.released) == (1, 2)


def test_what_is_gone_from_its_tool_stays_so_when_it_is_forgotten(two_released, monkeypatch):
    project, _ = two_released
    monkeypatch.setattr(DeskConnector, "pull", raise_gone)
    with pytest.raises(GoneFromTool):
        ingestion.pull("desk", project)
    retention.forget_connector("desk", project)
    with pytest.raises(ConnectorError, match="no longer has its project"):
        release_counts(project)


def test_a_tool_that_is_gone_and_forgotten_holds_up_no_other_of_its_source(tool, monkeypatch):
    project, desk = tool
    desk.answer("maria", 1, "left")
    ingestion.pull("desk", project)
    project = set_connectors(project, desk="", other="")
    deliver(project, desk.answer("otto", 2, "left"), name="other")
    ingestion.ingest(project)
    with monkeypatch.context() as patch:
        patch.setattr(DeskConnector, "pull", raise_gone)
        with pytest.raises(GoneFromTool):
            ingestion.pull("desk", project)
    project = set_connectors(project, other="")
    assert retention.forget_connector("desk", project).dropped == 1
    assert release_counts(project) == {("prompt 2", "left 2"): 1}


def test_that_a_tool_is_gone_can_be_accepted_once_its_server_is_gone_too(two_released, monkeypatch):
    project, _ = two_released

    def answer_nothing(self, cursor=""):
        raise ConnectorError("nobody answers")
        yield

    monkeypatch.setattr(DeskConnector, "pull", answer_nothing)
    with pytest.raises(ConnectorError, match="nobody answers"):
        ingestion.reconcile("desk", project, accept_deletions=True)
    assert release_counts(project).total() == 2
    monkeypatch.setattr(DeskConnector, "pull", raise_gone)
    with pytest.raises(GoneFromTool):
        ingestion.pull("desk", project)
    monkeypatch.setattr(DeskConnector, "pull", answer_nothing)
    with pytest.raises(ConnectorError, match="nobody answers"):
        ingestion.reconcile("desk", project)
    assert ingestion.reconcile("desk", project, accept_deletions=True).deleted == 2
    assert OpenProject.open(project).answers.list_gone() == []


def test_what_was_released_under_one_of_its_questions_is_not_dropped(tool):
    project, desk = tool
    take_in(project, desk.answer("maria", 1, "left", harmless="right"))
    for question in ("helpful", "harmless"):
        release_counts(project, question=question)
    take_in(project, desk.answer("otto", 1, "left", harmless="right"))
    release_counts(project, question="helpful")
    found = retention.forget_connector("desk", project)
    assert (found.dropped, found.released) == (0, 2)


def test_nothing_that_an_unfinished_release_reads_is_forgotten(two_released):
    project, desk = two_released
    take_in(project, desk.answer("zoe", 2, "left"))
    with killed_in(Ledger, "mark_drawn"):
        release_counts(project)
    with pytest.raises(PolicyError, match="is unfinished"):
        retention.forget_connector("desk", project)
    assert release_counts(project).total() == 3
