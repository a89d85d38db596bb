"""A run that is killed anywhere is finished by the next start: one release, one charge, one model,
one line of history, as if nothing had happened.
"""

import shutil
from pathlib import Path

import pytest
from support import world
from support.copies import copy_project
from support.crashes import assert_sound, killed, steps_of
from support.crashes import seen as seen_of_project
from support.deaths import killed_in
from support.job_projects import Desk, desk
from support.preferences import files
from support.rounds import some

from labelguard.errors import LabelguardError
from labelguard.jobs import gates, releases
from labelguard.jobs.run import dry_run, retrain
from labelguard.jobs.state import JobState, Models, RunInProgress
from labelguard.project import attempts
from labelguard.report import overview

pytestmark = pytest.mark.usefixtures("same_in_every_process")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A project whose job ran once, and has new labels."""
    with pytest.MonkeyPatch.context() as patch:
        world.fix(patch)
        made = desk(tmp_path_factory.mktemp("jobs") / "base", promote={"keep": 1})
        retrain(made.job)
        made.label(2)
    return made.path


def copy(base, here):
    return Desk(copy_project(base, here))


def seen(one):
    """Everything in a project, and every file of its models."""
    own = {f"models/{name}": data for name, data in files(one.models).items()}
    return seen_of_project(one.path) | own


@pytest.mark.slow
def test_killed_at_any_step_a_run_ends_as_if_it_had_not_been(base, tmp_path):
    whole = copy(base, tmp_path / "whole")
    retrain(whole.job)
    expected = seen(whole)
    total = steps_of({"do": "retrain"}, copy(base, tmp_path / "base").path)
    steps = some(range(2, total), 40)
    places = [copy(base, tmp_path / f"killed at {step}") for step in steps]
    both = zip(places, steps, strict=True)
    killed(*({"do": "retrain", "project": str(one.path), "kill_at": step} for one, step in both))
    for one, step in zip(places, steps, strict=True):
        if len(one.history()) < 2 or (one.state / "run.json").exists():
            retrain(one.job)
        found = seen(one)
        different = [n for n in sorted({*found, *expected}) if found.get(n) != expected.get(n)]
        assert different == [], step
        assert_sound(one.path)
        shutil.rmtree(one.path)


@pytest.mark.quick("charge-90")
@pytest.mark.parametrize(
    ("moment", "uses"),
    [("charge", 90), ("start", 120), ("draw", 90), ("publish", 90), ("commit", 90)],
)
def test_labels_that_come_in_between_are_not_charged_twice(moment, uses, base, tmp_path):
    """But for labels that were being drawn: what was charged for them stays charged."""
    one = copy(base, tmp_path / "desk")
    killed({"do": "retrain", "project": str(one.path), "kill_after": moment})
    one.label(3)
    done = retrain(one.job)
    assert done.resumed and done.outcome == "promoted"
    if moment == "commit":  # the run has its release; what came later is of the next
        assert done.new_labels == 30
        assert retrain(one.job).new_labels == 30
    assert one.charged() == uses
    releases = overview.list_releases(one.path)
    assert not [line.state for line in releases if line.state in ("computing", "drawn")]
    assert releases[-1].rows == 90


@pytest.mark.slow
@pytest.mark.quick("charge")
@pytest.mark.parametrize("moment", ["charge", "draw", "commit"])
def test_a_dry_run_says_that_a_release_that_was_begun_is_finished(moment, base, tmp_path):
    one = copy(base, tmp_path / "desk")
    killed({"do": "retrain", "project": str(one.path), "kill_after": moment})
    said, charged = dry_run(one.job), one.charged()
    assert said.under_way == 2 and said.why == (
        "run 2 would be resumed: finishes the release already begun, charges nothing more"
    )
    assert (said.releases, said.new_labels, said.charged) == (True, 30, 0)
    assert (said.trains, said.promotes) == ("head", "models/0002")
    done = retrain(one.job)
    assert (done.run, done.new_labels, one.charged()) == (2, 30, charged)


STEPS = {
    "release": (releases, "make_release"),
    "judge": (gates, "judge"),
    "promote": (Models, "promote"),
    "history": (attempts, "append_job_run"),
    "forget": (JobState, "remove_run_in_progress"),
}


@pytest.mark.quick("release-before", "history-before")
@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_run_goes_on_from_the_step_that_it_had_come_to(step, before, base, tmp_path):
    one = copy(base, tmp_path / "desk")
    with killed_in(*STEPS[step], late=not before):
        retrain(one.job)
    if (step, before) != ("forget", False):
        done = retrain(one.job)
        assert done.resumed and (done.run, done.outcome, done.model) == (2, "promoted", "0002")
    assert [run.run for run in one.history()] == [1, 2]
    assert (one.charged(), len(one.committed()), len(one.registry())) == (60, 2, 2)
    assert not list(one.models.glob(".candidate*"))


@pytest.mark.slow
def test_the_release_of_another_job_is_not_taken_for_ones_own(tmp_path):
    one = desk(tmp_path / "desk", name="one", input="labels/1.parquet")
    one.label(2)
    one.asks(name="other", input="labels/2.parquet", promote={"directory": "others"})
    other = one.job.rename(one.path / "other.yaml")
    one.asks(name="one", input="labels/1.parquet")
    with killed_in(RunInProgress, "record_intent", late=True):
        retrain(one.job)
    theirs = retrain(other)
    done = retrain(one.job)
    assert done.resumed and done.release != theirs.release
    assert (done.charged, theirs.charged, one.charged()) == (30, 30, 60)


@pytest.mark.slow
def test_a_changed_job_gives_up_a_run_that_was_not_judged_and_keeps_its_release(base, tmp_path):
    one = copy(base, tmp_path / "desk")
    killed({"do": "retrain", "project": str(one.path), "kill_after": "commit"})
    one.asks(train={"options": {"features": "length", "components": 1, "ridge": 9.0}})
    done = retrain(one.job)
    assert not done.resumed and "abandoned" in done.notes[0]
    assert (done.run, done.outcome, done.charged) == (3, "promoted", 0)
    assert [run.outcome for run in one.history()] == ["promoted", "failed", "promoted"]
    assert one.charged() == 60 and len(one.committed()) == 2


@pytest.mark.slow
def test_a_changed_job_finishes_a_run_that_was_judged_as_it_began(base, tmp_path):
    one = copy(base, tmp_path / "desk")
    with killed_in(Models, "promote"):
        retrain(one.job)
    one.asks(promote={"directory": "elsewhere"})
    done = retrain(one.job)
    assert "finished as it began" in done.notes[0] and done.run == 3
    assert [run.model for run in one.history()][:2] == ["0001", "0002"]
    assert (one.models / "current").readlink() == Path("0002")


@pytest.mark.slow
def test_an_error_at_the_end_of_a_failed_run_begins_a_new_one(base, tmp_path, monkeypatch):
    one = copy(base, tmp_path / "desk")

    def refuse(*_, **__):
        raise LabelguardError("no")

    with monkeypatch.context() as patch, killed_in(JobState, "remove_run_in_progress"):
        patch.setattr(gates, "judge", refuse)
        retrain(one.job)
    done = retrain(one.job)
    assert (done.run, done.outcome, done.charged) == (3, "promoted", 0)
