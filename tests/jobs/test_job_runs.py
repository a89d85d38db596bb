"""A run does what is new and no more: release, train, judge, promote, and one line of history."""

import json
import os
import shutil
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from support import world
from support.commands import run
from support.job_projects import Desk, desk, labels
from support.preferences import files
from support.releases import make_release

import labelguard as lg
from labelguard.errors import InvalidLabels, LabelguardError, PolicyError, ProjectBusy
from labelguard.jobs import gates, start
from labelguard.jobs.run import dry_run, retrain
from labelguard.jobs.settings import build_job_schema
from labelguard.jobs.state import JobState
from labelguard.jobs.steps import HeadStep
from labelguard.project import attempts, erasure, policies
from labelguard.project.opening import OpenProject
from labelguard.release import item_keys
from labelguard.release.pairs_file import compute_item_keys, hold_out
from labelguard.release.privatize import plan
from labelguard.report import overview
from labelguard.report.overview import export_ledger


@pytest.fixture
def small(tmp_path):
    return desk(tmp_path / "desk")


def test_new_labels_make_a_release_and_a_model_in_use(small):
    done = retrain(small.job)
    assert (done.outcome, done.new_labels, done.charged, done.model) == ("promoted", 30, 30, "0001")
    assert (small.models / "current" / "head.npz").is_file()
    [entry] = small.registry()
    assert entry["release"] == done.release and entry["epsilon"] == 3.0
    assert entry["unit"] == "labeler" and set(entry["files"]) == {"head.npz", "TRAINING_CARD.md"}
    assert done.allowance and done.allowance.left_per_labeler["max"] > 0
    [run] = small.history()
    assert (run.outcome, run.model, run.release) == ("promoted", "0001", done.release)
    assert run.settings["step"] == "head" and not (small.state / "run.json").exists()


def test_without_anything_new_a_run_changes_nothing(small):
    first = retrain(small.job)
    for _ in range(2):
        again = retrain(small.job)
        assert (again.outcome, again.charged, again.release) == ("unchanged", 0, first.release)
    assert small.charged() == 30 and len(small.committed()) == 1
    assert [one.outcome for one in small.history()] == ["promoted", "unchanged", "unchanged"]
    small.label(2)
    done = retrain(small.job)
    assert (done.new_labels, done.charged, done.model) == (30, 30, "0002")
    assert [one.run for one in small.history()] == [1, 2, 3, 4]
    assert small.charged() == 60 and small.registry()[-1]["model"] == "0002"


def test_too_few_new_labels_wait_and_nothing_is_charged(small):
    small.asks(release={"min_new_labels": 31})
    done = retrain(small.job)
    assert (done.outcome, done.release, done.charged) == ("unchanged", None, 0)
    assert "30 new labels; at least 31" in done.why and small.committed() == []
    small.label(2)
    assert retrain(small.job).new_labels == 60


def test_a_gate_keeps_the_model_in_use_and_the_candidate_goes(small):
    retrain(small.job)
    small.label(2)
    small.asks(gate={"by": "released", "at_least": 1e6})
    done = retrain(small.job)
    assert (done.outcome, done.model) == ("rejected", "0001") and done.judgement
    assert done.judgement["cost"] == "nothing" and not done.judgement["promote"]
    names = sorted(path.name for path in small.models.iterdir())
    assert names == [".lock", "0001", "current", "registry.json"]
    assert retrain(small.job).outcome == "unchanged"  # it is not judged twice


def test_a_label_that_is_none_is_told_to_who_runs_the_job_alone(small):
    file = small.path / "labels" / "1.parquet"
    rows = pq.read_table(file)
    place = rows.column_names.index("label")
    pq.write_table(rows.set_column(place, "label", pa.array([9] * len(rows))), file)
    with pytest.raises(InvalidLabels, match="label"):
        retrain(small.job)
    assert [one.why for one in small.history()] == ["release failed"]
    assert b"InvalidLabels" not in (small.state / "history.jsonl").read_bytes()


