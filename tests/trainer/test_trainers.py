"""Trainers of noisy rows, step by step: against TRL's own, against themselves, and interrupted."""

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import labelguard_trainer
import numpy as np
import pytest
import torch
import trl
from datasets import Dataset
from labelguard_trainer import (
    DPOConfig,
    DPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RewardTrainer,
    losses,
)
from peft import LoraConfig
from support import tiny_models as tiny
from support.copies import release_copy
from support.train_runs import weights
from support.training_steps import QUIET, assert_same_steps, fit
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
from trl.data_utils import unpair_preference_dataset

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


# IPO and KTO with the noise of every row, TRL's own configurations, and losses without TRL.
#
# The examples of `examples/noisy_losses` run, and do what they say.

PAIRS, GAMMA = 16, 0.3
FLIPPED = {"chosen": "rejected", "rejected": "chosen"}
ONE_STEP = {"max_length": 64, "max_steps": 1, "per_device_train_batch_size": 32, **QUIET}
ONE_STEP |= {"max_grad_norm": 0.0}  # gradients as they are
IPO = {"loss_type": ["ipo"]}
KINDS = {
    "ipo": (DPOTrainer, DPOConfig, IPO),
    "kto": (KTOTrainer, KTOConfig, {"train_sampling_strategy": "sequential"}),
    # without the KL term, which depends on the answers beside one
    "apo": (KTOTrainer, KTOConfig, {"loss_type": "apo_zero_unpaired", "desirable_weight": 1.5}),
}


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """Another model than `base`, to be its reference."""
    return str(tiny.saved(tmp_path_factory.mktemp("other") / "other", seed=1))


def step(kind, base, rows, other=None, **given):
    """The loss and the gradient of one step on all rows."""
    trainer, config, more = KINDS[kind]
    reference = {"ref_model": tiny.loaded(other)} if other else {}
    args = config("out", **{**ONE_STEP, **more, **given})
    [loss], [gradient] = fit(trainer(base, args, train_dataset=rows, **reference))
    return loss, gradient


@pytest.mark.quick("apo", "ipo")
@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_over_flips_is_the_loss_of_true_labels(kind, base, other):
    """Of its gradient too; all rows are flipped, or none: a loss adds up over rows."""
    reference = None if kind == "kto" else other  # at its reference the KL term is 0
    truth = tiny.release(PAIRS, label_probability=1.0)
    noisy = tiny.release(PAIRS, flip_probability=0.0).remove_columns("flip_probability")
    noisy = noisy.add_column("flip_probability", [GAMMA] * PAIRS)
    wanted = step(kind, base, truth, reference)
    stays = step(kind, base, noisy, reference)
    flips = step(kind, base, noisy.rename_columns(FLIPPED), reference)
    for true, kept, turned in zip(wanted, stays, flips, strict=True):
        mean = (1 - GAMMA) * torch.as_tensor(kept) + GAMMA * torch.as_tensor(turned)
        torch.testing.assert_close(mean, torch.as_tensor(true), rtol=1e-4, atol=1e-5)
    assert abs(stays[0] - wanted[0]) > 1e-3 or kind == "kto"
    assert not torch.allclose(stays[1], wanted[1], rtol=1e-2)


@pytest.mark.slow
def test_without_noise_ipo_is_trls_step_by_step(base):
    rows, settings = tiny.release(32, label_probability=1.0), {**ONE_STEP, **IPO, "max_steps": 3}
    settings |= {"per_device_train_batch_size": 8, "learning_rate": 3e-3}
    ours = DPOTrainer(base, DPOConfig("out", **settings), train_dataset=rows)
    theirs = trl.DPOTrainer(
        base, args=trl.DPOConfig("out", bf16=False, **settings), train_dataset=rows
    )
    assert_same_steps(fit(ours), fit(theirs))


