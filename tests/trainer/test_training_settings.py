"""What a user writes of a training run is read, or the field that is wrong is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from labelguard_trainer.training.settings import check_fields, parse_lora, read_config

from labelguard.errors import LabelguardError

pytest.importorskip("trl")
pytestmark = pytest.mark.xdist_group("trl")


def test_lora_on_one_line() -> None:
    assert parse_lora("r=16, alpha=32") == {"r": 16, "lora_alpha": 32}
    assert parse_lora("r=4,alpha=8,dropout=.05,targets=c_attn+c_proj") == {
        "r": 4,
        "lora_alpha": 8,
        "lora_dropout": 0.05,
        "target_modules": ["c_attn", "c_proj"],
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("r=16", "alpha is missing"),
        ("alpha=16", "r is missing"),
        ("r=16,alpha=32,rank=2", "'rank=2'"),
        ("r=16,r=8,alpha=32", "'r=8'"),
        ("r=0,alpha=32", "r must be"),
        ("r=16,alpha=1.5", "alpha must be"),
        ("r=16,alpha=32,dropout=1", "dropout must be"),
        ("r=16,alpha=32,dropout=much", "dropout must be"),
        ("r=16,alpha=32,targets=a++b", "targets are names"),
    ],
)
def test_what_is_wrong_with_lora_is_named(text: str, named: str) -> None:
    with pytest.raises(LabelguardError, match="LoRA") as raised:
        parse_lora(text)
    assert named in str(raised.value)


def test_a_config_is_a_mapping_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text("learning_rate: 1.0e-5\nnum_train_epochs: 3\n")
    assert read_config(path) == {"learning_rate": 1e-5, "num_train_epochs": 3}
    path.write_text("learning_rate: 1e-5\nlr_scheduler_kwargs: {eta: 2e3, name: e5}\n")
    settings = {"eta": 2e3, "name": "e5"}
    assert read_config(path) == {"learning_rate": 1e-5, "lr_scheduler_kwargs": settings}
    path.write_text("# nothing\n")
    assert read_config(path) == {}


@pytest.mark.parametrize("text", ["- a\n- b\n", "beta", "1: 2\n", "a: [1\nb: 2\n", "a: !!x {}"])
def test_what_is_no_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(text)
    with pytest.raises(LabelguardError, match=r"train\.yaml"):
        read_config(path)


def test_a_config_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LabelguardError, match="there is no "):
        read_config(tmp_path / "none.yaml")


def test_fields_of_the_trainers_own_are_taken() -> None:
    check_fields("dpo", {"beta": 0.1, "learning_rate": 1e-5, "gradient_checkpointing": False})
    check_fields("reward", {"center_rewards_coefficient": 0.01, "frozen_backbone": True})


def test_an_unknown_field_is_told_with_the_nearest() -> None:
    with pytest.raises(LabelguardError, match="did you mean learning_rate"):
        check_fields("dpo", {"learning_rat": 1e-5})
    with pytest.raises(LabelguardError, match="RewardConfig has no field 'ref_model_sync_steps'"):
        check_fields("reward", {"ref_model_sync_steps": 3})


@pytest.mark.parametrize("name", ["output_dir", "non_private", "preference_loss"])
def test_fields_that_the_command_sets_are_refused(name: str) -> None:
    with pytest.raises(LabelguardError, match=f"{name} cannot be set in a config"):
        check_fields("dpo", {name: "x"})
