"""Reward models on noisy rows: whole, by LoRA, and a head on a frozen backbone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl")

import torch
import trl
from datasets import Dataset
from labelguard_trainer import RewardConfig, RewardTrainer
from peft import LoraConfig
from support import tiny_models as tiny
from transformers import AutoModelForSequenceClassification

from labelguard.errors import LabelguardError

pytestmark = pytest.mark.xdist_group("trl")
SETTINGS = {
    "max_length": 64,
    "learning_rate": 3e-3,
    "max_steps": 4,
    "report_to": "none",
    "disable_tqdm": True,
    "save_strategy": "no",
    "logging_steps": 1,
    "bf16": False,
}
KINDS = ("full", "lora", "frozen")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a language model without a score."""
    return str(tiny.saved(tmp_path_factory.mktemp("base")))


def config(directory: Path, **given: Any) -> RewardConfig:
    return RewardConfig(str(directory / "out"), **{**SETTINGS, **given})


def noisy(pairs: int = 32, seed: int = 0) -> Dataset:
    gamma = np.random.default_rng(seed).uniform(0.05, 0.45, pairs)
    return tiny.release(pairs, seed, flip_probability=gamma)


def trainer_of(kind: str, base: str, directory: Path, release: Dataset, **given: Any) -> Any:
    """Of one of `KINDS`, at a rate of its own: the fewer parameters, the larger."""
    rate = {"full": 5e-3, "lora": 3e-2, "frozen": 0.1}[kind]
    settings = {"learning_rate": rate, "frozen_backbone": kind == "frozen", **given}
    lora = LoraConfig(r=8, lora_alpha=16, fan_in_fan_out=True) if kind == "lora" else None
    args = config(directory, **settings)
    return RewardTrainer(base, args, train_dataset=release, peft_config=lora)


def losses(trainer: Any) -> list[float]:
    trainer.train()
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


@pytest.mark.quick("full")
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_learnt_is_saved_as_a_classifier_that_gives_the_same_rewards(
    kind: str, base: str, tmp_path: Path
) -> None:
    release = tiny.release(64, label_probability=1.0)
    trainer = trainer_of(kind, base, tmp_path, release, max_steps=30)
    trainer.train()
    held_out = tiny.release(64, 9, label_probability=1.0)
    margins = trainer.margins(held_out)
    assert np.mean(margins > 0) > (0.7 if kind == "frozen" else 0.95)
    trainer.save_model()
    rewards = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    assert rewards.config.num_labels == 1
    words = trainer.processing_class
    for row in range(4):
        sides = [held_out[row]["prompt"] + held_out[row][s] for s in ("chosen", "rejected")]
        with torch.no_grad():
            chosen, rejected = (
                rewards(torch.tensor([words(text + "<eos>")["input_ids"]])).logits.item()
                for text in sides
            )
        assert chosen - rejected == pytest.approx(margins[row], abs=1e-5)
    np.testing.assert_allclose(trainer.margins(held_out), margins, atol=1e-7)


