"""`--mechanism props --learner dpo|reward`, from the command to the published model."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner, Result
from support import tiny_models
from support.commands import FIRST
from support.killed_stages import MOMENTS, killed
from support.worlds import Run, Scenario, differences
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from labelguard.cli.main import main

pytestmark = pytest.mark.xdist_group("trl")

QUICK = "max_length: 64\nmax_steps: 4\nsave_steps: 2\nlearning_rate: 1e-3\n"
PROPS = ("privatize", *FIRST, "--mechanism", "props", "--epsilon", "8", "--delta", "1e-5")
DPO = ("--learner", "dpo", "--model", "base", "--train-config", "quick.yaml")
REWARD = ("--learner", "reward", *DPO[2:])
LORA = ("--lora", "r=2,alpha=4")
MODELS = {"dpo": AutoModelForCausalLM, "reward": AutoModelForSequenceClassification}
Labelguard = Callable[..., Result]


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Base models and labels, of texts and of chats."""
    directory = tmp_path_factory.mktemp("workshop")
    tiny_models.saved(directory / "base")
    tiny_models.saved(directory / "talker", chat=True)
    (directory / "quick.yaml").write_text(QUICK)
    for name, chat in (("labels.jsonl", False), ("chats.jsonl", True)):
        rows = tiny_models.planted(40, chat=chat).to_pylist()
        lines = [json.dumps({"labeler_id": f"w{n % 10}", **row}) for n, row in enumerate(rows)]
        (directory / name).write_text("\n".join(lines))
    return directory


@pytest.fixture
def labelguard(workshop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Labelguard:
    """The command in a new project beside the workshop's things."""
    for path in workshop.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(main, arguments, catch_exceptions=False)

    assert run("init").exit_code == 0
    return run


def _published(directory: Path) -> dict[str, bytes]:
    """What a release holds, but for the card, which tells its id and time."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in ("card.json", "CARD.md", "SHA256SUMS")
    }


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
def test_a_release_holds_its_rows_and_the_last_model(
    options: tuple[str, ...], labels: str, labelguard: Labelguard
) -> None:
    result = labelguard(*PROPS, *options, labels, "-o", "out")
    assert result.exit_code == 0, result.output
    assert labelguard("release", "verify").exit_code == 0
    card, rows = json.loads(Path("out/card.json").read_text()), pl.read_parquet("out/data.parquet")
    soft = "soft" in options
    assert card["train_with"] == ("soft" if soft else "plain") and len(rows) == 40
    assert len(card["props"]["stages"]) == (3 if "3" in options else 2)
    assert rows["label_probability" if soft else "residual_flip_estimate"].null_count() == 0
    model = MODELS[options[1]].from_pretrained("out/model")
    tokenizer = AutoTokenizer.from_pretrained("out/model")
    assert model(**tokenizer("tea?", return_tensors="pt")).logits.isfinite().all()
    assert model.config.pad_token_id == tokenizer.pad_token_id
    base = MODELS[options[1]].from_pretrained(options[3])
    assert not model.transformer.h[1].attn.c_attn.weight.equal(
        base.transformer.h[1].attn.c_attn.weight
    )
    assert not any(Path(".labelguard/props").iterdir()), "stages were left behind"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--learner", "dpo"), "--model"),
        (("--learner", "dpo", "--model", "nowhere"), "nowhere"),
        (("--learner", "reward", "--model", "labels.jsonl"), "labels.jsonl"),
        ((*DPO, "--lora", "r=2"), "alpha"),
        ((*DPO, "--lora", "r=2,alpha=4,targets=c_nothing"), "c_nothing"),
        (("--learner", "dpo", "--model", "base", "--train-config", "long.yaml"), "positions"),
        (("--learner", "dpo", "--model", "base", "--train-config", "wrong.yaml"), "learning_rate"),
        (("--learner", "dpo", "--model", "base", "--train-config", "blind.yaml"), "eval_dataset"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_anything_is_charged(
    options: tuple[str, ...], words: str, labelguard: Labelguard
) -> None:
    Path("long.yaml").write_text("max_length: 4096\n")
    Path("wrong.yaml").write_text("learning_rat: 1\n")
    Path("blind.yaml").write_text("eval_strategy: steps\neval_steps: 1\n")
    before = Path(".labelguard/ledger.head").read_bytes()
    result = labelguard(*PROPS, *options, "labels.jsonl")
    assert result.exit_code == 1
    assert words in result.stderr.strip().splitlines()[-1]
    assert Path(".labelguard/ledger.head").read_bytes() == before
    assert not any(Path(".labelguard/releases").iterdir())


def test_chats_need_a_chat_template(labelguard: Labelguard) -> None:
    result = labelguard(*PROPS, *DPO, "chats.jsonl")
    assert result.exit_code == 1 and "no chat template" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [m if m == "inside stage 2" else pytest.param(m, marks=pytest.mark.slow) for m in MOMENTS],
)
def test_a_release_that_was_killed_is_the_one_it_would_have_been(
    moment: str, labelguard: Labelguard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = (*PROPS, *DPO, "--combine", "soft", "labels.jsonl", "-o", "out")
    command += ("--project", ".")  # by name, because a copy of it is not trusted
    assert killed(moment, tmp_path, command) == -signal.SIGKILL
    anew = tmp_path.with_name(f"{tmp_path.name}-anew")
    shutil.copytree(tmp_path, anew, symlinks=True)
    [stages] = (anew / ".labelguard" / "props").glob("*/")
    shutil.rmtree(stages)
    trained: list[int] = []
    _count_training(monkeypatch, trained)
    assert labelguard(*command).exit_code == 0
    resumed, trained[:] = sum(trained), []
    monkeypatch.chdir(anew)
    assert labelguard(*command).exit_code == 0
    assert resumed < sum(trained) == 8
    assert _published(tmp_path / "out") == _published(anew / "out")


def _count_training(monkeypatch: pytest.MonkeyPatch, steps: list[int]) -> None:
    """Count optimizer steps."""
    from labelguard_trainer.training import stages

    told = stages._Reporting.on_step_end

    def counted(self: Any, *arguments: Any, **options: Any) -> None:
        steps.append(1)
        told(self, *arguments, **options)

    monkeypatch.setattr(stages._Reporting, "on_step_end", counted)


def test_nothing_but_released_labels_decides_what_a_model_learns(
    workshop: Path, tmp_path: Path
) -> None:
    options = ("--mechanism", "props", "--learner", "dpo", "--combine", "soft")
    options += ("--model", str(workshop / "base"), "--train-config", str(workshop / "quick.yaml"))
    assert differences(tmp_path, "pairs", Scenario((Run((*options, "-o", "{output}")),)), [2]) == []
