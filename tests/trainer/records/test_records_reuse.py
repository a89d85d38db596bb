"""Attacks on an alignment of whole records by who wants more of a run than was paid for."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from labelguard_trainer.gradient import loop
from labelguard_trainer.records.stages import RecordStage, RewardModel
from labelguard_trainer.training import models
from support import tiny_models
from support.whole_records import PEOPLE, RECIPE, SFT, follow, write_all
from transformers import GPT2ForSequenceClassification, set_seed

import labelguard as lg
from labelguard.errors import BudgetExceeded, LabelguardError, PolicyError, ProjectError
from labelguard.project import linking, opening
from labelguard.project.opening import OpenProject
from labelguard.release.model_card import find_learned_releases


class Killed(BaseException):
    """In place of SIGKILL."""


def usage():
    return OpenProject.open("project").ledger.releases.usage().get("records", [])


def killed_in(stage, monkeypatch, **terms):
    """Follow the recipe until this stage (counted from 1) has taken its first step."""
    train, begun = loop.train, []

    def dies(problem, labels, run, checkpoints, watch):
        begun.append(1)
        if len(begun) < stage:
            train(problem, labels, run, checkpoints, watch)
            return

        def die(share):
            raise Killed

        every = loop.Checkpoints(checkpoints.directory, 1, checkpoints.seal)
        train(problem, labels, run, every, die)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(loop, "train", dies)
        patched.setattr(loop, "report_progress", lambda watch, done, steps: watch(done / steps))
        follow(**terms)
    [run] = Path("project/.labelguard/props").glob("r*")
    return run


def remove_stage(run, name):
    shutil.rmtree(run / name)
    (run / f"{name}.done").unlink()
    shutil.rmtree(run / f"{name}.steps")


@pytest.mark.slow
def test_a_stage_that_is_trained_anew_is_beside_no_model_of_its_first_training(
    records, monkeypatch
):
    """The reward had learned from the first `sft`, and both would have been published."""
    run = killed_in(3, monkeypatch)
    remove_stage(run, "sft")
    with pytest.raises(ProjectError, match="reward is not the model that this run trained"):
        follow()
    remove_stage(run, "reward")
    with pytest.raises(ProjectError, match=r"rl\.steps.*of another run"):
        follow()
    shutil.rmtree(run / "rl.steps")
    assert not follow().reused
    assert usage() == [(1, 1, 3 * PEOPLE)]


@pytest.mark.slow
def test_a_run_that_was_given_up_is_paid_for_and_not_taken_up_again(records, monkeypatch):
    run = killed_in(1, monkeypatch, recipe=SFT)
    opening.abandon(run.name, "project")
    assert not run.exists()
    with pytest.raises(BudgetExceeded):
        follow(recipe=SFT)


def test_people_are_not_joined_between_their_charges(aligned):
    """One person in two parts would have paid for one."""
    with pytest.raises(PolicyError, match="before the first charge of either"):
        linking.link_two_ids("dem3", "pre3", "project")


@pytest.mark.slow
def test_people_are_not_joined_while_a_run_is_unfinished(records, monkeypatch):
    killed_in(1, monkeypatch)
    with pytest.raises(PolicyError, match="unfinished"):
        linking.link_two_ids("dem3", "pre3", "project")


def test_the_card_names_all_releases_that_a_model_learned_from(aligned):
    """Of a model that began from an earlier one, people of both releases pay."""
    write_all(same=True)
    follow("second", recipe=SFT, model="aligned/sft")
    earlier, own = find_learned_releases("second/sft", private=True)
    assert (earlier,) == find_learned_releases("aligned/sft", private=True)
    assert own.release.startswith("r0002")
    card = json.loads(Path("second/card.json").read_text())
    assert [one["release"] for one in card["learned_from"]] == [earlier.release]
    assert f"also learned from | release `{earlier.release}`" in Path("second/CARD.md").read_text()


@pytest.mark.slow
def test_a_public_reward_that_was_exchanged_meanwhile_judges_nothing(records, monkeypatch):
    shutil.copytree(Path("base").resolve(), "judge")
    rehearse = RecordStage.rehearse

    def exchanged(self, judge):
        rehearse(self, judge)
        tiny_models.gpt2(seed=7).save_pretrained("judge")

    monkeypatch.setattr(RecordStage, "rehearse", exchanged)
    recipe = {name: RECIPE[name] for name in RECIPE if name != "sft"}
    with pytest.raises(LabelguardError, match="judge has changed"):
        follow(recipe=recipe, reward={"public": "judge"})


def test_a_public_reward_of_a_hub_is_that_of_the_commit_that_was_identified(
    base, tmp_path, monkeypatch
):
    repository = tmp_path / "models--org--judge"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def push(commit):
        place = repository / "snapshots" / commit
        tiny_models.tokenizer().save_pretrained(place)
        set_seed(int(commit, 16) % 1000)
        settings = tiny_models.config()
        settings.num_labels = 1
        GPT2ForSequenceClassification(settings).save_pretrained(place)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs" / "main").write_text(commit)
        return str(place)

    asked = [5, 6], [[7, 8], [9]]
    first = push("a" * 40)
    identity = models.identity("org/judge")
    assert identity == f"org/judge@{'a' * 40}"
    push("b" * 40)
    with pytest.raises(LabelguardError, match="org/judge has changed"):
        models.check_unchanged("org/judge", identity)
    pinned = RewardModel("org/judge", base, identity)(*asked)
    assert torch.equal(pinned, RewardModel(first, base)(*asked))
    assert not torch.equal(pinned, RewardModel("org/judge", base)(*asked))


def test_the_card_says_which_public_reward_it_was(records):
    recipe = {name: RECIPE[name] for name in RECIPE if name != "sft"}
    follow("out", recipe=recipe, reward={"public": "base"})
    card = json.loads(Path("out/card.json").read_text())
    assert card["training"]["reward"] == {"model": "base", "identity": models.identity("base")}
    for page in ("CARD.md", "rl/TRAINING_CARD.md"):
        assert (
            f"| public reward | `base`, `{models.identity('base')}` |"
            in Path("out", page).read_text()
        )


@pytest.mark.slow
def test_a_model_that_waits_to_be_published_is_no_base(records, monkeypatch):
    """It has no card yet: another project would have named its own price alone."""
    run = killed_in(2, monkeypatch)
    lg.init("other")
    with pytest.raises(LabelguardError, match="private until its run is finished"):
        follow(project="other", recipe=SFT, model=str(run / "sft"))


def test_nobody_is_held_out_of_whole_records(records):
    """They would have been trained on: no file tells who they are."""
    terms = {"unit": "user", "allow": ["records:stages=1,q=0.5,steps=2"], "held_out": 0.2}
    with pytest.raises(PolicyError, match="leave --held-out out"):
        lg.policies.new("half", epsilon=4, delta=1e-5, project="project", **terms)
