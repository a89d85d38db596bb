"""The worker releases what was heard, when [hook.release] says so and the policy pays for it."""

import json
import sqlite3
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from labelguard_connectors.hook import logs
from labelguard_connectors.hook.serving import RetryResult, dead_letters, retry
from labelguard_connectors.hook.worker import Worker
from support import hooks, tools
from support.clients import client
from support.commands import run
from support.lives import put_into_force
from support.releases import make_release
from support.times import simulate_time

from labelguard.answers.connector import Page, Unreadable
from labelguard.answers.inbox import FILE, Inbox
from labelguard.answers.store import WorkerState
from labelguard.errors import ConnectorError, InvalidLabels, PolicyError, ProjectError
from labelguard.project import attempts, ingestion, policies
from labelguard.project.linking import add_source, link_table, link_two_ids
from labelguard.project.opening import OpenProject
from labelguard.project.project import CONFIG, find
from labelguard.report import doctor, overview
from labelguard.report.page import report, write_report


class Clinic:
    """A project with a policy, a tool, and a worker whose days pass when it is told so."""

    def __init__(self, project, directory, patch, release, allow="rr:uses=50,block=1"):
        put_into_force(project, "clinic", allow)
        self.project, self.desk = tools.connected(
            project, directory, patch, f"[hook.release]\n{release}"
        )
        self.day, self.task = 1, 0

    def worker(self):
        """A worker that has just been started."""
        return Worker(self.project, lambda: f"2026-11-{self.day:02}")

    def annotate(self, answers):
        """So many answers are given, and the hook hears them."""
        told = []
        for _ in range(answers):
            self.task += 1
            side = "left" if self.task % 3 else "right"
            told.append(self.desk.answer(f"worker {self.task % 4}", self.task, side))
        tools.deliver(self.project, *told)


@pytest.fixture
def make(project, tmp_path, monkeypatch):
    """A clinic with these lines of [hook.release], and what its policy allows."""
    return partial(Clinic, project, tmp_path, monkeypatch)


def rows(project):
    """How many labels each release has."""
    return [line.rows for line in overview.list_releases(project)]


def test_every_n_answers_there_is_a_release_of_all_so_far(make):
    clinic = make('when = "every:10"\nmechanism = "rr"')
    worker = clinic.worker()
    clinic.annotate(9)
    assert worker.turn().releases == []
    clinic.annotate(1)
    assert len(worker.turn().releases) == 1
    clinic.annotate(9)
    assert worker.turn().releases == []
    clinic.annotate(3)
    done = clinic.worker().turn()  # another worker knows how far the last one had come
    assert (len(done.releases), done.failed) == (1, [])
    assert rows(clinic.project) == [10, 22]
    assert worker.turn().releases == []


def test_every_day_there_is_a_release_if_there_is_something_new(make):
    clinic = make('when = "daily"\nmechanism = "rr"')
    worker = clinic.worker()
    clinic.annotate(5)
    assert len(worker.turn().releases) == 1
    clinic.annotate(5)
    assert worker.turn().releases == []
    clinic.day += 1
    assert len(worker.turn().releases) == 1
    clinic.day += 1
    assert worker.turn().releases == []


def test_by_hand_nothing_is_released_but_what_was_heard_is_taken_in(make):
    clinic = make('when = "manual"')
    clinic.annotate(5)
    done = clinic.worker().turn()
    assert (done.answers, done.releases) == (5, [])


@pytest.mark.slow
def test_once_a_day_what_the_hook_missed_is_read_from_the_tool(make):
    clinic = make('when = "manual"')
    worker = clinic.worker()
    clinic.desk.answer("worker 1", 1, "left")  # nobody heard it
    assert worker.turn().answers == 1
    clinic.desk.answer("worker 2", 1, "left")
    assert worker.turn().answers == 0
    clinic.day += 1
    assert worker.turn().answers == 1


def test_releases_are_published_once_and_again_after_a_failure(make, monkeypatch):
    clinic = make('when = "every:5"\nmechanism = "rr"\npush = true')
    clinic.annotate(5)
    pushed: list[str] = []

    def refuse(self, release, name, progress):
        pushed.append(name)
        raise ConnectorError("the tool is down")

    with monkeypatch.context() as patch:
        patch.setattr(tools.DeskConnector, "push", refuse)
        worker = clinic.worker()
        done = worker.turn()
        assert (len(done.releases), done.published) == (1, [])
        assert done.failed == ["push desk: the tool is down"]
        worker.turn()
        assert len(pushed) == 1  # later, not at once again
    (where,) = clinic.worker().turn().published
    assert json.loads(Path(where).read_text())["release"] == pushed[0]
    assert clinic.worker().turn().published == []


