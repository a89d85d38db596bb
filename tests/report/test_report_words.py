"""Words of the report: each number says of whom it is, and nothing promises more than holds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.held_out import EVALUATION, TEACHER, hold_out
from support.preferences import opinions, pairs, public
from support.surveys import survey

import labelguard as lg
from labelguard import clock
from labelguard.errors import LedgerError
from labelguard.ledger.ceilings import Ceiling
from labelguard.project import policies
from labelguard.project.project import Project
from labelguard.project.raising import raise_ceiling
from labelguard.project.runs import JobRun
from labelguard.release.sections import Section, Table
from labelguard.report import jobs
from labelguard.report.page import report
from labelguard.report.render import Report, html

ASKED = public()
TABLE = pairs(ASKED, opinions(len(ASKED), 1))
START = datetime(2026, 1, 5, tzinfo=UTC)


def section(told: Report, name: str) -> Section:
    [found] = [one for one in told.sections if one.id == name]
    return found


# ---------------------------------------------------------------- the promise


@pytest.fixture
def empty(tmp_path: Path) -> Project:
    return lg.init(tmp_path)


def test_the_ceiling_is_no_last_word(empty: Project) -> None:
    said = section(report(project=empty), "guarantee").text[1]
    assert "unless the ceiling is raised, which this report then shows" in said
    assert "labeler" not in said  # who is protected is not known yet
    assert dict(section(report(project=empty), "policies").facts)["ceiling raised"] == "never"
    raise_ceiling(Ceiling(12.0, 1e-4), empty)
    facts = dict(section(report(project=empty), "policies").facts)
    assert facts["ceiling"] == "ε = 12, δ = 0.0001" and facts["ceiling raised"].endswith(" UTC")


def test_a_promise_in_force_can_grow_beyond_a_ceiling_that_is_raised(empty: Project) -> None:
    lg.privatize(TABLE, project=empty, epsilon=3, delta=1e-5, mechanism="rr", unit="item")
    said = section(report(project=empty), "guarantee").text
    assert "unless the ceiling is raised, which this report then shows" in said[-1]
    assert "what an item's labels say" in said[1]


def test_a_release_of_a_project_without_any_is_none_yet(empty: Project) -> None:
    with pytest.raises(LedgerError, match=r"^r0001 names no release: none was committed yet"):
        report("r0001", empty)


# ---------------------------------------------------------------- of whom a number is


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, str]:
    """A project whose newest release evaluates, and its newest release to train on."""
    project = lg.init(tmp_path_factory.mktemp("held"), max_epsilon=100)
    hold_out(project, "statistic:releases=3")
    raw = survey(labelers=30)
    made = lg.privatize(raw, project=project, **TEACHER)
    lg.privatize(raw, project=project, **EVALUATION, head=made.id)
    return report(project=project), made.id


@pytest.mark.slow
def test_bound_and_dropped_labels_are_those_of_a_release_to_train_on(
    held: tuple[Report, str],
) -> None:
    told, newest = held
    rows = {str(row[0]): row for row in section(told, "releases").table.rows}  # type: ignore[union-attr]
    facts = dict(section(told, "left-out").facts)
    assert facts["newest release to train on"] == newest
    assert f"{rows[newest][6]:,}" == facts["labels in it"]


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A closed policy, and another in force."""
    project = lg.init(tmp_path_factory.mktemp("closed"))
    allow = ["rr:labels=40"]
    with clock.simulated(START):
        policies.new("one", epsilon=3, delta=1e-5, allow=allow, project=project)
        policies.activate("one", project)
        lg.privatize(TABLE.slice(0, 30), project=project, mechanism="rr")
        policies.new("two", epsilon=2, delta=1e-5, allow=allow, project=project)
        policies.activate("two", project)
        lg.privatize(TABLE.slice(30, 30), project=project, mechanism="rr")
    with clock.simulated(START + timedelta(weeks=10)):
        lg.privatize(TABLE.slice(60, 4), project=project, mechanism="rr")
        return report(project=project)


def test_what_is_used_says_of_whom(closed: Report) -> None:
    everybody = dict(section(closed, "used-rr").facts)["labelers"]
    used = dict(closed.summary)["randomized labels used"]
    share = used.split("%")[0]
    assert used == f"{share}% of the allowance of {everybody} labelers" and share.isdigit()


