"""Stages of PROPS with language models: tokens, margins, the reference, where a stage begins.

Language models as steps of a retraining job: trained and asked like `labelguard train`.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Dataset
from labelguard_trainer import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer
from labelguard_trainer.training import learners
from labelguard_trainer.training.stage_training import tokenize
from support import tiny_models, train_runs
from transformers import AutoModelForCausalLM

from labelguard.errors import LabelguardError
from labelguard.jobs.steps import TrainingTask, open_step
from labelguard.learning.learners import LearnerOptions
from labelguard.mechanisms import props
from labelguard.mechanisms.props_stages import ReleasedLabels, run_stages
from labelguard.release.model_card import front_matter
from labelguard.release.pairs_file import read_preference_pairs
from labelguard.text import no_progress

PAIRS, LONGEST = 48, 64
SETTINGS = f"max_length: {LONGEST}\nlearning_rate: 2e-3\nnum_train_epochs: 4\n"
TRAINERS = {"dpo": (DPOTrainer, DPOConfig), "reward": (RewardTrainer, RewardConfig)}


def _pairs(*, chat=False):
    """Planted pairs, the preferred side first or second by turns, and which it is."""
    table = tiny_models.planted(PAIRS, seed=4, chat=chat)
    first = np.arange(PAIRS) % 3 > 0
    better, worse = table["chosen"].to_pylist(), table["rejected"].to_pylist()
    sides = [(b, w) if won else (w, b) for b, w, won in zip(better, worse, first, strict=True)]
    columns = (table["prompt"].to_pylist(), *zip(*sides, strict=True))
    names = ("prompt", "first", "second")
    return pa.table({n: list(c) for n, c in zip(names, columns, strict=True)}), first


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return tiny_models.saved(tmp_path_factory.mktemp("base"), chat=True)


@pytest.fixture
def prepare(base):
    """A learner of planted pairs, or of others."""
    config = Path("settings.yaml")
    config.write_text(SETTINGS)

    def prepared(kind, pairs=None, lora=None):
        options = LearnerOptions(str(base), lora, str(config))
        return getattr(learners, kind)(_pairs()[0] if pairs is None else pairs, options)

    return prepared


def _opened(prepared, directory):
    directory.mkdir()
    return prepared.open(directory, no_progress)


def _fitted(learner, before=None):
    every = np.arange(PAIRS)
    return learner.fit(every, _pairs()[1].astype(float), np.full(PAIRS, 0.1), before)


@pytest.mark.parametrize("chat", [False, True], ids=["texts", "chats"])
@pytest.mark.parametrize("kind", ["dpo", "reward"])
def test_tokens_are_those_of_a_trainer(kind, chat, base):
    pairs, _ = _pairs(chat=chat)
    tokenizer = tiny_models.tokenizer(chat)
    rows = pairs.rename_columns(["prompt", "chosen", "rejected"])
    rows = rows.append_column("label_probability", pa.array(np.ones(PAIRS)))
    trainer, config = TRAINERS[kind]
    made = trainer(
        str(base),
        config("out", max_length=LONGEST, report_to="none"),
        train_dataset=Dataset(rows),
        processing_class=tokenizer,
    ).train_dataset
    ours = tokenize(kind, pairs, tokenizer, LONGEST)
    assert {name: made[name][:] for name in ours.column_names} == ours.to_pydict()


@pytest.mark.quick("full")
@pytest.mark.parametrize("lora", [None, "r=4,alpha=8"], ids=["full", "LoRA"])
def test_a_margin_is_the_log_ratio_to_the_base_model_in_every_stage(lora, prepare, base):
    prepared = prepare("dpo", lora=lora)
    learner = _opened(prepared, Path("stages"))
    last = _fitted(learner, _fitted(learner))
    [published] = prepared.files(last, Path())
    found = last(np.arange(PAIRS))
    aligned, reference = (_log_probs(path, prepared) for path in (published, base))
    ratio = aligned - reference
    np.testing.assert_allclose(found, 0.1 * (ratio[:, 0] - ratio[:, 1]), rtol=1e-3, atol=1e-4)
    assert np.abs(found).max() > 0.01


def _log_probs(path, prepared):
    """Of both sides of every pair, one at a time: shape (PAIRS, 2)."""
    model = AutoModelForCausalLM.from_pretrained(path).eval()

    def of(prompt, response):
        ids = torch.tensor([prompt + response])
        with torch.no_grad():
            log_probs = model(ids).logits[0, :-1].double().log_softmax(-1)
        own = log_probs.gather(1, ids[0, 1:, None])[:, 0]
        return float(own[len(prompt) - 1 :].sum())

    rows = prepared.training.tokens.to_pylist()
    sides = ("chosen_ids", "rejected_ids")
    return np.array([[of(row["prompt_ids"], row[side]) for side in sides] for row in rows])


@pytest.mark.slow
@pytest.mark.quick("dpo")
@pytest.mark.parametrize("kind", ["dpo", "reward"])
def test_a_margin_does_not_depend_on_the_pairs_around_it(kind, prepare):
    scorer = _fitted(_opened(prepare(kind), Path("stages")))
    every, some = np.arange(PAIRS), np.array([40, 3, 3, 17])
    np.testing.assert_allclose(scorer(some), scorer(every)[some], rtol=1e-4, atol=1e-5)
    assert scorer(every[:0]).shape == (0,)


@pytest.mark.slow
@pytest.mark.quick("dpo")
@pytest.mark.parametrize("kind", ["dpo", "reward"])
def test_a_restored_model_scores_to_the_last_bit_like_the_one_just_trained(kind, prepare):
    learner = _opened(prepare(kind), Path("stages"))
    trained, every = _fitted(learner), np.arange(PAIRS)
    again = prepare(kind).open(Path("stages"), no_progress).restore(trained.state())
    assert again._trainer is not trained._trainer
    assert np.array_equal(again(every), trained(every))


@pytest.mark.slow
@pytest.mark.parametrize("combine", ["hard", "soft"])
def test_stages_learn_a_planted_preference_from_flipped_labels(combine, prepare):
    prepared, first = prepare("dpo"), _pairs()[1]
    rows, draw = np.arange(PAIRS), np.random.default_rng(5)
    released = (first ^ (draw.random(PAIRS) < 0.1)).astype(np.uint8)
    labels = ReleasedLabels(rows, rows, rows % 2, rows % 5, released, np.full(PAIRS, 0.1))
    learner = _opened(prepared, Path("stages"))
    *_, last = run_stages(prepared.inputs, labels, learner, stages=2, combine=combine)
    assert last.report.error is not None and last.report.error.rate < 0.2
    assert (props.vote(last.scorer(rows)) == first).mean() > 0.9


def test_stages_are_trained_as_in_the_paper_unless_said_otherwise(base):
    prepared = learners.dpo(_pairs()[0], LearnerOptions(str(base)))
    trainer = prepared.training.trainer(Path(), prepared.training.example)
    args = trainer.args
    assert (args.num_train_epochs, args.per_device_train_batch_size) == (3, 4)
    assert args.learning_rate == 5e-5
    assert args.max_length == 256  # the model's positions, fewer than TRL's 1024


def _step(shop, kind, **options):
    return open_step(kind, {"model": "base", "train_config": "config.yaml", **options}, shop)


def _train(step, shop, output):
    nowhere: Any = None  # a language model asks no project
    return step.train(TrainingTask(shop / "rr", nowhere, output, no_progress))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("dpo", {}),
        ("reward", {}),
        ("dpo", {"lora": "r=4,alpha=8"}),
        ("reward", {"lora": "r=4,alpha=8"}),
    ],
)
def test_a_model_is_trained_once_and_its_margins_are_those_of_its_trainer(shop, kind, options):
    step = _step(shop, kind, **options)
    step.check("rr", None)
    learned = _train(step, shop, Path("model"))
    assert learned.facts == {"base": "base", "steps": 20}
    assert [point["step"] for point in learned.curve] == sorted(p["step"] for p in learned.curve)
    before = train_runs.weights(Path("model"))
    assert _train(step, shop, Path("model")) == learned
    after = train_runs.weights(Path("model"))
    assert all(np.array_equal(before[name], after[name]) for name in before)

    probes = read_preference_pairs(shop / "probes.parquet")
    margins = step.margins(Path("model"), probes)
    turned = pa.table(
        [probes["prompt"], probes["rejected"], probes["chosen"]],
        names=["prompt", "chosen", "rejected"],
    )
    assert np.allclose(step.margins(Path("model"), turned), -margins, atol=1e-4)
    from labelguard_trainer import train

    own = train(
        kind,  # type: ignore[arg-type]
        shop / "rr",
        shop / "base",
        output=Path("own"),
        config=shop / "config.yaml",
        probes=shop / "probes.parquet",
        lora=options.get("lora"),
    )
    assert own.evaluation.probes is not None
    assert float(((np.sign(margins) + 1) / 2).mean()) == own.evaluation.probes.accuracy


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "nowhere/at-all"}, r"options\.model: .*nowhere/at-all, and the hub does not"),
        ({"model": "./nowhere"}, r"options\.model: there is no directory .*nowhere$"),
        ({"model": None}, r"options\.model is missing: a directory, or an id of a hub"),
        ({"lora": "r=4"}, "LoRA is written"),
        ({"train_config": "missing.yaml"}, "missing.yaml"),
        ({"holdout": "much"}, r"train\.options\.holdout: "),
    ],
)
def test_what_cannot_be_trained_is_said_before_anything_is_charged(shop, options, said):
    with pytest.raises(LabelguardError, match=said):
        _step(shop, "dpo", **options).check("rr", None)


@pytest.mark.parametrize("lost", ["model.safetensors", "tokenizer.json"])
def test_a_base_model_that_is_not_whole_is_found_before_anything_is_charged(shop, lost):
    tiny_models.saved(Path("half"))
    _step(shop, "dpo", model="half").check("rr", None)
    (Path("half") / lost).unlink()
    with pytest.raises(LabelguardError, match=r"half.* cannot be loaded as a (model|tokenizer)"):
        _step(shop, "dpo", model="half").check("rr", None)


def test_a_base_of_raw_labels_is_refused(shop):
    tiny_models.saved(Path("raw"))
    matter = front_matter((), "raw")
    card = f"---\ntags:\n- non-private\n{matter}---\n"
    (Path("raw") / "TRAINING_CARD.md").write_text(card)
    with pytest.raises(LabelguardError, match="raw labels"):
        _step(shop, "dpo", model="raw").check("rr", None)
