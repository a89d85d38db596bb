"""Losses of preference rows whose labels are noisy, each with its own known probability.

    from labelguard_trainer import losses
    loss = losses.dpo(chosen, rejected, ref_chosen, ref_rejected, flip_probability=gamma).mean()

Torch is all they need: they fit into any loop or trainer (docs/training.md#losses-alone).

z is the margin of `chosen` over `rejected`, shape (n,): a head's x·θ, a reward model's difference,
or β times DPO's difference of log-ratios. `target`, shape (n,), is the label or the probability
that `chosen` is preferred, in [0, 1]; `flip_probability` γ, shape (n,), is that with which a 0/1
target was flipped, in [0, ½), and 0 for a target to be taken as it is. With
ℓ(t; z) = −t log σ(z) − (1−t) log σ(−z):

- `plain` is ℓ(1; z), `soft` is ℓ(t; z);
- `forward` is the likelihood of a flipped label, −log[(1−γ)σ(z) + γσ(−z)] at t = 1: bounded below;
- `robust` is [(1−γ)ℓ(t; z) − γℓ(1−t; z)]/(1−2γ), whose mean over flips is ℓ of the true label:
  unbiased, unbounded below (aup-rlhf B.3; Chowdhury, Kini and Natarajan 2024, TRL's `robust`).

At γ = 0 `forward` and `robust` are `soft`. `dpo`, `ipo` and `kto` take log-probabilities of
answers; IPO and KTO have no likelihood, so theirs is the unbiased loss, which is bounded below for
both. All return shape (n,), in float32 at least: a margin in bfloat16 has three digits. Arguments
are not checked: `training.rows` did that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

# (z, target, flip_probability) → losses, all of shape (n,).
Loss: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
# Of all rows, or of each, shape (n,).
Probability: TypeAlias = Tensor | float


def plain(z: Tensor, target: Tensor, flip_probability: Tensor) -> Tensor:
    """−log σ(z): the row's `chosen` is taken at its word, whatever is known of its noise."""
    return softplus(-_widen_to_float32(z))


def soft(z: Tensor, target: Tensor, flip_probability: Tensor) -> Tensor:
    """−t log σ(z) − (1−t) log σ(−z): the cross-entropy with a probability."""
    z = _widen_to_float32(z)
    return target * softplus(-z) + (1 - target) * softplus(z)


def forward(z: Tensor, target: Tensor, flip_probability: Tensor) -> Tensor:
    """−t log P(1) − (1−t) log P(0) with P(1) = (1−γ)σ(z) + γσ(−z)."""
    z = _widen_to_float32(z)
    stays, flips = torch.log1p(-flip_probability), torch.log(flip_probability)
    log_one, log_zero = logsigmoid(z), logsigmoid(-z)
    says_one = torch.logaddexp(stays + log_one, flips + log_zero)
    says_zero = torch.logaddexp(flips + log_one, stays + log_zero)
    return -target * says_one - (1 - target) * says_zero


def robust(z: Tensor, target: Tensor, flip_probability: Tensor) -> Tensor:
    """[(1−γ)ℓ(t; z) − γℓ(1−t; z)]/(1−2γ); with unequal γ to be weighted (`rows`)."""
    z = _widen_to_float32(z)
    return estimate_true_loss(softplus(-z), softplus(z), target, flip_probability)


def estimate_true_loss(
    given: Tensor, turned: Tensor, target: Probability, flip: Probability
) -> Tensor:
    """Return an unbiased estimate of any loss of the true label, (n,), as `robust` is one.

    `given` is the loss if `chosen` is preferred, `turned` that if `rejected` is.
    """
    first, second = compute_unbiased_targets(target, flip)
    return first * given + second * turned


def compute_unbiased_targets(
    target: Probability, flip: Probability
) -> tuple[Probability, Probability]:
    """Return the unbiased targets of both sides: (t − γ)/(1 − 2γ) and (1 − t − γ)/(1 − 2γ)."""
    return (target - flip) / (1 - 2 * flip), (1 - target - flip) / (1 - 2 * flip)


LOSSES: Mapping[str, Loss] = {"forward": forward, "robust": robust, "soft": soft, "plain": plain}


def find_loss(preference_loss: str) -> Loss:
    """Return the loss of that name; `auto` is `forward`, which is `soft` for rows without flips."""
    return LOSSES["forward" if preference_loss == "auto" else preference_loss]


def dpo(
    chosen: Tensor,
    rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    *,
    target: Probability = 1.0,
    flip_probability: Probability = 0.0,
    beta: float = 0.1,
    loss: str = "auto",
) -> Tensor:
    """Return DPO's loss of each row, by `find_loss(loss)`.

    The first four are log-probabilities of whole answers, (n,) each, of the model and of its
    reference.

    Example:
        >>> z = torch.zeros(2)
        >>> losses.dpo(z, z, z, z, flip_probability=0.2)
        tensor([0.6931, 0.6931])
    """
    margin = beta * ((chosen - ref_chosen) - (rejected - ref_rejected))
    rows = (
        torch.as_tensor(value, device=margin.device).expand_as(margin)
        for value in (target, flip_probability)
    )
    return find_loss(loss)(margin, *rows)


def ipo(
    margin: Tensor,
    target: Probability = 1.0,
    flip_probability: Probability = 0.0,
    *,
    beta: float = 0.1,
) -> Tensor:
    """Return the unbiased loss of IPO (Azar et al. 2023, eq. 17) of each row.

    `margin`, (n,), is the difference of log-ratios of `chosen` and `rejected`, each a mean over its
    tokens, as TRL has it. Noise moves the margin that is aimed at from 1/(2β) to
    (2t − 1)/(1 − 2γ)/(2β): the loss is a square still.
    """
    margin, aim = _widen_to_float32(margin), 1 / (2 * beta)
    return estimate_true_loss((margin - aim) ** 2, (margin + aim) ** 2, target, flip_probability)


def kto(
    log_ratio: Tensor,
    kl: Tensor | float,
    desirable: Tensor,
    target: Probability = 1.0,
    flip_probability: Probability = 0.0,
    *,
    beta: float = 0.1,
) -> Tensor:
    """Return the unbiased loss of KTO (Ethayarajh et al. 2024, eq. 7) of each answer.

    `log_ratio`, (n,), is that of the model to its reference, `kl` the reference point of a batch,
    which no label enters. `desirable`, (n,), says which answers are the `chosen` of a pair; target
    and γ are those of the pair. Both losses of an answer add up to 1: noise scales the plain loss
    by (2t − 1)/(1 − 2γ), around ½.
    """
    sign = torch.where(desirable.bool(), 1.0, -1.0)
    given = torch.sigmoid(-sign * beta * (_widen_to_float32(log_ratio) - kl))
    return estimate_true_loss(given, 1 - given, target, flip_probability)


def _widen_to_float32(z: Tensor) -> Tensor:
    return z if z.dtype == torch.float64 else z.float()
