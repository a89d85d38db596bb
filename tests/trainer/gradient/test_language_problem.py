"""Reward models and DPO by labeler-level DP-SGD: gradients, clipping, checkpoints, exports."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelguard_trainer.gradient.language import LanguageProblem
from labelguard_trainer.gradient.language_runs import PreparedLanguage
from labelguard_trainer.gradient.records import Records
from support import dp_language
from support.dp_language import LABELERS, LIMIT, LORA, PAIRS, RECORDS, labels, moved, records
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from labelguard.accounting import gaussian
from labelguard.errors import LabelguardError
from labelguard.learning.learners import LearnerOptions

EVERYONE = np.arange(LABELERS)
BETA = 0.1
EXTREME = ("0", "-1", "1e-40", "1e30", ".inf", ".nan", "null", "text")
BOTH = pytest.mark.parametrize("kind", ["dpo", "reward"])
ALL = pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "LoRA"])


def tensors(problem, units, labels):
    """Its gradients, to be compared as torch compares."""
    return torch.from_numpy(problem.gradients(units, labels))


@pytest.fixture(scope="module")
def made(base):
    """A problem; equal ones are made once, since most tests leave them as they are."""
    kept: dict[Any, LanguageProblem] = {}

    def problem(kind, lora=LORA):
        if (kind, lora) not in kept:
            kept[kind, lora] = moved(dp_language.problem(kind, base, lora))
        return kept[kind, lora]

    return problem


def score(kind, model, row, side):
    """The reward of one text, or the log-probability of its response."""
    prompt = row.get("prompt_ids", [])
    ids = torch.tensor([prompt + row[side]])[:, :48]
    if kind == "reward":
        reward: torch.Tensor = model(ids).logits[0, 0]
        return reward
    log_probs = model(ids).logits[0, :-1].log_softmax(-1)
    return log_probs.gather(1, ids[0, 1:, None])[len(prompt) - 1 :, 0].sum()


def margin(kind, model, base, row):
    """z of one pair."""
    sides = [score(kind, model, row, side) for side in ("chosen_ids", "rejected_ids")]
    if kind == "dpo":
        reference = AutoModelForCausalLM.from_pretrained(base).eval()
        with torch.no_grad():
            fixed = [score(kind, reference, row, s) for s in ("chosen_ids", "rejected_ids")]
        sides = [BETA * (side - ref) for side, ref in zip(sides, fixed, strict=True)]
    return sides[0] - sides[1]


def _written_down(found, base, labeler):
    """The mean gradient of a labeler's records in use, one text after another, by autograd."""
    tokens = found.base.tokens.to_pylist()

    def loss(record):
        z = margin(found.base.kind, found._model, base, tokens[int(held.pairs[record])])
        y = float(labels()[record])
        return -y * torch.sigmoid(z).log() - (1 - y) * torch.sigmoid(-z).log()

    held = records()
    rows = np.flatnonzero(held.units == labeler)
    step = int(found.state()["steps"])
    used = [rows[(step * LIMIT + place) % len(rows)] for place in range(min(len(rows), LIMIT))]
    mean = torch.stack([loss(row) for row in used]).mean()
    gradients = torch.autograd.grad(mean, found._parameters)
    return torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.quick("LoRA-dpo", "whole-reward")
@BOTH
@ALL
def test_a_labelers_gradient_is_that_of_the_loss_written_down(kind, lora, made, base):
    found = made(kind, lora)
    gradients = tensors(found, EVERYONE, labels())
    assert not gradients[-1].any(), "a labeler without records has no gradient"
    for labeler in range(LABELERS - 1):
        expected = _written_down(found, base, labeler)
        scale = float(expected.abs().max())
        torch.testing.assert_close(gradients[labeler], expected, rtol=1e-3, atol=1e-4 * scale)
        assert scale > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("bf16", ["false", "true"])
