"""A year in a minute: labelers come and go, preferences drift, the policy changes, and it holds.

The whole year is slow; a quarter of it runs always.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from labelguard import clock
from labelguard.cli.main import main
from labelguard.errors import ProjectError
from labelguard.jobs import year
from labelguard.jobs.curve import Week, picture, sparkline
from labelguard.jobs.drift import Drift
from labelguard.jobs.year import Year, YearConfig, first_monday, live
from labelguard.ledger import schema
from labelguard.project import runs
from labelguard.project.opening import OpenProject
from labelguard.report import overview

SHORT = YearConfig(weeks=12, items=300, windows=3)
STUBBORN = replace(SHORT, weeks=4, probes=12, confidence=1 - 1e-12)
"""A gate that wants to be all but certain, by few probes: it promotes the first model only."""


def follows(weeks: tuple[Week, ...]) -> bool:
    """Whether models kept up: in the last quarter, those in use against the best that there is."""
    last = weeks[-max(2, len(weeks) // 4) :]
    in_use = np.mean([one.in_use for one in last])
    return bool(in_use > np.mean([one.best for one in last]) - 0.1)


def beats_half_time(weeks: tuple[Week, ...]) -> bool:
    """Whether they are ahead of a model that is frozen at half-time, in the last quarter."""
    last = weeks[-len(weeks) // 4 :]
    return bool(np.mean([one.in_use - one.frozen for one in last]) > 0.04)


def above_allowance(project: Path) -> int:
    """Labelers whose charges, one by one, add up to more than a policy allows them."""
    ledger = OpenProject.open(project).ledger
    over = 0
    with ledger.snapshot() as connection:
        for record in ledger.policies():
            for event, allowance in record.allowance_ids.items():
                own, releases = schema.charges.c, schema.releases.c
                query = (
                    sa.select(sa.func.sum(own.labels))
                    .join_from(schema.charges, schema.releases, releases.number == own.release)
                    .where(releases.allowance_id == allowance)
                    .group_by(own.labeler)
                )
                allowed = record.policy.allowance(event).allowed
                assert allowed is not None
                used = list(connection.scalars(query))
                assert used, "somebody was charged under every policy"
                over += sum(one > allowed for one in used)
    return over


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Year:
    return live(tmp_path_factory.mktemp("lived") / "year", SHORT)


def check(lived: Year, config: YearConfig) -> None:
    """What holds of any year."""
    project = Path(lived.directory)
    assert above_allowance(project) == 0
    assert lived.holds and overview.verify(project).ok
    history = runs.runs(OpenProject.open(project).project)
    assert [one.run for one in history] == list(range(1, config.weeks + 1))
    assert {one.outcome for one in history} <= {"promoted", "kept"}
    days = [clock.read(one.started_at) for one in history]
    assert {later - day for day, later in pairwise(days)} == {timedelta(weeks=1)}
    assert all(one.outlook for one in history)
    first, second = OpenProject.open(project).ledger.policies()
    assert (first.state, second.state) == ("closed", "active")
    assert first.point == 2, "closed at the closing point that covers half of its uses"
    assert lived.labelers > config.labelers
    assert "<html" in Path(lived.report).read_text(encoding="utf-8")


def test_a_quarter_of_a_year_holds(lived: Year) -> None:
    check(lived, SHORT)


def test_models_follow_the_drift(lived: Year) -> None:
    assert follows(lived.weeks)
    assert beats_half_time(lived.weeks)


def test_a_gate_that_promotes_nothing_does_not_follow_it(tmp_path: Path) -> None:
    stubborn = live(tmp_path / "year", STUBBORN)
    assert [one.outcome for one in stubborn.weeks] == ["promoted", *["kept"] * 3]
    assert not follows(stubborn.weeks)
    assert not beats_half_time(stubborn.weeks)


def test_the_year_reads_well(lived: Year, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(year, "live", lambda *_, **__: lived)
    text = CliRunner().invoke(main, ["demo", "--year"]).output
    assert "12 weeks, 36,000 labels of" in text
    assert "ε = 4.04153, δ = 2e-5 over both policies" in text
    curve = text.rpartition("model in use ")[2].splitlines()[0]
    assert "█" in curve or "▇" in curve
    assert "Journal, charges and files hold." in text
    assert f"Next: labelguard report --project {lived.directory}" in text
    told = json.loads(CliRunner().invoke(main, ["demo", "--year", "--json"]).output)
    assert [one["week"] for one in told["weeks"]] == list(range(1, 13))


@pytest.mark.slow
def test_a_year_in_a_minute(tmp_path: Path) -> None:
    config = YearConfig()
    whole = live(tmp_path / "year", config)
    check(whole, config)
    assert follows(whole.weeks) and beats_half_time(whole.weeks)


def test_a_year_begins_in_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(ProjectError, match="is not empty"):
        live(tmp_path)


# ---------------------------------------------------------------- the world


@pytest.fixture
def world() -> Drift:
    found = Drift(weeks=10, labelers=40, per_week=5, items=30)
    found.turnover()
    return found


def test_the_same_seed_lives_the_same_year() -> None:
    def labels() -> Iterator[bytes]:
        world = Drift(weeks=3, labelers=20, per_week=4, items=30)
        for week in range(3):
            world.turnover()
            yield world.labels(week).write_csv().encode()

    assert list(labels()) == list(labels())


def test_weights_turn_by_120_degrees_and_keep_their_length(world: Drift) -> None:
    first, last = world.weights(0), world.weights(9)
    cosine = first @ last / np.linalg.norm(first) / np.linalg.norm(last)
    assert np.degrees(np.arccos(cosine)) == pytest.approx(120)
    assert np.linalg.norm(first) == pytest.approx(np.linalg.norm(last))


def test_whoever_knows_the_preferences_does_best_and_their_opposite_worst(world: Drift) -> None:
    exam = world.exam(0, 500)
    assert exam.expected(exam.gap) == exam.best > 0.7
    assert exam.expected(-exam.gap) == pytest.approx(1 - exam.best)
    assert world.exam(9, 500).expected(world.exam(0, 500).gap) < 0.65


def test_labelers_come_and_go_and_label_what_they_prefer(world: Drift) -> None:
    gone = [one for _ in range(30) for one in world.turnover()]
    assert len(gone) == len(set(gone)) == world.joined - 40 > 0
    labels = world.labels(0)
    assert labels["labeler_id"].n_unique() == 40 and len(labels) == 200
    assert not set(gone) & set(labels["labeler_id"])


def test_a_curve_is_drawn_between_its_ends() -> None:
    assert sparkline([0.0, 0.5, 1.0, 2.0, -1.0], 0.0, 1.0) == "▁▅██▁"
    one = Week(1, "promoted", "0001", 0.7, 0.7, 0.8)
    weeks = [replace(one, week=week) for week in range(1, 9)]
    assert picture(weeks) == picture(weeks) != picture(weeks[:-1])


def test_weeks_begin_on_mondays_and_end_with_the_last_one() -> None:
    for day in range(1, 15):
        today = datetime(2026, 3, day, 5, 30, tzinfo=UTC)
        with clock.simulated(today):
            begin = first_monday(52)
        assert begin.weekday() == 0
        assert timedelta(0) <= today - (begin + timedelta(weeks=51)) < timedelta(weeks=2)
