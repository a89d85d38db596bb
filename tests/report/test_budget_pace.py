"""How long an allowance lasts: exact weeks for labelers of a known rate."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from support.commands import run
from support.lives import put_into_force
from support.preferences import STATISTIC
from support.releases import make_release
from support.times import simulate_time

from labelguard.report import overview

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)
PACES = {"slow": 1, "even": 2, "fast": 4}


def labels(week, paces, label=1):
    """A week of new labels: so many of each labeler."""
    who = [name for name, count in paces.items() for _ in range(count)]
    items = [f"{name} {week} {n}" for name, count in paces.items() for n in range(count)]
    sides = {"response_a": "one answer", "response_b": "another answer, longer"}
    rows = [{"prompt": item, "labeler_id": w} | sides for item, w in zip(items, who, strict=True)]
    return pa.Table.from_pylist([row | {"label": label} for row in rows])


def weekly(project, weeks, paces, **options):
    """A release of new labels each Monday."""
    label = options.pop("label", 1)
    options = {"mechanism": "rr", "exhausted": "drop"} | options
    for week in weeks:
        with simulate_time(MONDAY + timedelta(weeks=week)):
            make_release(labels(week, paces, label), project=project, **options)


def weeks_left(project, week):
    """The weeks of each allowance, at a time after the first Monday."""
    with simulate_time(MONDAY + timedelta(weeks=week, hours=1)):
        return [one.weeks_left for one in overview.read_budget(project).allowances]


def test_use_is_counted_over_all_labelers():
    found = overview._summarize_usage("rr", [(8, 8, 2), (8, 3, 4), (16, 0, 1)], weeks=2)
    assert (found.labelers, found.allowed, found.used, found.left) == (7, 64, 28, 36)
    assert found.exhausted_labelers == 2
    assert found.left_per_labeler == {"min": 0, "25%": 0, "median": 5, "75%": 5, "max": 16}
    assert overview._summarize_usage("rr", [(8, 8, 1)], weeks=2).weeks_left == 0
    assert found.weeks_left == 4, "5 left at 3 in 2 weeks last for 10/3 weeks, which end in a 4th"


def test_the_median_labeler_goes_on_at_the_present_rate(project_on_each):
    put_into_force(project_on_each, "clinic", "rr:uses=20,block=1")
    assert weeks_left(project_on_each, 0) in ([], [None])
    weekly(project_on_each, range(4), PACES)
    assert weeks_left(project_on_each, 3) == [6], "12 of 20 are left, at 2 a week"
    assert weeks_left(project_on_each, 7) == [12], "8 in 8 weeks: 1 a week"
    assert "12 left, " in run("budget", "show", project=project_on_each).output


def test_there_is_no_rate_until_two_weeks_are_over_nor_by_a_clock_that_was_set_back(project):
    put_into_force(project, "clinic", "rr:uses=20,block=1")
    weekly(project, range(1), PACES)
    for week in (-3, 0, 1):
        assert weeks_left(project, week) == [None]
    assert weeks_left(project, 2) == [27], "18 of 20 are left, at 2 in 3 weeks"
    for week, shown in ((1, False), (2, True)):
        with simulate_time(MONDAY + timedelta(weeks=week, hours=1)):
            said = run("budget", "show", project=project).output
        assert ("at the present rate" in said) == shown


@pytest.mark.slow
def test_each_allowance_has_its_rate_under_the_policy_in_force(project):
    put_into_force(project, "clinic", "rr:uses=8,block=1")
    weekly(project, range(2), PACES)
    put_into_force(project, "next", "rr:uses=20,block=1", "statistic:releases=12")
    weekly(project, range(2, 4), PACES)
    weekly(project, range(3, 4), {"even": 2}, **STATISTIC)
    assert weeks_left(project, 5) == [16, 33], "16 labels at 4 in 4 weeks; 11 releases at 1 in 3"


def test_contents_have_no_rate(project):
    put_into_force(project, "clinic", "rr:uses=20,block=1", unit="item")
    weekly(project, range(2), PACES)
    assert weeks_left(project, 1) == [None]
