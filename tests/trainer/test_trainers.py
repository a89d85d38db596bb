"""Trainers of noisy rows, step by step: against TRL's own, against themselves, and interrupted."""

from pathlib import Path

import numpy as np
import pytest
import torch
import trl
from datasets import Dataset
from labelguard_trainer import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer
from peft import LoraConfig
from support import tiny_models as tiny
from support.training_steps import QUIET, assert_same_steps, fit
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from labelguard.errors import LabelguardError

LENGTH = 64
# The fewer parameters, the larger the rate.
RATES = {"dpo": 3e-3, "dpo, LoRA": 3e-2, "reward": 5e-3, "reward, LoRA": 3e-2}
EVERY = pytest.mark.parametrize("kind", RATES)
BOTH = pytest.mark.parametrize("kind", ["dpo", "reward"])
REFERENCE = ("ref_chosen_logps", "ref_rejected_logps")


def noisy(pairs=32, seed=0):
    """A release of flipped labels, each with a γ of its own."""
    gamma = np.random.default_rng(seed).uniform(0.05, 0.45, pairs)
    return tiny.release(pairs, seed, flip_probability=gamma)


def clean(pairs=64, seed=0, **more):
    return tiny.release(pairs, seed, label_probability=1.0, **more)


def config(kind, **given):
    settings = {"max_length": LENGTH, "max_steps": 4, "learning_rate": RATES[kind], **QUIET}
    if kind.startswith("dpo"):
        return DPOConfig("out", **{**settings, **given})
    return RewardConfig("out", **{**settings, **given})


def build(kind, model, rows=None, *, more=None, **given):
    """A trainer on `rows`; `given` are settings, `more` arguments of its own."""
    lora = LoraConfig(r=8, lora_alpha=16, fan_in_fan_out=True) if "LoRA" in kind else None
    trainer = DPOTrainer if kind.startswith("dpo") else RewardTrainer
    arguments = {"train_dataset": noisy() if rows is None else rows, "peft_config": lora}
    return trainer(model, config(kind, **given), **arguments, **(more or {}))


# The loss, against TRL's and against what is written down.


def test_equal_flip_probabilities_are_trls_robust_step_by_step(base):
    rows = tiny.release(32, flip_probability=0.2)
    ours = build("dpo", base, rows, preference_loss="robust")
    settings = {"max_length": LENGTH, "learning_rate": 3e-3, "max_steps": 4, **QUIET}
    settings |= {"loss_type": ["robust"], "label_smoothing": 0.2, "bf16": False}
    args = trl.DPOConfig("out", **settings)
    theirs = trl.DPOTrainer(base, args=args, train_dataset=rows)
    assert_same_steps(fit(ours), fit(theirs))


@pytest.mark.quick("reward")
@BOTH
def test_without_noise_steps_and_metrics_are_trls(kind, base):
    rows = clean(32)
    ours = build(kind, base, rows)
    theirs = {"dpo": trl.DPOTrainer, "reward": trl.RewardTrainer}[kind]
    settings = {"max_length": LENGTH, "learning_rate": RATES[kind], "max_steps": 4, **QUIET}
    args = {"dpo": trl.DPOConfig, "reward": trl.RewardConfig}[kind]("out", bf16=False, **settings)
    other = theirs(base, args=args, train_dataset=rows)
    assert_same_steps(fit(ours), fit(other))
    mine, others = ours.state.log_history[3], other.state.log_history[3]
    shared = ["rewards/chosen", "rewards/margins", "logps/chosen", "entropy", "num_tokens"]
    for name in shared if kind == "dpo" else ["num_tokens"]:
        assert mine[name] == pytest.approx(others[name], rel=1e-4, abs=1e-6)
    right = others["rewards/accuracies" if kind == "dpo" else "accuracy"]
    assert mine["agreement"] == pytest.approx(right)


def test_the_first_loss_is_that_of_each_rows_own_noise(base):
    given = {"per_device_train_batch_size": 32, "max_steps": 1, "preference_loss": "robust"}
    trainer = build("reward", base, **given)
    rows = trainer.train_dataset
    z, gamma = torch.tensor(trainer.margins(rows)), torch.tensor(rows["flip_probability"][:])
    weight = (1 - 2 * gamma) ** 2
    kept, flipped = -torch.nn.functional.logsigmoid(z), -torch.nn.functional.logsigmoid(-z)
    each = ((1 - gamma) * kept - gamma * flipped) / (1 - 2 * gamma)
    expected = float((weight / weight.mean() * each).mean())
    assert fit(trainer)[0][0] == pytest.approx(expected, abs=1e-6)


