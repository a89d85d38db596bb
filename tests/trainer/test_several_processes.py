"""Training by two processes: the numbers of one, what is written once, and what is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import yaml
from accelerate.commands.config import load_config_from_file
from labelguard_trainer import train
from labelguard_trainer.alignment.align import align
from labelguard_trainer.gradient import loop
from labelguard_trainer.records.align import align_records
from labelguard_trainer.training import guard
from labelguard_trainer.training.runs import RunDirectory
from safetensors.numpy import load_file
from support import databases, sharded, tiny_models, train_runs
from support.commands import run
from support.copies import write_sums
from support.releases import make_release
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

import labelguard as lg
from labelguard.cli.main import main
from labelguard.errors import LabelguardError
from labelguard.processes import count_processes, is_first_process

TESTS = Path(__file__).parents[1]
EXAMPLE = TESTS.parent / "examples/fsdp.yaml"
STEPS = {"max_length": 64, "max_steps": 4, "logging_steps": 1, "optim": "sgd"}
RATES = {"dpo": 1.0, "reward": 0.1}
LORA = "r=4,alpha=8"
APART = """
import os, sys
from labelguard.cli.main import main
main([*sys.argv[1:], "--holdout", ("0.1", "0.2")[int(os.environ["RANK"])]])
"""


@pytest.fixture
def varied(beside):
    """A release beside the shop's, whose rows have each a γ of their own; and a dense base."""
    Path("varied").mkdir()
    for file in Path("rr").iterdir():
        Path("varied", file.name).write_bytes(file.read_bytes())
    rows = pl.read_parquet("varied/data.parquet")
    gamma = pl.Series("flip_probability", np.linspace(0.05, 0.45, len(rows)))
    rows.with_columns(gamma).write_parquet("varied/data.parquet")
    write_sums(Path("varied"))
    model = tiny_models.gpt2()
    for dropout in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):  # each process would drop others
        setattr(model.config, dropout, 0.0)
    model.save_pretrained("dense")
    tiny_models.tokenizer().save_pretrained("dense")


def _configure(kind, batch, lora=None):
    rate = RATES[kind] * (30 if lora else 1)  # the fewer weights, the larger
    settings = {**STEPS, "learning_rate": rate, "per_device_train_batch_size": batch}
    path = Path(f"{batch}.yaml")
    path.write_text(yaml.safe_dump(settings))
    return str(path)


