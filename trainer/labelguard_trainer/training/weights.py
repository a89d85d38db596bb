"""Whether a base model has all its weights: what is missing would be drawn at random."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labelguard.errors import LabelguardError
from labelguard_trainer.training import models
from labelguard_trainer.training.settings import Kind

__all__ = ["check_whole"]


def check_whole(kind: Kind, name: str, init: Mapping[str, Any]) -> None:
    """Raises `LabelguardError` if a model's files lack weights that transformers would make up.

    A reward model's head, which is outside its backbone, may be new. `init` is as for `load_model`;
    the weights are named and not kept in memory.
    """
    given = {**init, "output_loading_info": True, "device_map": "meta"}
    given.pop("quantization_config", None)  # it wants a device
    model, found = models.load_model(kind, name, **given)
    backbone = f"{model.base_model_prefix}."
    missing = sorted(
        key for key in found["missing_keys"] if kind == "dpo" or key.startswith(backbone)
    )
    if missing:
        raise LabelguardError(
            f"{name} is not whole: {len(missing):,} of its weights are missing, {missing[0]} among "
            "them; copy the model again"
        )
