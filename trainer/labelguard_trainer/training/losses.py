"""Losses of preference rows whose labels are noisy, each with its own known probability.

z is the margin of `chosen` over `rejected`, shape (n,): a head's x·θ, a reward model's difference,
or β times DPO's difference of log-ratios. `target`, shape (n,), is the label or the probability
that `chosen` is preferred, in [0, 1]; `flip_probability` γ, shape (n,), is that with which a 0/1
target was flipped, in [0, ½), and 0 for a target to be taken as it is. With
ℓ(t; z) = −t log σ(z) − (1−t) log σ(−z):

- `plain` is ℓ(1; z), `soft` is ℓ(t; z);
- `forward` is the likelihood of a flipped label, −log[(1−γ)σ(z) + γσ(−z)] at t = 1: bounded below;
- `robust` is [(1−γ)ℓ(t; z) − γℓ(1−t; z)]/(1−2γ), whose mean over flips is ℓ of the true label:
  unbiased, unbounded below (aup-rlhf B.3; Chowdhury, Kini and Natarajan 2024, TRL's `robust`).

At γ = 0 `forward` and `robust` are `soft`. All return shape (n,), in float32 at least: a margin in
bfloat16 has three digits. Arguments are not checked: `rows` did that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

# (z, target, flip_probability) → losses, all of shape (n,).
Loss: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]


def plain(z: Tensor, target: Tensor, flip_probability: Tensor) -> Tensor:
    """−log σ(z): the row's `chosen` is taken at its word, whatever is known of its noise."""
    return softplus(-_precise(z))


def soft(z: Tensor, target: Tensor, flip_probability: Tensor) -> Tensor:
    """−t log σ(z) − (1−t) log σ(−z): the cross-entropy with a probability."""
    z = _precise(z)
    return target * softplus(-z) + (1 - target) * softplus(z)


def forward(z: Tensor, target: Tensor, flip_probability: Tensor) -> Tensor:
    """−t log P(1) − (1−t) log P(0) with P(1) = (1−γ)σ(z) + γσ(−z)."""
    z = _precise(z)
    stays, flips = torch.log1p(-flip_probability), torch.log(flip_probability)
    log_one, log_zero = logsigmoid(z), logsigmoid(-z)
    says_one = torch.logaddexp(stays + log_one, flips + log_zero)
    says_zero = torch.logaddexp(flips + log_one, stays + log_zero)
    return -target * says_one - (1 - target) * says_zero


def robust(z: Tensor, target: Tensor, flip_probability: Tensor) -> Tensor:
    """[(1−γ)ℓ(t; z) − γℓ(1−t; z)]/(1−2γ); with unequal γ to be weighted (`rows`)."""
    unflipped = soft(z, target, flip_probability)
    flipped = soft(z, 1 - target, flip_probability)
    return ((1 - flip_probability) * unflipped - flip_probability * flipped) / (
        1 - 2 * flip_probability
    )


LOSSES: Mapping[str, Loss] = {"forward": forward, "robust": robust, "soft": soft, "plain": plain}


def loss_of(preference_loss: str) -> Loss:
    """Return the loss of that name; `auto` is `forward`, which is `soft` for rows without flips."""
    return LOSSES["forward" if preference_loss == "auto" else preference_loss]


def _precise(z: Tensor) -> Tensor:
    return z if z.dtype == torch.float64 else z.float()