def test_equal_flips_scale_trls_kto_and_nothing_else(base):
    rows, settings = tiny.release(16, flip_probability=GAMMA), {**ONE_STEP, "max_steps": 3}
    settings |= {"per_device_train_batch_size": 8, "learning_rate": 3e-3, "optim": "sgd"}
    unpaired = unpair_preference_dataset(rows).shuffle(seed=42)
    args = trl.KTOConfig("out", bf16=False, **settings)
    theirs = fit(trl.KTOTrainer(base, args=args, train_dataset=unpaired))
    settings["learning_rate"] *= 1 - 2 * GAMMA
    losses_of_ours, gradients = fit(
        KTOTrainer(base, KTOConfig("out", **settings), train_dataset=rows)
    )
    scale = 1 - 2 * GAMMA
    scaled = [(loss - 0.5) * scale + 0.5 for loss in losses_of_ours]
    assert_same_steps((scaled, [scale * gradient for gradient in gradients]), theirs, 1e-5)


def test_losses_of_answers_are_unbiased_and_their_minimum_is_known():
    gamma = torch.tensor([0.0, 0.1, 0.4], dtype=torch.float64)
    h = torch.tensor([0.3, -2.0, 5.0], dtype=torch.float64)
    for loss in (
        lambda h, t, g: losses.ipo(h, t, g),
        lambda h, t, g: losses.kto(h, 0.2, torch.tensor([True, False, True]), t, g),
    ):
        mean = (1 - gamma) * loss(h, 1.0, gamma) + gamma * loss(h, 0.0, gamma)
        torch.testing.assert_close(mean, loss(h, 1.0, 0.0))
    aim = (1 / (2 * 0.1) / (1 - 2 * gamma)).requires_grad_()
    losses.ipo(aim, 1.0, gamma).sum().backward()
    torch.testing.assert_close(aim.grad, torch.zeros(3, dtype=torch.float64))


def test_dpo_takes_log_probabilities():
    ours = losses.dpo(*torch.tensor([[1.0], [0.5], [0.2], [0.4]]), flip_probability=0.2)
    seen = 0.8 * torch.sigmoid(torch.tensor([0.07])) + 0.2 * torch.sigmoid(torch.tensor([-0.07]))
    torch.testing.assert_close(ours, -torch.log(seen))


@pytest.mark.slow
def test_trls_configuration_is_taken_with_the_noise_of_rows(base):
    rows = tiny.release(32, flip_probability=0.2)
    settings = {**ONE_STEP, "max_steps": 2, "per_device_train_batch_size": 8}
    theirs = trl.DPOConfig("out", bf16=False, **settings)
    given = DPOTrainer(base, theirs, train_dataset=rows)
    assert_same_steps(
        fit(given), fit(DPOTrainer(base, DPOConfig("out", **settings), train_dataset=rows))
    )
    assert type(theirs) is trl.DPOConfig
    with pytest.raises(LabelguardError, match="DPOConfig of labelguard_trainer or of trl"):
        DPOTrainer(base, trl.RewardConfig("out", bf16=False), train_dataset=rows)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        ("ipo", {"preference_loss": "forward"}, "IPO has no likelihood"),
        ("ipo", {"loss_type": ["robust"]}, "loss_type"),
        ("kto", {"preference_loss": "forward"}, "KTO has no likelihood"),
    ],
)
def test_a_loss_without_a_likelihood_says_so(kind, given, message, base):
    with pytest.raises(LabelguardError, match=message):
        step(kind, base, tiny.release(4, flip_probability=0.2), **given)


def test_the_package_lists_its_trainers_and_names_what_to_take_in_place_of_others():
    assert {"DPOTrainer", "KTOTrainer", "RewardTrainer"} <= set(dir(labelguard_trainer))
    for name in ("CPOTrainer", "ORPOTrainer"):
        with pytest.raises(AttributeError, match="DPOTrainer"):
            getattr(labelguard_trainer, name)


@pytest.mark.slow
def test_losses_need_torch_alone():
    code = "import sys, labelguard_trainer.losses; print({'trl', 'transformers'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.slow