def test_no_release_is_made_where_labelers_are_exhausted(make):
    clinic = make('when = "every:8"\nmechanism = "rr"', "rr:uses=2,block=1")
    clinic.annotate(8)
    worker = clinic.worker()
    assert len(worker.turn().releases) == 1
    clinic.annotate(8)
    done = worker.turn()
    assert done.releases == []
    assert done.failed[0].startswith("release desk: ")
    assert worker.turn().failed == []


def test_a_machine_agrees_to_no_policy_and_releases_once_there_is_one(
    project, tmp_path, monkeypatch
):
    found, desk = tools.connected(
        project, tmp_path, monkeypatch, '[hook.release]\nwhen = "every:2"\nmechanism = "rr"'
    )
    worker = Worker(found)
    assert worker.outlook[0].startswith("nothing is released, for no policy is in force")
    assert worker.turn() == Worker(found).turn()  # nothing is due
    tools.deliver(found, *(desk.answer("ann", n, "left") for n in (1, 2)))
    done = worker.turn()
    assert (done.answers, done.releases, overview.list_releases(found)) == (2, [], [])
    assert done.failed[0].startswith("release desk: nothing is released, for no policy is in")
    first = doctor.check_installation(found)[0]
    assert not first.ok and "no policy is in force" in first.detail
    policies.new("late", project=found, epsilon=3, delta=1e-5, allow=["rr:uses=4,block=1"])
    policies.activate("late", found)
    later = Worker(found)
    assert len(later.turn().releases) == 1
    assert (
        Worker(found)
        .outlook[1]
        .endswith("of the median labeler are left; 0 labelers have none left")
    )


def test_statistics_after_so_many_answers_must_be_named_by_the_policy(make):
    clinic = make('when = "every:10"\nmechanism = "statistic"', "statistic:releases=1")
    with pytest.raises(PolicyError, match=r"and policy clinic allows 1; let a policy name"):
        clinic.worker()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('when = "hourly"', "release.when: expected manual, every:500, completed or daily"),
        ('mechanism = "magic"', "release.mechanism: expected one of"),
        ('when = "completed"', "connector desk .desk. cannot tell"),
    ],
)
def test_settings_that_cannot_be_are_refused(make, line, said):
    with pytest.raises((ProjectError, ConnectorError), match=said):
        make(line).worker()


def test_a_tool_that_takes_no_releases_is_not_given_any(make, monkeypatch):
    monkeypatch.delattr(tools.DeskConnector, "push")
    with pytest.raises(ConnectorError, match=r"connector desk .desk. takes no releases"):
        make("push = true").worker()


@pytest.mark.slow
def test_completed_waits_until_the_tool_says_so(make, monkeypatch):
    said = [False]
    monkeypatch.setattr(tools.DeskConnector, "is_completed", lambda self: said[0], raising=False)
    clinic = make('when = "completed"\nmechanism = "rr"')
    clinic.annotate(4)
    worker = clinic.worker()
    assert worker.turn().releases == []
    said[0] = True
    assert len(worker.turn().releases) == 1
    assert worker.turn().releases == []


def test_while_another_job_holds_the_project_it_waits(make):
    clinic = make('when = "every:4"\nmechanism = "rr"')
    clinic.annotate(4)
    worker = clinic.worker()
    with OpenProject.hold_for_job(clinic.project):
        done = worker.turn()
        assert (done.answers, done.releases, done.failed) == (0, [], [])
    assert len(worker.turn().releases) == 1


def test_events_that_keep_arriving_prolong_no_round_and_releases_are_made(make, monkeypatch):
    """A round takes what waited when it began: one segment, one entry, then others' turn."""
    clinic = make('when = "every:5"\nmechanism = "rr"')
    arriving = [5] * 30
    read = Inbox.read_claimed

    def hear(inbox, segment):
        if arriving:
            clinic.annotate(arriving.pop())
        return read(inbox, segment)

    monkeypatch.setattr(Inbox, "read_claimed", hear)
    worker = clinic.worker()
    worker.turn()  # reads the tool once
    clinic.annotate(5)
    for _ in range(3):
        before = count_work(clinic.project)
        done = worker.turn()
        assert (done.answers, len(done.releases), done.failed) == (5, 1, [])
        segments, entries, waiting = count_work(clinic.project)
        assert (segments, entries) == (before[0] + 1, before[1] + 1)
        assert waiting == 5


