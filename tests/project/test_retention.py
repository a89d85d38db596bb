"""A clock that is wrong once forgets nothing for good: what the journal bears out decides."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.commands import run
from support.releases import make_release
from support.times import simulate_time
from support.tools import connected, deliver

import labelguard as lg
from labelguard.project import ingestion
from labelguard.project.opening import OpenProject
from labelguard.project.retention import find_proven_time
from labelguard.report import doctor, overview

START = datetime(2026, 3, 2, 2, tzinfo=UTC)
OPEN: dict[str, Any] = {
    "mechanism": "rr",
    "epsilon": 2000.0,
    "delta": 0.0,
    "uses": 9,
    "accept_delta": True,
    "workers": 1,
}


class Clinic:
    """A project that keeps answers for 90 days, and its tool, from night 0 on."""

    def __init__(self, directory, patch):
        with night(0):
            project = lg.init(directory / "p", max_epsilon=10_000.0, max_delta=0.5)
        keep = '\n[ingest]\nkeep = "90d"\n'
        self.project, self.desk = connected(project, directory, patch, keep)
        self.task = 0

    def deliver(self, who):
        self.task += 1
        deliver(self.project, self.desk.answer(who, self.task, "left"))

    def release(self, when):
        """Two labelers' answers come, and are released."""
        with night(when):
            for who in ("maria", "otto"):
                self.deliver(who)
            ingestion.ingest(self.project)
            make_release(project=self.project, **OPEN)

    def ingest(self, when):
        with night(when):
            return ingestion.ingest(self.project)

    def count_answers(self):
        """How many answers are whole."""
        opened = OpenProject.open(self.project)
        files = opened.answers.files
        tables = [t for s in opened.answers.list_segments() for t in files.read(s).values()]
        return sum(len(t["body"].drop_null()) for t in tables if "body" in t.column_names)


def night(number):
    return simulate_time(START + timedelta(days=number))


@pytest.fixture
def clinic(tmp_path, monkeypatch):
    made = Clinic(tmp_path, monkeypatch)
    made.release(0)
    return made


def test_a_clock_that_is_once_ahead_forgets_nothing_and_release_goes_on(clinic):
    clinic.deliver("zoe")
    told = clinic.ingest(100)
    assert (told.answers, told.forgotten) == (1, 0) and "see that the clock is right" in told.waits
    assert clinic.ingest(100.01).forgotten == 0  # the worker's next round, by the same clock
    with night(100.02):
        make_release(project=clinic.project, **OPEN)
        found = {one.name: one for one in doctor.check_installation(clinic.project)}
        assert found["ingested answers"].notice
        assert "retention waits" in found["ingested answers"].detail
        said = run("ingest", "--project", clinic.project.state.parent)
        assert "retention waits: the clock says" in " ".join(said.output.split())
    # Set right, it waits a day more; then nothing was due.
    told = clinic.ingest(1)
    assert told.forgotten == 0 and "the journal has a later time" in told.waits
    # Wrong once more, a day after it was before.
    assert clinic.ingest(101.5).forgotten == 0
    assert [clinic.ingest(when).forgotten for when in (2, 3, 4)] == [0, 0, 0]
    assert clinic.ingest(4).waits == "" and clinic.count_answers() == 3
    assert overview.verify(clinic.project).ok


def test_a_project_that_rested_forgets_at_its_second_run(clinic):
    assert "retention waits" in clinic.ingest(100).waits
    told = clinic.ingest(101)
    assert (told.forgotten, told.waits, clinic.count_answers()) == (2, "", 0)
    journal = [entry.kind for entry in OpenProject.open(clinic.project).ledger.read_journal()]
    assert journal.count("clock") == 1


def test_a_project_that_works_once_a_month_forgets_what_was_due_the_month_before(clinic):
    for when in (30, 60):
        clinic.deliver("zoe")
        assert clinic.ingest(when).forgotten == 0
    clinic.release(91)
    assert clinic.count_answers() == 6
    told = clinic.ingest(122)
    assert (told.forgotten, told.waits) == (2, "")


def test_a_clock_that_is_behind_makes_nothing_old(clinic):
    clinic.release(-100)
    told = clinic.ingest(-99)
    assert told.forgotten == 0 and clinic.count_answers() == 4
    assert [clinic.ingest(when).forgotten for when in (1, 2, 89)] == [0, 0, 0]
    assert clinic.ingest(91).forgotten + clinic.ingest(92).forgotten == 4


def test_steady_work_forgets_on_the_day(clinic):
    for when in range(6, 90, 6):
        clinic.deliver("zoe")
        told = clinic.ingest(when)
        assert (told.forgotten, told.waits) == (0, "")
    assert clinic.ingest(90.1).forgotten == 2


@pytest.mark.parametrize(
    ("written", "now", "proven"),
    [
        ([0], 0, 0),
        ([0], 6.9, 6.9),
        ([0], 7.1, 0),
        ([0, 100], 100.5, 0),
        ([0, 100], 101, 101),
        ([0, 100, 1], 1, None),
        ([0, 100, 1], 2, 2),
        ([0, 100, 1], 101, 1),
        ([0, 0.03], 0, 0),
        ([0, 0.1], 0, None),
        ([0, -100], -99, -99),
        ([0, -100], -100, None),
        ([0, -100, 1], 1.2, -100),
    ],
)
def test_the_newest_time_that_a_journal_bears_out(written, now, proven):
    def text(days):
        return (START + timedelta(days=days)).strftime("%Y-%m-%dT%H:%M:%SZ")

    found = find_proven_time([text(days) for days in written], text(now))
    assert found == ("" if proven is None else text(proven))
