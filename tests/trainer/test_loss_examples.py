"""The examples of `examples/noisy_losses` run, and do what they say."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
import trl
from labelguard_trainer import losses
from support import tiny_models as tiny
from support.copies import release_copy
from support.train_runs import weights
from support.training_steps import QUIET, fit

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
