"""The forecast of a budget: exact numbers for labelers of known pace, and what it cannot know."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from support.preferences import STATISTIC

import labelguard as lg
from labelguard import clock
from labelguard.cli.main import main
from labelguard.errors import LabelguardError
from labelguard.ledger.ledger import Ledger
from labelguard.policy.policy import Allowance, Policy
from labelguard.project import erasure, policies
from labelguard.project.project import Project
from labelguard.project.recovery import abandon
from labelguard.report import overview
from labelguard.report.lasting import command
from labelguard.report.outlook import SILENT, Outlook, kept, outlook

MONDAY = datetime(2026, 1, 5, tzinfo=UTC)


def labels(week: int, paces: dict[str, int], label: int = 1) -> pa.Table:
    """A week of new labels: so many of each labeler."""
    who = [name for name, count in paces.items() for _ in range(count)]
    items = [f"{name} {week} {n}" for name, count in paces.items() for n in range(count)]
    return pa.table(
        {
            "prompt": items,
            "response_a": [f"one answer to {item}" for item in items],
            "response_b": [f"another answer to {item}, longer" for item in items],
            "label": pa.array([label] * len(who), pa.int8()),
            "labeler_id": who,
        }
    )


def weekly(project: Project, weeks: range, paces: dict[str, int], **options: Any) -> None:
    """A release of new labels each Monday."""
    options = {"mechanism": "rr", "exhausted": "drop"} | options
    for week in weeks:
        with clock.simulated(MONDAY + timedelta(weeks=week)):
            lg.privatize(labels(week, paces), project=project, **options)


def policy(project: Project, *allow: str, name: str = "clinic", **options: Any) -> None:
    options = {"epsilon": 3, "delta": 1e-5, "allow": allow} | options
    with clock.simulated(MONDAY):
        policies.new(name, project=project, **options)
        policies.activate(name, project)


def told(project: Project, week: float, weeks: int = 12) -> Outlook:
    with clock.simulated(MONDAY + timedelta(weeks=week, hours=1)):
        return outlook(project, weeks)


def test_everybody_goes_on_at_their_own_pace(project_on_each: Project) -> None:
    policy(project_on_each, "rr:labels=20")
    weekly(project_on_each, range(4), {"slow": 1, "even": 2, "fast": 4})
    found = told(project_on_each, 3)
    [one] = found.events
    assert (one.labelers, one.left, one.per_week) == (3, 0, 2.0)
    assert [week.used for week in one.weeks[:3]] == pytest.approx([28 / 60, 35 / 60, 38 / 60])
    # 16 of 20 are used at 4 a week; 8 of 20 at 2; 4 of 20 at 1.
    assert (one.first_exhausted, one.half_exhausted) == (1, 6)
    assert [week.exhausted for week in one.weeks] == [0, *[1] * 5, *[2] * 7]
    assert one.lasting and (one.lasting.allowed, one.lasting.allowed_for_all) == (208, 208)
    assert (found.policy, found.weeks_observed) == ("clinic", pytest.approx(3, abs=0.01))


def test_it_comes_true_where_everybody_does_as_before(project: Project) -> None:
    policy(project, "rr:labels=20")
    paces = {"slow": 1, "even": 2, "fast": 4}
    weekly(project, range(4), paces)
    before = told(project, 3)
    weekly(project, range(4, 9), paces)
    now = told(project, 8)
    [one] = kept([json.loads(json.dumps(asdict(before)))], now)
    assert (one.weeks, one.event, one.labelers_then, one.labelers) == (5.0, "rr", 3, 3)
    assert (one.used_forecast, one.exhausted_forecast) == pytest.approx((one.used, one.exhausted))
    # It can fail: somebody labels more than before.
    weekly(project, range(9, 10), {"slow": 11})
    [more] = kept([asdict(before)], told(project, 9))
    assert more.used > more.used_forecast + 0.1


def test_forecasts_that_say_nothing_of_today_are_left_out(project: Project) -> None:
    policy(project, "rr:labels=20")
    weekly(project, range(2), {"even": 2})
    before, now = asdict(told(project, 1, weeks=2)), told(project, 2)
    assert len(kept([before], now)) == 1
    assert not kept([before], told(project, 1.5)), "of less than a week ago"
    assert not kept([before], told(project, 4)), "it did not reach today"
    assert not kept([before | {"policy": "another"}], now)


def test_labels_have_no_part_in_it(tmp_path: Path) -> None:
    found = []
    for label in (0, 1):
        project = lg.init(tmp_path / str(label))
        policy(project, "rr:labels=20")
        for week in range(2):
            with clock.simulated(MONDAY + timedelta(weeks=week)):
                table = labels(week, {"even": 2, "fast": 4}, label)
                lg.privatize(table, project=project, mechanism="rr")
        found.append(told(project, 1))
    assert found[0] == found[1]


def test_before_any_charge_there_is_no_rate(project: Project) -> None:
    assert told(project, 0) == Outlook(
        "2026-01-05T01:00:00Z", None, 0.0, (), ("no policy is in force, so nothing can be charged",)
    )
    policy(project, "rr:labels=20")
    found = told(project, 1)
    [one] = found.events
    assert (one.labelers, one.first_exhausted, one.half_exhausted, one.lasting) == (0, *[None] * 3)
    assert {week.used for week in one.weeks} == {0.0}
    assert found.notes == ("nothing was charged yet, so there is no rate to go by",)


def test_releases_of_one_day_count_as_one_week(project: Project) -> None:
    policy(project, "rr:labels=20")
    weekly(project, range(1), {"even": 2})
    with clock.simulated(MONDAY + timedelta(hours=2)):
        lg.privatize(labels(77, {"even": 3}), project=project, mechanism="rr")
    found = told(project, 0.1)
    assert found.events[0].per_week == 5
    assert any("all releases are of one week" in note for note in found.notes)


def test_a_year_is_told_once_four_weeks_were_observed(project: Project) -> None:
    policy(project, "rr:labels=20")
    weekly(project, range(3), {"even": 2})
    early = told(project, 2.5)
    assert early.events[0].lasting is None
    assert any("once 4 weeks were observed" in note for note in early.notes)
    weekly(project, range(3, 4), {"even": 2})
    assert told(project, 3).events[0].lasting
    assert not any("once 4 weeks" in note for note in told(project, 3).notes)


def test_contents_have_no_pace(project: Project) -> None:
    policy(project, "rr:labels=20", unit="item")
    weekly(project, range(4), {"even": 2})
    found = told(project, 3)
    assert found.events == () and "protects contents" in found.notes[0]
    with clock.simulated(MONDAY + timedelta(weeks=3)):
        text = _run(project, "labelguard budget forecast").output
    assert "protects contents" in " ".join(text.split()) and "policy new" not in text


def test_one_release_is_said_to_be_one(project: Project) -> None:
    policy(project, "rr:labels=20")
    weekly(project, range(1), {"even": 2})
    assert any("one release so far" in note for note in told(project, 0).notes)


def test_who_is_silent_or_gone_is_in_no_number(project: Project) -> None:
    policy(project, "rr:labels=20")
    weekly(project, range(1), {"silent": 6, "retired": 6, "even": 2})
    weekly(project, range(1, SILENT + 2), {"even": 2})
    erasure.leave("retired", "retired", project)
    one = told(project, SILENT + 1).events[0]
    assert (one.labelers, one.left, one.per_week) == (1, 2, 2.0)


def test_who_is_exhausted_has_not_left_by_being_silent(project: Project) -> None:
    policy(project, "rr:labels=8")
    weekly(project, range(SILENT + 3), {"fast": 4, "slow": 0})
    one = told(project, SILENT + 2).events[0]
    assert (one.labelers, one.left, one.first_exhausted, one.per_week) == (1, 0, 0, 4.0)
    assert one.weeks[0].exhausted == 1 and one.weeks[0].used == 1.0


def test_an_abandoned_release_stays_charged_and_counts(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy(project, "rr:labels=20")

    def crash(*_: object) -> None:
        raise RuntimeError

    with monkeypatch.context() as patch, pytest.raises(RuntimeError):
        patch.setattr(Ledger, "commit", crash)
        weekly(project, range(1), {"even": 2})
    abandon(overview.releases(project)[0].id, project)
    weekly(project, range(1, 2), {"even": 2})
    assert told(project, 1).events[0].weeks[0].used == 4 / 20


def test_a_new_policy_goes_on_at_the_pace_under_the_old_one(project: Project) -> None:
    policy(project, "rr:labels=8")
    weekly(project, range(4), {"even": 2})
    policy(project, "rr:labels=40", name="next")
    one = told(project, 3).events[0]
    assert (one.labelers, one.per_week, one.weeks[0].used, one.first_exhausted) == (1, 2.0, 0.0, 20)
    policies.close(project)
    assert told(project, 3).policy is None


def test_own_numbers_of_labels_are_not_guessed(project: Project) -> None:
    weekly(project, range(2), {"even": 2}, epsilon=2, delta=1e-5)
    assert told(project, 1).events[0].first_exhausted == 2, "8 are allowed, 4 are used"


def test_two_kinds_of_events_last_together(project: Project) -> None:
    policy(project, "rr:labels=20", "statistic:releases=12", closing_points=4)
    weekly(project, range(4), {"even": 2, "fast": 4})
    weekly(project, range(4), {"even": 2}, **STATISTIC)
    found = told(project, 3)
    labels_, statistics = found.events
    assert (statistics.labelers, statistics.per_week, statistics.first_exhausted) == (1, 1.0, 8)
    assert labels_.lasting and statistics.lasting
    assert labels_.lasting.command == statistics.lasting.command
    assert (labels_.lasting.allowed, statistics.lasting.allowed) == (208, 52)
    assert statistics.lasting.price.noise == "gaussian"
    # The command makes just that policy, and says the noise that was told.
    result = _run(project, labels_.lasting.command)
    made = policies.show("year", project)
    assert result.exit_code == 0
    noise = {one.event: one for one in made.quote.events}
    assert noise["rr"] == labels_.lasting.price
    assert noise["statistic"] == statistics.lasting.price
    assert told(project, 3).events[0].lasting.command.startswith("labelguard policy new year-2 ")  # type: ignore[union-attr]


def test_a_year_of_one_statistic_keeps_ball_noise_and_one_of_several_cannot(
    project: Project,
) -> None:
    policy(project, "rr:labels=20", "statistic:releases=1,ball=4")
    weekly(project, range(4), {"even": 2})
    found = told(project, 3).events[0].lasting
    assert found and "--allow statistic:releases=1,ball=4" in found.command
    assert _run(project, found.command).exit_code == 0
    weekly(project, range(4, 5), {"even": 2}, **STATISTIC)
    year = next(one.lasting for one in told(project, 4).events if one.event == "statistic")
    assert year and (year.allowed, year.price.noise) == (52, "gaussian")
    assert "--allow statistic:releases=52" in year.command


def _run(project: Project, line: str) -> Any:
    return CliRunner().invoke(
        main, [*shlex.split(line)[1:], "--project", str(project.state.parent)]
    )


@pytest.mark.parametrize(
    "terms",
    [
        Policy(3, 1e-5, (Allowance("rr", 5),)),
        Policy(0.1 + 0.2, 1e-6 / 3, (Allowance("rr", 5),), ties="ternary", unit="item"),
        Policy(3, 1e-5, (Allowance("statistic", 12),), ties="zero", closing_points=3),
        Policy(3, 1e-5, (Allowance("statistic", 12),), ties="zero", held_out=0.1),
        Policy(
            2,
            1e-5,
            (Allowance("rr", 5, 1 / 3), Allowance("statistic", 2)),
            label_values="a=1,b=2",
            skips="tie",
            assignment_reactive=True,
        ),
        Policy(2, 1e-5, (Allowance("statistic", 2),), ties="drop", tie_status_public=True),
    ],
)
def test_the_command_makes_a_policy_on_the_same_terms(terms: Policy, project: Project) -> None:
    assert _run(project, command("same", terms)).exit_code == 0
    made = policies.show("same", project)
    assert Policy.from_json(terms.to_json()) == Policy(
        **{name: getattr(made, name) for name in asdict(terms)}
    )


def test_a_policy_above_the_ceiling_is_said_to_be(tmp_path: Path) -> None:
    low = lg.init(tmp_path / "low", max_epsilon=5)
    policy(low, "rr:labels=20")
    weekly(low, range(4), {"even": 2})
    lasting = told(low, 3).events[0].lasting
    assert lasting and (lasting.under_ceiling, lasting.total_epsilon) == (False, 6.0)
    with clock.simulated(MONDAY + timedelta(weeks=3, hours=1)):
        text = _run(low, "labelguard budget forecast").output
    assert "ε = 6, δ = 2e-5 of a ceiling of ε = 5, δ = 0.0001, above it" in text
    _run(low, lasting.command)
    assert _run(low, "labelguard policy activate year --yes").exit_code == 1
    # Beside a ceiling that is high enough it can be.
    high = lg.init(tmp_path / "high", max_epsilon=6)
    policy(high, "rr:labels=20")
    weekly(high, range(4), {"even": 2})
    assert told(high, 3).events[0].lasting == replace(
        lasting, under_ceiling=True, ceiling_epsilon=6
    )


def test_a_number_of_weeks_out_of_range_is_refused(project: Project) -> None:
    with pytest.raises(LabelguardError, match="weeks must be at least 1 and at most 520, found 0"):
        outlook(project, 0)
