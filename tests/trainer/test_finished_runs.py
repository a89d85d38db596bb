"""What a training does around its last step: the reference, a kill at the end, divergence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from labelguard_trainer.training import fitting
from support import train_runs

from labelguard.cli.main import main

pytestmark = pytest.mark.xdist_group("trl")
Train = Callable[..., Result]

CONSTANT = "learning_rate: 1.0e-3\nlr_scheduler_type: constant\n"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_runs.workshop(tmp_path_factory.mktemp("workshop"))


@pytest.fixture
def train(shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """`labelguard train KIND rr -o out` by the settings of `QUICK` and more."""
    for path in shop.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)

    def run(
        *options: str, more: str = "", kind: str = "dpo", output: str = "out", release: str = "rr"
    ) -> Result:
        Path("own.yaml").write_text(train_runs.QUICK + more)
        fixed = ("--model", "base", "--train-config", "own.yaml", "-o", output)
        return CliRunner().invoke(main, ["train", kind, release, *fixed, *options])

    return run


def _done(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    said: dict[str, Any] = json.loads(result.stdout)
    return said


@pytest.mark.slow
def test_a_reference_that_is_computed_beforehand_serves_the_evaluation_too(train: Train) -> None:
    options = ("--probes", "probes.parquet", "--json")
    kept = _done(train(*options, more=CONSTANT, output="kept"))
    before = train(*options, more=CONSTANT + "precompute_ref_log_probs: true\n")
    said = _done(before)
    assert not before.stderr
    for kind in ("probes", "flipped"):
        for name, value in kept["evaluation"][kind].items():
            assert said["evaluation"][kind][name] == pytest.approx(value)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dpo", "reward"])
def test_a_run_that_was_killed_after_its_last_step_takes_no_other(
    kind: str, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(fitting, "_evaluation", killed)
        assert train(kind=kind, more=CONSTANT).exit_code == 130
    checkpoint = Path("out.partial/checkpoints/checkpoint-4")
    trained = train_runs.weights(checkpoint)
    said = _done(train("--json", kind=kind, more=CONSTANT))
    assert said["steps"] == 4 and said["resumed"] and said["evaluation"]["flipped"]
    finished = train_runs.weights(Path("out"))
    assert finished.keys() == trained.keys()
    assert all((finished[name] == trained[name]).all() for name in trained)
    lines = Path("out/metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 4


@pytest.mark.quick("0")
@pytest.mark.parametrize("holdout", ["0", "0.1"])
def test_a_training_that_diverged_publishes_nothing(holdout: str, train: Train) -> None:
    more = "learning_rate: 1.0e30\nmax_grad_norm: 0\neval_strategy: 'no'\n"
    result = train("--holdout", holdout, more=more)
    assert result.exit_code == 1 and not Path("out").exists()
    [line] = result.stderr.splitlines()
    assert "training diverged" in line and "lower learning_rate" in line


@pytest.mark.slow
def test_a_command_that_left_no_checkpoint_can_be_mended(train: Train) -> None:
    assert train(more="optim: adam_who\n").exit_code == 1
    assert train(more="beta: null\n").exit_code == 1
    assert Path("out.partial").is_dir()
    assert _done(train("--json"))["steps"] == 4


@pytest.mark.slow
def test_a_kill_while_the_rest_is_removed_leaves_a_directory_that_is_known(
    train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = shutil.rmtree

    def killed(path: Path, *arguments: Any, **options: Any) -> None:
        if Path(path).name == "checkpoints":
            raise KeyboardInterrupt
        whole(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", killed)
        assert train().exit_code == 130
    assert Path("out/model.safetensors").exists() and Path("out.partial/run.json").exists()
    Path("out").rename("first")
    assert not _done(train("--json", more="learning_rate: 1.0e-3\n"))["resumed"]
    assert not Path("out.partial").exists()


@pytest.mark.slow
def test_rows_with_their_noise_in_a_file_are_said_to_be_trained_by_it(train: Train) -> None:
    said = _done(train("--non-private", "--json", release="rr/data.parquet"))
    assert said["loss"] == "forward" and said["release"] is None
    assert "| loss | `forward`" in Path("out/TRAINING_CARD.md").read_text()
