"""DPO on noisy rows: against TRL's own trainer, step by step, and through all it can be asked."""

from __future__ import annotations

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
import trl
from datasets import Dataset
from labelguard_trainer import DPOConfig, DPOTrainer
from peft import LoraConfig
from support import tiny_models as tiny
from transformers import AutoModelForCausalLM, TrainerCallback

from labelguard.errors import LabelguardError

pytestmark = pytest.mark.xdist_group("trl")
LENGTH = 64
QUIET = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a model that knows nothing yet."""
    return str(tiny.saved(tmp_path_factory.mktemp("base")))


def config(directory: Path, **given: Any) -> DPOConfig:
    settings = {"max_length": LENGTH, "learning_rate": 3e-3, "max_steps": 4, **QUIET, **given}
    return DPOConfig(str(directory / "out"), **settings)


def noisy(pairs: int = 32, seed: int = 0) -> Dataset:
    """A release of flipped labels, each with a γ of its own."""
    gamma = np.random.default_rng(seed).uniform(0.05, 0.45, pairs)
    return tiny.release(pairs, seed, flip_probability=gamma)


class Steps(TrainerCallback):  # type: ignore[misc]
    """The gradient of every step, as one vector."""

    def __init__(self) -> None:
        self.gradients: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        grads = [p.grad.flatten() for p in more["model"].parameters() if p.grad is not None]
        self.gradients.append(torch.cat(grads).clone())


def trained(trainer: Any) -> tuple[list[float], list[torch.Tensor]]:
    """The losses and gradients of all steps."""
    steps = Steps()
    trainer.add_callback(steps)
    trainer.train()
    return [log["loss"] for log in trainer.state.log_history if "loss" in log], steps.gradients


def assert_same_steps(one: Any, other: Any, tolerance: float = 1e-6) -> None:
    assert len(one[0]) == len(other[0]) > 0
    np.testing.assert_allclose(one[0], other[0], rtol=0, atol=tolerance)
    for mine, theirs in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance)


def test_equal_flip_probabilities_are_trls_robust_step_by_step(base: str, tmp_path: Path) -> None:
    release = tiny.release(32, flip_probability=0.2)
    ours = DPOTrainer(
        base, config(tmp_path, preference_loss="robust", bf16=False), train_dataset=release
    )
    settings = {"max_length": LENGTH, "learning_rate": 3e-3, "max_steps": 4, **QUIET}
    theirs = trl.DPOTrainer(
        base,
        args=trl.DPOConfig(
            str(tmp_path), loss_type=["robust"], label_smoothing=0.2, bf16=False, **settings
        ),
        train_dataset=release,
    )
    assert_same_steps(trained(ours), trained(theirs))


def test_metrics_are_trls(base: str, tmp_path: Path) -> None:
    release = tiny.release(32, label_probability=1.0)
    settings = {"max_length": LENGTH, "learning_rate": 3e-3, "max_steps": 4, **QUIET}
    ours = DPOTrainer(base, config(tmp_path, bf16=False), train_dataset=release)
    theirs = trl.DPOTrainer(
        base, args=trl.DPOConfig(str(tmp_path), bf16=False, **settings), train_dataset=release
    )
    ours.train(), theirs.train()
    mine, others = ours.state.log_history[3], theirs.state.log_history[3]
    shared = ["rewards/chosen", "rewards/margins", "logps/chosen", "entropy", "num_tokens"]
    for name in shared:
        assert mine[name] == pytest.approx(others[name], rel=1e-4, abs=1e-6)
    assert mine["agreement"] == pytest.approx(others["rewards/accuracies"])


@pytest.mark.parametrize("loss", ["auto", "robust"])
def test_one_batch_of_eight_is_two_of_four_with_accumulation(
    loss: str, base: str, tmp_path: Path
) -> None:
    def run(batch: int, accumulation: int) -> Any:
        args = config(
            tmp_path,
            preference_loss=loss,
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            optim="sgd",  # Adam makes a step of a rounding error where a gradient is nearly zero
            learning_rate=0.1,
        )
        return trained(DPOTrainer(base, args, train_dataset=noisy()))

    assert_same_steps(run(8, 1), run(4, 2))


def test_padding_changes_nothing(base: str, tmp_path: Path) -> None:
    def run(multiple: int | None) -> Any:
        args = config(tmp_path, pad_to_multiple_of=multiple)
        return trained(DPOTrainer(base, args, train_dataset=noisy()))

    assert_same_steps(run(None), run(64), 1e-5)


def test_twenty_steps_learn_clean_pairs(base: str, tmp_path: Path) -> None:
    args = config(tmp_path, max_steps=20, learning_rate=1e-2)
    trainer = DPOTrainer(base, args, train_dataset=tiny.release(64, label_probability=1.0))
    trainer.train()
    assert np.mean(trainer.margins(tiny.release(64, 9, label_probability=1.0)) > 0) > 0.95


def test_known_noise_is_learnt_through_and_plain_learns_the_noise(
    base: str, tmp_path: Path
) -> None:
    def mean_margin(loss: str) -> float:
        release = tiny.release(96, 3, flip_probability=0.3)
        args = config(tmp_path, max_steps=24, learning_rate=1e-2, preference_loss=loss)
        trainer = DPOTrainer(base, args, train_dataset=release)
        trainer.train()
        return float(np.mean(trainer.margins(tiny.release(64, 9, label_probability=1.0))))

    assert mean_margin("auto") > 1.2 * mean_margin("plain") > 0


def test_margins_are_in_the_order_of_the_data_set(base: str, tmp_path: Path) -> None:
    trainer = DPOTrainer(base, config(tmp_path), train_dataset=noisy())
    trainer.train()
    rows = noisy(20, 5)
    whole = trainer.margins(rows)
    one_by_one = [trainer.margins(rows.select([row]))[0] for row in range(len(rows))]
    np.testing.assert_allclose(whole, one_by_one, atol=1e-5)
    assert trainer.model.training


def test_margins_are_those_of_a_forward_pass_with_logits(base: str, tmp_path: Path) -> None:
    trainer = DPOTrainer(base, config(tmp_path, beta=0.3), train_dataset=noisy())
    trainer.train()
    row = noisy(1, 6)[0]
    words = trainer.processing_class

    def log_prob(model: Any, side: str) -> float:
        prompt, answer = (words(row[name])["input_ids"] for name in ("prompt", side))
        ids = torch.tensor([prompt + answer + [words.eos_token_id]])
        with torch.no_grad():
            steps = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        chosen = steps.gather(1, ids[0, 1:, None])[:, 0]
        return float(chosen[len(prompt) - 1 :].sum())

    reference = AutoModelForCausalLM.from_pretrained(base).eval()
    model = trainer.model.eval()
    ratio = {s: log_prob(model, s) - log_prob(reference, s) for s in ("chosen", "rejected")}
    expected = 0.3 * (ratio["chosen"] - ratio["rejected"])
    assert trainer.margins(Dataset.from_list([row]))[0] == pytest.approx(expected, abs=1e-5)


def test_precomputed_references_change_nothing(base: str, tmp_path: Path) -> None:
    plain = trained(DPOTrainer(base, config(tmp_path), train_dataset=noisy()))
    args = config(tmp_path, precompute_ref_log_probs=True)
    assert_same_steps(plain, trained(DPOTrainer(base, args, train_dataset=noisy())))


def test_a_model_in_memory_is_its_own_reference(base: str, tmp_path: Path) -> None:
    from_path = trained(DPOTrainer(base, config(tmp_path), train_dataset=noisy()))
    in_memory = DPOTrainer(
        tiny.gpt2(), config(tmp_path), train_dataset=noisy(), processing_class=tiny.tokenizer()
    )
    assert_same_steps(from_path, trained(in_memory))
    with pytest.raises(LabelguardError, match="ref_model"):
        in_memory.margins(noisy(4, 2))
    assert len(in_memory.margins(in_memory.train_dataset)) == 32


def test_tokenized_rows_with_their_reference_are_taken_as_they_are(
    base: str, tmp_path: Path
) -> None:
    first = DPOTrainer(base, config(tmp_path), train_dataset=noisy())
    reference = first.log_probs(first.train_dataset)
    columns = ["prompt_ids", "chosen_ids", "rejected_ids", "target_probability", "row_weight"]
    prepared = first.train_dataset.select_columns([*columns, "flip_probability"])
    for name, values in zip(("ref_chosen_logps", "ref_rejected_logps"), reference.T, strict=True):
        prepared = prepared.add_column(name, values)
    again = DPOTrainer(base, config(tmp_path), train_dataset=prepared)
    assert again.ref_model is None
    assert_same_steps(trained(first), trained(again))
    assert len(again.margins(prepared)) == 32


def test_an_evaluation_set_without_the_reference_of_the_training_set_is_refused(
    base: str, tmp_path: Path
) -> None:
    prepared = noisy().add_column("ref_chosen_logps", np.zeros(32))
    prepared = prepared.add_column("ref_rejected_logps", np.zeros(32))
    with pytest.raises(LabelguardError, match="eval data has no ref_chosen_logps"):
        DPOTrainer(base, config(tmp_path), train_dataset=prepared, eval_dataset=noisy(8, 3))


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


@pytest.mark.parametrize("adapter", [False, True])
def test_checkpointed_activations_and_kept_ones_are_the_same_steps(
    adapter: bool, base: str, tmp_path: Path
) -> None:
    def run(checkpointing: bool) -> Any:
        lora = LoraConfig(r=4, lora_alpha=8, fan_in_fan_out=True) if adapter else None
        args = config(tmp_path, activation_checkpointing=checkpointing)
        return trained(DPOTrainer(base, args, train_dataset=noisy(), peft_config=lora))

    assert_same_steps(run(True), run(False))


def test_bfloat16_trains_where_it_is_asked_for_and_is_off_on_a_cpu_by_default(
    base: str, tmp_path: Path
) -> None:
    assert DPOConfig(str(tmp_path), use_cpu=True).bf16 is False
    single = trained(DPOTrainer(base, config(tmp_path, use_cpu=True), train_dataset=noisy()))
    args = config(tmp_path, bf16=True, use_cpu=True)
    half = trained(DPOTrainer(base, args, train_dataset=noisy()))
    np.testing.assert_allclose(half[0], single[0], atol=0.05)
    assert half[0] != single[0]


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


def test_a_mixture_of_experts_adds_its_own_loss(tmp_path: Path) -> None:
    from transformers import MixtralConfig, MixtralForCausalLM, set_seed

    def loss(coefficient: float) -> float:
        set_seed(0)
        model = MixtralForCausalLM(
            MixtralConfig(
                vocab_size=258,
                hidden_size=32,
                intermediate_size=32,
                num_hidden_layers=1,
                num_attention_heads=2,
                num_key_value_heads=2,
                num_local_experts=2,
                max_position_embeddings=256,
            )
        )
        args = config(tmp_path, router_aux_loss_coef=coefficient, max_steps=1)
        words = tiny.tokenizer()
        trainer = DPOTrainer(model, args, train_dataset=noisy(), processing_class=words)
        return trained(trainer)[0][0]

    assert loss(0.5) > loss(0.0) + 0.5


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
if trainer.is_world_process_zero():
    losses = [log["loss"] for log in trainer.state.log_history if "loss" in log]
    json.dump({"losses": losses, "margins": margins}, open(out + ".json", "w"))
"""


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one(base: str, tmp_path: Path) -> None:
    import json

    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    tests = str(Path(tiny.__file__).parents[1])
    paths = os.pathsep.join([tests, *sys.path])
    one, two = tmp_path / "one", tmp_path / "two"
    launch = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"]
    for before, out, batch in (([], one, 8), (launch, two, 4)):
        command = [sys.executable, *before, str(script), base, str(out), str(batch)]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": paths}, timeout=300)
    single, double = (json.loads(Path(f"{out}.json").read_text()) for out in (one, two))
    np.testing.assert_allclose(double["losses"], single["losses"], atol=1e-5)
    np.testing.assert_allclose(double["margins"], single["margins"], atol=1e-4)
