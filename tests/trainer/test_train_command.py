"""`labelguard train` from a release to a model: what comes out, is refused, is resumed."""

import json
import logging
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args
from unittest.mock import Mock

import polars as pl
import pyarrow.parquet as pq
import pytest
import yaml
from labelguard_trainer.training import command, dpo, fitting, reporting
from labelguard_trainer.training.rows import PreferenceLoss
from labelguard_trainer.training.run import train as train_on
from labelguard_trainer.training.runs import RunDirectory
from safetensors.numpy import load_file, save_file
from support import commands, tiny_models, train_runs
from support.copies import write_sums
from support.releases import make_release
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
)

import labelguard as lg
from labelguard.errors import LabelguardError


@pytest.fixture
def train(beside):
    """`labelguard train …`, with `base`, `config.yaml`, `labels.parquet` and releases beside it."""

    def run(kind, release, *options, config="quick.yaml", output="out"):
        fixed = {"--model": "base", "--train-config": config, "--output": output}
        words = [word for one in fixed.items() if one[0] not in options for word in one]
        return commands.run("train", kind, release, *words, *options, code=None)

    return run


def _read_result(result):
    """The JSON of a command that succeeded."""
    assert result.exit_code == 0, result.output
    said: dict[str, Any] = json.loads(result.stdout)
    return said


def _check(result, *words, begun=False):
    """It ended with one line that holds these words; only a run that was `begun` left anything."""
    assert result.exit_code == 1, result.output
    [line] = result.stderr.strip().splitlines()
    assert all(word in line for word in words), line
    left = {path.name for path in Path().iterdir() if not path.is_symlink()}
    assert not left & ({"out"} if begun else {"out", "out.partial"})


@pytest.fixture
def begin(train):
    """`labelguard train KIND rr -o out` by the settings of `QUICK`; `more` changes some."""

    def run(*options, more="", kind="dpo", release="rr"):
        settings = yaml.safe_load(train_runs.QUICK) | (yaml.safe_load(more) or {})
        Path("own.yaml").write_text(yaml.safe_dump(settings))
        return train(kind, release, *options, config="own.yaml")

    return run


CONSTANT = "learning_rate: 1.0e-3\nlr_scheduler_type: constant\n"


