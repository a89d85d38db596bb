"""`--mechanism props|uls|els|aup --learner dpo|reward`, from the command to the published model."""

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner
from labelguard_trainer.gradient.language_runs import choose_label_limit
from labelguard_trainer.gradient.loop import Checkpoints
from labelguard_trainer.training import stages as training_stages
from support import tiny_models, world
from support.commands import FIRST
from support.copies import copy_project
from support.killed_stages import MOMENTS, killed
from support.preferences import files
from support.worlds import Run, Scenario, differences
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from labelguard.cli.main import main

QUICK = "max_length: 64\nmax_steps: 4\nsave_steps: 2\nlearning_rate: 1e-3\n"
NOISY = "max_length: 64\nlearning_rate: 1e-3\nuse_cpu: true\n"
PRICE = ("privatize", *FIRST, "--epsilon", "8", "--delta", "1e-5")
PROPS = (*PRICE, "--mechanism", "props")
GRADIENT = (*PRICE, "--sampling-probability", "0.5", "--steps", "6")
BASE = ("--model", "base", "--train-config")
DPO = ("--learner", "dpo", *BASE, "quick.yaml")
REWARD = ("--learner", "reward", *DPO[2:])
LORA = ("--lora", "r=2,alpha=4")
MODELS = {"dpo": AutoModelForCausalLM, "reward": AutoModelForSequenceClassification}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """Base models, settings, labels of texts and of chats, and further pairs."""
    directory = tmp_path_factory.mktemp("workshop")
    tiny_models.saved(directory / "base")
    tiny_models.saved(directory / "talker", chat=True)
    for name, text in (("quick", QUICK), ("noisy", NOISY), ("epochs", "num_train_epochs: 2\n")):
        (directory / f"{name}.yaml").write_text(text)
    for name, seed, chat in (("labels", 0, False), ("more", 1, False), ("chats", 0, True)):
        rows = tiny_models.planted(40, seed, chat=chat).to_pylist()
        lines = [json.dumps({"labeler_id": f"w{n % 10}", **row}) for n, row in enumerate(rows)]
        (directory / f"{name}.jsonl").write_text("\n".join(lines))
    return directory


@pytest.fixture
def labelguard(workshop, tmp_path, monkeypatch):
    """The command in a new project beside the workshop's things."""
    for path in workshop.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return CliRunner().invoke(main, arguments, catch_exceptions=False)

    assert run("init").exit_code == 0
    return run


def read_release(labelguard, kind, *command):
    """The card, the rows and the model of a release."""
    result = labelguard(*command, "-o", "out")
    assert result.exit_code == 0, result.output
    assert labelguard("release", "verify").exit_code == 0
    model = MODELS[kind].from_pretrained("out/model")
    tokenizer = AutoTokenizer.from_pretrained("out/model")
    assert model(**tokenizer("tea?", return_tensors="pt")).logits.isfinite().all()
    assert model.config.pad_token_id == tokenizer.pad_token_id
    assert not any(Path(".labelguard/props").iterdir()), "stages or checkpoints were left behind"
    card = json.loads(Path("out/card.json").read_text())
    return card, pl.read_parquet("out/data.parquet"), model


def _read_files(directory):
    """What a release holds, but for the card, which tells its id and time."""
    card = {"card.json", "CARD.md", "SHA256SUMS"}
    return {name: data for name, data in files(directory).items() if name not in card}


@pytest.mark.quick("dpo, LoRA")
@pytest.mark.parametrize(
    ("options", "labels"),
    [
        pytest.param((*DPO, "--stages", "2"), "labels.jsonl", id="dpo, hard"),
        pytest.param((*REWARD, "--combine", "soft", "--stages", "3"), "labels.jsonl", id="reward"),
        pytest.param((*DPO, "--combine", "soft", *LORA), "labels.jsonl", id="dpo, LoRA"),
        pytest.param((*REWARD, *LORA), "labels.jsonl", id="reward, LoRA"),
        pytest.param(
            ("--learner", "dpo", "--model", "talker", *DPO[4:]), "chats.jsonl", id="dpo, chats"
        ),
    ],
)
def test_a_release_holds_its_rows_and_the_last_model(options, labels, labelguard):
    card, rows, model = read_release(labelguard, options[1], *PROPS, *options, labels)
    soft = "soft" in options
    assert card["train_with"] == ("soft" if soft else "plain") and len(rows) == 40
    assert len(card["props"]["stages"]) == (3 if "3" in options else 2)
    assert rows["label_probability" if soft else "residual_flip_estimate"].null_count() == 0
    base = MODELS[options[1]].from_pretrained(options[3])
    assert not model.transformer.h[1].attn.c_attn.weight.equal(
        base.transformer.h[1].attn.c_attn.weight
    )


