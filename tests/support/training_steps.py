"""Steps of a trainer: their losses and gradients, and whether those of two trainers agree."""

import numpy as np
import torch
from transformers import TrainerCallback

QUIET = {"report_to": "none", "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1}


class Steps(TrainerCallback):  # type: ignore[misc]
    """The gradient of every step, as one vector."""

    def __init__(self):
        self.gradients: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, args, state, control, **more):
        grads = [p.grad.flatten() for p in more["model"].parameters() if p.grad is not None]
        self.gradients.append(torch.cat(grads).clone())


def fit(trainer):
    """The losses and gradients of all steps."""
    steps = Steps()
    trainer.add_callback(steps)
    trainer.train()
    return [log["loss"] for log in trainer.state.log_history if "loss" in log], steps.gradients


def assert_same_steps(one, other, tolerance=1e-6):
    assert len(one[0]) == len(other[0]) > 0
    np.testing.assert_allclose(one[0], other[0], rtol=0, atol=tolerance)
    for mine, theirs in zip(one[1], other[1], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=tolerance)