@BOTH
def test_held_out_rows_are_evaluated_by_the_same_loss(kind, base):
    trainer = build(kind, base, more={"eval_dataset": noisy(10, 3)})
    trainer.train()
    found = trainer.evaluate()
    z = torch.tensor(trainer.margins(trainer.eval_dataset))
    gamma = torch.tensor(trainer.eval_dataset["flip_probability"][:])
    loss = -torch.log((1 - gamma) * torch.sigmoid(z) + gamma * torch.sigmoid(-z))
    assert found["eval_loss"] == pytest.approx(float(loss.mean()), abs=1e-5)
    assert {"eval_agreement", f"eval_{'rewards/margins' if kind == 'dpo' else 'margin'}"} <= {
        *found
    }


@pytest.mark.slow
def test_known_noise_is_learnt_through_and_plain_learns_the_noise(base):
    def mean_margin(loss):
        rows = tiny.release(96, 3, flip_probability=0.3)
        given = {"max_steps": 24, "learning_rate": 1e-2, "preference_loss": loss}
        trainer = build("dpo", base, rows, **given)
        trainer.train()
        return float(np.mean(trainer.margins(clean(64, 9))))

    assert mean_margin("auto") > 1.2 * mean_margin("plain") > 0


# What changes no step.


@pytest.mark.slow
@EVERY
def test_one_batch_of_eight_is_two_of_four_with_accumulation(kind, base):
    def run(batch, accumulation):
        given = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulation}
        # Adam makes a step of a rounding error where a gradient is nearly zero.
        given |= {"optim": "sgd", "preference_loss": "robust" if kind == "dpo" else "auto"}
        return fit(build(kind, base, **given))

    assert_same_steps(run(8, 1), run(4, 2), 1e-5)


SAME = {
    "padding": ({}, {"pad_to_multiple_of": 64}),
    "references": ({}, {"precompute_ref_log_probs": True}),
    "activations": ({"activation_checkpointing": True}, {"activation_checkpointing": False}),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "what"),
    [*(("dpo", what) for what in SAME), *(("reward", "padding"), ("dpo, LoRA", "activations"))],
)
def test_what_is_said_twice_is_the_same_steps(kind, what, base):
    one, other = (fit(build(kind, base, optim="sgd", **given)) for given in SAME[what])
    assert_same_steps(one, other, 1e-5)


@pytest.mark.slow
def test_a_model_in_memory_is_its_own_reference(base):
    from_path = fit(build("dpo", base))
    more = {"processing_class": tiny.tokenizer()}
    in_memory = build("dpo", tiny.gpt2(), more=more)
    assert_same_steps(from_path, fit(in_memory))
    with pytest.raises(LabelguardError, match="ref_model"):
        in_memory.margins(noisy(4, 2))
    assert len(in_memory.margins(in_memory.train_dataset)) == 32


def test_tokenized_rows_with_their_reference_are_taken_as_they_are(base):
    first = build("dpo", base)
    reference = first.log_probs(first.train_dataset)
    columns = ["prompt_ids", "chosen_ids", "rejected_ids", "target_probability", "row_weight"]
    prepared = first.train_dataset.select_columns([*columns, "flip_probability"])
    for name, values in zip(REFERENCE, reference.T, strict=True):
        prepared = prepared.add_column(name, values)
    again = build("dpo", base, prepared)
    assert again.ref_model is None
    assert_same_steps(fit(first), fit(again))
    assert len(again.margins(prepared)) == 32
    with pytest.raises(LabelguardError, match="eval data has no ref_chosen_logps"):
        build("dpo", base, prepared, more={"eval_dataset": noisy(8, 3)})


# Margins, and what is learnt.


def test_margins_are_those_of_a_forward_pass_with_logits(base):
    trainer = build("dpo", base, beta=0.3)
    trainer.train()
    row = noisy(1, 6)[0]
    words = trainer.processing_class

    def log_prob(model, side):
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
@BOTH
def test_conversations_go_through_the_chat_template(kind):
    model = str(tiny.saved(Path("chat"), chat=True))
    given = {"max_steps": 20, "learning_rate": 1e-2}
    trainer = build(kind, model, clean(chat=True), **given)
    trainer.train()
    row = trainer.train_dataset[0]
    ids = row["prompt_ids" if kind == "dpo" else "chosen_ids"]
    assert trainer.processing_class.decode(ids).startswith("<|user|>")
    assert np.mean(trainer.margins(clean(32, 9, chat=True)) > 0) > 0.95


