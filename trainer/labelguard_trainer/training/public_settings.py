"""What cards and the ledger say of a training's settings: how it learned, and nothing else.

Settings may name accounts, directories and people's projects, which are nobody else's business.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["public_name", "public_settings"]

_NUMBERS = frozenset(
    {
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "beta",
        "bf16",
        "center_rewards_coefficient",
        "data_seed",
        "disable_dropout",
        "fp16",
        "frozen_backbone",
        "gradient_accumulation_steps",
        "gradient_checkpointing",
        "label_smoothing_factor",
        "learning_rate",
        "max_grad_norm",
        "max_length",
        "max_steps",
        "neftune_noise_alpha",
        "num_train_epochs",
        "per_device_eval_batch_size",
        "per_device_train_batch_size",
        "precompute_ref_log_probs",
        "router_aux_loss_coef",
        "seed",
        "warmup_steps",
        "weight_decay",
    }
)
_CHOICES = frozenset({"lr_scheduler_type", "optim"})  # texts of a list that the trainer checks


def public_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say how a model was trained, and `digest`, which is of all settings.

    Equal digests are equal settings: what is not shown can still be told to be the same.
    """
    shown = {
        name: value
        for name, value in settings.items()
        if name in _CHOICES or (name in _NUMBERS and isinstance(value, int | float | None))
    }
    text = json.dumps(settings, sort_keys=True, default=str)
    return {**shown, "digest": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"}


def public_name(model: str) -> str:
    """A model as it is told to others, who need not know where it lies here."""
    return Path(model).absolute().name if Path(model).exists() else model
