"""Learning from releases: DPO and reward models that honour the noise of every row, and features.

    import labelguard as lg
    from labelguard_trainer import DPOConfig, DPOTrainer
    trainer = DPOTrainer(
        "openai-community/gpt2", DPOConfig("out"), train_dataset=lg.load("releases/r1", "datasets")
    )
    trainer.train()

TRL's own trainers read a release too, but drop its probabilities silently and learn its noise.
Importing this is light; torch, transformers and TRL load at first use, and `losses` needs torch
alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labelguard_trainer.features.cache import VectorCache as VectorCache
    from labelguard_trainer.features.encoder import EncoderConfig as EncoderConfig
    from labelguard_trainer.features.encoder import FrozenEncoder as FrozenEncoder
    from labelguard_trainer.training.dpo import DPOConfig as DPOConfig
    from labelguard_trainer.training.dpo import DPOTrainer as DPOTrainer
    from labelguard_trainer.training.evaluate import TrainingResult as TrainingResult
    from labelguard_trainer.training.kto import KTOConfig as KTOConfig
    from labelguard_trainer.training.kto import KTOTrainer as KTOTrainer
    from labelguard_trainer.training.reward import RewardConfig as RewardConfig
    from labelguard_trainer.training.reward import RewardTrainer as RewardTrainer
    from labelguard_trainer.training.run import train as train
    from labelguard_trainer.training.training_card import publish_model as publish_model

_MODULES = {
    "DPOConfig": "training.dpo",
    "DPOTrainer": "training.dpo",
    "EncoderConfig": "features.encoder",
    "FrozenEncoder": "features.encoder",
    "KTOConfig": "training.kto",
    "KTOTrainer": "training.kto",
    "RewardConfig": "training.reward",
    "RewardTrainer": "training.reward",
    "TrainingResult": "training.evaluate",
    "VectorCache": "features.cache",
    "publish_model": "training.training_card",
    "train": "training.run",
}
__all__ = [*_MODULES]


# Trainers of TRL that take no noise of rows here, and what does.
_OTHERS = {
    "CPO": "SimPO and CPO are the logistic loss of another margin: give that to losses.forward, or "
    "train with DPOTrainer",
    "ORPO": "ORPO also imitates `chosen`, so flipped rows teach what people rejected: train with "
    "DPOTrainer",
}


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if module := _MODULES.get(name):
        if not module.startswith("features"):
            import_module("labelguard_trainer.training").check_installation()
        return getattr(import_module(f"labelguard_trainer.{module}"), name)
    why = _OTHERS.get(name.removesuffix("Trainer").removesuffix("Config"))
    hint = f": {why}" if why else ""
    raise AttributeError(f"module 'labelguard_trainer' has no attribute {name!r}{hint}")