def test_without_noise_a_reward_model_is_trls_step_by_step(base: str, tmp_path: Path) -> None:
    release = tiny.release(32, label_probability=1.0)
    ours = losses(RewardTrainer(base, config(tmp_path), train_dataset=release))
    args = trl.RewardConfig(str(tmp_path), **SETTINGS)
    theirs = losses(trl.RewardTrainer(base, args=args, train_dataset=release))
    np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_the_first_loss_is_that_of_each_rows_own_noise(base: str, tmp_path: Path) -> None:
    args = config(tmp_path, per_device_train_batch_size=32, max_steps=1, preference_loss="robust")
    trainer = RewardTrainer(base, args, train_dataset=noisy())
    rows = trainer.train_dataset
    z, gamma, weight = (
        torch.tensor(values, dtype=torch.float64)
        for values in (
            trainer.margins(rows),
            rows["flip_probability"][:],
            (1 - 2 * np.asarray(rows["flip_probability"][:])) ** 2,
        )
    )
    kept, flipped = -torch.nn.functional.logsigmoid(z), -torch.nn.functional.logsigmoid(-z)
    each = ((1 - gamma) * kept - gamma * flipped) / (1 - 2 * gamma)
    expected = float((weight / weight.mean() * each).mean())
    assert losses(trainer)[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_one_batch_of_eight_is_two_of_four_with_accumulation(
    kind: str, base: str, tmp_path: Path
) -> None:
    def run(batch: int, steps: int) -> list[float]:
        given = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": steps}
        return losses(trainer_of(kind, base, tmp_path, noisy(), optim="sgd", **given))

    np.testing.assert_allclose(run(8, 1), run(4, 2), atol=1e-5)


@pytest.mark.slow
def test_padding_changes_nothing(base: str, tmp_path: Path) -> None:
    def run(multiple: int | None) -> list[float]:
        return losses(
            trainer_of("full", base, tmp_path, noisy(), pad_to_multiple_of=multiple, optim="sgd")
        )

    np.testing.assert_allclose(run(None), run(64), atol=1e-5)


def test_of_a_frozen_backbone_only_the_score_is_learnt(base: str, tmp_path: Path) -> None:
    trainer = trainer_of("frozen", base, tmp_path, noisy())
    before = {name: value.clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    changed = [
        name
        for name, value in trainer.model.named_parameters()
        if not torch.equal(value, before[name])
    ]
    assert changed == ["score.weight"]


def test_lora_learns_its_adapter_and_the_score(base: str, tmp_path: Path) -> None:
    trainer = trainer_of("lora", base, tmp_path, noisy())
    learnt = [n for n, value in trainer.model.named_parameters() if value.requires_grad]
    assert any("score" in name for name in learnt)
    assert all("lora_" in name or "score" in name for name in learnt)


@pytest.mark.slow
def test_rewards_are_centred_where_it_is_asked_for(base: str, tmp_path: Path) -> None:
    def spread(coefficient: float | None) -> float:
        given = {"center_rewards_coefficient": coefficient, "max_steps": 20}
        trainer = trainer_of("full", base, tmp_path, noisy(), **given)
        trainer.train()
        last = trainer.state.log_history[-2]
        return abs(last["chosen"] + last["rejected"])

    assert spread(1.0) < 0.5 * spread(None) + 0.05


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_ends_as_an_uninterrupted_one(kind: str, base: str, tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2}
    whole = trainer_of(kind, base, tmp_path / "a", noisy(), **saving)
    whole.train()
    first = trainer_of(kind, base, tmp_path / "a", noisy(), **saving)
    first.train(resume_from_checkpoint=str(tmp_path / "a" / "out" / "checkpoint-2"))
    rows = noisy(8, 5)
    np.testing.assert_allclose(first.margins(rows), whole.margins(rows), atol=1e-6)


def test_held_out_rows_are_evaluated_by_the_same_loss(base: str, tmp_path: Path) -> None:
    trainer = RewardTrainer(
        base, config(tmp_path), train_dataset=noisy(), eval_dataset=noisy(10, 3)
    )
    trainer.train()
    found = trainer.evaluate()
    z = torch.tensor(trainer.margins(trainer.eval_dataset))
    gamma = torch.tensor(trainer.eval_dataset["flip_probability"][:])
    loss = -torch.log((1 - gamma) * torch.sigmoid(z) + gamma * torch.sigmoid(-z))
    assert found["eval_loss"] == pytest.approx(float(loss.mean()), abs=1e-5)
    assert {"eval_agreement", "eval_margin"} <= set(found)


def test_a_batch_that_lost_its_noise_is_an_error(base: str, tmp_path: Path) -> None:
    trainer = RewardTrainer(base, config(tmp_path), train_dataset=noisy(), eval_dataset=noisy(8))
    whole = trainer.data_collator

    def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
        batch = whole(rows)
        del batch["flip_probability"]
        return batch

    trainer.data_collator = collate
    with pytest.raises(LabelguardError, match="no flip_probability"):
        trainer.train()
    with pytest.raises(LabelguardError, match="no flip_probability"):
        trainer.evaluate()


@pytest.mark.slow
def test_texts_that_are_too_long_are_left_out_of_training_and_cut_for_scoring(
    base: str, tmp_path: Path
) -> None:
    rows = noisy(16)
    long = rows.select([0]).map(lambda row: {"chosen": row["chosen"] + " ok" * 40})
    mixed = Dataset.from_list([*rows.to_list(), *long.to_list()])
    trainer = RewardTrainer(base, config(tmp_path), train_dataset=mixed)
    assert trainer.left_out == 1
    assert len(trainer.margins(mixed)) == 17


@pytest.mark.slow
def test_conversations_go_through_the_chat_template(tmp_path: Path) -> None:
    model = str(tiny.saved(tmp_path / "chat", chat=True))
    release = tiny.release(64, label_probability=1.0, chat=True)
    trainer = trainer_of("full", model, tmp_path, release, max_steps=20)
    trainer.train()
    held_out = tiny.release(32, 9, label_probability=1.0, chat=True)
    assert np.mean(trainer.margins(held_out) > 0) > 0.95