def test_the_model_in_use_is_judged_by_no_label_that_it_learned_from(tmp_path):
    def taught(holdout):
        return {"options": {"features": "length", "components": 1, "holdout": holdout}}

    small = desk(tmp_path / "desk", train=taught(0.0))
    retrain(small.job)
    small.label(2)
    released = {"by": "released", "margin": 9.0}
    small.asks(gate=released, train=taught(0.5))
    with pytest.raises(LabelguardError, match="model in use \\(0001\\) may have learned from all"):
        retrain(small.job)
    assert small.charged() == 30
    small.asks(train=taught(0.2))
    retrain(small.job)
    small.asks(gate=released, train=taught(0.5))
    done = retrain(small.job)
    assert done.release and done.judgement and "held out from both models" in done.judgement["why"]
    items = compute_item_keys(lg.find(small.path).releases / done.release / "data.parquet")
    assert done.judgement["rows"] == hold_out(items, 0.2).sum() < hold_out(items, 0.5).sum()
    assert retrain(small.job).outcome == "unchanged"


def test_a_model_of_a_statistic_is_judged_by_no_released_label(small):
    retrain(small.job)
    register = small.models / "registry.json"
    text = register.read_text()
    register.write_text(text.replace('"mechanism": "rr"', '"mechanism": "statistic"'))
    small.asks(gate={"by": "released"})
    with pytest.raises(LabelguardError, match="may have learned from all"):
        retrain(small.job)


@pytest.mark.slow
def test_a_statistic_adds_windows(tmp_path):
    options = {"features": "length", "components": 1, "whitening": 0.5, "floor": 1e-3}
    options |= {"clip_quantile": 0.5, "ridge": 1.0, "workers": 1}
    release = {"mechanism": "statistic", "options": options}
    small = desk(tmp_path / "desk", ("statistic:releases=2",), release=release)
    assert retrain(small.job).charged == 5
    small.label(2)
    done = retrain(small.job)
    assert (done.new_labels, done.charged) == (30, 5)
    small.label(3)
    spent = retrain(small.job)
    assert (spent.outcome, spent.budget, spent.charged) == ("unchanged", "exhausted", 0)
    assert spent.release == done.release


def test_exhausted_labelers_stop_no_run_unless_it_is_to_be_strict(tmp_path):
    small = desk(tmp_path / "desk", ("rr:uses=6,block=1",))
    retrain(small.job)
    small.label(2)

    assert "0 left of each labeler; 5 of 5 have nothing left" in run("retrain", small.job).stdout
    for options, code in (((), 0), (("--strict",), 3), (("--dry-run", "--strict"), 3)):
        said = run("retrain", small.job, "--json", *options, code=code)
        assert json.loads(said.stdout)["budget"] == "exhausted"
    small.asks(release={"exhausted": "refuse"})
    run("retrain", small.job, "--strict", code=3)
    assert small.charged() == 30 and small.history()[-1].budget == "exhausted"


@pytest.mark.slow
def test_labels_that_wait_behind_exhausted_labelers_are_told_every_night(tmp_path):
    small = desk(tmp_path / "desk", ("rr:uses=8,block=1",))
    retrain(small.job)
    small.label(2)  # two more of each labeler can be released, and four cannot
    assert retrain(small.job).new_labels == 10
    why = "nothing new can be released: 20 labels are beyond their labelers' allowance"
    foreseen, night = dry_run(small.job), retrain(small.job)
    assert (foreseen.budget, foreseen.why) == ("exhausted", why)
    assert (night.budget, night.charged) == ("exhausted", 0) and why in night.why
    run("retrain", small.job, "--strict", code=3)
    small.asks(release={"min_new_labels": 21})
    assert (dry_run(small.job).budget, retrain(small.job).budget) == ("left", "left")