def count_work(project):
    """How many segments there are, entries of ingestion in the journal, and events that wait."""
    opened = OpenProject.open(project)
    held = opened.answers.count_stored()
    kinds = [entry.kind for entry in opened.ledger.read_journal()]
    return held.segments, kinds.count("ingested"), held.waiting


def test_a_file_that_is_not_the_workers_stops_it(make):
    clinic = make('when = "manual"')
    (clinic.project.state / "worker.json").write_text("[]")
    with pytest.raises(ProjectError, match="was not written by a worker"):
        WorkerState.read(clinic.project.state)
    assert "was not written by a worker" in clinic.worker().turn().failed[0]


# What may happen to the hook's worker, and to what it keeps.


@pytest.fixture
def connected(project, tmp_path, monkeypatch):
    policies.new("clinic", project=project, epsilon=3, delta=1e-5, allow=["rr:uses=50,block=1"])
    policies.activate("clinic", project)
    config = '[hook.release]\nwhen = "every:4"\nmechanism = "rr"\npush = true'
    return tools.connected(project, tmp_path, monkeypatch, config)


def test_an_error_that_nobody_foresaw_neither_ends_the_worker_nor_is_repeated(
    connected, monkeypatch, capfd
):
    project, desk = connected
    tools.deliver(project, *[desk.answer(f"worker {i}", i, "left") for i in range(4)])

    def stumble(*_):
        raise KeyError(hooks.LABEL)

    monkeypatch.setattr(tools.DeskConnector, "push", stumble)
    done = Worker(project).turn()
    assert (len(done.releases), done.failed) == (1, ["push desk: KeyError"])
    assert hooks.LABEL not in "".join(capfd.readouterr())


def test_the_length_of_what_waits_does_not_tell_a_label(connected):
    project, desk = connected
    for number in (1, 10, 100):  # base64 hides what differs within three bytes
        record = desk.answer("worker 1", number, "left")["record"]
        tools.deliver(project, desk.change(record, "left"), desk.change(record, "right"))
    inbox = sqlite3.connect(project.state / FILE)
    lengths = [length for (length,) in inbox.execute("SELECT length(body) FROM events")]
    inbox.close()
    assert len(lengths) == 6
    assert lengths[::2] == lengths[1::2]


# A release that a machine fails to make is seen: in metrics, doctor, /status and the report.


def read_pages(project):
    """What the hook's metrics say of releases, and /status."""
    with client(project, serves=False) as (tool, _):
        lines = tool.get("/metrics").text.splitlines()
        status = tool.get("/status").json()
    own = ("labelguard_releases", "labelguard_last", "labelguard_hook_last")
    values = (line.rsplit(" ", 1) for line in lines if line.startswith(own))
    return {name: float(value) for name, value in values}, status


def test_a_failing_worker_is_seen_until_a_release_succeeds(project, tmp_path, monkeypatch, capfd):
    logs.configure()
    policies.new("clinic", project=project, epsilon=3, delta=1e-5, allow=["rr:uses=1,block=1"])
    policies.activate("clinic", project)
    table = '[hook.release]\nwhen = "every:1"\nmechanism = "rr"'
    project, desk = tools.connected(project, tmp_path, monkeypatch, table)
    tools.deliver(project, desk.answer("ann", 1, "left"))
    assert len(Worker(project).turn().releases) == 1
    good, status = read_pages(project)
    assert set(good.values()) >= {0} and good["labelguard_last_release_timestamp"] > 1.7e9
    assert (status["releases"], status["worker"]) == ("ok", "none (--no-worker)")
    assert status["exhausted_labelers"] == 1
    [budget] = [one for one in doctor.check_installation(project) if one.name == "budget"]
    assert budget.ok and budget.notice and "1 labeler with no randomized block" in budget.detail

    tools.deliver(project, desk.answer("ann", 2, "left"))
    assert Worker(project).turn().failed
    [line] = [line for line in capfd.readouterr().err.splitlines() if '"failed"' in line]
    details = Path(json.loads(line)["details"])
    assert "1 of 1 labeler" in details.read_text() and details.stat().st_mode & 0o777 == 0o600
    bad, status = read_pages(project)
    assert bad['labelguard_releases_failed_total{reason="budget"}'] == 1
    assert "1 attempt failed" in status["releases"]
    first = doctor.check_installation(project)[0]
    assert not first.ok and "lack" in first.detail
    write_report(tmp_path / "report.json", project=project)
    assert "Releases fail" in (tmp_path / "report.json").read_text()

    tools.deliver(project, desk.answer("bob", 3, "left"))
    make_release(project=project, mechanism="rr", exhausted="drop")
    after, status = read_pages(project)
    assert after == bad | {"labelguard_last_release_timestamp": pytest.approx(time.time(), abs=60)}
    assert status["releases"] == "ok"
    assert doctor.check_installation(project)[0].name != "releases"


