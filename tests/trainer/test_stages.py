"""Stages of PROPS with language models: tokens, margins, the reference, where a stage begins.

Language models as steps of a retraining job: trained and asked like `labelguard train`.
"""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from click.testing import CliRunner
from datasets import Dataset
from labelguard_trainer import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer
from labelguard_trainer.gradient.language_runs import choose_label_limit
from labelguard_trainer.gradient.loop import Checkpoints
from labelguard_trainer.training import learners
from labelguard_trainer.training import stages as training_stages
from labelguard_trainer.training.stage_training import tokenize
from support import tiny_models, train_runs, world
from support.commands import FIRST
from support.copies import copy_project
from support.killed_stages import MOMENTS, killed
from support.preferences import files
from support.worlds import Run, Scenario, differences
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from labelguard.cli.main import main
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


@pytest.mark.slow
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


# `--mechanism props|uls|els|aup --learner dpo|reward`, from the command to the published model.

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


@pytest.mark.slow
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


@pytest.mark.quick("command1", "command4", "command6", "command8")
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
