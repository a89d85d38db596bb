"""Short runs of DPO on tiny models, and the steps that they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from labelguard_trainer import DPOConfig
from support import tiny_models as tiny
from transformers import TrainerCallback

LENGTH = 64
QUIET = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1}


def config(directory: Path, **given: Any) -> DPOConfig:
    settings = {"max_length": LENGTH, "learning_rate": 3e-3, "max_steps": 4, **QUIET, **given}
    return DPOConfig(str(directory / "out"), **settings)


def noisy(pairs: int = 32, seed: int = 0) -> Dataset:
    """A release of flipped labels, each with a γ of its own."""
    gamma = np.random.default_rng(seed).uniform(0.05, 0.45, pairs)
    return tiny.release(pairs, seed, flip_probability=gamma)


class Steps(TrainerCallback):  # type: ignore[misc]
    """The gradient of every step, as one vector."""

    def __init__(self) -> None:
        self.gradients: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        grads = [p.grad.flatten() for p in more["model"].parameters() if p.grad is not None]
        self.gradients.append(torch.cat(grads).clone())


def trained(trainer: Any) -> tuple[list[float], list[torch.Tensor]]:
    """The losses and gradients of all steps."""
    steps = Steps()
    trainer.add_callback(steps)
    trainer.train()
    return [log["loss"] for log in trainer.state.log_history if "loss" in log], steps.gradients


def assert_same_steps(one: Any, other: Any, tolerance: float = 1e-6) -> None:
    assert len(one[0]) == len(other[0]) > 0
    np.testing.assert_allclose(one[0], other[0], rtol=0, atol=tolerance)
    for mine, theirs in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance)