@pytest.mark.slow
def test_an_exhausted_project_trains_on_what_was_released_before(tmp_path):
    small = desk(tmp_path / "desk", ("rr:uses=6,block=1",))
    make_release(str(small.path / "labels/1.parquet"), mechanism="rr", project=small.path)
    small.label(2)
    done = retrain(small.job)
    assert (done.outcome, done.budget, done.charged) == ("promoted", "exhausted", 0)


def test_a_machine_agrees_to_nothing(tmp_path):
    small = Desk(tmp_path / "desk")
    (small.path / "labels").mkdir(parents=True)
    lg.init(small.path)
    small.asks()
    small.label(1)
    with pytest.raises(PolicyError, match="policy in force"):
        retrain(small.job)
    assert policies.listing(small.path) == [] and small.committed() == []
    assert small.history() == [] and not (small.state / "run.json").exists()  # nothing was begun


def test_a_directory_that_no_model_can_be_promoted_into_is_said_before_anything_begins(
    small, monkeypatch
):
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != small.path and access(path, mode))
    for act in (dry_run, retrain):
        with pytest.raises(LabelguardError, match=r"promote\.directory: .* is not writable"):
            act(small.job)
    assert small.charged() == 0 and small.history() == [] and not small.models.exists()
    small.asks(promote={"directory": "job.yaml/models"})  # beneath a file there is none
    with pytest.raises(LabelguardError, match=r"promote\.directory"):
        dry_run(small.job)


def test_what_the_policy_does_not_pay_for_is_refused_at_the_start(small):
    small.asks(release={"mechanism": "statistic"})
    for act in (dry_run, retrain):
        with pytest.raises(PolicyError, match="pays for rr only"):
            act(small.job)
    assert small.charged() == 0


def test_a_failed_step_fails_the_run_and_the_next_one_goes_on_from_what_was_released(
    small, monkeypatch
):
    def fail(*_, **__):
        raise LabelguardError("no judge today")

    with monkeypatch.context() as patch, pytest.raises(LabelguardError, match="no judge") as error:
        patch.setattr(gates, "judge", fail)
        retrain(small.job)
    log = small.state / "errors.log"
    assert "in fail" in log.read_text() and str(log) in error.value.__notes__[0]
    small.asks(gate={"by": "probes", "probes": "nowhere.parquet"})
    with pytest.raises(LabelguardError):
        retrain(small.job)  # where a check fails, no run was begun
    small.asks()
    assert retrain(small.job).outcome == "promoted"
    assert [one.outcome for one in small.history()] == ["failed", "promoted"]
    assert small.charged() == 30


@pytest.mark.parametrize("number", [float("nan"), float("inf"), np.float32(1)])
def test_what_a_step_says_that_is_no_json_fails_the_run_and_not_the_next_one(
    number, small, monkeypatch
):
    train = HeadStep.train

    def diverged(self, task):
        return replace(train(self, task), curve=[{"step": 1.0, "loss": number}])

    with monkeypatch.context() as patch:
        patch.setattr(HeadStep, "train", diverged)
        with pytest.raises(LabelguardError, match=r"^train: .*finite"):
            retrain(small.job)
    assert [one.why for one in small.history()] == ["train failed: LabelguardError"]
    assert retrain(small.job).outcome == "promoted"


def test_of_two_at_once_one_works_and_the_other_is_told(small):
    state = JobState(lg.find(small.path), "job")
    with state.lock():
        assert "under way" in run("retrain", small.job, code=4).stderr
    assert retrain(small.job).run == 1


@pytest.mark.slow
def test_a_busy_project_leaves_the_run_under_way(small):
    with OpenProject.hold_for_job(small.path), pytest.raises(ProjectBusy):
        retrain(small.job)
    assert small.history() == []
    done = retrain(small.job)
    assert done.resumed and (done.run, done.outcome) == (1, "promoted")


@pytest.mark.slow
def test_a_person_may_go_back_to_an_older_model(small):
    retrain(small.job)
    small.label(2)
    retrain(small.job)
    (small.models / "current").unlink()
    (small.models / "current").symlink_to("0001")
    assert retrain(small.job).model == "0001"
    small.label(3)
    assert retrain(small.job).model == "0003"