def test_one_label_is_one(tmp_path: Path) -> None:
    project = lg.init(tmp_path)
    allow = ["rr:labels=1"]
    policies.new("p", epsilon=3, delta=1e-5, allow=allow, project=project)
    policies.activate("p", project)
    lg.privatize(TABLE, project=project, mechanism="rr", exhausted="drop")
    told = report(project=project)
    assert section(told, "policies").table.rows[0][6] == "1 randomized label"  # type: ignore[union-attr]
    chart = section(told, "used-rr").chart
    assert chart and "most have used all of it" in chart.message
    assert [one.name for one in chart.series] == ["below 80%", "80% and more"]


def test_a_budget_stays_in_one_line_and_long_cells_wrap() -> None:
    table = Table(
        "T", ("id", "n", "why"), (("a b", 1, "it is not better than before, not at all"),)
    )
    part = Section("s", "S", ("In numbers: ε = 3, δ = 1e-5.",), table)
    page = html(Report("R", "2026-01-05T00:00:00Z", "0", True, (), (part,)))
    assert "ε\u00a0=\u00a03, δ\u00a0=\u00a01e-5" in page
    assert '<th scope="row">a b</th>' in page and '<td class="number">1</td>' in page
    assert '<td class="prose">it is' in page


# ---------------------------------------------------------------- jobs


def ran(number: int, **more: Any) -> JobRun:
    judged = more.pop("judged", {})
    facts: dict[str, Any] = {
        "job": "job",
        "run": number,
        "started_at": "2026-01-05T00:00:00Z",
        "ended_at": f"2026-01-05T00:{number:02d}:00Z",
        "outcome": "kept",
        "budget": "left",
        "why": "it is not better",
        "release": "r0001",
        "mechanism": "statistic",
        "new_labels": 5,
        "charged": 5,
        "model": None,
        "judgement": {
            "by": "held-out",
            "promote": False,
            "measure": "log-likelihood per label",
            "candidate": -0.759,
            "current": -0.761,
            "rows": 300,
        }
        | judged,
        "curve": [],
        "settings": {"step": "head", "options": {"windows": 8}},
    }
    return JobRun(**facts | more)


def told_of(*runs: JobRun) -> Section:
    [part] = jobs.sections(runs)
    return part


def test_a_model_worse_than_a_coin_is_called_that() -> None:
    part = told_of(ran(1), ran(2))
    chart = part.chart
    assert chart
    assert "Run 2: the candidate has log-likelihood per label -0.759" in chart.message
    assert "the model in use -0.761: not promoted" in chart.message
    assert "candidate (-0.759) and the model in use (-0.761) of the newest" in part.text[1]
    assert part.text[1].endswith("are below a coin (-0.693): guessing is better.")
    [mark] = chart.marks
    assert (mark.axis, round(mark.at, 3), mark.text) == ("y", -0.693, "a coin")
    better = {"candidate": -0.6, "current": -0.7}
    part = told_of(ran(1), ran(2, judged=better))
    assert "the model in use (-0.700) of the newest judgement is below a coin" in part.text[1]
    assert len(told_of(ran(1), ran(2, judged=better | {"current": None})).text) == 1


def test_accuracy_says_what_it_was_measured_on() -> None:
    judged = {"by": "probes", "measure": "accuracy", "candidate": 0.91, "current": 0.93, "rows": 1}
    judged |= {"promote": True}
    runs = ran(1, judged=judged), ran(2, judged=judged | {"rows": 1000}, outcome="promoted")
    chart = told_of(*runs).chart
    assert chart and not chart.marks and chart.title.endswith("on 1,000 public probes")
    assert chart.message == (
        "Run 2: the candidate has accuracy 0.910 on 1,000 public probes, the model in use 0.930: "
        "promoted."
    )


def test_a_job_is_named_and_says_how_many_windows_it_learns_from() -> None:
    part = told_of(ran(1, outcome="failed", why="disk full"))
    assert part.title == "The job job" and part.alert.startswith("The newest run of job failed")
    assert ("windows a model learns from", "8, the newest") in part.facts
    assert not told_of(ran(1, settings={})).facts