@BOTH
@ALL
def test_a_labelers_gradient_is_the_same_whoever_else_is_in_the_cohort(kind, lora, bf16, base):
    """To the last bit: where texts shared batches, others' gradients told who was there."""
    settings = {"bf16": bf16, "use_cpu": "true", "per_device_train_batch_size": 64}
    found = moved(dp_language.problem(kind, base, lora, **settings))
    together = tensors(found, EVERYONE, labels())
    for units in (EVERYONE[1:], EVERYONE[::3], EVERYONE[[5]]):
        assert torch.equal(tensors(found, units, labels()), together[units])


@BOTH
@ALL
def test_other_labels_of_a_labeler_change_no_other_gradient_at_all(kind, lora, made):
    found, held = made(kind, lora), records()
    replaced = np.where(held.units == 3, 1 - labels(), labels())
    replaced[held.units == 3] = np.where(replaced == 0.5, 1.0, replaced)[held.units == 3]
    before, after = (tensors(found, EVERYONE, y) for y in (labels(), replaced))
    others = EVERYONE != 3
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before[3], after[3])


@BOTH
@ALL
def test_a_labeler_moves_the_sum_by_no_more_than_the_clip_norm(kind, lora, made):
    found, held = made(kind, lora), records()
    clip = 0.1 * float(tensors(found, EVERYONE, labels()).norm(dim=1)[:-1].min())
    with_, without = (found.clipped_sum(u, labels(), clip) for u in (EVERYONE, EVERYONE[1:]))
    assert 0.99 * clip < float((with_ - without).double().norm()) <= clip
    replaced = np.where(held.units == 0, 1 - labels(), labels())
    change = found.clipped_sum(EVERYONE, replaced, clip) - with_
    assert float(change.double().norm()) <= 2 * clip


def test_clipping_each_record_would_let_a_labeler_move_the_sum_by_more(base):
    held = records()
    alone = Records(held.pairs, np.arange(RECORDS), RECORDS, 1, "mean")
    found = moved(dp_language.problem("reward", base, of=alone))
    always = np.ones(RECORDS)
    clip = 0.1 * float(tensors(found, np.arange(RECORDS), always).norm(dim=1).min())
    of_one = np.flatnonzero(held.units == 0)[:LIMIT]
    assert float(found.clipped_sum(of_one, always, clip).norm()) > 1.5 * clip


@ALL
def test_the_order_of_a_cohort_changes_no_bit(lora, made):
    found = made("dpo", lora)
    one, other = (found.clipped_sum(u, labels(), 0.1) for u in (EVERYONE, EVERYONE[::-1]))
    assert torch.equal(one, other)
    with pytest.raises(ValueError, match="once"):
        found.clipped_sum(np.array([1, 1]), labels(), 0.1)


