"""A first job: written from the project, accepted as it is, and looked at before it runs."""

from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from support import world
from support.commands import run
from support.job_projects import desk, labels
from support.preferences import files

import labelguard as lg
from labelguard.errors import LabelguardError, PolicyError
from labelguard.jobs import start
from labelguard.jobs.run import dry_run, retrain
from labelguard.jobs.settings import build_job_schema
from labelguard.project import policies
from labelguard.release.pairs_file import compute_item_keys
from labelguard.release.privatize import plan
from labelguard.report import overview
from labelguard.report.overview import export_ledger


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def enough(path):
    """More labels than a written job waits for."""
    pq.write_table(pa.concat_tables(map(labels, range(4))), path)


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
    lg.privatize(source, epsilon=3.0, project=here, **options)
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
    assert found["release"]["options"] == {"columns": {"labeler_id": "worker"}}
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
        "options": {"features": "columns:score", "public_columns": ["score"]},
    }


def test_a_job_takes_a_gate_that_can_judge_its_heads(here, monkeypatch):
    world.fix(monkeypatch)
    small = desk(here / "desk", ("rr:uses=64,block=1", "statistic:releases=3"), 0.5)
    retrain(small.job)  # a head of length alone
    one, head = str(small.path / "labels/1.parquet"), str(small.models / "0001")
    lg.privatize(one, project=small.path, mechanism="evaluation", head=head)
    for mechanism, gate in (("rr", "held-out"), ("statistic", "none")):
        if mechanism == "statistic":
            lg.privatize(one, project=small.path, mechanism=mechanism, features="length+style")
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
def test_what_is_held_out_of_a_release_is_known_before_it(chat, here):
    lg.init(here)
    table = labels(1)
    if chat:
        names = ["prompt", "response_a", "response_b"]
        turns = [[[{"role": "user", "content": t}] for t in table[n].to_pylist()] for n in names]
        for name, column in zip(names, turns, strict=True):
            table = table.set_column(table.column_names.index(name), name, pa.array(column))
    options: dict[str, Any] = {"mechanism": "rr", "epsilon": 3.0, "project": here, "workers": 1}
    foreseen = plan(table, **options).preview.least_holdout
    release = lg.privatize(table, **options)
    items = compute_item_keys(here / ".labelguard/releases" / release.id / "data.parquet")
    assert foreseen == min(items) / 2**64