def _launch(*arguments, script=("-m", "labelguard"), fsdp=False):
    """What two processes printed; `script` says what each of them runs."""
    if fsdp:
        how = ["-m", "accelerate.commands.launch", "--config_file", str(EXAMPLE)]
        how += ["--num_processes", "2", "--mixed_precision", "no", sharded.__file__]
    else:
        how = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", *script]
    return subprocess.run(
        [sys.executable, *how, *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def _train(kind, *, output="two", lora=None, **how):
    own = _configure(kind, 4, lora)
    fixed = ("varied", "--model", "base", "--train-config", own, "-o", output)
    more = ("--lora", lora) if lora else ()
    return _launch("train", kind, *fixed, *more, **how)


def _read_lines(model):
    return [json.loads(line) for line in Path(model, "metrics.jsonl").read_text().splitlines()]


def _assert_same_numbers(one, two):
    first, second = _read_lines(one), _read_lines(two)
    names = ("loss", "eval_loss", "eval_agreement", "grad_norm", "agreement")
    for mine, theirs in zip(first, second, strict=True):
        assert mine.keys() == theirs.keys()
        for name in mine.keys() & names:
            assert theirs[name] == pytest.approx(mine[name], abs=1e-5), (name, mine["step"])
    losses = [line["loss"] for line in first if "loss" in line]
    assert len(losses) == 4 and max(losses) - min(losses) > 1e-3  # something was learned


@pytest.mark.slow
@pytest.mark.parametrize("how", ["processes", "processes, LoRA", "shards", "shards, LoRA"])
@pytest.mark.parametrize("kind", ["dpo", "reward"])
def test_two_processes_train_the_model_of_one(kind, how, varied):
    lora = LORA if "LoRA" in how else None
    train(kind, "varied", "base", output="one", config=_configure(kind, 8, lora), lora=lora)
    done = _train(kind, lora=lora, fsdp="shards" in how)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("guarantee") == 1  # one process speaks
    assert not Path("two.partial").exists()
    _assert_same_numbers("one", "two")
    both = [json.loads(Path(model, "evaluation.json").read_text()) for model in ("one", "two")]
    assert both[0]["flipped"].keys() == both[1]["flipped"].keys()
    assert both[1]["flipped"]["accuracy"] == pytest.approx(both[0]["flipped"]["accuracy"], abs=0.1)
    assert {p.name for p in Path("one").iterdir()} == {p.name for p in Path("two").iterdir()}
    for name, weights in train_runs.weights(Path("one")).items():
        np.testing.assert_allclose(train_runs.weights(Path("two"))[name], weights, atol=1e-4)
    model = AutoModelForCausalLM if kind == "dpo" else AutoModelForSequenceClassification
    _, info = model.from_pretrained("two", output_loading_info=True)
    assert not info["missing_keys"]


@pytest.mark.slow
@pytest.mark.parametrize("fsdp", [False, True])
def test_two_processes_fine_tune_the_model_of_one(fsdp, varied):
    for name, batch in (("one", 8), ("two", 4)):
        own = {**STEPS, "learning_rate": 0.1, "per_device_train_batch_size": batch}
        recipe = {"release": "varied", "model": "dense", "sft": {"config": own, "lora": LORA}}
        recipe["reward"] = {"base": "base", "config": dict(own)}
        Path(f"{name}.yaml").write_text(yaml.safe_dump(recipe))
    for stage in ("sft", "reward"):
        align("one.yaml", output="one", stage=stage)
        done = _launch("align", stage, "two.yaml", "-o", "two", fsdp=fsdp)
        assert done.returncode == 0, done.stderr
        _assert_same_numbers(f"one/{stage}", f"two/{stage}")
        first, second = (load_file(f"{m}/{stage}/model.safetensors") for m in ("one", "two"))
        for name, weights in first.items():
            np.testing.assert_allclose(second[name], weights, atol=1e-4)
        again = _launch("align", stage, "two.yaml", "-o", "two", fsdp=fsdp)
        assert again.returncode == 0, again.stderr  # what is done is not done again


@pytest.mark.slow
@pytest.mark.parametrize("fsdp", [False, True])
def test_two_processes_that_were_killed_end_as_ones_that_were_not(fsdp, varied, monkeypatch):
    assert _train("dpo", output="whole", fsdp=fsdp).returncode == 0
    Path("killed.py").write_text(
        train_runs.KILLED.format(checkpoint=3).replace("main()", "") + _main_of(fsdp)
    )
    with monkeypatch.context() as patched:
        patched.setattr(sharded, "__file__", "killed.py")
        killed = _train("dpo", script=("killed.py",), fsdp=fsdp)
    assert killed.returncode != 0 and not Path("two").exists()
    left = RunDirectory(Path("two")).last_checkpoint()
    assert left is not None and left.name == "checkpoint-2"
    assert (left / "pytorch_model_fsdp_0").is_dir() == fsdp  # it is shards that were saved
    with pytest.raises(LabelguardError, match=r"other: processes"):
        train("dpo", "varied", "base", output="two", config="4.yaml")
    resumed = _train("dpo", fsdp=fsdp)
    assert resumed.returncode == 0 and "resumed" in resumed.stdout, resumed.stderr
    assert train_runs.same(Path("whole"), Path("two"))
    assert _read_lines("whole") == _read_lines("two")


@pytest.mark.slow
def test_processes_that_read_other_settings_do_not_train(varied):
    Path("apart.py").write_text(APART)
    done = _train("dpo", script=("apart.py",))
    assert done.returncode != 0 and "do not read the same" in done.stderr
    assert not Path("two").exists()


def test_the_example_is_a_configuration_that_accelerate_reads():
    read = load_config_from_file(str(EXAMPLE))
    assert read.distributed_type == "FSDP" and read.fsdp_config["fsdp_version"] == 2


# What several processes would do wrong, each by itself, is refused before anything is charged.


@pytest.fixture
def as_one_of_two(monkeypatch):
    """Begin to look like the first of two processes."""

    def begin():
        monkeypatch.setenv("WORLD_SIZE", "2")
        monkeypatch.setenv("RANK", "0")
        assert count_processes() == 2 and is_first_process()

    return begin


def test_commands_that_several_processes_would_do_each_by_itself_are_refused(as_one_of_two):
    as_one_of_two()
    for name in set(main.list_commands(None)) - {"train", "align"}:
        refused = run(name, code=1)
        assert f"labelguard {name} is done by one process, and 2 were launched" in refused.stderr
    Path("model").mkdir()
    refused = run("train", "publish", "model", "--to", "there", code=1)
    assert "labelguard train publish is done by one process" in refused.stderr


@pytest.mark.parametrize("options", [{"mechanism": "uls"}, {"learner": "dpo", "model": "base"}])
def test_two_processes_draw_no_noise_of_their_own(options, beside, as_one_of_two):
    project = lg.init("project")
    ledger = f"sqlite:///{project.state}/ledger.sqlite3"
    before = databases.dump(ledger) | {"meta": None}  # it counts jobs
    as_one_of_two()
    with pytest.raises(LabelguardError, match="is done by one process, and 2 were launched"):
        make_release(train_runs.labels(), project=project, **{"mechanism": "props", **options})
    assert databases.dump(ledger) | {"meta": None} == before
    with pytest.raises(LabelguardError, match="noisy steps is done by one process"):
        loop.train(None, None, None, None, None)  # type: ignore[arg-type]


def test_the_rest_of_alignment_is_of_one_process(beside, as_one_of_two):
    Path("recipe.yaml").write_text("release: statistic\nmodel: base\n")
    as_one_of_two()
    for one in (
        lambda: align("recipe.yaml", output="out"),
        lambda: align("recipe.yaml", output="out", stage="rl"),
        lambda: align_records("recipe.yaml", output="out"),
    ):
        with pytest.raises(LabelguardError, match="is done by one process, and 2 were launched"):
            one()
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("found", "kind", "fsdp", "words"),
    [
        (1, "NO", "false", "each would train by itself"),
        (2, "MULTI_CPU", "true", "FSDP shards over GPUs"),
    ],
)
def test_processes_that_do_not_share_a_training_are_refused(
    found, kind, fsdp, words, as_one_of_two, monkeypatch
):
    as_one_of_two()
    monkeypatch.setenv("ACCELERATE_USE_FSDP", fsdp)
    state = SimpleNamespace(distributed_type=kind)
    with pytest.raises(LabelguardError, match=words):
        guard.check_processes_joined(SimpleNamespace(world_size=found, distributed_state=state))


def _main_of(fsdp):
    own = "from support.sharded import PartialState, take_cpus_for_gpus\n"
    own += "PartialState.__init__ = take_cpus_for_gpus\n"
    return f"{own if fsdp else ''}main()\n"