@pytest.mark.quick("dpo-rr-forward-flipped", "reward-statistic-soft-teacher")
@pytest.mark.parametrize(
    ("release", "loss", "told"),
    [
        ("rr", "forward", "flipped"),
        ("statistic", "soft", "teacher"),
        ("soft", "soft", "teacher"),
        ("hard", "plain", "labels"),
    ],
)
@pytest.mark.parametrize("kind", ["dpo", "reward"])
def test_a_release_becomes_a_model_with_its_guarantee(kind, release, loss, told, train):
    said = _read_result(train(kind, release, "--probes", "probes.parquet", "--json"))
    assert said["loss"] == loss and said["epsilon"] == 20 and said["delta"] == 1e-5
    rows = pq.read_metadata(f"{release}/data.parquet").num_rows
    assert said["rows"] + said["left_out"] + said["held_out"] == rows and said["held_out"] > 5
    found = said["evaluation"]
    assert {name for name, value in found.items() if value} == {told, "probes"}
    assert found["probes"]["rows"] == 40
    beside = {"longer_response", "majority_side"} | ({"teacher"} if release != "rr" else set())
    assert set(found["probes"]["baselines"]) == beside
    assert set(found[told]["baselines"]) == beside - ({"teacher"} if told == "teacher" else set())
    pairs = pl.read_parquet("probes.parquet").select("chosen", "rejected").rows()
    longer = [(len(one) > len(other)) + (len(one) == len(other)) / 2 for one, other in pairs]
    assert found["probes"]["baselines"]["longer_response"] == pytest.approx(sum(longer) / 40)
    assert found == json.loads(Path("out/evaluation.json").read_text())
    text = Path("out/TRAINING_CARD.md").read_text()
    card = json.loads(Path(release, "card.json").read_text())
    said_there = ("ε = 20, δ = 1e-5", "post-processing", card["release"], f"`{loss}`")
    assert [line for line in said_there if line not in text] == []
    assert all(f"- {line}\n" in text for line in card["not_protected"])
    lines = Path("out/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == sorted(steps) and steps[-1] == said["steps"] == 4
    assert Path("out/curves.svg").read_text().startswith("<?xml")
    assert Path("out/curves.png").read_bytes().startswith(b"\x89PNG")
    model = AutoModelForCausalLM if kind == "dpo" else AutoModelForSequenceClassification
    _, info = model.from_pretrained("out", output_loading_info=True)
    assert not info["missing_keys"]
    assert not Path("out.partial").exists() and not Path("out/training_args.bin").exists()


@pytest.mark.slow
def test_the_terminal_shows_facts_and_no_text_of_a_pair(train):
    result = train("dpo", "rr")
    assert result.exit_code == 0, result.output
    assert "ε = 20, δ = 1e-5 for every labeler" in result.stdout
    assert "rows kept aside, corrected for their flips" in " ".join(result.stdout.split())
    assert not result.stderr
    words = {*tiny_models.TOPICS, *tiny_models.PREFERRED[1:], *tiny_models.OTHERS[1:]}
    assert not words & set(result.output.replace("?", " ").split())


def test_a_piece_of_a_prompt_in_a_warning_of_trl_goes_nowhere(caplog):
    assert dpo.trl  # its loggers are there
    with reporting.silence_libraries() as heard:
        logger = logging.getLogger("trl.trainer.dpo_trainer")
        logger.warning("The tokenized prompt is not a prefix of …: 'a piece of it'")
    assert heard.prompt_differs and not caplog.records


@pytest.mark.slow
def test_a_model_of_raw_labels_gets_no_guarantee_by_a_release(train):
    _read_result(train("dpo", "labels.parquet", "--non-private", "--json", output="raw"))
    again = train("dpo", "rr", "--model", "raw", output="washed")
    assert again.exit_code == 1 and not Path("washed.partial").exists()
    assert "raw was trained on raw labels, says its TRAINING_CARD.md" in again.stderr
    Path("raw/TRAINING_CARD.md").rename("raw/README.md")
    assert "says its README.md" in train("dpo", "rr", "--model", "raw", output="washed").stderr


@pytest.mark.slow
def test_the_price_of_a_bases_release_is_added(train):
    _read_result(train("dpo", "rr", "--json", output="first"))
    said = "provided that the base model is public"
    assert said in Path("first/TRAINING_CARD.md").read_text()
    _read_result(train("dpo", "rr", "--model", "first", "--json", output="again"))
    assert said in Path("again/TRAINING_CARD.md").read_text()  # the same release, at no price
    _read_result(train("dpo", "soft", "--model", "again", "--json", output="second"))
    card = Path("second/TRAINING_CARD.md").read_text()
    release = json.loads(Path("rr/card.json").read_text())["release"]
    assert f"`{release}`, ε = 20, δ = 1e-5 for every labeler" in card
    assert "add**" in card and said not in card
    assert card.partition("\n---\n")[0].count("release: ") == 2


@pytest.mark.slow
def test_a_killed_training_ends_as_an_uninterrupted_one(train):
    whole = _read_result(train("dpo", "rr", "--json", config="config.yaml", output="whole"))
    typed = ["train", "dpo", "rr", "--model", "base", "--train-config", "config.yaml", "-o", "out"]
    killed = subprocess.run(
        [sys.executable, "-c", train_runs.KILLED.format(checkpoint=6), *typed], capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert not Path("out").exists()
    last = RunDirectory(Path("out")).last_checkpoint()
    assert last == Path("out.partial/checkpoints/checkpoint-4")
    another = train("dpo", "rr", "--holdout", "0.2", config="config.yaml")
    assert another.exit_code == 1
    assert "begun by another command (other: holdout)" in another.stderr
    resumed = _read_result(train("dpo", "rr", "--json", config="config.yaml"))
    assert resumed == whole | {"path": "out", "resumed": True}
    assert train_runs.same(Path("out"), Path("whole"))
    for name in ("TRAINING_CARD.md", "evaluation.json", "metrics.jsonl", "curves.svg"):
        assert Path("out", name).read_bytes() == Path("whole", name).read_bytes(), name


@pytest.mark.slow
def test_it_reads_a_release_and_nothing_else_of_its_project(train):
    project = lg.init(Path("project"))
    release = make_release(train_runs.labels(), project=project, mechanism="rr", delta=1e-5)
    named = _read_result(train("dpo", release.id, "--project", "project", "--json", output="named"))
    shutil.copytree(release.path, "copy")
    shutil.rmtree("project")
    copied = _read_result(train("dpo", "copy", "--json"))
    assert copied == named | {"path": "out"}
    assert train_runs.same(Path("out"), Path("named"))


def test_raw_labels_are_refused_until_that_is_typed(train):
    _check(train("dpo", "labels.parquet"), "raw labels are refused", "--non-private")
    more = ("--non-private", "--eval-pairs", "5", "--json")
    said = _read_result(train("dpo", "labels.parquet", *more))
    assert said["evaluated"] == said["evaluation"]["labels"]["rows"] <= 5 < said["held_out"]
    assert said["release"] is said["epsilon"] is said["delta"] is None
    assert said["loss"] == "plain" and "raw labels" in said["notes"][0]
    card = Path("out/TRAINING_CARD.md").read_text().partition("---\n\n")[2]
    assert card.startswith("**No guarantee: this model was trained on raw labels")
    assert "post-processing" not in card and "No raw label" not in card


def test_a_card_does_not_make_raw_labels_a_release(train):
    shutil.copytree("rr", "forged")
    names = ["label_probability", "flip_probability", "residual_flip_estimate"]
    rows = pl.read_parquet("forged/data.parquet")
    rows.with_columns(pl.lit(None, pl.Float64).alias(name) for name in names).write_parquet(
        "forged/data.parquet"
    )
    _check(train("dpo", "forged"), "data.parquet was altered")
    write_sums(Path("forged"))
    _check(train("dpo", "forged"), "raw labels are no release")
    _check(train("dpo", "rr", "--non-private"), "rr is none")


@pytest.mark.parametrize(
    ("release", "options", "words"),
    [
        ("rr", ("--loss", "soft"), ("soft", "label_probability")),
        ("soft", ("--loss", "robust"), ("robust", "flip_probability")),
        ("rr", ("--model", "absent"), ("absent",)),
        ("rr", ("--probes", "quick.yaml"), ("quick.yaml",)),
        ("rr", ("--output", "base/x/y"), ("-o",)),
        ("rr", ("--output", "rr"), ("rr exists",)),
        ("rr", ("--output", "link"), ("link exists",)),
        ("rr", ("--model", ""), ("--model is empty",)),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_written(
    release, options, words, train
):
    Path("link").symlink_to("nowhere")
    _check(train("dpo", release, *options), *words)


def test_a_directory_of_others_is_left_alone(train):
    Path("out.partial").mkdir()
    Path("out.partial/thesis.txt").write_text("mine")
    result = train("dpo", "rr")
    assert result.exit_code == 1 and "no training's directory" in result.stderr
    assert [path.name for path in Path("out.partial").iterdir()] == ["thesis.txt"]


def test_the_command_offers_every_loss_there_is():
    assert set(command.LOSSES) == set(get_args(PreferenceLoss))


# Around the last step: the reference, a kill at the end, divergence.


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dpo", "reward"])
def test_a_run_that_was_killed_after_its_last_step_takes_no_other(kind, begin, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(fitting, "_evaluate", Mock(side_effect=KeyboardInterrupt))
        assert begin(kind=kind, more=CONSTANT).exit_code == 130
    checkpoint = Path("out.partial/checkpoints/checkpoint-4")
    trained = train_runs.weights(checkpoint)
    said = _read_result(begin("--json", kind=kind, more=CONSTANT))
    assert said["steps"] == 4 and said["resumed"] and said["evaluation"]["flipped"]
    finished = train_runs.weights(Path("out"))
    assert finished.keys() == trained.keys()
    assert all((finished[name] == trained[name]).all() for name in trained)
    lines = Path("out/metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 4


@pytest.mark.quick("0")
@pytest.mark.parametrize("holdout", ["0", "0.1"])
def test_a_training_that_diverged_publishes_nothing(holdout, begin):
    more = "learning_rate: 1.0e30\nmax_grad_norm: 0\neval_strategy: 'no'\n"
    result = begin("--holdout", holdout, more=more)
    assert result.exit_code == 1 and not Path("out").exists()
    [line] = result.stderr.splitlines()
    assert "training diverged" in line and "lower learning_rate" in line


@pytest.mark.slow
def test_a_kill_while_the_rest_is_removed_leaves_a_directory_that_is_known(begin, monkeypatch):
    whole = shutil.rmtree

    def killed(path, *arguments, **options):
        if Path(path).name == "checkpoints":
            raise KeyboardInterrupt
        whole(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        assert begin().exit_code == 130
    assert Path("out/model.safetensors").exists() and Path("out.partial/run.json").exists()
    Path("out").rename("first")
    assert not _read_result(begin("--json", more="learning_rate: 1.0e-3\n"))["resumed"]
    assert not Path("out.partial").exists()


# What is refused, by one line that names the file or the model.


@pytest.mark.quick("-options4-nonexistent")
@pytest.mark.parametrize(
    ("more", "options", "word"),
    [
        ("optim: adamm", (), "adamm"),
        ("eval_strategy: epoch", ("--holdout", "0"), "eval"),
        ("report_to: comet_ml", (), "omet"),
        ("model_init_kwargs: abc", (), "model_init_kwargs"),
        ("", ("--lora", "r=2,alpha=2,targets=nonexistent"), "nonexistent"),
        ("per_device_eval_batch_size: 0", (), "batch_size"),
        ("num_train_epochs: 0\nmax_steps: -1", (), "num_train_epochs"),
    ],
)
def test_settings_that_cannot_be_used_are_named_in_one_line(more, options, word, begin):
    _check(begin(*options, more=more), word, begun=True)


def _without_weights(model):
    (model / "model.safetensors").unlink()


def _wider(model):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"n_embd": 64}))


def _half(model):
    weights = load_file(model / "model.safetensors")
    left = {name: value for name, value in weights.items() if ".h.1." not in name}
    save_file(left, model / "model.safetensors", metadata={"format": "pt"})


def _make_masked_model(model):
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = BertForMaskedLM(BertConfig(vocab_size=258, intermediate_size=32, **sizes))
    shutil.rmtree(model)
    bert.save_pretrained(model)
    tiny_models.tokenizer().save_pretrained(model)


@pytest.mark.parametrize(
    ("damage", "kind", "word"),
    [
        (_without_weights, "dpo", "safetensors"),
        (_wider, "dpo", "own"),
        (_half, "dpo", "12 of its weights are missing"),
        (_half, "reward", "12 of its weights are missing"),
        (_make_masked_model, "dpo", "mine"),
    ],
)
def test_a_model_that_is_not_whole_or_of_another_kind_is_refused(damage, kind, word, begin):
    shutil.copytree("base", "mine")
    damage(Path("mine"))
    _check(begin("--model", "mine", kind=kind), "mine", word, begun=True)


@pytest.mark.parametrize(
    ("left", "error"),
    [("", "SHA256SUMS does not name"), ("card.json", "was added since the release was committed")],
)
def test_sums_that_name_too_little_check_nothing(left, error, begin):
    shutil.copytree("rr", "copy")
    lines = Path("copy/SHA256SUMS").read_text().splitlines(keepends=True)
    kept = [line for line in lines if left and line.endswith(f"  {left}\n")]
    Path("copy/SHA256SUMS").write_text("".join(kept))
    _check(begin(release="copy"), error)


def test_a_release_of_a_project_is_what_the_ledger_says(begin):
    project = lg.init(Path("project"))
    labels = train_runs.labels()
    release = make_release(labels, project=project, mechanism="rr", delta=1e-5)
    for name in ("data.parquet", "SHA256SUMS"):  # whole in itself, and not what was committed
        (release.path / name).chmod(0o644)
    rows = pl.read_parquet(release.path / "data.parquet").reverse()
    rows.write_parquet(release.path / "data.parquet")
    write_sums(release.path)
    result = begin("--project", "project", release=release.id)
    _check(result, "data.parquet was altered")


def test_a_kind_that_is_none_is_refused(beside):
    with pytest.raises(LabelguardError, match="sft"):
        train_on("sft", "rr", "base", output="out")  # type: ignore[arg-type]