@pytest.mark.slow
def test_lora_learns_beside_a_frozen_model(base):
    trainer = build("dpo, LoRA", base, clean(), max_steps=20)
    trainer.train()
    assert trainer.ref_model is None
    held_out = clean(64, 9)
    margins = trainer.margins(held_out)
    assert np.mean(margins > 0) > 0.95
    trainer.save_model("adapter")
    loaded = AutoModelForCausalLM.from_pretrained(Path("adapter"))
    more = {"ref_model": AutoModelForCausalLM.from_pretrained(base)}
    more |= {"processing_class": tiny.tokenizer()}
    again = build("dpo", loaded, held_out, more=more)
    np.testing.assert_allclose(again.margins(held_out), margins, atol=1e-5)


@pytest.mark.quick("reward")
@pytest.mark.parametrize("kind", ["reward", "reward, LoRA"])
def test_what_is_learnt_is_saved_as_a_classifier_that_gives_the_same_rewards(kind, base):
    trainer = build(kind, base, clean(), max_steps=30)
    trainer.train()
    held_out = clean(64, 9)
    margins = trainer.margins(held_out)
    assert np.mean(margins > 0) > 0.95
    trainer.save_model()
    rewards = AutoModelForSequenceClassification.from_pretrained(Path("out")).eval()
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


def test_lora_learns_its_adapter_and_the_score(base):
    trainer = build("reward, LoRA", base)
    learnt = [n for n, value in trainer.model.named_parameters() if value.requires_grad]
    assert any("score" in name for name in learnt)
    assert all("lora_" in name or "score" in name for name in learnt)


@pytest.mark.slow
def test_texts_that_are_too_long_are_left_out_of_training_and_cut_for_scoring(base):
    rows = noisy(16)
    long = rows.select([0]).map(lambda row: {"chosen": row["chosen"] + " ok" * 40})
    mixed = Dataset.from_list([*rows.to_list(), *long.to_list()])
    trainer = build("reward", base, mixed)
    assert trainer.left_out == 1
    assert len(trainer.margins(mixed)) == 17


# Precision.


@pytest.mark.quick("False")
@pytest.mark.parametrize("precomputed", [False, True])
def test_before_the_first_step_a_policy_is_its_reference_in_any_precision(precomputed):
    """Of a model so sure of itself that its log-probabilities differ much in bf16."""
    certain = tiny.certain(Path("certain"))
    first = {}
    for bf16 in (False, True):
        given = {"bf16": bf16, "precompute_ref_log_probs": precomputed, "use_cpu": True}
        given |= {"max_steps": 1, "per_device_train_batch_size": 32}
        trainer = build("dpo", certain, **given)
        assert np.abs(trainer.margins(trainer.train_dataset)).max() < 1e-3
        trainer.train()
        first[bf16] = trainer.state.log_history[0]
        assert abs(first[bf16]["rewards/chosen"]) < 1e-3 > abs(first[bf16]["rewards/rejected"])
    rounding = 0.1 * abs(first[True]["logps/chosen"] - first[False]["logps/chosen"])
    assert rounding > 5e-3, "with one of the two in another precision this would show"


# Noise that is lost on the way.


@BOTH
def test_a_batch_that_lost_its_noise_is_an_error(kind, base):
    given = {"precompute_ref_log_probs": True} if kind == "dpo" else {}
    trainer = build(kind, base, more={"eval_dataset": noisy(8, 3)}, **given)
    whole = trainer.data_collator

    def collate(rows):
        return {name: value for name, value in whole(rows).items() if name != "row_weight"}

    trainer.data_collator = collate
    for use in (trainer.train, trainer.evaluate, lambda: trainer.evaluate(noisy(8, 4))):
        with pytest.raises(LabelguardError, match="no row_weight"):
            use()


def test_rows_that_lost_their_noise_are_an_error(base):
    trainer = build("dpo", base)
    trainer.train_dataset = trainer.train_dataset.remove_columns("target_probability")
    with pytest.raises(LabelguardError, match="no target_probability"):
        trainer.train()