def test_a_reconciliation_that_never_worked_is_seen_until_it_does(make, monkeypatch):
    clinic = make('when = "manual"')
    clinic.annotate(1)

    def refuse(*_):
        raise ConnectorError("connector desk: no api_key")

    with monkeypatch.context() as patch:
        patch.setattr(tools.DeskConnector, "pull", refuse)
        clinic.worker().turn()
    for day, overdue in ((2, False), (3, True)):
        with simulate_time(datetime(2026, 11, day, tzinfo=UTC)):
            shown = {one.id: one for one in report(project=clinic.project).sections}
            checked = check(clinic.project, "deliveries")
        never = ("desk", "reconciled", "never (failing since 2026-11-01)")
        assert shown["hook"].table and never in shown["hook"].table.rows
        assert any("Reconciliation of desk" in one for one in shown["to-do"].points) == overdue
        assert checked.ok != overdue and checked.notice != overdue
        assert "no api_key" in checked.detail
        lines, status = read_pages(clinic.project)
        assert lines['labelguard_hook_last_reconcile_timestamp{connector="desk"}'] == 0
        assert status["reconciled"] == {"desk": never[2]}
    clinic.day = 3
    clinic.worker().turn()
    with simulate_time(datetime(2026, 11, 3, tzinfo=UTC)):
        checked = check(clinic.project, "deliveries")
    assert checked.ok and not checked.notice
    assert "desk reconciled: 2026-11-03; 0 dead letters" in checked.detail
    lines, status = read_pages(clinic.project)
    day = datetime(2026, 11, 3, tzinfo=UTC).timestamp()
    assert lines['labelguard_hook_last_reconcile_timestamp{connector="desk"}'] == day
    assert status["reconciled"] == {"desk": "2026-11-03"}


def test_of_a_files_label_outside_the_domain_no_trace_is_kept(project):
    row = {"prompt": "p", "response_a": "a", "response_b": "b", "labeler_id": "ann"}
    with pytest.raises(InvalidLabels):
        make_release([row | {"label": "neither"}], project=project, mechanism="rr", epsilon=1)
    assert attempts.read_attempts(project) == attempts.Attempts()
    with pytest.raises(InvalidLabels):
        make_release([row], project=project, mechanism="rr", epsilon=1)
    kept = json.loads((project.state / attempts.FILE).read_bytes())
    assert kept["failed"] == {"input": 1}


# What a project would lose without a word: deliveries of another project, sources not added.


def label_studio_event(project):
    return {"action": "ANNOTATIONS_DELETED", "project": {"id": project}, "annotations": [{"id": 5}]}


def check(project, name):
    return next(one for one in doctor.check_installation(project) if one.name == name)


@pytest.fixture
def clinic(project, monkeypatch):
    table = '[connectors.clinic]\nkind = "label-studio"\nurl = "https://x.org"\nproject = 1\n'
    with (project.state / CONFIG).open("a") as file:
        file.write(f"\n{table}")
    monkeypatch.setenv("LABELGUARD_CLINIC_HOOK_SECRET", hooks.SECRET)
    return find(project.state.parent)


def test_deliveries_of_another_project_of_the_tool_are_told_once(clinic, capfd):
    logs.configure()
    with client(clinic) as (tool, _):
        for number in (77, 77, 78):
            body = json.dumps(label_studio_event(number))
            assert tool.post("/hooks/clinic", content=body, headers=hooks.headers()).is_success
        page, status = tool.get("/metrics").text, tool.get("/status").json()
        assert 'labelguard_hook_ignored_deliveries_total{connector="clinic"} 3.0' in page
        said = status["ignored"]["clinic"]
        assert ["project 77," in said[0], "project 78," in said[1], len(said)] == [True, True, 2]
    lines = [line for line in capfd.readouterr().err.splitlines() if "ignored" in line]
    assert len(lines) == 2 and all("labelguard.toml names 1" in line for line in lines)
    shown = check(clinic, "deliveries")
    assert (
        shown.notice and "clinic ignores deliveries: the delivery is of project 78" in shown.detail
    )
    with client(clinic) as (tool, _):  # started again
        assert not check(clinic, "deliveries").notice
        body = json.dumps(label_studio_event(1))
        assert tool.post("/hooks/clinic", content=body, headers=hooks.headers()).is_success
        assert 'deliveries_total{connector="clinic"} 0.0' in tool.get("/metrics").text
        assert tool.get("/status").json()["ignored"] == {}


