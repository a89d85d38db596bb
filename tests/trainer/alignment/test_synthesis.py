"""Synthesis: a directory like a release's, at the price of its parent, the same after a kill."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from labelguard_trainer import synthesize, train
from labelguard_trainer.alignment import synthesis
from support import train_runs

import labelguard as lg
from labelguard.analysis.reward import ReleaseReward
from labelguard.errors import LabelguardError, ProjectError
from labelguard.release.model_card import find_learned_releases, identify_learned_release
from labelguard.release.writer import verify_release_directory
from labelguard.storage.files import SUMS, hash_file

SHORT = {"max_new_tokens": 6, "seed": 5}
KILLED = """
import os, signal, sys
from labelguard_trainer.alignment import synthesis

synthesis._CHUNK = 4
seen = set()

def progress(step, share):
    if step == "generating":
        seen.add(share)
        if len(seen) == 2:  # the first prompt's responses are on disk
            os.kill(os.getpid(), signal.SIGKILL)

study, n, output = sys.argv[1], 4, sys.argv[2]
synthesis.synthesize(f"{study}/head", f"{study}/prompts.parquet", f"{study}/base", n, output,
                     max_new_tokens=6, seed=5, progress=progress)
"""


def make(study, output="synthesis", n=4, release="head", model="base", **options):
    """Synthesize into a directory here."""
    prompts = study / "prompts.parquet"
    return synthesize(study / release, prompts, study / model, n, output, **SHORT, **options)


def card_of(directory):
    return json.loads(Path(directory, "card.json").read_text())


@pytest.fixture(autouse=True)
def quick():
    """Write settings of a short training."""
    Path("quick.yaml").write_text(train_runs.QUICK)


@pytest.fixture(scope="module")
def parent(study):
    """What cards call the release `head`."""
    return identify_learned_release(card_of(study / "head"), hash_file(study / "head" / SUMS))


def test_it_is_a_release_with_the_probabilities_of_the_reward(study):
    made = make(study)
    assert verify_release_directory("synthesis") == Path("synthesis")
    rows = lg.load("synthesis")
    assert len(rows) == made.rows == 3 * 6 and rows["item_id"].is_sorted()
    assert rows.columns == lg.load(study / "flips").columns
    reward = lg.reward(study / "head")
    better, worse = (
        reward.score(rows["prompt"].to_list(), rows[side].to_list())
        for side in ("chosen", "rejected")
    )
    assert (better >= worse).all()
    np.testing.assert_allclose(rows["label_probability"], 1 / (1 + np.exp(worse - better)))
    scored = lg.score(study / "head", rows.select("prompt", "chosen", "rejected"))
    assert scored["item_id"].to_list() == rows["item_id"].to_list()
    np.testing.assert_allclose(scored["label_probability"], rows["label_probability"], atol=1e-4)


def test_its_card_has_the_guarantee_of_its_parent_and_names_it(study, parent):
    make(study)
    card, before = card_of("synthesis"), card_of(study / "head")
    assert card["privacy"] == before["privacy"] and card["mechanism"] == "synthesis"
    assert card["derived_from"] == {"release": parent.release, "sums": parent.sums}
    assert set(before["not_protected"]) < set(card["not_protected"])
    assert card["generator"]["identity"].startswith("sha256:") and "learned_from" not in card
    assert str(study) not in Path("synthesis/card.json").read_text()
    assert identify_learned_release(card, hash_file(Path("synthesis", SUMS))) == parent


def test_a_model_of_parent_and_synthesis_learned_from_one_release(study, parent):
    make(study)
    train("dpo", study / "head", study / "base", output="first", config="quick.yaml")
    train("dpo", "synthesis", "first", output="second", config="quick.yaml")
    assert find_learned_releases("second", private=True) == (parent,)
    train("reward", "synthesis", study / "base", output="judge", config="quick.yaml")
    assert lg.reward("judge").learned_from == (parent,)


def test_what_its_generator_learned_from_is_named_and_goes_with_its_models(study, parent):
    train("dpo", study / "flips", study / "base", output="writer", config="quick.yaml")
    made = make(study, model=Path("writer").absolute())
    [flips] = find_learned_releases("writer", private=True)
    assert made.learned_from == (flips.release,)
    assert f"also learned from | release {flips.release}" in Path("synthesis/CARD.md").read_text()
    train("dpo", "synthesis", study / "base", output="second", config="quick.yaml")
    assert find_learned_releases("second", private=True) == (flips, parent)
    assert "Their prices" in Path("second/TRAINING_CARD.md").read_text()


def test_a_release_of_labels_is_synthesized_by_a_reward_model_of_it(study):
    train("reward", study / "flips", study / "base", output="judge", config="quick.yaml")
    made = make(study, release="flips", reward_model="judge")
    rows = lg.load("synthesis")
    assert card_of("synthesis")["derived_from"]["release"] == made.derived_from
    assert (rows["label_probability"] >= 0.5).all() and len(rows) == made.rows
    with pytest.raises(LabelguardError, match="did not learn from"):
        make(study, output="other", release="head", reward_model="judge")


def test_extremes_are_the_best_against_the_worst(study):
    make(study, output="every")
    make(study, output="widest", pairs="extremes")
    every, widest = lg.load("every"), lg.load("widest")
    best = every.group_by("prompt").agg(pl.col("label_probability").max()).sort("prompt")
    assert widest.select("prompt", "label_probability").sort("prompt").equals(best)


def test_a_killed_synthesis_goes_on_to_the_same_bytes(study, monkeypatch):
    command = [sys.executable, "-c", KILLED, str(study), "synthesis"]
    assert subprocess.run(command, check=False, capture_output=True).returncode == -9
    partial = Path("synthesis.partial")
    assert len(list(partial.glob("checkpoints/checkpoint-*"))) == 1
    assert not Path("synthesis").exists()
    monkeypatch.setattr(synthesis, "_CHUNK", 4)
    with pytest.raises(LabelguardError, match="begun by another command"):
        make(study, n=3)
    steps = []
    make(study, progress=lambda step, share: steps.append((step, share)))
    assert not partial.exists() and ("generating", 0.0) not in steps
    make(study, output="whole")
    for name in ("data.parquet", "CARD.md"):
        assert Path("synthesis", name).read_bytes() == Path("whole", name).read_bytes()
    one, other = (card_of(name) | {"created_at": ""} for name in ("synthesis", "whole"))
    assert one == other


def test_an_altered_parent_is_refused(study):
    copy = shutil.copytree(study / "head", "copy")
    with Path(copy, "head.npz").open("ab") as file:
        file.write(b"x")
    with pytest.raises(ProjectError, match="altered"):
        make(study, release=Path(copy).absolute())


def test_a_generator_of_raw_labels_is_refused(study, raw_model):
    with pytest.raises(LabelguardError, match="raw labels"):
        make(study, model=raw_model)
    assert not Path("synthesis.partial").exists()


def test_equal_responses_are_no_pairs(study):
    with pytest.raises(LabelguardError, match="raise the temperature"):
        make(study, temperature=0.0)


def test_a_synthesis_has_no_head_and_gives_no_reward(study):
    make(study)
    with pytest.raises(ProjectError, match="holds no head"):
        lg.score("synthesis", study / "prompts.parquet")
    with pytest.raises(LabelguardError, match="train a model on it"):
        lg.reward("synthesis")
    assert lg.export("synthesis", "rows", to="trl", copies=10).rows > 0


def test_rewards_that_are_no_numbers_label_nothing(study, monkeypatch):
    monkeypatch.setattr(ReleaseReward, "score", lambda *texts: np.full(len(texts[1]), np.nan))
    with pytest.raises(LabelguardError, match="no finite numbers"):
        make(study)
    assert not Path("synthesis").exists()
