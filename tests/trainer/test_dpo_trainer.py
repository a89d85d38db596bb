"""DPO on noisy rows, step by step: against TRL's own trainer, and against itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("trl")

import torch
import trl
from datasets import Dataset
from labelguard_trainer import DPOTrainer
from support import tiny_models as tiny
from support.dpo_steps import LENGTH, QUIET, assert_same_steps, config, noisy, trained
from transformers import AutoModelForCausalLM

from labelguard.errors import LabelguardError

pytestmark = pytest.mark.xdist_group("trl")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of a model that knows nothing yet."""
    return str(tiny.saved(tmp_path_factory.mktemp("base")))


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_precomputed_references_change_nothing(base: str, tmp_path: Path) -> None:
    plain = trained(DPOTrainer(base, config(tmp_path), train_dataset=noisy()))
    args = config(tmp_path, precompute_ref_log_probs=True)
    assert_same_steps(plain, trained(DPOTrainer(base, args, train_dataset=noisy())))


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_metrics_of_a_last_step_that_is_not_full_are_of_all_its_rows(
    base: str, tmp_path: Path
) -> None:
    args = config(
        tmp_path,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,
        train_sampling_strategy="sequential",
        max_steps=1,
        logging_steps=1,
    )
    release = tiny.release(20, flip_probability=0.2)
    trainer = DPOTrainer(base, args, train_dataset=release)
    chosen = trainer.log_probs(release)[:, 0]
    trainer.train()
    expected = np.mean([chosen[:8].mean(), chosen[8:16].mean(), chosen[16:].mean()])
    assert trainer.state.log_history[0]["logps/chosen"] == pytest.approx(expected, rel=1e-4)