def connect_released(project, directory, patch):
    """A project with one release, of one labeler of files, and the tool that it is connected to."""
    policies.new("clinic", project=project, epsilon=3, delta=1e-5, allow=["rr:uses=4,block=1"])
    policies.activate("clinic", project)
    row = {"prompt": "p", "response_a": "a", "response_b": "b", "labeler_id": "z", "label": 1}
    make_release([row], project=project, mechanism="rr")
    table = '[hook.release]\nwhen = "every:1"\nmechanism = "rr"'
    connected, desk = tools.connected(project, directory, patch, table)
    return connected, desk


def test_a_source_that_was_not_added_is_said_and_released_once_it_is(
    project, tmp_path, monkeypatch
):
    connected, desk = connect_released(project, tmp_path, monkeypatch)
    shown = check(connected, "sources")
    assert shown.ok and shown.notice and "labelguard source add desk" in shown.detail
    tools.deliver(connected, desk.answer("ann", 1, "left"))
    worker = Worker(connected)
    assert worker.turn().failed and not worker.turn().failed  # later, not at once
    add_source("desk", "new", connected)
    assert len(worker.turn().releases) == 1
    shown = check(connected, "sources")
    assert not shown.notice and {*shown.detail.split(", ")} == {"files (first)", "desk (new)"}


@pytest.mark.parametrize("confirmed", ["by a table", "by word"])
def test_a_source_whose_people_are_known_is_held_until_they_are_linked(
    confirmed, project, tmp_path, monkeypatch
):
    connected, desk = connect_released(project, tmp_path, monkeypatch)
    add_source("desk", "known", connected)
    tools.deliver(connected, desk.answer("zoe", 1, "left"))
    worker = Worker(connected)
    [why] = worker.turn().failed
    shown = check(connected, "sources")
    for text in (why, shown.detail):
        assert "people link FILE" in text and "source add desk --people linked" in text
    assert shown.notice and "desk (known)" in shown.detail
    link_two_ids("desk:zoe", "files:z", connected)  # perhaps the first of several
    assert not worker.turn().releases and check(connected, "sources").notice
    if confirmed == "by a table":
        path = tmp_path / "people.csv"
        path.write_text("desk,files\nzoe,z\n")
        link_table(path, connected)
    else:
        add_source("desk", "linked", connected)
    assert len(worker.turn().releases) == 1
    assert "desk (linked)" in check(connected, "sources").detail
    for people in ("known", "new", "linked"):
        with pytest.raises(PolicyError, match="source of this project already"):
            add_source("desk", people, connected)


def test_dead_letters_are_discarded_by_their_numbers(tmp_path, monkeypatch):
    made = hooks.project(tmp_path, monkeypatch)
    with client(made) as (tool, _):
        for body in (b"[]", b"1", b"{"):
            assert tool.post("/hooks/clinic", content=body, headers=hooks.headers()).is_error
    command = ("hook", "dead-letters", "--discard")
    assert "there is no dead letter 9" in run(*command, "1", "9", code=1, project=made).stderr
    shown = run(*command, "1", "3", project=made)
    assert shown.stdout == "Discarded 2 dead letters (deliveries that could not be read).\n"
    assert [letter.number for letter in dead_letters(made)] == [2]


def test_what_a_pull_could_not_read_is_read_again_by_a_retry(project, tmp_path, monkeypatch):
    monkeypatch.setenv("LABELGUARD_DESK_HOOK_SECRET", hooks.SECRET)
    made, desk = tools.connected(project, tmp_path, monkeypatch)
    for task in (1, 2):
        desk.answer("ann", task, "left")
    whole = tools.DeskConnector.pull

    def pull(self, cursor=""):
        for page in whole(self, cursor):
            kept = [one for one in page.answers if one.record != "1"]
            left = [Unreadable(one.record, "too large") for one in page.answers if one not in kept]
            yield Page(kept, page.cursor, left)

    with monkeypatch.context() as patch:
        patch.setattr(tools.DeskConnector, "pull", pull)
        assert ingestion.pull("desk", made).answers == 1
        assert [one.why for one in dead_letters(made)] == ["answer 1: too large"]
        still = retry(made)
        assert (still.understood, len(still.left)) == (0, 1)
    assert ingestion.pull("desk", made).answers == 0  # it goes on from where it was
    assert [one.bytes for one in dead_letters(made)] == [0]
    assert retry(made) == RetryResult(1, [])
    assert dead_letters(made) == [] and OpenProject.open(made).answers.count_stored().answers == 2