def test_the_state_is_the_users_own_and_a_torn_line_of_history_does_not_count(small):
    retrain(small.job)
    for path in (small.state, small.state.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    history = small.state / attempts.HISTORY
    assert stat.S_IMODE(history.stat().st_mode) == 0o600
    with history.open("a") as file:
        file.write('{"job": "jo')
    assert len(small.history()) == 1
    retrain(small.job)
    assert [one.run for one in small.history()] == [1, 2]


@pytest.mark.slow
def test_a_model_that_was_lost_is_learned_again_at_no_price(small):
    retrain(small.job)
    shutil.rmtree(small.models)
    done = retrain(small.job)
    assert (done.outcome, done.model, done.charged) == ("promoted", "0001", 0)


@pytest.mark.quick(".labelguard/jobs", "..")
@pytest.mark.parametrize("directory", [".labelguard", ".labelguard/jobs", ".", ".."])
def test_models_lie_apart_from_the_projects_state(directory, small):
    small.asks(promote={"directory": directory})
    before = sorted(path.name for path in (small.path / ".labelguard").rglob("*"))
    with pytest.raises(LabelguardError, match=r"promote\.directory"):
        dry_run(small.job)
    assert sorted(path.name for path in (small.path / ".labelguard").rglob("*")) == before
    with pytest.raises(LabelguardError, match=r"promote\.directory"):
        retrain(small.job)
    assert small.charged() == 0


def test_labels_of_somebody_who_left_are_in_no_later_model(small):
    retrain(small.job)
    erasure.remove_labeler("worker 1", "erased", project=small.path)
    small.label(2)
    done = retrain(small.job)
    assert done.new_labels == 24
    assert "12 rows of 1 retired or erased labeler left out" in done.notes


# A first job: written from the project, accepted as it is, and looked at before it runs.


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def enough(path):
    """More labels than a written job waits for."""
    table = pa.concat_tables(map(labels, range(4)))
    words = {0: "B", 0.5: "tie", 1: "A"}  # they name a side, as a job says no coding yet
    named = pa.array(map(words.get, table["label"].to_pylist()))
    pq.write_table(table.drop_columns("label").append_column("label", named), path)


@pytest.mark.quick("allow0")
@pytest.mark.parametrize(
    ("allow", "mechanism", "gate"),
    [
        (("rr:uses=64,block=1",), "rr", "released"),
        (("statistic:releases=4",), "statistic", "none"),
        (("rr:uses=64,block=1", "statistic:releases=4"), "rr", "released"),
    ],
)
def test_the_job_that_is_written_runs_under_the_policy_in_force(allow, mechanism, gate, here):
    small = desk(here / "desk", allow)
    small.job.unlink()
    enough(small.path / "labels.parquet")
    said = start.write_job(small.job, small.path)
    assert not said.drafted and said.policy == "lasting"
    text = small.job.read_text()
    found = yaml.safe_load(text)
    jsonschema.Draft202012Validator(build_job_schema()).validate(found)
    assert (found["release"]["mechanism"], found["gate"]["by"]) == (mechanism, gate)
    assert found["project"] == "." and text.count("#") > 10
    outcome = retrain(small.job).outcome
    assert outcome == "promoted" or (gate == "released" and outcome == "rejected")


def of_the_release(here, source, **options):
    """The job of a project whose first release was this one; a dry run of it passes."""
    lg.init(here)
    make_release(source, epsilon=3.0, project=here, **options)
    start.write_job(here / "job.yaml", here)
    said = dry_run(here / "job.yaml", project=here)
    assert not said.releases and "0 new labels" in said.why
    found: dict[str, Any] = yaml.safe_load((here / "job.yaml").read_text())
    return found


def test_a_job_takes_over_input_columns_and_mechanism_of_the_last_release(here):
    (here / "data").mkdir()
    table = labels(1).rename_columns({"labeler_id": "worker"})
    pq.write_table(table, here / "data" / "one.parquet")
    found = of_the_release(here, "data/*.parquet", mechanism="rr", columns={"labeler_id": "worker"})
    assert found["input"] == "data/*.parquet" and found["release"]["mechanism"] == "rr"
    assert found["release"]["options"] == {
        "columns": {"labeler_id": "worker"},
        "label_values": "1-0",
    }
    assert found["gate"]["at_least"] == 0.5
    other = here / "jobs" / "job.yaml"
    other.parent.mkdir()
    start.write_job(other, here)
    assert not dry_run(other).releases  # a job elsewhere finds the same files


def test_a_job_takes_over_features_and_public_columns_of_the_last_release(here):
    pq.write_table(labels(1), here / "labels.parquet")
    found = of_the_release(
        here,
        str(here / "labels.parquet"),
        mechanism="statistic",
        features="columns:score",
        public_columns=["score"],
    )
    assert found["release"] == {
        "mechanism": "statistic",
        "min_new_labels": 100,
        "exhausted": "drop",
        "options": {
            "features": "columns:score",
            "label_values": "1-0",
            "public_columns": ["score"],
        },
    }


def test_a_job_takes_a_gate_that_can_judge_its_heads(here, monkeypatch):
    world.fix(monkeypatch)
    small = desk(here / "desk", ("rr:uses=64,block=1", "statistic:releases=3"), 0.5)
    retrain(small.job)  # a head of length alone
    one, head = str(small.path / "labels/1.parquet"), str(small.models / "0001")
    make_release(one, project=small.path, mechanism="evaluation", head=head)
    for mechanism, gate in (("rr", "held-out"), ("statistic", "none")):
        if mechanism == "statistic":
            make_release(one, project=small.path, mechanism=mechanism, features="length+style")
        small.job.unlink()
        start.write_job(small.job, small.path)
        found = yaml.safe_load(small.job.read_text())
        found["promote"]["directory"] = gate  # other heads are in the first
        small.job.write_text(yaml.safe_dump(found))
        assert (found["release"]["mechanism"], found["gate"]["by"]) == (mechanism, gate)
        assert not dry_run(small.job).releases


def test_the_place_of_an_input_is_in_the_ledger_and_in_nothing_that_leaves_it(here):
    pq.write_table(labels(1), here / "the-place.parquet")
    of_the_release(here, "the-place.parquet", mechanism="rr")
    export_ledger(here / "ledger.json", here)
    assert b"the-place" in (here / ".labelguard" / "ledger.sqlite3").read_bytes()
    for path in (here / "ledger.json", *(here / ".labelguard" / "releases").rglob("*")):
        assert path.is_dir() or b"the-place" not in path.read_bytes()


def test_without_a_policy_a_draft_is_made_that_pays_for_the_gate(here, monkeypatch):
    world.fix(monkeypatch)
    monkeypatch.setattr(start, "_HELD_OUT", 0.5)  # of five people, somebody is
    lg.init(here)
    enough(here / "labels.parquet")
    assert "labelguard policy activate retraining" in run("retrain", "--init").stdout
    assert start.write_job(here / "b.yaml", here).drafted
    [draft] = policies.listing(here)
    assert draft.state == "draft" and set(draft.allowances) == {"rr", "statistic"}
    assert policies.show("retraining", here).held_out == 0.5
    assert yaml.safe_load(Path("job.yaml").read_text())["gate"]["by"] == "held-out"
    with pytest.raises(PolicyError, match="labelguard policy activate retraining"):
        retrain(here / "job.yaml")
    run("policy", "show", "retraining")
    run("policy", "activate", "retraining", "--yes")
    run("retrain", "--dry-run")
    run("retrain")
    Path("job.yaml").unlink()
    assert not start.write_job(here / "job.yaml", here).drafted


def test_a_file_that_is_there_stays_as_it_is(here):
    small = desk(here / "desk")
    before = small.job.read_bytes()
    with pytest.raises(LabelguardError, match="exists"):
        start.write_job(small.job, small.path)
    link = here / "link.yaml"
    link.symlink_to(here / "nowhere.yaml")
    with pytest.raises(LabelguardError, match="exists"):
        start.write_job(link, small.path)
    assert small.job.read_bytes() == before and not (here / "nowhere.yaml").exists()


def observe(small):
    found = files(small.path)
    return {name: data for name, data in found.items() if not name.endswith("lock")}


def test_a_dry_run_says_what_a_run_then_does_and_writes_nothing(here):
    small = desk(here / "desk")
    before = observe(small)
    said = dry_run(small.job)
    assert (said.releases, said.new_labels, said.charged) == (True, 30, 30)
    assert (said.trains, said.replaces, said.promotes) == ("head", None, "models/0001")
    assert observe(small) == before and not small.models.exists()
    done = retrain(small.job)
    assert (done.new_labels, done.charged, done.model) == (30, 30, "0001")
    again = dry_run(small.job)
    assert (again.releases, again.trains, again.promotes) == (False, None, None)
    assert again.gate == "not asked"
    small.label(2)
    small.asks(release={"min_new_labels": 31})
    few = dry_run(small.job)
    assert not few.releases and "30 new labels; at least 31" in few.why and few.charged == 0
    assert few.budget == "left"


def test_what_excludes_each_other_is_wrong_usage(here):
    run("retrain", "--init", "--dry-run", code=2)


def test_a_first_job_whose_gate_has_nobody_to_judge_by_charges_nothing(here, monkeypatch):
    """Of five labelers a tenth is held out: nobody, by their keys. That is known before."""
    world.fix_randomness(monkeypatch, world.repeatable_bytes("3"))
    lg.init(here)
    enough(here / "labels.parquet")
    said = start.write_job(here / "job.yaml", here)
    policies.activate(said.policy, here)
    for act in (dry_run, retrain):
        with pytest.raises(LabelguardError, match=r"no labeler in this input is held out.*another"):
            act(here / "job.yaml", project=here)
    assert [one.used for one in overview.read_budget(here).allowances] == [0, 0]
    for command in (("retrain", "job.yaml", "--dry-run"), ("retrain", "job.yaml")):
        assert "nothing was charged: wait for labels of more labelers, or" in " ".join(
            run(*command, code=1).output.split()
        )


def test_a_gate_without_an_item_that_is_held_out_charges_nothing(here):
    train = {"options": {"features": "length", "components": 1, "holdout": 1e-3}}
    small = desk(here / "desk", train=train, gate={"by": "released"})
    for act in (dry_run, retrain):
        with pytest.raises(LabelguardError, match=r"no item in .* than 0.001 or another"):
            act(small.job)
    assert small.charged() == 0
    train["options"]["holdout"] = 0.5
    small.asks(train=train, gate={"by": "released"})
    assert dry_run(small.job).charged == retrain(small.job).charged > 0


@pytest.mark.parametrize("chat", [False, True])
def test_what_is_held_out_of_a_release_is_known_before_it(chat, here, monkeypatch):
    if chat:  # as where texts are large, which are looked at a bucket at a time
        monkeypatch.setattr(item_keys, "_SMALL", 0)
    lg.init(here)
    table = labels(1)
    if chat:
        names = ["prompt", "response_a", "response_b"]
        turns = [[[{"role": "user", "content": t}] for t in table[n].to_pylist()] for n in names]
        for name, column in zip(names, turns, strict=True):
            table = table.set_column(table.column_names.index(name), name, pa.array(column))
    options: dict[str, Any] = {"mechanism": "rr", "epsilon": 3.0, "project": here, "workers": 1}
    options["label_values"] = "1-0"
    foreseen = plan(table, **options).preview.least_holdout
    release = make_release(table, **options)
    items = compute_item_keys(here / ".labelguard/releases" / release.id / "data.parquet")
    assert foreseen == min(items) / 2**64


def test_where_there_is_no_text_none_is_held_out(tmp_path):
    assert item_keys.find_least_holdout(tmp_path) == 1.0
