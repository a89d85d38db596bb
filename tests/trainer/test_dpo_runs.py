"""DPO through all that a run can be asked: adapters, bf16, checkpoints, chats, processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl")

import torch
from labelguard_trainer import DPOConfig, DPOTrainer
from peft import LoraConfig
from support import tiny_models as tiny
from support.dpo_steps import LENGTH, assert_same_steps, config, noisy, trained
from transformers import AutoModelForCausalLM, TrainerCallback

from labelguard.errors import LabelguardError

pytestmark = pytest.mark.xdist_group("trl")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a model that knows nothing yet."""
    return str(tiny.saved(tmp_path_factory.mktemp("base")))


@pytest.fixture(scope="module")
def certain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model so sure of itself that its log-probabilities differ much in bf16."""
    model, directory = tiny.gpt2(), tmp_path_factory.mktemp("certain")
    with torch.no_grad():
        for weights in model.parameters():
            weights.mul_(8)
    model.save_pretrained(directory)
    tiny.tokenizer().save_pretrained(directory)
    return str(directory)


@pytest.mark.quick("False")
@pytest.mark.parametrize("precomputed", [False, True])
def test_before_the_first_step_a_policy_is_its_reference_in_any_precision(
    precomputed: bool, certain: str, tmp_path: Path
) -> None:
    first = {}
    for bf16 in (False, True):
        args = config(
            tmp_path,
            bf16=bf16,
            precompute_ref_log_probs=precomputed,
            use_cpu=True,
            max_steps=1,
            per_device_train_batch_size=32,
        )
        trainer = DPOTrainer(certain, args, train_dataset=noisy(32))
        assert np.abs(trainer.margins(trainer.train_dataset)).max() < 1e-3
        trainer.train()
        first[bf16] = trainer.state.log_history[0]
        assert abs(first[bf16]["rewards/chosen"]) < 1e-3 > abs(first[bf16]["rewards/rejected"])
    rounding = 0.1 * abs(first[True]["logps/chosen"] - first[False]["logps/chosen"])
    assert rounding > 5e-3, "with one of the two in another precision this would show"


@pytest.mark.slow
def test_lora_learns_beside_a_frozen_model(base: str, tmp_path: Path) -> None:
    trainer = DPOTrainer(
        base,
        config(tmp_path, max_steps=20, learning_rate=3e-2),
        train_dataset=tiny.release(64, label_probability=1.0),
        peft_config=LoraConfig(r=8, lora_alpha=16, fan_in_fan_out=True),
    )
    trainer.train()
    assert trainer.ref_model is None
    held_out = tiny.release(64, 9, label_probability=1.0)
    margins = trainer.margins(held_out)
    assert np.mean(margins > 0) > 0.95
    trainer.save_model(str(tmp_path / "adapter"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")
    again = DPOTrainer(
        loaded,
        config(tmp_path),
        train_dataset=held_out,
        ref_model=AutoModelForCausalLM.from_pretrained(base),
        processing_class=tiny.tokenizer(),
    )
    np.testing.assert_allclose(again.margins(held_out), margins, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [False, True])
def test_checkpointed_activations_and_kept_ones_are_the_same_steps(
    adapter: bool, base: str, tmp_path: Path
) -> None:
    def run(checkpointing: bool) -> Any:
        lora = LoraConfig(r=4, lora_alpha=8, fan_in_fan_out=True) if adapter else None
        args = config(tmp_path, activation_checkpointing=checkpointing)
        return trained(DPOTrainer(base, args, train_dataset=noisy(), peft_config=lora))

    assert_same_steps(run(True), run(False))


@pytest.mark.slow
def test_bfloat16_trains_where_it_is_asked_for_and_is_off_on_a_cpu_by_default(
    base: str, tmp_path: Path
) -> None:
    assert DPOConfig(str(tmp_path), use_cpu=True).bf16 is False
    single = trained(DPOTrainer(base, config(tmp_path, use_cpu=True), train_dataset=noisy()))
    args = config(tmp_path, bf16=True, use_cpu=True)
    half = trained(DPOTrainer(base, args, train_dataset=noisy()))
    np.testing.assert_allclose(half[0], single[0], atol=0.05)
    assert half[0] != single[0]


@pytest.mark.slow
def test_a_resumed_run_ends_as_an_uninterrupted_one(base: str, tmp_path: Path) -> None:
    saving = {"max_steps": 6, "save_strategy": "steps", "save_steps": 3}

    class Stop(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
            control.should_training_stop = state.global_step == 3
            return control

    whole = DPOTrainer(base, config(tmp_path / "a", **saving), train_dataset=noisy())
    whole.train()
    broken = DPOTrainer(
        base, config(tmp_path / "b", **saving), train_dataset=noisy(), callbacks=[Stop()]
    )
    broken.train()
    assert broken.state.global_step == 3
    resumed = DPOTrainer(base, config(tmp_path / "b", **saving), train_dataset=noisy())
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 6
    for mine, theirs in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut weights", "cut optimizer", "no state"])
def test_a_half_written_checkpoint_is_not_resumed_from(
    damage: str, base: str, tmp_path: Path
) -> None:
    args = config(tmp_path, max_steps=2, save_strategy="steps", save_steps=2)
    trainer = DPOTrainer(base, args, train_dataset=noisy())
    trainer.train()
    checkpoint = tmp_path / "out" / "checkpoint-2"
    names = {"cut weights": "model.safetensors", "cut optimizer": "optimizer.pt"}
    path = checkpoint / names.get(damage, "trainer_state.json")
    path.write_bytes(path.read_bytes()[:1000] if damage in names else b"")
    with pytest.raises(LabelguardError, match="checkpoint-2 is damaged or half-written"):
        trainer.train(resume_from_checkpoint=True)


def test_held_out_rows_are_evaluated_by_the_same_loss(base: str, tmp_path: Path) -> None:
    args = config(tmp_path, eval_strategy="steps", eval_steps=2)
    trainer = DPOTrainer(base, args, train_dataset=noisy(), eval_dataset=noisy(10, 3))
    trainer.train()
    last = trainer.evaluate()
    assert {"eval_loss", "eval_agreement", "eval_rewards/margins"} <= set(last)
    margin = torch.tensor(trainer.margins(trainer.eval_dataset))
    gamma = torch.tensor(trainer.eval_dataset["flip_probability"][:])
    loss = -torch.log((1 - gamma) * torch.sigmoid(margin) + gamma * torch.sigmoid(-margin))
    assert last["eval_loss"] == pytest.approx(float(loss.mean()), abs=1e-5)


@pytest.mark.slow
def test_conversations_go_through_the_chat_template(tmp_path: Path) -> None:
    model = str(tiny.saved(tmp_path / "chat", chat=True))
    trainer = DPOTrainer(
        model,
        config(tmp_path, max_steps=20, learning_rate=1e-2),
        train_dataset=tiny.release(64, label_probability=1.0, chat=True),
    )
    trainer.train()
    first = trainer.processing_class.decode(trainer.train_dataset[0]["prompt_ids"])
    assert first.startswith("<|user|>")
    held_out = tiny.release(32, 9, label_probability=1.0, chat=True)
    assert np.mean(trainer.margins(held_out) > 0) > 0.95


def test_a_batch_that_lost_its_noise_is_an_error(base: str, tmp_path: Path) -> None:
    with losing(base, tmp_path) as trainer, pytest.raises(LabelguardError, match="row_weight"):
        trainer.train()


def test_an_evaluation_batch_that_lost_its_noise_is_an_error(base: str, tmp_path: Path) -> None:
    with losing(base, tmp_path) as trainer, pytest.raises(LabelguardError, match="row_weight"):
        trainer.evaluate()


def test_a_batch_of_the_reference_that_lost_its_noise_is_an_error(
    base: str, tmp_path: Path
) -> None:
    with losing(base, tmp_path) as trainer, pytest.raises(LabelguardError, match="row_weight"):
        trainer.evaluate(noisy(8, 4))


def test_rows_that_lost_their_noise_are_an_error(base: str, tmp_path: Path) -> None:
    trainer = DPOTrainer(base, config(tmp_path), train_dataset=noisy())
    trainer.train_dataset = trainer.train_dataset.remove_columns("target_probability")
    with pytest.raises(LabelguardError, match="no target_probability"):
        trainer.train()


@pytest.mark.slow
def test_a_collator_of_ones_own_keeps_the_noise(base: str, tmp_path: Path) -> None:
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    inner = DataCollatorForPreference(pad_token_id=257, max_length=LENGTH)
    args = config(tmp_path)
    own = DPOTrainer(base, args, train_dataset=noisy(), data_collator=lambda rows: inner(rows))
    assert_same_steps(trained(own), trained(DPOTrainer(base, args, train_dataset=noisy())))


@contextmanager
def losing(base: str, directory: Path) -> Iterator[DPOTrainer]:
    """A trainer whose batches lose the weights of their rows on the way to the loss."""
    args = config(directory, precompute_ref_log_probs=True)
    trainer = DPOTrainer(base, args, train_dataset=noisy(), eval_dataset=noisy(8, 3))
    whole = trainer.data_collator

    def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {name: value for name, value in whole(rows).items() if name != "row_weight"}

    trainer.data_collator = collate
    yield trainer


SCRIPT = """
import json, sys
from support import tiny_models as tiny
from labelguard_trainer import DPOConfig, DPOTrainer