@pytest.mark.quick("LoRA-adamw_torch")
@pytest.mark.parametrize("optimizer", ["adamw_torch", "sgd"])
@ALL
def test_a_restored_problem_goes_on_to_the_last_bit(lora, optimizer, base):
    def learn(problem, steps):
        for step in steps:
            total = problem.clipped_sum(EVERYONE[:-2], labels(), 0.5)
            problem.step(problem.add_noise(total, 0.1, bytes([step]) * 32) / 6)

    first, second = (
        dp_language.problem("reward", base, lora, optim=optimizer, seed=seed) for seed in (0, 1)
    )
    learn(first, range(2))
    kept = first.state()
    learn(first, range(2, 4))
    second.restore(kept)
    learn(second, range(2, 4))
    ends = first.state(), second.state()
    assert ends[0].keys() == ends[1].keys()
    assert all(np.array_equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert np.array_equal(first.margins(), second.margins())
    assert not np.array_equal(ends[0]["parameters"], kept["parameters"])
    with pytest.raises(ValueError, match="another"):
        second.restore({**kept, "parameters": kept["parameters"][1:]})


@pytest.mark.quick("LoRA-dpo", "whole-reward")
@BOTH
@ALL
def test_margins_change_their_sign_with_the_sides(kind, lora, made, base):
    found = made(kind, lora)
    swapped = dp_language.problem(kind, base, lora, swapped=True)
    swapped.restore(found.state())
    np.testing.assert_allclose(found.margins(), -swapped.margins(), rtol=1e-4, atol=2e-6)
    assert np.abs(found.margins()).max() > 1e-3


@BOTH
def test_before_the_first_step_dpo_is_its_reference_and_new_weights_are_the_seeds(kind, base):
    one, other = (dp_language.problem(kind, base, seed=7).margins() for _ in range(2))
    assert np.array_equal(one, other)
    assert (np.abs(one).max() < 1e-6) == (kind == "dpo")


@pytest.mark.slow
@BOTH
@ALL
def test_what_is_exported_has_the_same_margins(kind, lora, made, base):
    found = made(kind, lora)
    [directory] = found.export(Path("model"))
    assert [path.name for path in Path().iterdir()] == ["model"]
    AutoTokenizer.from_pretrained(directory)
    kinds = {"dpo": AutoModelForCausalLM, "reward": AutoModelForSequenceClassification}
    model = kinds[kind].from_pretrained(directory).eval()
    with torch.no_grad():
        expected = [float(margin(kind, model, base, r)) for r in found.base.tokens.to_pylist()]
    np.testing.assert_allclose(found.margins(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "settings", "words"),
    [
        ({}, "", "--model ID_OR_PATH"),
        ({"lora": "r=2,alpha=4,dropout=0.1"}, "", "dropout"),
        ({}, "num_train_epochs: 2", "num_train_epochs"),
        ({}, "optim: adafactor", "optim"),
        ({}, "trust_remote_code: true", "trust_remote_code"),
        ({}, "max_length: 4096", "positions"),
        *(
            ({}, f"{name}: {value}", name)
            for name in ("beta", "max_grad_norm")
            for value in EXTREME
        ),
        ({"lora": "r=2,alpha=4,targets=c_nothing"}, "", "c_nothing"),
    ],
)
def test_what_cannot_be_learned_is_refused_before_there_is_a_model(options, settings, words, base):
    config = Path("config.yaml")
    config.write_text(settings)
    model = None if words == "--model ID_OR_PATH" else str(base)
    asked = LearnerOptions(model=model, config=str(config), **options)
    with pytest.raises(LabelguardError, match=words):
        PreparedLanguage.of("dpo", dp_language.pairs(), asked)


def test_the_identity_tells_how_the_model_learns(base):
    prepared = PreparedLanguage.of(
        "dpo", dp_language.pairs(), LearnerOptions(str(base), LORA, None)
    )
    assert prepared.identity["model"].startswith("sha256:")
    assert prepared.identity["lora"] == {"r": 4, "lora_alpha": 8}
    assert prepared.identity["training"]["max_length"] == 256
    assert len(prepared.training.tokens) == PAIRS


def test_a_model_of_more_parameters_than_runs_are_priced_for_is_refused(base, monkeypatch):
    monkeypatch.setattr(gaussian, "MOST_COORDINATES", 100)
    with pytest.raises(LabelguardError, match="100 parameters"):
        dp_language.problem("reward", base)


@pytest.mark.quick("1e-40", "1e+30")
@pytest.mark.parametrize("scale", [1e-40, 1e-20, 1.0, 1e30])
def test_at_every_scale_labels_move_a_sum_by_two_clip_norms_at_most(scale, base):
    """Of a reward model whose head is that much smaller, or larger; it learned from 1e-23 on."""
    found = dp_language.problem("reward", base, None)
    for parameter in found._parameters:
        parameter.data *= scale if parameter.shape[0] == 1 else 1.0
    norms = found.bound_gradient_norms(EVERYONE, labels())
    clip = float(np.median(norms[np.isfinite(norms) & (norms > 0)])) / 4
    sums = [found.clipped_sum(EVERYONE[:1], np.full(RECORDS, y), clip) for y in (0.0, 1.0)]
    assert np.linalg.norm(((sums[0] - sums[1]) / clip).numpy()) <= 2