def test_copies_of_a_pair_are_stock_dpo_on_probabilities(base, other, tmp_path):
    """Its loss and gradient are those of `soft`; of other probabilities, to within 1/(2k)."""
    from support.copies import release_copy

    import labelguard as lg

    copies = 4
    for probability, exact in (
        ([0.25, 0.5, 0.75, 1.0] * 4, True),
        ([0.3, 0.6, 0.9, 0.1] * 4, False),
    ):
        release = tmp_path / f"release-{exact}"
        release_copy(release, tiny.release_table(PAIRS, label_probability=probability))
        exported = lg.export(release, tmp_path / f"out-{exact}", to="trl", copies=copies)
        more = {"ref_model": tiny.loaded(other)}
        settings = {**ONE_STEP, "per_device_train_batch_size": PAIRS * copies, "beta": 0.5}
        rows = lg.load(release, "datasets")
        ours = DPOTrainer(base, DPOConfig("out", **settings), train_dataset=rows, **more)
        margin = np.abs(ours.margins(rows)).mean()
        stock = trl.DPOTrainer(
            base,
            args=trl.DPOConfig("out", bf16=False, **settings),
            train_dataset=tiny.read_pairs(exported.path),
            ref_model=tiny.loaded(other),
        )
        [soft], [gradient] = fit(ours)
        [plain], [other_gradient] = fit(stock)
        if exact:
            assert plain == pytest.approx(soft, abs=1e-5)
            torch.testing.assert_close(gradient, other_gradient, rtol=1e-3, atol=1e-5)
        else:
            assert 1e-4 < abs(plain - soft) <= margin / (2 * copies)


EXAMPLES = Path(__file__).parents[2] / "examples" / "noisy_losses"
FLIP = np.linspace(0.05, 0.4, 12)


@pytest.fixture
def rows():
    """Rows of unequal rates."""
    return tiny.release(12, flip_probability=FLIP)


def stock(base, rows, trainer, **given):
    """A trainer as it comes, at another reference than its model."""
    settings = {"max_length": 64, "max_steps": 1, "per_device_train_batch_size": 12, **QUIET}
    settings |= {"loss_type": ["robust"], "beta": 0.5, "bf16": False, **given}
    args = trl.DPOConfig("out", **settings)
    return trainer(base, args=args, train_dataset=rows, ref_model=tiny.gpt2(seed=1))


def first_loss(trainer):
    """The loss of the first step, and what `losses.robust` says of the same margins."""
    [loss], _ = fit(trainer)
    logged = trainer.state.log_history[0]
    return loss, logged


@pytest.fixture
def modules(monkeypatch):
    """Return what imports an example, with an axolotl that has a base of plug-ins alone."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    names = ("axolotl", "axolotl.integrations", "axolotl.integrations.base")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[names[-1]].BasePlugin = object
    return importlib.import_module


def compute_loss(base, rows):
    """The mean of the robust loss of each row, at margins of the model itself."""
    from labelguard_trainer import DPOConfig, DPOTrainer

    args = DPOConfig("out", max_length=64, beta=0.5, preference_loss="robust", **QUIET)
    ours = DPOTrainer(base, args, train_dataset=rows, ref_model=tiny.gpt2(seed=1))
    z = torch.tensor(ours.margins(rows))
    return float(losses.robust(z, torch.ones(12), torch.tensor(FLIP)).mean())


def test_any_dpo_trainer_takes_the_rate_of_each_row(base, rows, modules):
    """As a subclass, and by the plug-in of axolotl, whose base class is all that is not real."""
    wanted = compute_loss(base, rows)
    subclass = stock(base, rows, modules("any_dpo_trainer").NoisyDPOTrainer)
    assert first_loss(subclass)[0] == pytest.approx(wanted, abs=1e-4)
    plain = stock(base, rows, trl.DPOTrainer)
    modules("axolotl_plugin").NoisePlugin().post_trainer_create(None, plain)
    assert first_loss(plain)[0] == pytest.approx(wanted, abs=1e-4)
    assert first_loss(stock(base, rows, trl.DPOTrainer))[0] != pytest.approx(wanted, abs=1e-3)


@pytest.mark.slow
def test_a_plain_loop_learns_through_the_noise(base, tmp_path):
    release = release_copy(tmp_path / "release", tiny.release_table(24, flip_probability=0.2))
    command = [sys.executable, EXAMPLES / "plain_loop.py", release, base, tmp_path / "out"]
    subprocess.run(list(map(str, command)), check=True)
    assert weights(tmp_path / "out").keys() >= weights(Path(base)).keys()