base, out, batch = sys.argv[1:]
args = DPOConfig(
    out, max_length=64, learning_rate=3e-3, max_steps=4, use_cpu=True, report_to="none",
    disable_tqdm=True, save_strategy="no", logging_steps=1, preference_loss="robust",
    per_device_train_batch_size=int(batch), train_sampling_strategy="sequential",
)
gamma = [0.05 + 0.4 * row / 32 for row in range(32)]
trainer = DPOTrainer(base, args, train_dataset=tiny.release(32, flip_probability=gamma))
trainer.train()
margins = trainer.margins(tiny.release(13, 5, flip_probability=0.1)).tolist()
assert trainer.accelerator.num_processes * int(batch) == 8
if trainer.is_world_process_zero():
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    json.dump({"losses": losses, "margins": margins}, open(out + ".json", "w"))
"""


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(base: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    tests = str(Path(tiny.__file__).parents[1])
    paths = os.pathsep.join([tests, *sys.path])
    one, two = tmp_path / "one", tmp_path / "two"
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    for before, out, batch in (([], one, 8), (launch, two, 4)):
        command = [sys.executable, *before, str(script), base, str(out), str(batch)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths}, timeout=300)
    single, double = (json.loads(Path(f"{out}.json").read_text()) for out in (one, two))
    np.testing.assert_allclose(double["losses"], single["losses"], atol=1e-5)
    np.testing.assert_allclose(double["margins"], single["margins"], atol=1e-4)