@pytest.mark.quick("uls, reward, LoRA")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param("reward", ("uls", *LORA), id="uls, reward, LoRA"),
        pytest.param("dpo", ("uls", *LORA, "--weighting", "mean"), id="uls, dpo, LoRA"),
        pytest.param("reward", ("uls",), id="uls, reward, whole"),
        pytest.param("dpo", ("els", *LORA, "--records", "3"), id="els, dpo, LoRA"),
        pytest.param(
            "reward", ("aup", *LORA, "--accept-unproven", "--concentration", "50"), id="aup, reward"
        ),
    ],
)
def test_a_release_of_noisy_steps_holds_the_model_and_the_pairs_that_it_labeled(
    kind, options, labelguard
):
    command = (*GRADIENT, "--mechanism", *options, "--learner", kind, *BASE, "noisy.yaml")
    card, rows, _ = read_release(labelguard, kind, *command, "labels.jsonl", "--also", "more.jsonl")
    assert (card["kind"], card["train_with"]) == ("model", "soft")
    run = card["training"]
    assert (run["learner"], run["noise_drawn"]) == (kind, "in floating point")
    assert run["steps"] == 6 and card["counts"]["charged"] == 10
    assert rows["label_probability"].is_between(0.5, 1).all()
    assert rows.height == 78  # two pairs of the further ones are among the labeled


ULS = ("--mechanism", "uls", "--learner", "reward", *BASE)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ((*PROPS, "--learner", "dpo"), "--model"),
        ((*PROPS, "--learner", "dpo", "--model", "nowhere"), "nowhere"),
        ((*PROPS, *DPO, "--lora", "r=2"), "alpha"),
        ((*PROPS, *DPO, "--lora", "r=2,alpha=4,targets=c_nothing"), "c_nothing"),
        ((*PROPS, *DPO[:-1], "long.yaml"), "positions"),
        ((*PROPS, *DPO[:-1], "wrong.yaml"), "learning_rate"),
        ((*PROPS, *DPO[:-1], "blind.yaml"), "eval_dataset"),
        ((*GRADIENT, *ULS, "noisy.yaml", "--lora", "r=2,alpha=4,dropout=0.1"), "dropout"),
        ((*GRADIENT, *ULS, "noisy.yaml", "--components", "3"), "--learner head only"),
        ((*GRADIENT, *ULS, "epochs.yaml"), "epochs"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_charged(command, words, labelguard):
    Path("long.yaml").write_text("max_length: 4096\n")
    Path("wrong.yaml").write_text("learning_rat: 1\n")
    Path("blind.yaml").write_text("eval_strategy: steps\neval_steps: 1\n")
    result = labelguard(*command, "labels.jsonl")
    assert result.exit_code == 1
    assert words in result.stderr.strip().splitlines()[-1]
    assert not any(Path(".labelguard/releases").iterdir())


def test_chats_need_a_chat_template(labelguard):
    result = labelguard(*PROPS, *DPO, "chats.jsonl")
    assert result.exit_code == 1 and "no chat template" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_release_that_was_killed_is_the_one_it_would_have_been(
    moment, labelguard, tmp_path, monkeypatch
):
    command = (*PROPS, *DPO, "--combine", "soft", "labels.jsonl", "-o", "out")
    command += ("--project", ".")  # by name, because a copy of it is not trusted
    assert killed(moment, tmp_path, command) == -signal.SIGKILL
    anew = copy_project(tmp_path, tmp_path.with_name(f"{tmp_path.name}-anew"))
    [stages] = (anew / ".labelguard" / "props").glob("*/")
    shutil.rmtree(stages)
    callback = training_stages._StageCallback
    steps = world.note_calls(monkeypatch, callback, "on_step_end", lambda *_, **__: None)
    assert labelguard(*command).exit_code == 0
    resumed = len(steps)
    monkeypatch.chdir(anew)
    assert labelguard(*command).exit_code == 0
    assert resumed < len(steps) - resumed == 8
    assert _read_files(tmp_path / "out") == _read_files(anew / "out")


def test_nothing_but_released_labels_decides_what_a_model_learns(workshop, tmp_path):
    options = ("--mechanism", "props", "--learner", "dpo", "--combine", "soft")
    options += ("--model", str(workshop / "base"), "--train-config", str(workshop / "quick.yaml"))
    assert differences(tmp_path, "pairs", Scenario((Run((*options, "-o", "{output}")),)), [2]) == []


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was_kept(labelguard, monkeypatch):
    command = (*GRADIENT[:-1], "14", *ULS, "noisy.yaml", *LORA)
    keep, taken = Checkpoints.save, []

    def dying(self, step, *arguments, **options):
        keep(self, step, *arguments, **options)
        taken.append(step)
        if len(taken) == 12:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "save", dying)
    assert labelguard(*command, "labels.jsonl").exit_code != 0
    result = labelguard(*command, "labels.jsonl", "-o", "out")
    assert result.exit_code == 0, result.output
    assert taken == [*range(1, 13), *range(11, 15)]
    assert json.loads(Path("out/card.json").read_text())["counts"]["charged"] == 10


def test_labels_a_step_are_doubled_while_that_lowers_the_noise():
    falling = {1: 1.0, 2: 0.71, 4: 0.5, 8: 0.48, 16: 0.47}
    assert choose_label_limit(falling.__getitem__, 0.9, 16) == 4
    assert choose_label_limit(falling.__getitem__, 0.9, 3) == 2
    assert choose_label_limit(falling.__getitem__, 0.6, 16) == 1
    assert choose_label_limit(lambda g: float(np.sqrt(1 / g)), 1.0, 9) == 8
