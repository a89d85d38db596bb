"""The gate by labelers who are held out: charged, said, and made once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support import world
from support.job_projects import Desk, desk

from labelguard.cli.main import main
from labelguard.errors import LabelguardError, PolicyError
from labelguard.jobs import releasing
from labelguard.jobs.dry_run import dry_run
from labelguard.jobs.run import retrain
from labelguard.policy.events import in_words
from labelguard.release.writer import Release
from labelguard.report import overview


@pytest.fixture(autouse=True)
def the_same_are_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    world.fix(monkeypatch)


GATE = {"by": "held-out", "margin": 9.0}
BOTH = ("rr:labels=64", "statistic:releases=3")


def judged(here: Path) -> Desk:
    return desk(here / "desk", BOTH, 0.5, gate=GATE)


def mechanisms(small: Desk) -> list[str]:
    return [one.mechanism for one in overview.releases(small.path) if one.state == "committed"]


def test_every_model_is_judged_by_one_charged_statistic(tmp_path: Path) -> None:
    small = judged(tmp_path)
    assert "charges each of them one" in dry_run(small.job).gate
    first = retrain(small.job)
    assert first.outcome == "promoted" and first.judgement
    assert first.judgement["measure"] == "log-likelihood per label"
    assert "held out" in first.judgement["cost"] and first.judgement["current"] is None
    held = small.charged() - first.new_labels
    assert 0 < held < 5 and first.charged == small.charged()
    assert first.charged_by == {"rr": first.new_labels, "statistic": held}
    assert small.history()[0].charged_by == first.charged_by
    small.label(2)
    second = retrain(small.job)
    assert second.judgement and second.judgement["difference"] is not None
    assert mechanisms(small) == ["rr", "evaluation"] * 2
    runs = small.history()
    assert [run.evaluation for run in runs] == [small.committed()[1], small.committed()[3]]
    assert (
        small.charged()
        == first.charged + second.charged
        == 2 * held + sum(run.new_labels for run in runs)
    )
    small.label(3)
    said = CliRunner().invoke(main, ["retrain", str(small.job)]).stdout
    charged = in_words(small.history()[-1].charged_by)
    assert " randomized labels and " in charged and charged in " ".join(said.split())


def test_without_new_labels_of_theirs_the_newest_evaluation_is_read_again(tmp_path: Path) -> None:
    small = judged(tmp_path)
    first = retrain(small.job)
    options = {"features": "length", "components": 1, "holdout": 0.2}
    small.asks(train={"options": options}, gate=GATE)
    done = retrain(small.job)
    assert (done.outcome, done.charged) == ("promoted", 0)
    assert [run.evaluation for run in small.history()] == [small.committed()[1]] * 2
    assert first.release == done.release


class Killed(BaseException):
    """The end of a process, but for the process."""


def test_an_evaluation_is_charged_once_whatever_kills_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = judged(tmp_path)
    whole = releasing.privatize

    def fatal(*arguments: Any, **options: Any) -> Release:
        made = whole(*arguments, **options)
        if options["mechanism"] == "evaluation":
            raise Killed
        return made

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(releasing, "privatize", fatal)
        retrain(small.job)
    spent = small.charged()
    small.label(2)
    done = retrain(small.job)
    assert done.resumed and small.charged() == spent == done.charged
    assert mechanisms(small) == ["rr", "evaluation"]


def test_heads_in_other_coordinates_are_refused_before_anything_is_charged(tmp_path: Path) -> None:
    small = judged(tmp_path)
    retrain(small.job)
    spent = small.charged()
    small.asks(train={"options": {"features": "text+length", "components": 1}}, gate=GATE)
    with pytest.raises(LabelguardError, match="coordinates"):
        retrain(small.job)
    assert small.charged() == spent and mechanisms(small) == ["rr", "evaluation"]


@pytest.mark.parametrize(
    ("allow", "share", "said"),
    [(("rr:labels=64",), 0.5, "paid for as statistic"), (BOTH, 0.0, "--held-out")],
)
def test_a_policy_that_does_not_pay_for_the_gate_is_refused_at_the_start(
    allow: tuple[str, ...], share: float, said: str, tmp_path: Path
) -> None:
    small = desk(tmp_path / "desk", allow, share, gate={"by": "held-out"})
    with pytest.raises(PolicyError, match=said):
        retrain(small.job)
    assert small.charged() == 0
