"""`privatize --mechanism uls|els|aup --learner reward|dpo`: from the command to the model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner, Result
from labelguard_trainer.gradient.language_runs import doubled
from labelguard_trainer.gradient.loop import Checkpoints
from support import tiny_models
from support.commands import FIRST
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from labelguard.cli.main import main

pytestmark = pytest.mark.xdist_group("trl")

BASE = ("--model", "base", "--train-config", "quick.yaml")
LORA = ("--lora", "r=2,alpha=4")
SHORT = ("--sampling-probability", "0.5", "--steps", "6")
USUAL = ("privatize", *FIRST, "--epsilon", "8", "--delta", "1e-5", *SHORT)
MODELS = {"dpo": AutoModelForCausalLM, "reward": AutoModelForSequenceClassification}
Labelguard = Callable[..., Result]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model, its settings, labels and further pairs."""
    directory = tmp_path_factory.mktemp("workshop")
    tiny_models.saved(directory / "base")
    (directory / "quick.yaml").write_text("max_length: 64\nlearning_rate: 1e-3\nuse_cpu: true\n")
    for name, seed in (("labels.jsonl", 0), ("more.jsonl", 1)):
        rows = tiny_models.planted(40, seed).to_pylist()
        lines = [json.dumps({"labeler_id": f"w{n % 10}", **row}) for n, row in enumerate(rows)]
        (directory / name).write_text("\n".join(lines))
    return directory


@pytest.fixture
def labelguard(workshop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Labelguard:
    """The command in a new project beside the workshop's things."""
    for path in workshop.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments, catch_exceptions=False)

    assert run("init").exit_code == 0
    return run


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
def test_a_release_holds_the_model_and_the_pairs_that_it_labeled(
    kind: str, options: tuple[str, ...], labelguard: Labelguard
) -> None:
    command = (*USUAL, "--mechanism", *options, "--learner", kind, *BASE, "labels.jsonl")
    result = labelguard(*command, "--also", "more.jsonl", "-o", "out")
    assert result.exit_code == 0, result.output
    assert labelguard("release", "verify").exit_code == 0
    card, rows = json.loads(Path("out/card.json").read_text()), pl.read_parquet("out/data.parquet")
    assert (card["kind"], card["train_with"], card["training"]["learner"]) == (
        "model",
        "soft",
        kind,
    )
    assert card["training"]["noise_drawn"] == "in floating point"
    assert card["training"]["steps"] == 6
    assert card["counts"]["charged"] == 10
    assert rows["label_probability"].is_between(0.5, 1).all()
    assert rows.height == 78  # two pairs of the further ones are among the labeled
    model = MODELS[kind].from_pretrained("out/model")
    tokenizer = AutoTokenizer.from_pretrained("out/model")
    assert model(**tokenizer("tea?", return_tensors="pt")).logits.isfinite().all()
    assert not any(Path(".labelguard/props").iterdir()), "a checkpoint was left behind"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--learner", "dpo"), "--model"),
        (("--learner", "reward", "--model", "nowhere"), "nowhere"),
        (("--learner", "reward", *BASE, "--lora", "r=2"), "alpha"),
        (("--learner", "reward", *BASE, "--lora", "r=2,alpha=4,dropout=0.1"), "dropout"),
        (("--learner", "reward", *BASE, "--components", "3"), "--learner head only"),
        (("--learner", "reward", "--model", "base", "--train-config", "epochs.yaml"), "epochs"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_charged(
    options: tuple[str, ...], words: str, labelguard: Labelguard
) -> None:
    Path("epochs.yaml").write_text("num_train_epochs: 2\n")
    result = labelguard(*USUAL, "--mechanism", "uls", *options, "labels.jsonl")
    assert result.exit_code == 1 and words in result.output
    assert "no release yet" in labelguard("release", "list").output.lower()


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was_kept(
    labelguard: Labelguard, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (*USUAL[:-1], "14", "--mechanism", "uls", "--learner", "reward", *BASE, *LORA)
    keep, taken = Checkpoints.keep, []

    def dying(self: Checkpoints, step: int, *arguments: Any, **options: Any) -> None:
        keep(self, step, *arguments, **options)
        taken.append(step)
        if len(taken) == 12:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoints, "keep", dying)
    assert labelguard(*command, "labels.jsonl").exit_code != 0
    result = labelguard(*command, "labels.jsonl", "-o", "out")
    assert result.exit_code == 0, result.output
    assert taken == [*range(1, 13), *range(11, 15)]
    assert json.loads(Path("out/card.json").read_text())["counts"]["charged"] == 10


def test_labels_a_step_are_doubled_while_that_lowers_the_noise() -> None:
    falling = {1: 1.0, 2: 0.71, 4: 0.5, 8: 0.48, 16: 0.47}
    assert doubled(falling.__getitem__, 0.9, 16) == 4
    assert doubled(falling.__getitem__, 0.9, 3) == 2
    assert doubled(falling.__getitem__, 0.6, 16) == 1
    assert doubled(lambda g: float(np.sqrt(1 / g)), 1.0, 9) == 8
