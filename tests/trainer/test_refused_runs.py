"""What `labelguard train` refuses: each by one line that names the file or the model."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from labelguard_trainer.training.run import train
from safetensors.numpy import load_file, save_file
from support import tiny_models, train_runs
from transformers import BertConfig, BertForMaskedLM

import labelguard as lg
from labelguard.cli.main import main
from labelguard.errors import LabelguardError

pytestmark = pytest.mark.usefixtures("beside")
Damage = Callable[[Path], object]


def _train(release: str = "rr", *options: str, more: str = "", kind: str = "dpo") -> Result:
    quick = train_runs.QUICK.splitlines(keepends=True)
    said = [line.partition(":")[0] for line in more.splitlines()]
    kept = [line for line in quick if line.partition(":")[0] not in said]
    Path("own.yaml").write_text("".join(kept) + more)
    fixed = ("--model", "base", "--train-config", "own.yaml", "-o", "out")
    return CliRunner().invoke(main, ["train", kind, release, *fixed, *options])


def _refused(result: Result, *words: str) -> None:
    assert result.exit_code == 1, result.output
    [line] = result.stderr.strip().splitlines()
    assert all(word in line for word in words), line
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("more", "options", "word"),
    [
        ("optim: adamm", (), "adamm"),
        ("bf16: true\nfp16: true", (), "bf16"),
        ("eval_strategy: epoch", ("--holdout", "0"), "eval"),
        ("report_to: comet_ml", (), "omet"),
        ("model_init_kwargs: abc", (), "model_init_kwargs"),
        ("", ("--lora", "r=2,alpha=2,targets=nonexistent"), "nonexistent"),
        ("learning_rate: fast", (), "own.yaml"),
        ("per_device_eval_batch_size: 0", (), "batch_size"),
        ("num_train_epochs: 0\nmax_steps: -1", (), "num_train_epochs"),
    ],
)
def test_settings_that_cannot_be_used_are_named_in_one_line(
    more: str, options: tuple[str, ...], word: str
) -> None:
    _refused(_train("rr", *options, more=more), word)


def _without_weights(model: Path) -> None:
    (model / "model.safetensors").unlink()


def _wider(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"n_embd": 64}))


def _half(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    left = {name: value for name, value in weights.items() if ".h.1." not in name}
    save_file(left, model / "model.safetensors", metadata={"format": "pt"})


def _masked(model: Path) -> None:
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
        (_masked, "dpo", "mine"),
    ],
)
def test_a_model_that_is_not_whole_or_of_another_kind_is_refused(
    damage: Damage, kind: str, word: str
) -> None:
    shutil.copytree("base", "mine")
    damage(Path("mine"))
    _refused(_train("rr", "--model", "mine", kind=kind), "mine", word)


@pytest.mark.parametrize("left", ["", "card.json"])
def test_sums_that_name_too_little_check_nothing(left: str) -> None:
    shutil.copytree("rr", "copy")
    lines = Path("copy/SHA256SUMS").read_text().splitlines(keepends=True)
    kept = [line for line in lines if left and line.endswith(f"  {left}\n")]
    Path("copy/SHA256SUMS").write_text("".join(kept))
    _refused(_train("copy"), "SHA256SUMS does not name")


def test_a_release_of_a_project_is_what_the_ledger_says() -> None:
    project = lg.init(Path("project"))
    labels = train_runs.labels()
    release = lg.privatize(labels, project=project, mechanism="rr", delta=1e-5)
    other = Path(release.path)
    for name in ("data.parquet", "SHA256SUMS"):  # whole in itself, and not what was committed
        (other / name).chmod(0o644)
    rows = pl.read_parquet(other / "data.parquet").reverse()
    rows.write_parquet(other / "data.parquet")
    digests = {path.name: _digest(path) for path in other.iterdir() if path.name != "SHA256SUMS"}
    lines = [f"{digest}  {name}\n" for name, digest in sorted(digests.items())]
    (other / "SHA256SUMS").write_text("".join(lines))
    _refused(_train(release.id, "--project", "project"), "data.parquet was altered")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("column", "values", "word"),
    [
        ("flip_probability", pl.lit("often"), "flip_probability"),
        ("prompt", pl.lit(7), "prompt"),
    ],
)
def test_a_column_of_raw_labels_that_cannot_be_read_is_named(
    column: str, values: pl.Expr, word: str
) -> None:
    table = pl.from_arrow(pq.read_table("labels.parquet"))
    assert isinstance(table, pl.DataFrame)
    table.with_columns(values.alias(column)).write_parquet("odd.parquet")
    _refused(_train("odd.parquet", "--non-private"), "odd.parquet", word)


def test_an_output_that_is_a_dangling_link_is_refused() -> None:
    Path("link").symlink_to("nowhere")
    _refused(_train("rr", "-o", "link"), "link exists")


def test_a_model_or_a_kind_that_is_none_is_refused() -> None:
    _refused(_train("rr", "--model", ""), "--model is empty")
    with pytest.raises(LabelguardError, match="sft"):
        train("sft", "rr", "base", output="out")  # type: ignore[arg-type]
