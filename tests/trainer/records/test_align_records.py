"""`align` with `private: records`: what comes out, who pays, what is refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from labelguard_trainer.gradient import loop
from labelguard_trainer.records import align as records_align
from support import train_runs, world
from support.commands import run
from support.deaths import killed_in
from support.releases import make_release
from support.whole_records import PEOPLE, RECIPE, RL, SFT, follow, write_all
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import labelguard as lg
from labelguard.errors import (
    BudgetExceeded,
    InvalidLabels,
    LabelguardError,
    PolicyError,
    ProjectError,
)
from labelguard.project.opening import OpenProject
from labelguard.release.model_card import find_learned_releases


def charged(project="project"):
    """(capacity, used, number of people) of the ledger."""
    return OpenProject.open(project).ledger.releases.usage().get("records", [])


@pytest.mark.slow
def test_three_models_come_out_and_everybody_pays_for_their_part(aligned):
    assert sorted(path.name for path in Path("aligned").iterdir()) == [
        *("CARD.md", "SHA256SUMS", "card.json", "reward", "rl", "sft")
    ]
    for name in ("sft", "rl"):
        AutoModelForCausalLM.from_pretrained(f"aligned/{name}")
    AutoModelForSequenceClassification.from_pretrained("aligned/reward")
    assert charged() == [(1, 1, 3 * PEOPLE)]
    card = json.loads(Path("aligned/card.json").read_text())
    privacy = card["privacy"]
    assert (privacy["unit"], privacy["adjacency"]) == ("user", "zero_out")
    assert (privacy["epsilon"], privacy["delta"]) == (4.0, 1e-5)
    assert "parallel composition" in privacy["accounting"]
    begun = {one["stage"]: one["base"] for one in card["training"]["stages"]}
    assert begun == {"sft": "base", "reward": "sft", "rl": "sft"}
    assert "base_model" not in Path("aligned/rl/TRAINING_CARD.md").read_text(), "it is a directory"
    [learned] = find_learned_releases("aligned/rl", private=True)
    assert (learned.release, learned.epsilon, learned.unit) == (card["release"], 4.0, "user")
    assert not list(Path("project/.labelguard/props").glob("r*")), "no checkpoint is left"


@pytest.mark.slow
def test_the_same_recipe_is_answered_once_and_charges_nothing(aligned):
    before = Path("aligned/rl/model.safetensors").read_bytes()
    result = follow("again")
    assert result.reused
    assert Path("again/rl/model.safetensors").read_bytes() == before
    assert charged() == [(1, 1, 3 * PEOPLE)]


@pytest.mark.slow
def test_the_command_says_what_was_made(records):
    Path("recipe.yaml").write_text(yaml.safe_dump(SFT))
    arguments = ["align", "recipe.yaml", "-o", "out", "--project", "project"]
    done = run(*arguments)
    assert "2 steps on 24 records of 12 users" in done.stdout
    assert "ε = 4, δ = 1e-5 for every user, under zero_out" in done.stdout
    assert "done whole" in run("align", "sft", *arguments[1:], code=2).output


def test_a_person_in_two_parts_is_refused_where_one_stage_is_paid(records):
    write_all(same=True)
    with pytest.raises(PolicyError, match="12 users of 12 would be in more stages than the 1"):
        follow()
    assert charged() == []


@pytest.mark.slow
def test_people_in_all_parts_are_protected_by_prices_that_add(records):
    write_all(same=True)
    result = follow("out", stages=3)
    assert charged() == [(3, 3, PEOPLE)]
    quote = lg.policies.show(project="project").quote
    assert quote.epsilon <= 4.0 and result.epsilon == 4.0
    assert "adaptive composition" in Path("out/CARD.md").read_text()


@pytest.mark.slow
def test_single_records_are_protected_where_the_recipe_says_so(records):
    table = pq.read_table("demonstrations.parquet").drop_columns("user_id")
    ids = pa.array(range(len(table)))
    pq.write_table(table.append_column("record_id", ids), "demonstrations.parquet")
    result = follow(recipe=SFT, unit="record")
    assert result.unit == "record"
    assert charged() == [(1, 1, 2 * PEOPLE)]


@pytest.mark.parametrize(
    "terms",
    [{"q": 0.4}, {"steps": 3}, {"updates": 4}, {"stages": 3}, {"epsilon": 5.0}, {"unit": "record"}],
    ids=str,
)
def test_other_terms_than_were_priced_are_refused(aligned, terms):
    with pytest.raises(PolicyError, match=f"policy has {next(iter(terms))}: "):
        follow(**terms)


@pytest.mark.slow
def test_updates_are_paid_by_noise_that_grows_with_their_root(records):
    one, four = (
        lg.policies.new(
            name,
            epsilon=4,
            delta=1e-5,
            unit="user",
            allow=[f"records:stages=1,q=0.5,steps=2,updates={updates}"],
            project="project",
        )
        for name, updates in (("one", 1), ("four", 4))
    )
    noise = [made.quote.events[0].noise_multiplier for made in (one, four)]
    assert noise[1] == pytest.approx(2 * noise[0], rel=1e-4)


def test_a_project_of_records_releases_no_labels_and_one_of_labels_no_records(aligned):
    with pytest.raises(PolicyError, match="protects whole records"):
        make_release(train_runs.labels(), project="project", mechanism="rr")
    with pytest.raises(PolicyError, match="another unit"):
        lg.policies.new("labels", epsilon=1, delta=1e-6, allow=["rr:uses=1"], project="project")
        lg.policies.activate("labels", "project")
    lg.init("other")
    make_release(train_runs.labels(), project="other", mechanism="rr", epsilon=1.0)
    with pytest.raises(PolicyError, match="pays for rr, not for records"):
        follow(project="other")


def test_records_and_labels_have_no_policy_together(records):
    allow = ["rr:uses=1", "records:stages=1,q=0.5,steps=2"]
    with pytest.raises(PolicyError, match="no price together"):
        lg.policies.new("both", epsilon=1, delta=1e-6, allow=allow, project="project")
    with pytest.raises(PolicyError, match="protects one user or record"):
        lg.policies.new("unit", epsilon=1, delta=1e-6, allow=allow[1:], project="project")


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["sft", "reward", "rl", "publish"])
def test_a_killed_run_goes_on_and_is_charged_once(records, monkeypatch, stage):
    steps = {"sft": 1, "reward": 2, "rl": 3}
    if stage == "publish":
        dying = killed_in(records_align.ReleaseWriter, "__enter__")
    else:
        dying = killed_in(loop, "train", call=steps[stage])
    with dying:
        follow("out")
    begun = world.note_calls(monkeypatch, loop, "train")
    result = follow("out")
    assert not result.reused
    assert len(begun) == 4 - steps.get(stage, 4), "finished stages are not trained again"
    assert charged() == [(1, 1, 3 * PEOPLE)]


@pytest.mark.slow
def test_a_run_that_was_killed_pays_for_no_other_recipe(records):
    """A seed, a rate or a file that changes is another look at everybody."""
    with killed_in(loop, "train"):
        follow(recipe=SFT)
    other = {"demonstrations": "demonstrations.parquet", "config": {"seed": 7}}
    with pytest.raises(BudgetExceeded, match="12 of 12 users have no stage left"):
        follow(recipe=SFT, sft=other)


@pytest.mark.slow
def test_a_finished_stage_that_somebody_exchanged_is_not_gone_on_from(records):
    with killed_in(loop, "train", call=2):
        follow()
    [sft] = Path("project/.labelguard/props").glob("r*/sft")
    shutil.rmtree(sft)
    shutil.copytree(Path("base").resolve(), sft)
    with pytest.raises(ProjectError, match="not the model that this run trained"):
        follow()


def test_one_step_has_one_noise_for_everybody_and_each_its_own(records, monkeypatch):
    from labelguard_trainer.gradient.model import ModelProblem

    secrets: list[bytes] = []
    add = ModelProblem.add_noise
    monkeypatch.setattr(
        ModelProblem,
        "add_noise",
        lambda self, total, deviation, secret: (
            secrets.append(secret),
            add(self, total, deviation, secret),
        )[1],
    )
    follow(recipe=SFT)
    assert len(secrets) == SFT["steps"] and len(set(secrets)) == len(secrets)


def test_everything_wrong_with_a_recipe_is_told_before_anybody_pays(records):
    lora = {"demonstrations": "demonstrations.parquet", "lora": "r=4,alpha=8,targets=nothing"}
    with pytest.raises(LabelguardError, match="stage sft"):
        follow(recipe=SFT, sft=lora)
    with pytest.raises(LabelguardError, match="max_length"):
        follow(rl={"prompts": "prompts.parquet", "config": {**RL, "max_length": 4}})
    with pytest.raises(LabelguardError, match="rl needs a reward"):
        follow(recipe={name: RECIPE[name] for name in RECIPE if name != "reward"})
    with pytest.raises(LabelguardError, match="num_iterations"):
        follow(rl={"prompts": "prompts.parquet", "config": {**RL, "num_iterations": 4}})
    lg.init("loose", max_delta=0.5)
    with pytest.raises(PolicyError, match="not below 1/12"):
        follow(recipe=SFT, delta=0.1, project="loose")
    with pytest.raises(PolicyError, match="ceiling"):
        follow(recipe=SFT, epsilon=11.0)
    with pytest.raises(InvalidLabels, match="no column user_id"):
        table = pq.read_table("demonstrations.parquet").rename_columns(
            ["who", "prompt", "response"]
        )
        pq.write_table(table, "demonstrations.parquet")
        follow(recipe=SFT)
    assert charged() == []


@pytest.mark.slow
def test_what_a_stage_learns_is_what_people_wrote(records):
    """Without noise and with many steps; a sanity check of all three losses at once."""
    from labelguard_trainer.records.people import read_people
    from labelguard_trainer.records.recipe import RecordsRecipe
    from labelguard_trainer.records.stages import RecordStage, RewardModel, StageRuns

    rate = {"learning_rate": 0.01, "use_cpu": True}
    Path("recipe.yaml").write_text(
        yaml.safe_dump(
            {
                **RECIPE,
                "sft": {"demonstrations": "demonstrations.parquet", "config": rate, "lora": None},
                "reward": {
                    "preferences": "preferences.parquet",
                    "config": dict(rate),
                    "lora": None,
                },
            }
        )
    )
    recipe = RecordsRecipe.read(Path("recipe.yaml"))
    sft, reward, _ = read_people(recipe, OpenProject.open("project")).parts
    price = {"noise_multiplier": 0.0, "sampling_probability": 1.0, "steps": 30}
    runs = StageRuns(Path("runs"), lambda data: bytes(32), lambda *_: None)
    for part in (sft, reward):
        stage = RecordStage.of(part.name, recipe.model, recipe.decisive(part.name), 8, 1)
        runs.train(stage, part, "user_id", price, lambda: None)

    def loss(model):
        texts, present = sft.read_texts("user_id")
        stage = RecordStage.of("sft", model, recipe.decisive("sft"), 8, 1)
        problem = stage.problem(texts, sft.unit, present, len(sft.people), None)
        step = problem._records.select(0, np.arange(PEOPLE))
        with torch.no_grad():
            return float(problem._loss(step, slice(None), np.ones(0)))

    assert loss("runs/sft") < 0.7 * loss("base")
    judge = RewardModel("runs/reward", "base")
    from labelguard_trainer.training.models import load_tokenizer

    encode = load_tokenizer("base")
    first, second = judge(
        encode("tea?")["input_ids"], encode([" yes good", " no bad"])["input_ids"]
    )
    assert first > second
