"""The gate by labelers who are held out: charged, said, and made once."""

import shutil
from typing import Any

import pytest
from support.commands import run
from support.deaths import killed_in
from support.job_projects import desk

from labelguard.budget.events import describe_uses
from labelguard.errors import LabelguardError, PolicyError
from labelguard.jobs import releases
from labelguard.jobs.run import dry_run, retrain
from labelguard.report import overview

pytestmark = pytest.mark.usefixtures("same_in_every_process")


GATE = {"by": "held-out", "margin": 9.0, "at_least": -99.0}
BOTH = ("rr:uses=64,block=1", "statistic:releases=3")


def make_desk(here):
    return desk(here / "desk", BOTH, 0.5, gate=GATE)


def mechanisms(small):
    return [one.mechanism for one in overview.list_releases(small.path) if one.state == "committed"]


@pytest.mark.slow
def test_every_model_is_judged_by_one_charged_statistic(tmp_path):
    small = make_desk(tmp_path)
    assert "charges each of them one" in dry_run(small.job).gate
    first = retrain(small.job)
    assert first.outcome == "promoted" and first.judgement
    assert first.judgement["measure"] == "log-likelihood per label"
    assert "held-out" in first.judgement["cost"] and first.judgement["current"] is None
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
    said = run("retrain", small.job).stdout
    charged = describe_uses(small.history()[-1].charged_by)
    assert " randomized blocks and " in charged and charged in " ".join(said.split())


def test_a_first_evaluation_promotes_by_its_whole_interval(tmp_path):
    small = desk(
        tmp_path / "desk", ("rr:uses=3", BOTH[1]), 0.5, gate={"by": "held-out", "at_least": -0.6}
    )
    first = retrain(small.job)
    assert (first.outcome, first.model) == ("rejected", None) and first.judgement
    low, high = first.judgement["interval"]
    assert low < -0.6 < first.judgement["candidate"] < high < 0


def test_without_new_labels_of_theirs_the_newest_evaluation_is_read_again(tmp_path):
    small = make_desk(tmp_path)
    first = retrain(small.job)
    options = {"features": "length", "components": 1, "holdout": 0.2}
    small.asks(train={"options": options}, gate=GATE)
    done = retrain(small.job)
    assert (done.outcome, done.charged, done.budget) == ("promoted", 0, "left")
    assert done.judgement and done.judgement["cost"].startswith("nothing: evaluation r0002-")
    assert [run.evaluation for run in small.history()] == [small.committed()[1]] * 2
    assert first.release == done.release


@pytest.mark.slow
def test_an_evaluation_that_nobody_can_pay_for_is_said_to_be_the_one_before(tmp_path):
    small = desk(tmp_path / "desk", ("rr:uses=64,block=1", "statistic:releases=1"), 0.5, gate=GATE)
    first = retrain(small.job)
    assert first.budget == "left"
    small.label(2)
    done = retrain(small.job)
    assert (done.outcome, done.budget) == ("promoted", "exhausted")
    assert done.new_labels == done.charged and done.judgement and first.judgement
    [_, evaluation, _] = small.committed()
    assert done.judgement["cost"] == f"nothing: evaluation {evaluation} was reused"
    assert small.history()[-1].budget == "exhausted"


def test_an_evaluation_is_charged_once_whatever_kills_the_run(tmp_path):
    small = make_desk(tmp_path)

    def evaluates(*_, **options):
        return options["mechanism"] == "evaluation"

    with killed_in(releases, "privatize", late=True, here=evaluates):
        retrain(small.job)
    spent = small.charged()
    small.label(2)
    done = retrain(small.job)
    assert done.resumed and small.charged() == spent == done.charged
    assert mechanisms(small) == ["rr", "evaluation"]


@pytest.mark.slow
def test_heads_in_other_coordinates_are_refused_before_anything_is_charged(tmp_path):
    small = make_desk(tmp_path)
    retrain(small.job)
    spent = small.charged()
    small.asks(train={"options": {"features": "text+length", "components": 1}}, gate=GATE)
    small.label(2)
    for act in (dry_run, retrain):
        with pytest.raises(LabelguardError, match=r"coordinates of r0002-.*--again --head"):
            act(small.job)
    assert small.charged() == spent and mechanisms(small) == ["rr", "evaluation"]


AXES = {"features": "text+length", "components": 2}


@pytest.mark.slow
@pytest.mark.parametrize("lost", [(), ("models",), ("models", ".labelguard/jobs")])
def test_models_stay_in_the_coordinates_of_the_evaluation_whatever_became_of_the_first(
    lost, tmp_path
):
    """Kept out by the gate, or gone with a restored backup: the next is judged all the same."""
    gate = GATE if lost else GATE | {"at_least": 9.0}
    small = desk(tmp_path / "desk", BOTH, 0.5, gate=gate, train={"options": AXES})
    assert retrain(small.job).outcome == ("promoted" if lost else "rejected")
    for name in lost:
        shutil.rmtree(small.path / name)
    small.label(2)
    small.asks(gate=GATE, train={"options": AXES | {"ridge": 9.0}})
    done = retrain(small.job)
    assert done.outcome == "promoted" and mechanisms(small) == ["rr", "evaluation"] * 2


@pytest.mark.slow
def test_a_model_in_use_that_the_gate_cannot_judge_is_found_before_anything_is_charged(tmp_path):
    small = desk(tmp_path / "desk", BOTH, 0.5, train={"options": AXES})
    retrain(small.job)  # there is a model, and no evaluation
    spent = small.charged()
    small.label(2)
    small.asks(gate=GATE)
    with pytest.raises(LabelguardError, match="judges in the coordinates of 0001"):
        retrain(small.job)
    assert small.charged() == spent
    small.asks(gate=GATE, train={"options": AXES})
    assert retrain(small.job).outcome == "promoted"
    small.asks()
    retrain(small.job)
    spent = small.charged()
    small.label(3)
    small.asks(gate=GATE, train={"options": AXES})
    with pytest.raises(LabelguardError, match="the model in use has other coordinates"):
        retrain(small.job)
    assert small.charged() == spent


@pytest.mark.parametrize(
    ("allow", "share", "said"),
    [(("rr:uses=64,block=1",), 0.5, "paid for as statistic"), (BOTH, 0.0, "--held-out")],
)
def test_a_policy_that_does_not_pay_for_the_gate_is_refused_at_the_start(
    allow, share, said, tmp_path
):
    small = desk(tmp_path / "desk", allow, share, gate={"by": "held-out"})
    with pytest.raises(PolicyError, match=said):
        retrain(small.job)
    assert small.charged() == 0


@pytest.mark.slow
def test_a_statistic_whose_axes_are_not_those_of_the_gate_is_not_begun(tmp_path):
    options = {"features": "length", "components": 1, "whitening": 0.5, "floor": 1e-3}
    options |= {"clip_quantile": 0.5, "ridge": 1.0, "workers": 1}
    statistic = {"mechanism": "statistic", "options": options}
    taught: dict[str, Any] = {"options": {}}
    allow = ("rr:uses=64,block=1", "statistic:releases=3")
    small = desk(tmp_path / "own", allow, 0.5, gate=GATE, release=statistic, train=taught)
    retrain(small.job)
    small.label(2)
    assert retrain(small.job).outcome == "promoted"
    assert mechanisms(small) == ["statistic", "evaluation"] * 2

    small = make_desk(tmp_path)
    retrain(small.job)
    spent = small.charged()
    small.asks(gate=GATE, release=statistic, train=taught)
    with pytest.raises(LabelguardError, match="a first statistic has its own coordinates"):
        retrain(small.job)
    assert small.charged() == spent
